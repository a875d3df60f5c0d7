-- insert_group_changes --
-- Add the failures and deaths of one transaction, for the housekeeper to add to their groups.
INSERT INTO deadletter_group_change
       (fingerprint, name, queue, exception, frame, reason, error, release, failures, deaths, tags, at)
SELECT json_extract(value, '$.fingerprint'), json_extract(value, '$.name'),
       COALESCE(json_extract(value, '$.queue'),
                (SELECT q.name FROM deadletter_queue q WHERE q.id = json_extract(value, '$.queue_id')), ''),
       json_extract(value, '$.exception'), json_extract(value, '$.frame'), json_extract(value, '$.reason'),
       json_extract(value, '$.error'), json_extract(value, '$.release'), json_extract(value, '$.failures'),
       json_extract(value, '$.deaths'), json_extract(value, '$.tags'), %(now)s
  FROM json_each(%(rows)s);

-- insert_message_tags --
-- Remember the tags of messages that died. Those of an earlier death are kept from now on.
INSERT INTO deadletter_message_tag (message_id, key, value, at)
SELECT json_extract(value, '$.message_id'), json_extract(value, '$.key'), json_extract(value, '$.value'), %(now)s
  FROM json_each(%(rows)s)
 WHERE true
    ON CONFLICT (message_id, key, value) DO UPDATE SET at = excluded.at;

-- read_group_changes --
-- Read the oldest changes that are not yet added to their groups.
SELECT id, fingerprint, name, queue, exception, frame, reason, error, release, failures, deaths, tags, at || ''
  FROM deadletter_group_change
 ORDER BY id
 LIMIT %(limit)s;

-- delete_group_changes --
-- Delete changes that this transaction adds to their groups.
DELETE FROM deadletter_group_change WHERE id IN (SELECT value FROM json_each(%(ids)s));

-- lock_groups --
-- Read what decides on the states of groups.
SELECT fingerprint, state, state_at || '', failures, muted_until_failures, resolved_in, merged_into
  FROM deadletter_group
 WHERE fingerprint IN (SELECT value FROM json_each(%(fingerprints)s))
 ORDER BY fingerprint;

-- find_groups --
-- Return which of these groups exist.
SELECT fingerprint FROM deadletter_group
 WHERE fingerprint IN (SELECT value FROM json_each(%(fingerprints)s))
 ORDER BY fingerprint;

-- insert_groups --
-- Add new groups, without numbers: update_groups adds those.
INSERT INTO deadletter_group
       (fingerprint, name, queue, exception, frame, reason, error, failures, deaths, first_failed_at, last_failed_at,
        first_release, last_release, state, state_at, state_by, resolved_in, owner, ticket, merged_into)
SELECT json_extract(value, '$.fingerprint'), json_extract(value, '$.name'), json_extract(value, '$.queue'),
       json_extract(value, '$.exception'), json_extract(value, '$.frame'), json_extract(value, '$.reason'),
       json_extract(value, '$.error'), 0, 0, json_extract(value, '$.first_at'), json_extract(value, '$.last_at'),
       '', '', 'new', json_extract(value, '$.first_at'), '', '', '', '', ''
  FROM json_each(%(rows)s)
 WHERE true
    ON CONFLICT (fingerprint) DO NOTHING;

-- update_groups --
-- Add failures and deaths to groups. What describes a group is that of its latest failure.
UPDATE deadletter_group
   SET failures = deadletter_group.failures + r.failures,
       deaths = deadletter_group.deaths + r.deaths,
       queue = CASE WHEN r.last_at >= last_failed_at THEN r.queue ELSE deadletter_group.queue END,
       exception = CASE WHEN r.last_at >= last_failed_at THEN r.exception ELSE deadletter_group.exception END,
       frame = CASE WHEN r.last_at >= last_failed_at THEN r.frame ELSE deadletter_group.frame END,
       reason = CASE WHEN r.last_at >= last_failed_at THEN r.reason ELSE deadletter_group.reason END,
       error = CASE WHEN r.last_at >= last_failed_at THEN r.error ELSE deadletter_group.error END,
       first_release = CASE WHEN r.first_release <> ''
                             AND (deadletter_group.first_release = '' OR r.first_at < first_failed_at)
                            THEN r.first_release ELSE deadletter_group.first_release END,
       last_release = CASE WHEN r.last_release <> ''
                            AND (deadletter_group.last_release = '' OR r.last_at >= last_failed_at)
                           THEN r.last_release ELSE deadletter_group.last_release END,
       -- MIN and MAX of two values are NULL if one is
       first_failed_at = MIN(first_failed_at, COALESCE(r.first_at, first_failed_at)),
       last_failed_at = MAX(last_failed_at, COALESCE(r.last_at, last_failed_at)),
       first_died_at = MIN(COALESCE(deadletter_group.first_died_at, r.first_died_at),
                           COALESCE(r.first_died_at, deadletter_group.first_died_at)),
       last_died_at = MAX(COALESCE(deadletter_group.last_died_at, r.last_died_at),
                          COALESCE(r.last_died_at, deadletter_group.last_died_at))
  FROM (SELECT json_extract(value, '$.fingerprint') AS of_group, json_extract(value, '$.queue') AS queue,
               json_extract(value, '$.exception') AS exception, json_extract(value, '$.frame') AS frame,
               json_extract(value, '$.reason') AS reason, json_extract(value, '$.error') AS error,
               json_extract(value, '$.failures') AS failures, json_extract(value, '$.deaths') AS deaths,
               json_extract(value, '$.first_at') AS first_at, json_extract(value, '$.last_at') AS last_at,
               json_extract(value, '$.first_died_at') AS first_died_at,
               json_extract(value, '$.last_died_at') AS last_died_at,
               json_extract(value, '$.first_release') AS first_release,
               json_extract(value, '$.last_release') AS last_release
          FROM json_each(%(rows)s)) AS r
 WHERE fingerprint = r.of_group;

-- add_to_group_hours --
-- Add failures and deaths to the hours of groups.
INSERT INTO deadletter_group_hour (fingerprint, at, release, failures, deaths)
SELECT json_extract(value, '$.fingerprint'), json_extract(value, '$.at'), json_extract(value, '$.release'),
       json_extract(value, '$.failures'), json_extract(value, '$.deaths')
  FROM json_each(%(rows)s)
 WHERE true
    ON CONFLICT (fingerprint, at, release)
    DO UPDATE SET failures = failures + excluded.failures, deaths = deaths + excluded.deaths;

-- find_group_tags --
-- Return which of these values groups have, and the number of values of each of their keys.
SELECT t.fingerprint, t.key, t.value, NULL
  FROM json_each(%(rows)s) r
  JOIN deadletter_group_tag t ON t.fingerprint = json_extract(r.value, '$.fingerprint')
   AND t.key = json_extract(r.value, '$.key') AND t.value = json_extract(r.value, '$.value')
 UNION ALL
SELECT t.fingerprint, t.key, NULL, SUM(t.value <> '')
  FROM deadletter_group_tag t
 WHERE t.fingerprint IN (SELECT value FROM json_each(%(fingerprints)s))
 GROUP BY t.fingerprint, t.key;

-- add_to_group_tags --
-- Add failures to the values of the tags of groups.
INSERT INTO deadletter_group_tag (fingerprint, key, value, failures, last_at)
SELECT json_extract(value, '$.fingerprint'), json_extract(value, '$.key'), json_extract(value, '$.value'),
       json_extract(value, '$.failures'), json_extract(value, '$.last_at')
  FROM json_each(%(rows)s)
 WHERE true
    ON CONFLICT (fingerprint, key, value)
    DO UPDATE SET failures = failures + excluded.failures, last_at = MAX(last_at, excluded.last_at);

-- read_uncounted_groups --
-- Return the fingerprints of the dead after a fingerprint, each with the deaths that no change has counted: those before the first
-- counted one.
WITH RECURSIVE f(fingerprint) AS (
    SELECT MIN(fingerprint) FROM (
        SELECT MIN(p.fingerprint) AS fingerprint FROM deadletter_poison p WHERE p.fingerprint > %(after)s
         UNION ALL
        SELECT MIN(m.fingerprint) FROM deadletter_message m
         WHERE m.fingerprint IS NOT NULL AND m.fingerprint > %(after)s)
     UNION ALL
    SELECT (SELECT MIN(fingerprint) FROM (
        SELECT MIN(p.fingerprint) AS fingerprint FROM deadletter_poison p WHERE p.fingerprint > f.fingerprint
         UNION ALL
        SELECT MIN(m.fingerprint) FROM deadletter_message m
         WHERE m.fingerprint IS NOT NULL AND m.fingerprint > f.fingerprint))
      FROM f WHERE f.fingerprint IS NOT NULL
     LIMIT %(limit)s
), pending AS (
    SELECT fingerprint, MIN(at) AS at FROM deadletter_group_change WHERE deaths > 0 GROUP BY fingerprint
), counted AS (
    -- no plain number: a column of times would compare it as one
    SELECT f.fingerprint, MIN(COALESCE(g.first_died_at, '9999-12-31'), COALESCE(pending.at, '9999-12-31')) AS at
      FROM f
      LEFT JOIN deadletter_group g ON g.fingerprint = f.fingerprint
      LEFT JOIN pending ON pending.fingerprint = f.fingerprint
     WHERE f.fingerprint IS NOT NULL
), dead AS (
    SELECT counted.fingerprint, p.last_failure_reason AS reason, p.poisoned_at AS at
      FROM counted
      JOIN deadletter_poison p ON p.fingerprint = counted.fingerprint AND p.poisoned_at < counted.at
     UNION ALL
    SELECT counted.fingerprint, m.failure_reason, m.died_at
      FROM counted
      JOIN deadletter_message m ON m.fingerprint IS NOT NULL AND m.fingerprint = counted.fingerprint
                               AND m.died_at < counted.at
)
SELECT counted.fingerprint, COUNT(dead.at), COUNT(dead.reason), MIN(dead.at) || '', MAX(dead.at) || ''
  FROM counted
  LEFT JOIN dead ON dead.fingerprint = counted.fingerprint
 GROUP BY counted.fingerprint
 ORDER BY counted.fingerprint;

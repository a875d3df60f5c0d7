-- insert_group_changes --
-- Add the failures and deaths of one transaction, for the housekeeper to add to their groups. Locks no row of a group.
INSERT INTO deadletter_group_change
       (fingerprint, name, queue, exception, frame, reason, error, release, failures, deaths, tags, at)
SELECT r.fingerprint, r.name,
       COALESCE(r.queue, (SELECT q.name FROM deadletter_queue q WHERE q.id = r.queue_id), ''),
       r.exception, r.frame, r.reason, r.error, r.release, r.failures, r.deaths, r.tags, %(now)s
  FROM jsonb_to_recordset(%(rows)s::jsonb)
       AS r(fingerprint text, name text, queue_id bigint, queue text, exception text, frame text, reason smallint,
            error text, release text, failures int, deaths int, tags jsonb);

-- insert_message_tags --
-- Remember the tags of messages that died. Those of an earlier death are kept from now on.
INSERT INTO deadletter_message_tag (message_id, key, value, at)
SELECT r.message_id, r.key, r.value, %(now)s
  FROM jsonb_to_recordset(%(rows)s::jsonb) AS r(message_id bigint, key text, value text)
 ORDER BY r.message_id, r.key, r.value
    ON CONFLICT (message_id, key, value) DO UPDATE SET at = excluded.at;

-- lock_folding --
-- Let one transaction at a time add changes to groups. Never waits; false: another one does.
SELECT pg_try_advisory_xact_lock(%(space)s::int, %(key)s::int);

-- read_group_changes --
-- Read the oldest changes that are not yet added to their groups.
SELECT id, fingerprint, name, queue, exception, frame, reason, error, release, failures, deaths, tags::text,
       -- the driver refuses times that Python does not have
       LEAST(GREATEST(at, '0001-01-03 00:00+00'), '9999-12-29 00:00+00')
  FROM deadletter_group_change
 ORDER BY id
 LIMIT %(limit)s;

-- delete_group_changes --
-- Delete changes that this transaction adds to their groups.
DELETE FROM deadletter_group_change WHERE id = ANY(%(ids)s::bigint[]);

-- lock_groups --
-- Lock groups and read what decides on their states. Never waits: a group that a person is changing is left for the next turn.
SELECT fingerprint, state, LEAST(GREATEST(state_at, '0001-01-03 00:00+00'), '9999-12-29 00:00+00'), failures,
       muted_until_failures, resolved_in, merged_into
  FROM deadletter_group
 WHERE fingerprint = ANY(%(fingerprints)s::text[])
 ORDER BY fingerprint
   FOR UPDATE SKIP LOCKED;

-- find_groups --
-- Return which of these groups exist, locked or not.
SELECT fingerprint FROM deadletter_group
 WHERE fingerprint = ANY(%(fingerprints)s::text[])
 ORDER BY fingerprint;

-- insert_groups --
-- Add new groups, without numbers: update_groups adds those.
INSERT INTO deadletter_group
       (fingerprint, name, queue, exception, frame, reason, error, failures, deaths, first_failed_at, last_failed_at,
        first_release, last_release, state, state_at, state_by, resolved_in, owner, ticket, merged_into)
SELECT r.fingerprint, r.name, r.queue, r.exception, r.frame, r.reason, r.error, 0, 0, r.first_at, r.last_at,
       '', '', 'new', r.first_at, '', '', '', '', ''
  FROM jsonb_to_recordset(%(rows)s::jsonb)
       AS r(fingerprint text, name text, queue text, exception text, frame text, reason smallint, error text,
            first_at timestamptz, last_at timestamptz)
 ORDER BY r.fingerprint
    ON CONFLICT (fingerprint) DO NOTHING;

-- update_groups --
-- Add failures and deaths to groups whose rows are locked. What describes a group is that of its latest failure.
UPDATE deadletter_group g
   SET failures = g.failures + r.failures,
       deaths = g.deaths + r.deaths,
       queue = CASE WHEN r.last_at >= g.last_failed_at THEN r.queue ELSE g.queue END,
       exception = CASE WHEN r.last_at >= g.last_failed_at THEN r.exception ELSE g.exception END,
       frame = CASE WHEN r.last_at >= g.last_failed_at THEN r.frame ELSE g.frame END,
       reason = CASE WHEN r.last_at >= g.last_failed_at THEN r.reason ELSE g.reason END,
       error = CASE WHEN r.last_at >= g.last_failed_at THEN r.error ELSE g.error END,
       first_release = CASE WHEN r.first_release <> '' AND (g.first_release = '' OR r.first_at < g.first_failed_at)
                            THEN r.first_release ELSE g.first_release END,
       last_release = CASE WHEN r.last_release <> '' AND (g.last_release = '' OR r.last_at >= g.last_failed_at)
                           THEN r.last_release ELSE g.last_release END,
       -- a time of the row of changes is empty where nothing failed: LEAST and GREATEST leave it out
       first_failed_at = LEAST(g.first_failed_at, r.first_at),
       last_failed_at = GREATEST(g.last_failed_at, r.last_at),
       first_died_at = LEAST(g.first_died_at, r.first_died_at),
       last_died_at = GREATEST(g.last_died_at, r.last_died_at)
  FROM jsonb_to_recordset(%(rows)s::jsonb)
       AS r(fingerprint text, queue text, exception text, frame text, reason smallint, error text, failures bigint,
            deaths bigint, first_at timestamptz, last_at timestamptz, first_died_at timestamptz,
            last_died_at timestamptz, first_release text, last_release text)
 WHERE g.fingerprint = r.fingerprint;

-- add_to_group_hours --
-- Add failures and deaths to the hours of groups.
INSERT INTO deadletter_group_hour AS h (fingerprint, at, release, failures, deaths)
SELECT r.fingerprint, r.at, r.release, r.failures, r.deaths
  FROM jsonb_to_recordset(%(rows)s::jsonb)
       AS r(fingerprint text, at timestamptz, release text, failures bigint, deaths bigint)
 ORDER BY r.fingerprint, r.at, r.release
    ON CONFLICT (fingerprint, at, release)
    DO UPDATE SET failures = h.failures + excluded.failures, deaths = h.deaths + excluded.deaths;

-- find_group_tags --
-- Return which of these values groups have, and the number of values of each of their keys.
SELECT t.fingerprint, t.key, t.value, NULL::bigint
  FROM jsonb_to_recordset(%(rows)s::jsonb) AS r(fingerprint text, key text, value text)
  JOIN deadletter_group_tag t ON t.fingerprint = r.fingerprint AND t.key = r.key AND t.value = r.value
 UNION ALL
SELECT t.fingerprint, t.key, NULL, COUNT(*) FILTER (WHERE t.value <> '')
  FROM deadletter_group_tag t
 WHERE t.fingerprint = ANY(%(fingerprints)s::text[])
 GROUP BY t.fingerprint, t.key;

-- add_to_group_tags --
-- Add failures to the values of the tags of groups.
INSERT INTO deadletter_group_tag AS t (fingerprint, key, value, failures, last_at)
SELECT r.fingerprint, r.key, r.value, r.failures, r.last_at
  FROM jsonb_to_recordset(%(rows)s::jsonb)
       AS r(fingerprint text, key text, value text, failures bigint, last_at timestamptz)
 ORDER BY r.fingerprint, r.key, r.value
    ON CONFLICT (fingerprint, key, value)
    DO UPDATE SET failures = t.failures + excluded.failures, last_at = GREATEST(t.last_at, excluded.last_at);

-- read_uncounted_groups --
-- Return the fingerprints of the dead after a fingerprint, each with the deaths that no change has counted: those before the first
-- counted one. All at one moment: a death and its change become visible together.
WITH RECURSIVE f(fingerprint) AS (
    SELECT LEAST((SELECT MIN(p.fingerprint) FROM deadletter_poison p WHERE p.fingerprint > %(after)s),
                 (SELECT MIN(m.fingerprint) FROM deadletter_message m
                   WHERE m.fingerprint IS NOT NULL AND m.fingerprint > %(after)s))
     UNION ALL
    SELECT LEAST((SELECT MIN(p.fingerprint) FROM deadletter_poison p WHERE p.fingerprint > f.fingerprint),
                 (SELECT MIN(m.fingerprint) FROM deadletter_message m
                   WHERE m.fingerprint IS NOT NULL AND m.fingerprint > f.fingerprint))
      FROM f WHERE f.fingerprint IS NOT NULL
), piece AS (
    SELECT fingerprint FROM f WHERE fingerprint IS NOT NULL LIMIT %(limit)s
), pending AS (
    SELECT fingerprint, MIN(at) AS at FROM deadletter_group_change WHERE deaths > 0 GROUP BY fingerprint
)
SELECT piece.fingerprint, records.deaths + copies.deaths, records.failures + copies.failures,
       LEAST(records.first_at, copies.first_at),
       LEAST(GREATEST(records.last_at, copies.last_at), '9999-12-29 00:00+00')
  FROM piece
  LEFT JOIN deadletter_group g ON g.fingerprint = piece.fingerprint
  LEFT JOIN pending ON pending.fingerprint = piece.fingerprint
 CROSS JOIN LATERAL (SELECT COALESCE(LEAST(g.first_died_at, pending.at), 'infinity') AS at) AS counted
 CROSS JOIN LATERAL (
       SELECT COUNT(*) AS deaths, COUNT(p.last_failure_reason) AS failures, MIN(p.poisoned_at) AS first_at,
              MAX(p.poisoned_at) AS last_at
         FROM deadletter_poison p
              -- a time that Python does not have would be counted again and again
        WHERE p.fingerprint = piece.fingerprint AND p.poisoned_at < counted.at
          AND p.poisoned_at >= '0001-01-03 00:00+00') AS records
 CROSS JOIN LATERAL (
       SELECT COUNT(*) AS deaths, COUNT(m.failure_reason) AS failures, MIN(m.died_at) AS first_at,
              MAX(m.died_at) AS last_at
         FROM deadletter_message m
        WHERE m.fingerprint IS NOT NULL AND m.fingerprint = piece.fingerprint AND m.died_at < counted.at
          AND m.died_at >= '0001-01-03 00:00+00') AS copies
 ORDER BY piece.fingerprint;

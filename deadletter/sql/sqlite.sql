-- Named statements for SQLite: the same names and promises as postgresql.sql, where the reasons stand.
-- One writer at a time (BEGIN IMMEDIATE), so nothing is locked here. Arrays come as JSON and are read with json_each.
-- Those that go with ids are read by place: a join of two json_each compares every pair.
-- halts is said twice, halts AND halts = 1: SQLite takes a partial index only for the very words of its condition, and Django 5.2
-- writes the one, Django 6.1 the other.
-- Times of a claim are read as text (|| ''): the driver would parse them, and one that is no time would break the batch.
-- Streams come one at a time (queue_id, stream). Durations are microseconds; django_format_dtdelta adds them.

-- enqueue --
INSERT INTO deadletter_message
       (queue_id, name, kind, payload, headers, stream, key, priority, available_at, expires_at,
        instance, execution_id, activity_id, created_at)
SELECT q.id, %(name)s, %(kind)s, %(payload)s, %(headers)s, %(stream)s, %(key)s, %(priority)s,
       COALESCE(%(at)s, django_format_dtdelta('+', %(now)s, %(delay)s)),
       django_format_dtdelta('+', %(now)s, COALESCE(%(expires_in)s, q.expire_timeout)),
       %(instance)s, %(execution_id)s, %(activity_id)s, %(now)s
  FROM deadletter_queue q
 WHERE q.name = %(queue)s
    ON CONFLICT (queue_id, key) WHERE key IS NOT NULL DO NOTHING
RETURNING id, queue_id, available_at, expires_at, created_at;

-- read_levels --
-- Without LATERAL: first the queues that hold anything, then their levels, then the first message of each.
WITH RECURSIVE filled(queue_id) AS (
    SELECT MIN(queue_id) FROM deadletter_message WHERE available_at IS NOT NULL
     UNION ALL
    SELECT (SELECT MIN(m.queue_id) FROM deadletter_message m
             WHERE m.available_at IS NOT NULL AND m.queue_id > filled.queue_id)
      FROM filled WHERE filled.queue_id IS NOT NULL
), level(queue_id, priority) AS (
    SELECT filled.queue_id,
           (SELECT MIN(m.priority) FROM deadletter_message m
             WHERE m.available_at IS NOT NULL AND m.queue_id = filled.queue_id)
      FROM filled WHERE filled.queue_id IS NOT NULL
     UNION ALL
    SELECT level.queue_id,
           (SELECT MIN(m.priority) FROM deadletter_message m
             WHERE m.available_at IS NOT NULL AND m.queue_id = level.queue_id
               AND m.priority > level.priority)
      FROM level WHERE level.priority IS NOT NULL
), first(queue_id, priority, available_at) AS MATERIALIZED (
    SELECT level.queue_id, level.priority,
           (SELECT MIN(m.available_at) FROM deadletter_message m
             WHERE m.available_at IS NOT NULL AND m.queue_id = level.queue_id
               AND m.priority = level.priority)
      FROM level WHERE level.priority IS NOT NULL
)
SELECT q.id, q.name, first.priority, first.available_at, q.paused,
       EXISTS (SELECT 1 FROM deadletter_queue s WHERE s.dead_queue_id = q.id)
  FROM first CROSS JOIN deadletter_queue q
 WHERE q.id = first.queue_id
   AND (%(within)s IS NULL OR first.available_at <= django_format_dtdelta('+', %(now)s, %(within)s))
 ORDER BY q.name, first.priority;

-- read_levels_of --
WITH RECURSIVE level(queue_id, name, paused, priority) AS (
    SELECT q.id, q.name, q.paused,
           (SELECT MIN(m.priority) FROM deadletter_message m
             WHERE m.available_at IS NOT NULL AND m.queue_id = q.id)
      FROM json_each(%(queues)s) AS wanted CROSS JOIN deadletter_queue q
     WHERE q.name = wanted.value
     UNION ALL
    SELECT level.queue_id, level.name, level.paused,
           (SELECT MIN(m.priority) FROM deadletter_message m
             WHERE m.available_at IS NOT NULL AND m.queue_id = level.queue_id
               AND m.priority > level.priority)
      FROM level WHERE level.priority IS NOT NULL
), first(queue_id, name, paused, priority, available_at) AS MATERIALIZED (
    SELECT level.queue_id, level.name, level.paused, level.priority,
           (SELECT MIN(m.available_at) FROM deadletter_message m
             WHERE m.available_at IS NOT NULL AND m.queue_id = level.queue_id
               AND m.priority = level.priority)
      FROM level WHERE level.priority IS NOT NULL
)
SELECT queue_id, name, priority, available_at, paused, 0
  FROM first
 WHERE %(within)s IS NULL OR available_at <= django_format_dtdelta('+', %(now)s, %(within)s)
 ORDER BY name, priority;

-- claim --
-- One (queue, level) at a time: SQLite would sort a join of several, reading every due row.
SELECT CASE WHEN stream IS NOT NULL THEN 'stream'
            -- PostgreSQL can store no larger numbers, and beyond 64 bits SQLite goes on with inexact ones
            WHEN attempts >= 2147483647 OR fence >= 9223372036854775807 THEN 'overflow'
            WHEN attempts >= MAX(%(max_attempts)s, 1)
            THEN CASE WHEN expires_at <= %(now)s THEN 'exhausted or expired' ELSE 'exhausted' END
            WHEN expires_at <= %(now)s THEN 'expired'
            WHEN lease_token IS NOT NULL THEN 'lost'
            WHEN unregistered_count >= MAX(%(unregistered_attempts)s, 1) AND failure_reason = 9 THEN 'unregistered'
            ELSE 'lease' END,
       queue_id, 1, id, NULL, name, NULL, NULL, NULL, stream, attempts
  FROM deadletter_message
 WHERE queue_id = %(queue_id)s AND priority = %(priority)s AND available_at <= %(now)s
   AND id NOT IN (SELECT value FROM json_each(%(exclude)s))
 ORDER BY available_at, id
 LIMIT %(limit)s;
UPDATE deadletter_message
   SET attempts = attempts + 1, fence = fence + 1, lease_token = %(token)s, worker = %(worker)s,
       available_at = django_format_dtdelta('+', %(now)s, %(lease)s)
 WHERE id IN (
       SELECT id FROM (
              SELECT id, stream, attempts, fence, expires_at, lease_token, unregistered_count, failure_reason
                FROM deadletter_message
               WHERE queue_id = %(queue_id)s AND priority = %(priority)s AND available_at <= %(now)s
                 AND id NOT IN (SELECT value FROM json_each(%(exclude)s))
               ORDER BY available_at, id
               LIMIT %(limit)s)
        WHERE stream IS NULL AND lease_token IS NULL
          AND attempts < 2147483647 AND fence < 9223372036854775807
          AND (%(max_attempts)s IS NULL OR attempts < MAX(%(max_attempts)s, 1))
          AND NOT COALESCE(unregistered_count >= MAX(%(unregistered_attempts)s, 1) AND failure_reason = 9, 0)
          AND (expires_at IS NULL OR expires_at > %(now)s))
RETURNING 'leased', queue_id, 1, id,
          (SELECT q.name FROM deadletter_queue q WHERE q.id = queue_id),
          name, kind, payload, headers, stream, attempts, %(largest_limit)s,
          status, fence, created_at || '', instance, execution_id, activity_id, %(lease)s,
          failure_reason;

-- read_streams --
SELECT %(queue_id)s, %(stream)s, q.stream_policy,
       (SELECT MIN(p.message_id) FROM deadletter_poison p
         WHERE p.halts AND p.halts = 1 AND p.queue = q.name AND p.stream = %(stream)s),
       m.id,
       COALESCE(m.available_at > %(now)s, 0), m.released_at IS NOT NULL,
       COALESCE(m.attempts >= MAX(q.max_attempts, 1), 0)
           OR COALESCE(m.unregistered_count >= MAX(COALESCE(q.unregistered_attempts, q.max_attempts), 1)
                       AND m.failure_reason = 9, 0), COALESCE(m.expires_at <= %(now)s, 0),
       m.name, m.attempts, m.lease_token IS NOT NULL, m.kind,
       m.attempts >= 2147483647 OR m.fence >= 9223372036854775807
  FROM deadletter_queue q
  JOIN (SELECT * FROM (
               SELECT id, name, kind, available_at, released_at, attempts, expires_at, lease_token, fence,
                      unregistered_count, failure_reason
                 FROM deadletter_message
                WHERE queue_id = %(queue_id)s AND stream = %(stream)s
                  AND ((SELECT stream_policy FROM deadletter_queue WHERE id = %(queue_id)s)
                       <> 'release'
                       OR available_at IS NULL OR available_at <= %(now)s)
                ORDER BY id LIMIT %(cap)s)
         UNION
        SELECT * FROM (
               SELECT id, name, kind, available_at, released_at, attempts, expires_at, lease_token, fence,
                      unregistered_count, failure_reason
                 FROM deadletter_message
                WHERE queue_id = %(queue_id)s AND stream = %(stream)s AND released_at IS NOT NULL
                  AND (available_at IS NULL OR available_at <= %(now)s)
                ORDER BY id LIMIT %(cap)s)) AS m
 WHERE q.id = %(queue_id)s
   AND NOT EXISTS (
       SELECT 1 FROM deadletter_message live
        WHERE live.queue_id = %(queue_id)s AND live.stream = %(stream)s
          AND live.lease_token IS NOT NULL AND live.available_at > %(now)s)
 ORDER BY m.id;

-- lease_runs --
UPDATE deadletter_message
   SET attempts = attempts + 1, fence = fence + 1, lease_token = %(token)s, worker = %(worker)s,
       available_at = django_format_dtdelta('+', %(now)s, COALESCE(%(lease)s,
           (SELECT q.lease_timeout FROM deadletter_queue q WHERE q.id = queue_id))),
       failure_reason = CASE WHEN lease_token IS NULL THEN failure_reason ELSE 10 END,
       error = CASE WHEN lease_token IS NULL THEN error ELSE
               'worker ' || worker || ' did not report before its lease ran out' END,
       history = CASE WHEN lease_token IS NULL THEN history ELSE
           json_insert(CASE WHEN json_array_length(history) >= %(history_limit)s
                            THEN json_remove(history, '$[0]') ELSE history END,
               '$[#]', json_object(
                   'at', replace(available_at, ' ', 'T') || '+00:00', 'worker', worker,
                   'attempt', attempts, 'reason', 10, 'error',
                   'worker ' || worker || ' did not report before its lease ran out')) END,
       reason_counts = CASE WHEN lease_token IS NULL THEN reason_counts ELSE
           json_set(CASE WHEN json_type(reason_counts) = 'object' THEN reason_counts ELSE '{}' END,
               '$."10"', 1 + CASE WHEN json_extract(reason_counts, '$."10"') BETWEEN 0 AND 2147483647
                                       AND json_type(reason_counts, '$."10"') = 'integer'
                                  THEN json_extract(reason_counts, '$."10"') ELSE 0 END) END
 WHERE id IN (SELECT value FROM json_each(%(ids)s))
RETURNING id, (SELECT q.name FROM deadletter_queue q WHERE q.id = queue_id), name, kind, payload,
          headers, stream, attempts,
          (SELECT q.max_attempts FROM deadletter_queue q WHERE q.id = queue_id),
          status, fence, created_at || '', instance, execution_id, activity_id, COALESCE(%(lease)s,
          (SELECT q.lease_timeout FROM deadletter_queue q WHERE q.id = queue_id)), failure_reason,
          (SELECT NULLIF(q.reason_policies, '{}') FROM deadletter_queue q WHERE q.id = queue_id);
UPDATE deadletter_message
   SET available_at = NULL, lease_token = NULL, worker = NULL
 WHERE lease_token <> %(token)s AND available_at <= %(now)s
   AND id NOT IN (SELECT value FROM json_each(%(keep)s))
   AND id IN (SELECT old.id
                     -- with +, so that no index of streams is offered: one was read from end to end, stream by stream
                FROM (SELECT DISTINCT queue_id, stream FROM deadletter_message
                       WHERE id IN (SELECT value FROM json_each(%(ids)s)) AND +stream IS NOT NULL) s
                JOIN deadletter_message old
                  ON old.queue_id = s.queue_id AND old.stream = s.stream
                 AND old.lease_token IS NOT NULL);


-- park --
UPDATE deadletter_message
   SET available_at = NULL, lease_token = NULL, worker = NULL
 WHERE id IN (SELECT value FROM json_each(%(ids)s))
    OR (id IN (SELECT id FROM deadletter_message
                WHERE queue_id = %(queue_id)s AND stream = %(stream)s AND id > %(after)s
                ORDER BY id LIMIT %(reach)s)
        AND available_at <= %(now)s
        AND id NOT IN (SELECT value FROM json_each(%(exclude)s)))
RETURNING id;

-- complete --
DELETE FROM deadletter_message
 WHERE id IN (SELECT value FROM json_each(%(ids)s))
   AND lease_token || '-' || id IN (SELECT value FROM json_each(%(pairs)s))
   AND available_at > %(now)s AND stream IS NULL
RETURNING NULL, id, queue_id, name, kind;
SELECT 'streamed', id, NULL, NULL, NULL
  FROM deadletter_message
 WHERE id IN (SELECT value FROM json_each(%(ids)s))
   AND lease_token || '-' || id IN (SELECT value FROM json_each(%(pairs)s))
   AND available_at > %(now)s AND stream IS NOT NULL
 ORDER BY id;

-- complete_streamed --
DELETE FROM deadletter_message
 WHERE id IN (SELECT value FROM json_each(%(ids)s))
   AND lease_token || '-' || id IN (SELECT value FROM json_each(%(pairs)s))
   AND available_at > %(now)s AND stream IS NOT NULL
RETURNING id, queue_id, name, kind, queue_id, stream;

-- complete_stage --
UPDATE deadletter_message
   SET status = (status | %(flags)s) & ~%(failed)s,
       lease_token = NULL, worker = NULL, available_at = %(now)s,
       attempts = 0, reason_counts = NULL, unregistered_count = NULL, unregistered_at = NULL
 WHERE id IN (SELECT value FROM json_each(%(ids)s))
   AND lease_token || '-' || id IN (SELECT value FROM json_each(%(pairs)s))
   AND available_at > %(now)s
   AND status & %(published)s = 0 AND status | %(flags)s <> status
RETURNING id, status, queue_id, stream;

-- read_stages --
SELECT id, status FROM deadletter_message
 WHERE id IN (SELECT value FROM json_each(%(ids)s))
   AND lease_token || '-' || id IN (SELECT value FROM json_each(%(pairs)s))
   AND available_at > %(now)s;

-- record_stages --
UPDATE deadletter_message
   SET status = status | %(flags)s
 WHERE id IN (SELECT value FROM json_each(%(ids)s))
   AND lease_token || '-' || id IN (SELECT value FROM json_each(%(pairs)s))
   AND available_at > %(now)s
RETURNING id;

-- release_rest --
UPDATE deadletter_message
   SET lease_token = NULL, worker = NULL, available_at = %(now)s,
       attempts = MAX(attempts - 1, 0)
 WHERE id IN (SELECT id FROM deadletter_message
               WHERE queue_id = %(queue_id)s AND stream = %(stream)s AND lease_token IS NOT NULL
                 AND lease_token = %(token)s AND +id > %(after)s AND available_at > %(now)s)
RETURNING id, queue_id, stream;

-- lock_streams --
SELECT 1 WHERE 0;

-- lock_streams_of_poison --
SELECT 1 WHERE 0;

-- read_leased --
SELECT m.id, m.attempts, m.queue_id, m.name, m.kind, q.max_attempts, q.backoff_base,
       q.backoff_cap, q.jitter, q.cooldown, NULLIF(q.reason_policies, '{}'),
       COALESCE(q.unregistered_attempts, q.max_attempts), m.reason_counts, m.unregistered_count
  FROM deadletter_message m
  JOIN deadletter_queue q ON q.id = m.queue_id
 WHERE m.id IN (SELECT value FROM json_each(%(ids)s))
   AND m.lease_token || '-' || m.id IN (SELECT value FROM json_each(%(pairs)s))
   AND m.available_at > %(now)s
 ORDER BY m.id;

-- fail --
UPDATE deadletter_message
   SET status = status | r.completed | r.failed,
       failure_reason = COALESCE(r.reason, failure_reason),
       error = COALESCE(r.error, deadletter_message.error),
       available_at = django_format_dtdelta('+', %(now)s, r.delay),
       lease_token = NULL, worker = NULL,
       attempts = MAX(attempts - r.refund, 0), reason_counts = COALESCE(r.counts, reason_counts),
       unregistered_count = COALESCE(r.unregistered, unregistered_count),
       unregistered_at = CASE WHEN r.is_over THEN COALESCE(unregistered_at, %(now)s) END,
       history = CASE WHEN r.entry IS NULL THEN history ELSE
           json_insert(CASE WHEN json_array_length(history) >= %(history_limit)s
                            THEN json_remove(history, '$[0]') ELSE history END,
               '$[#]', json_set(r.entry,
                   '$.at', replace(%(now)s, ' ', 'T') || '+00:00', '$.worker', worker,
                   '$.attempt', attempts)) END
  FROM (SELECT CAST(key AS INTEGER) AS row_id,
               json_extract(value, '$.reason') AS reason, json_extract(value, '$.error') AS error,
               json_extract(value, '$.completed') AS completed,
               json_extract(value, '$.failed') AS failed, json_extract(value, '$.delay') AS delay,
               json_extract(value, '$.entry') AS entry, json_extract(value, '$.refund') AS refund,
               json_extract(value, '$.counts') AS counts, json_extract(value, '$.unregistered') AS unregistered,
               json_extract(value, '$.is_over') AS is_over
          FROM json_each(%(rows)s)) AS r
 WHERE id = r.row_id
   AND lease_token || '-' || id IN (SELECT value FROM json_each(%(pairs)s))
   AND available_at > %(now)s
RETURNING id, available_at, queue_id, stream;

-- release --
UPDATE deadletter_message
   SET lease_token = NULL, worker = NULL,
       available_at = django_format_dtdelta('+', %(now)s, %(delay)s),
       attempts = MAX(attempts - 1, 0),
       released_at = CASE WHEN %(by_name)s THEN %(now)s ELSE released_at END
 WHERE id IN (SELECT value FROM json_each(%(ids)s))
   AND lease_token || '-' || id IN (SELECT value FROM json_each(%(pairs)s))
   AND available_at > %(now)s
RETURNING id, queue_id, stream;

-- refund --
UPDATE deadletter_message
   SET lease_token = NULL, worker = NULL, attempts = MAX(attempts - 1, 0)
 WHERE id IN (SELECT value FROM json_each(%(ids)s))
   AND lease_token || '-' || id IN (SELECT value FROM json_each(%(pairs)s))
   AND available_at <= %(now)s
RETURNING id, queue_id, stream;

-- renew --
UPDATE deadletter_message
   SET available_at = django_format_dtdelta('+', %(now)s, COALESCE(%(lease)s,
           (SELECT q.lease_timeout FROM deadletter_queue q WHERE q.id = queue_id)))
 WHERE id IN (SELECT value FROM json_each(%(ids)s))
   AND lease_token || '-' || id IN (SELECT value FROM json_each(%(pairs)s))
   AND available_at > %(now)s
RETURNING id;

-- wake --
UPDATE deadletter_message
   SET available_at = %(now)s
 WHERE id IN (
       SELECT p.id
         FROM deadletter_queue q
         JOIN (SELECT * FROM (
                      SELECT id, released_at FROM deadletter_message
                       WHERE queue_id = %(queue_id)s AND stream = %(stream)s
                         AND available_at IS NULL
                       ORDER BY id LIMIT 1)
                UNION
               SELECT * FROM (
                      SELECT id, released_at FROM deadletter_message
                       WHERE queue_id = %(queue_id)s AND stream = %(stream)s
                         AND available_at IS NULL AND released_at IS NOT NULL
                       ORDER BY id LIMIT 100)) AS p
        WHERE q.id = %(queue_id)s
          AND NOT EXISTS (
              SELECT 1 FROM deadletter_message live
               WHERE live.queue_id = %(queue_id)s AND live.stream = %(stream)s
                 AND live.lease_token IS NOT NULL AND live.available_at > %(now)s)
          AND (p.released_at IS NOT NULL
               OR ((q.stream_policy = 'release'
                    OR NOT EXISTS (
                       SELECT 1 FROM deadletter_message earlier
                        WHERE earlier.queue_id = %(queue_id)s AND earlier.stream = %(stream)s
                          AND earlier.id < p.id))
                   AND NOT EXISTS (
                       SELECT 1 FROM deadletter_poison halt
                        WHERE halt.halts AND halt.halts = 1 AND halt.queue = q.name AND halt.stream = %(stream)s
                          AND halt.message_id < p.id))))
RETURNING id;

-- wake_queue --
WITH RECURSIVE parked(stream, id) AS (
    SELECT stream, id FROM (
           SELECT stream, id FROM deadletter_message
            WHERE queue_id = %(queue_id)s AND available_at IS NULL ORDER BY stream, id LIMIT 1)
    UNION ALL
    SELECT n.stream, n.id
      FROM parked p
      JOIN deadletter_message n
        ON n.id = (SELECT id FROM deadletter_message
                    WHERE available_at IS NULL AND queue_id = %(queue_id)s AND stream > p.stream
                    ORDER BY stream, id LIMIT 1)
)
UPDATE deadletter_message
   SET available_at = %(now)s
 WHERE id IN (
       SELECT p.id
         FROM parked p
         JOIN deadletter_message head
           ON head.id = (SELECT id FROM deadletter_message
                          WHERE queue_id = %(queue_id)s AND stream = p.stream
                          ORDER BY id LIMIT 1)
        WHERE head.available_at > %(now)s AND head.lease_token IS NULL
          AND NOT EXISTS (
              SELECT 1 FROM deadletter_poison halt
               WHERE halt.halts AND halt.halts = 1 AND halt.queue = %(queue)s
                 AND halt.stream = p.stream AND halt.message_id < p.id))
RETURNING id;

-- read_dying --
SELECT m.id, m.queue_id, m.stream, m.name, m.attempts, m.failure_reason, m.error,
       json_extract(m.history, '$[#-1].exception'), json_extract(m.history, '$[#-1].frame'),
       m.lease_token IS NOT NULL AND m.available_at <= %(now)s, m.worker,
       q.name, q.max_attempts, q.stream_policy,
       CASE WHEN q.on_poison = 'dead_queue' AND (d.id IS NULL OR d.id = q.id OR d.dead_queue_id IS NOT NULL)
            THEN 'broken' ELSE q.on_poison END,
       d.name, m.kind, m.instance, m.execution_id, m.activity_id,
       m.source_id IS NOT NULL AND m.origin IS NULL, CASE WHEN m.died_at IS NOT NULL THEN m.fingerprint END,
       json_extract(m.death, '$.exception'), json_extract(m.death, '$.frame')
  FROM deadletter_message m
  JOIN deadletter_queue q ON q.id = m.queue_id
  LEFT JOIN deadletter_queue d ON d.id = q.dead_queue_id
 WHERE m.id IN (SELECT value FROM json_each(%(ids)s))
 ORDER BY m.id;

-- record_lost --
UPDATE deadletter_message
   SET failure_reason = 10,
       error = 'worker ' || worker || ' did not report before its lease ran out',
       history = json_insert(CASE WHEN json_array_length(history) >= %(history_limit)s
                                  THEN json_remove(history, '$[0]') ELSE history END,
           '$[#]', json_object(
               'at', replace(available_at, ' ', 'T') || '+00:00', 'worker', worker,
               'attempt', attempts, 'reason', 10, 'error',
               'worker ' || worker || ' did not report before its lease ran out')),
       reason_counts = json_set(CASE WHEN json_type(reason_counts) = 'object' THEN reason_counts ELSE '{}' END,
           '$."10"', 1 + CASE WHEN json_extract(reason_counts, '$."10"') BETWEEN 0 AND 2147483647
                                   AND json_type(reason_counts, '$."10"') = 'integer'
                              THEN json_extract(reason_counts, '$."10"') ELSE 0 END),
       lease_token = NULL, worker = NULL
 WHERE id IN (SELECT value FROM json_each(%(ids)s))
   AND lease_token IS NOT NULL AND available_at <= %(now)s;

-- quarantine --
INSERT INTO deadletter_poison
       (message_id, queue, name, kind, payload, headers, stream, key, priority, status, attempts,
        max_attempts, fence, reason, verdict, last_failure_reason, last_error, history, fingerprint,
        exception, frame, halts, poison_count, source_id, origin, death, moved_at, instance, execution_id, activity_id,
        expires_at, original_created_at, poisoned_at, poisoned_by)
SELECT m.id, q.name, m.name, m.kind, m.payload, m.headers, m.stream, m.key, m.priority, m.status,
       json_extract(r.value, '$.attempts'), json_extract(r.value, '$.max_attempts'), m.fence,
       json_extract(r.value, '$.reason'),
       json_extract(r.value, '$.verdict'), m.failure_reason, m.error, m.history,
       json_extract(r.value, '$.fingerprint'), json_extract(r.value, '$.exception'),
       json_extract(r.value, '$.frame'), json_extract(r.value, '$.halts'),
       m.poison_count + (m.died_at IS NULL), m.source_id, m.origin, m.death,
       CASE WHEN m.died_at IS NOT NULL THEN %(now)s END, m.instance, m.execution_id, m.activity_id,
       m.expires_at, m.created_at, COALESCE(m.died_at, %(now)s), %(by)s
  FROM json_each(%(rows)s) r
  JOIN deadletter_message m ON m.id = json_extract(r.value, '$.id')
  JOIN deadletter_queue q ON q.id = m.queue_id
 WHERE true
 ORDER BY m.id
    ON CONFLICT (message_id) DO NOTHING
RETURNING message_id;

-- bury --
INSERT INTO deadletter_message
       (queue_id, name, kind, payload, headers, stream, priority, status, available_at, expires_at,
        failure_reason, error, history, poison_count, source_id, death, fingerprint, died_at, instance,
        execution_id, activity_id, created_at)
SELECT d.id, m.name, m.kind, m.payload, m.headers, m.stream, m.priority, 1, %(now)s,
       django_format_dtdelta('+', %(now)s, d.expire_timeout), m.failure_reason, m.error, m.history,
       m.poison_count + 1, m.id,
       json_set(json_extract(r.value, '$.death'),
           '$.queue', q.name, '$.message_id', m.id, '$.at', replace(%(now)s, ' ', 'T') || '+00:00',
           '$.by', %(by)s, '$.key', m.key, '$.status', m.status, '$.fence', m.fence,
           '$.created_at', replace(m.created_at, ' ', 'T') || '+00:00',
           '$.origin', m.origin, '$.source_id', m.source_id),
       json_extract(r.value, '$.fingerprint'), %(now)s, m.instance, m.execution_id, m.activity_id,
       %(now)s
  FROM json_each(%(rows)s) r
  JOIN deadletter_message m ON m.id = json_extract(r.value, '$.id')
  JOIN deadletter_queue q ON q.id = m.queue_id
  JOIN deadletter_queue d ON d.id = q.dead_queue_id
 WHERE true
 ORDER BY m.id
    ON CONFLICT (queue_id, source_id) WHERE origin IS NULL AND source_id IS NOT NULL DO NOTHING
RETURNING id;

-- delete --
DELETE FROM deadletter_message WHERE id IN (SELECT value FROM json_each(%(ids)s)) RETURNING id;

-- read_expired --
SELECT id FROM deadletter_message
 WHERE expires_at <= %(now)s AND (available_at IS NULL OR available_at <= %(now)s)
 ORDER BY expires_at, id
 LIMIT %(limit)s;

-- forget_old_poison --
-- In the order of the index, queue by queue: ordered by id, every record would be read.
DELETE FROM deadletter_poison
 WHERE id IN (
       SELECT p.id
         FROM deadletter_queue q
        CROSS JOIN deadletter_poison p
        WHERE q.poison_retention IS NOT NULL AND p.queue = q.name
          AND p.poisoned_at <= django_format_dtdelta('-', %(now)s, q.poison_retention)
          AND (p.moved_at IS NULL
               OR p.moved_at <= django_format_dtdelta('-', %(now)s, q.poison_retention))
          AND NOT p.halts
        ORDER BY q.id, p.poisoned_at
        LIMIT %(limit)s)
RETURNING id, queue, name, kind;

-- read_orphans --
WITH RECURSIVE awake(queue_id) AS (
    SELECT * FROM (SELECT queue_id FROM deadletter_message
                    WHERE available_at IS NOT NULL ORDER BY queue_id LIMIT 1)
    UNION ALL
    SELECT (SELECT m.queue_id FROM deadletter_message m
             WHERE m.available_at IS NOT NULL AND m.queue_id > f.queue_id
             ORDER BY m.queue_id LIMIT 1)
      FROM awake f WHERE f.queue_id IS NOT NULL
), parked(queue_id) AS (
    SELECT * FROM (SELECT queue_id FROM deadletter_message
                    WHERE available_at IS NULL ORDER BY queue_id LIMIT 1)
    UNION ALL
    SELECT (SELECT m.queue_id FROM deadletter_message m
             WHERE m.available_at IS NULL AND m.queue_id > f.queue_id
             ORDER BY m.queue_id LIMIT 1)
      FROM parked f WHERE f.queue_id IS NOT NULL
)
SELECT f.queue_id
  FROM (SELECT queue_id FROM awake UNION SELECT queue_id FROM parked) AS f
 WHERE f.queue_id IS NOT NULL
   AND NOT EXISTS (SELECT 1 FROM deadletter_queue q WHERE q.id = f.queue_id);

-- read_stranded --
WITH RECURSIVE parked(queue_id, stream) AS (
    SELECT queue_id, stream FROM (
           SELECT queue_id, stream FROM deadletter_message
            WHERE available_at IS NULL ORDER BY queue_id, stream LIMIT 1)
    UNION ALL
    SELECT n.queue_id, n.stream
      FROM parked p
      JOIN deadletter_message n
           -- SQLite would use only the first column of (queue_id, stream) > (…)
        ON n.id = COALESCE(
           (SELECT id FROM deadletter_message
             WHERE available_at IS NULL AND queue_id = p.queue_id AND stream > p.stream
             ORDER BY stream LIMIT 1),
           (SELECT id FROM deadletter_message
             WHERE available_at IS NULL AND queue_id > p.queue_id
             ORDER BY queue_id, stream LIMIT 1))
)
SELECT p.queue_id, p.stream
  FROM parked p JOIN deadletter_queue q ON q.id = p.queue_id
 WHERE NOT EXISTS (SELECT 1 FROM deadletter_poison halt
                    WHERE halt.halts AND halt.halts = 1 AND halt.queue = q.name AND halt.stream = p.stream)
   AND NOT EXISTS (SELECT 1 FROM deadletter_message awake
                    WHERE awake.queue_id = p.queue_id AND awake.stream = p.stream
                      AND awake.available_at IS NOT NULL);

-- count --
INSERT INTO deadletter_count
       (span, at, queue, name, kind, reason, writer, sent, completed, failed, deferred, poisoned,
        retried, removed, seconds, longest)
SELECT 60, strftime('%%Y-%%m-%%d %%H:%%M:00', %(now)s), r.queue, r.name, r.kind, r.reason, %(writer)s,
       SUM(r.sent), SUM(r.completed), SUM(r.failed), SUM(r.deferred), SUM(r.poisoned),
       SUM(r.retried), SUM(r.removed), SUM(r.seconds), MAX(r.longest)
  FROM (SELECT COALESCE(json_extract(value, '$.queue'),
                        (SELECT q.name FROM deadletter_queue q
                          WHERE q.id = json_extract(value, '$.queue_id')), '') AS queue,
               json_extract(value, '$.name') AS name, json_extract(value, '$.kind') AS kind,
               json_extract(value, '$.reason') AS reason,
               COALESCE(json_extract(value, '$.sent'), 0) AS sent,
               COALESCE(json_extract(value, '$.completed'), 0) AS completed,
               COALESCE(json_extract(value, '$.failed'), 0) AS failed,
               COALESCE(json_extract(value, '$.deferred'), 0) AS deferred,
               COALESCE(json_extract(value, '$.poisoned'), 0) AS poisoned,
               COALESCE(json_extract(value, '$.retried'), 0) AS retried,
               COALESCE(json_extract(value, '$.removed'), 0) AS removed,
               COALESCE(json_extract(value, '$.seconds'), 0) AS seconds,
               COALESCE(json_extract(value, '$.longest'), 0) AS longest
          FROM json_each(%(rows)s)) AS r
 GROUP BY r.queue, r.name, r.kind, r.reason
    ON CONFLICT (span, at, queue, name, kind, reason, writer)
    DO UPDATE SET
           sent = sent + excluded.sent, completed = completed + excluded.completed,
           failed = failed + excluded.failed, deferred = deferred + excluded.deferred,
           poisoned = poisoned + excluded.poisoned, retried = retried + excluded.retried,
           removed = removed + excluded.removed, seconds = seconds + excluded.seconds,
           longest = MAX(longest, excluded.longest);

-- fold_writers --
INSERT INTO deadletter_count
       (span, at, queue, name, kind, reason, writer, sent, completed, failed, deferred, poisoned,
        retried, removed, seconds, longest)
SELECT span, at, queue, name, kind, reason, '', SUM(sent), SUM(completed), SUM(failed),
       SUM(deferred), SUM(poisoned), SUM(retried), SUM(removed), SUM(seconds), MAX(longest)
  FROM deadletter_count
 WHERE id IN (SELECT id FROM deadletter_count
               WHERE writer <> '' AND span = 60 AND at < %(before)s
               ORDER BY span, at, id LIMIT %(limit)s)
 GROUP BY span, at, queue, name, kind, reason
    ON CONFLICT (span, at, queue, name, kind, reason, writer)
    DO UPDATE SET
           sent = sent + excluded.sent, completed = completed + excluded.completed,
           failed = failed + excluded.failed, deferred = deferred + excluded.deferred,
           poisoned = poisoned + excluded.poisoned, retried = retried + excluded.retried,
           removed = removed + excluded.removed, seconds = seconds + excluded.seconds,
           longest = MAX(longest, excluded.longest);
DELETE FROM deadletter_count
 WHERE id IN (SELECT id FROM deadletter_count
               WHERE writer <> '' AND span = 60 AND at < %(before)s
               ORDER BY span, at, id LIMIT %(limit)s)
RETURNING id;

-- fold_spans --
INSERT INTO deadletter_count
       (span, at, queue, name, kind, reason, writer, sent, completed, failed, deferred, poisoned,
        retried, removed, seconds, longest)
SELECT %(into)s,
       -- what is no time at all counts among the oldest: one such row must not stop the sweep
       COALESCE(strftime(CASE %(into)s WHEN 3600 THEN '%%Y-%%m-%%d %%H:00:00'
                         WHEN 86400 THEN '%%Y-%%m-%%d 00:00:00'
                         ELSE '1970-01-01 00:00:00' END, at), '1970-01-01 00:00:00') AS start,
       queue, name, kind, reason, '', SUM(sent), SUM(completed), SUM(failed),
       SUM(deferred), SUM(poisoned), SUM(retried), SUM(removed), SUM(seconds), MAX(longest)
  FROM deadletter_count
 WHERE id IN (SELECT id FROM deadletter_count
               WHERE span = %(span)s AND at < %(before)s
               ORDER BY span, at, id LIMIT %(limit)s)
 GROUP BY start, queue, name, kind, reason
    ON CONFLICT (span, at, queue, name, kind, reason, writer)
    DO UPDATE SET
           sent = sent + excluded.sent, completed = completed + excluded.completed,
           failed = failed + excluded.failed, deferred = deferred + excluded.deferred,
           poisoned = poisoned + excluded.poisoned, retried = retried + excluded.retried,
           removed = removed + excluded.removed, seconds = seconds + excluded.seconds,
           longest = MAX(longest, excluded.longest);
DELETE FROM deadletter_count
 WHERE id IN (SELECT id FROM deadletter_count
               WHERE span = %(span)s AND at < %(before)s
               ORDER BY span, at, id LIMIT %(limit)s)
RETURNING id;

-- lock_named_streams --
SELECT 1 WHERE 0;

-- mark_deaths --
UPDATE deadletter_audited_message
   SET outcome = CASE WHEN fingerprint = r.died_of THEN 2 ELSE 3 END
  FROM (SELECT json_extract(value, '$.id') AS row_id,
               json_extract(value, '$.fingerprint') AS died_of
          FROM json_each(%(rows)s)) AS r
 WHERE message_id = r.row_id AND is_open AND outcome IS NULL;

-- mark_removed --
UPDATE deadletter_audited_message
   SET outcome = 4
 WHERE message_id IN (SELECT value FROM json_each(%(ids)s)) AND is_open AND outcome IS NULL;

-- mark_completed --
UPDATE deadletter_audited_message
   SET outcome = 1
 WHERE id IN (
       SELECT a.id FROM deadletter_audited_message a
        WHERE a.is_open AND a.outcome IS NULL
          AND NOT EXISTS (SELECT 1 FROM deadletter_message m WHERE m.id = a.message_id)
        ORDER BY a.id LIMIT %(limit)s)
RETURNING id;

-- read_groups --
WITH RECURSIVE g(fingerprint) AS (
    SELECT (SELECT MIN(n.fingerprint)
              FROM (SELECT MIN(p.fingerprint) AS fingerprint FROM deadletter_poison p
                     UNION ALL
                    SELECT MIN(m.fingerprint) FROM deadletter_message m
                     WHERE m.fingerprint IS NOT NULL) AS n)
     UNION ALL
    SELECT (SELECT MIN(n.fingerprint)
              FROM (SELECT MIN(p.fingerprint) AS fingerprint FROM deadletter_poison p
                     WHERE p.fingerprint > g.fingerprint
                     UNION ALL
                    SELECT MIN(m.fingerprint) FROM deadletter_message m
                     WHERE m.fingerprint > g.fingerprint) AS n)
      FROM g WHERE g.fingerprint IS NOT NULL
)
SELECT page.fingerprint,
       (SELECT MIN(e.at)
          FROM (SELECT MIN(p.poisoned_at) AS at FROM deadletter_poison p WHERE p.fingerprint = page.fingerprint
                 UNION ALL
                SELECT MIN(m.died_at) FROM deadletter_message m WHERE m.fingerprint = page.fingerprint) AS e),
       page.last_seen,
       -- the page is known: only its groups are counted, and only so far
       (SELECT COUNT(*) FROM (SELECT 1 FROM deadletter_poison p
                               WHERE p.fingerprint = page.fingerprint LIMIT %(counted)s) AS c),
       (SELECT COUNT(*) FROM (SELECT 1 FROM deadletter_poison p
                               WHERE p.fingerprint = page.fingerprint AND p.halts AND p.halts = 1
                               LIMIT %(halted)s) AS h),
       (SELECT p.id FROM deadletter_poison p WHERE p.fingerprint = page.fingerprint
         ORDER BY p.poisoned_at DESC LIMIT 1),
       (SELECT COUNT(*) FROM (SELECT 1 FROM deadletter_message m
                               WHERE m.fingerprint = page.fingerprint LIMIT %(counted)s) AS b),
       (SELECT m.id FROM deadletter_message m WHERE m.fingerprint = page.fingerprint
         ORDER BY m.died_at DESC LIMIT 1)
  FROM (SELECT g.fingerprint,
               (SELECT MAX(e.at)
          FROM (SELECT MAX(p.poisoned_at) AS at FROM deadletter_poison p WHERE p.fingerprint = g.fingerprint
                 UNION ALL
                SELECT MAX(m.died_at) FROM deadletter_message m WHERE m.fingerprint = g.fingerprint) AS e) AS last_seen
          FROM g WHERE g.fingerprint IS NOT NULL
         ORDER BY last_seen DESC, g.fingerprint
         LIMIT %(limit)s OFFSET %(offset)s) AS page
 ORDER BY page.last_seen DESC, page.fingerprint;

-- read_growth --
SELECT s.fingerprint,
       (SELECT COUNT(*) FROM (SELECT 1 FROM deadletter_poison p
                               WHERE p.fingerprint = s.fingerprint
                                 AND p.poisoned_at > hour.start AND p.poisoned_at <= hour.until
                               LIMIT %(counted)s) AS c)
       + (SELECT COUNT(*) FROM (SELECT 1 FROM deadletter_message m
                                 WHERE m.fingerprint = s.fingerprint
                                   AND m.died_at > hour.start AND m.died_at <= hour.until
                                 LIMIT %(counted)s) AS c)
  FROM (SELECT value AS fingerprint FROM json_each(%(fingerprints)s)) AS s
 CROSS JOIN (SELECT key AS n, value AS start, LEAD(value) OVER (ORDER BY key) AS until
               FROM json_each(%(edges)s)) AS hour
 WHERE hour.until IS NOT NULL
 ORDER BY s.fingerprint, hour.n;

-- read_group_times --
WITH RECURSIVE g(fingerprint, n) AS (
    SELECT (SELECT MIN(n.fingerprint)
              FROM (SELECT MIN(p.fingerprint) AS fingerprint FROM deadletter_poison p
                     WHERE p.fingerprint > %(after)s
                     UNION ALL
                    SELECT MIN(m.fingerprint) FROM deadletter_message m
                     WHERE m.fingerprint > %(after)s) AS n), 1
     UNION ALL
    SELECT (SELECT MIN(n.fingerprint)
              FROM (SELECT MIN(p.fingerprint) AS fingerprint FROM deadletter_poison p
                     WHERE p.fingerprint > g.fingerprint
                     UNION ALL
                    SELECT MIN(m.fingerprint) FROM deadletter_message m
                     WHERE m.fingerprint > g.fingerprint) AS n), g.n + 1
      FROM g WHERE g.fingerprint IS NOT NULL AND g.n < %(limit)s
)
SELECT g.fingerprint,
       (SELECT MIN(e.at)
          FROM (SELECT MIN(p.poisoned_at) AS at FROM deadletter_poison p WHERE p.fingerprint = g.fingerprint
                 UNION ALL
                SELECT MIN(m.died_at) FROM deadletter_message m WHERE m.fingerprint = g.fingerprint) AS e),
       (SELECT MAX(e.at)
          FROM (SELECT MAX(p.poisoned_at) AS at FROM deadletter_poison p WHERE p.fingerprint = g.fingerprint
                 UNION ALL
                SELECT MAX(m.died_at) FROM deadletter_message m WHERE m.fingerprint = g.fingerprint) AS e),
       (SELECT p.id FROM deadletter_poison p WHERE p.fingerprint = g.fingerprint
         ORDER BY p.poisoned_at DESC, p.id DESC LIMIT 1),
       (SELECT m.id FROM deadletter_message m WHERE m.fingerprint = g.fingerprint
         ORDER BY m.died_at DESC, m.id DESC LIMIT 1)
  FROM g WHERE g.fingerprint IS NOT NULL
 ORDER BY g.fingerprint;

-- read_names --
WITH RECURSIVE g(name) AS (
    SELECT MIN(name) FROM deadletter_poison
     UNION ALL
    SELECT (SELECT MIN(p.name) FROM deadletter_poison p WHERE p.name > g.name)
      FROM g WHERE g.name IS NOT NULL
)
SELECT g.name FROM g WHERE g.name IS NOT NULL ORDER BY g.name LIMIT %(limit)s;

-- read_exceptions --
WITH RECURSIVE g(exception) AS (
    SELECT MIN(exception) FROM deadletter_poison
     UNION ALL
    SELECT (SELECT MIN(p.exception) FROM deadletter_poison p WHERE p.exception > g.exception)
      FROM g WHERE g.exception IS NOT NULL
)
SELECT g.exception FROM g WHERE g.exception IS NOT NULL ORDER BY g.exception LIMIT %(limit)s;

-- read_blocked_streams --
WITH RECURSIVE parked(queue_id, stream, id, created_at) AS (
    SELECT * FROM (
           SELECT queue_id, stream, id, created_at FROM deadletter_message
            WHERE available_at IS NULL ORDER BY queue_id, stream, id LIMIT 1)
    UNION ALL
    SELECT n.queue_id, n.stream, n.id, n.created_at
      FROM parked p
      JOIN deadletter_message n
           -- as in read_stranded
        ON n.id = COALESCE(
           (SELECT id FROM deadletter_message
             WHERE available_at IS NULL AND queue_id = p.queue_id AND stream > p.stream
             ORDER BY stream, id LIMIT 1),
           (SELECT id FROM deadletter_message
             WHERE available_at IS NULL AND queue_id > p.queue_id
             ORDER BY queue_id, stream, id LIMIT 1))
     LIMIT %(reach)s
)
SELECT queue_id, stream, id, created_at FROM parked
 ORDER BY created_at, id
 LIMIT %(limit)s;

-- restore --
INSERT INTO deadletter_message
       (id, queue_id, name, kind, payload, headers, stream, key, priority, status, attempts, fence,
        available_at, failure_reason, error, history, poison_count, source_id, origin, death, fingerprint,
        died_at, instance, execution_id, activity_id, expires_at, created_at)
SELECT p.message_id, q.id, p.name, p.kind, COALESCE(%(payload)s, p.payload), p.headers, p.stream,
       p.key, p.priority, p.status & ~32768, 0, p.fence,
       django_format_dtdelta('+', %(now)s, d.value), p.last_failure_reason, p.last_error,
       CASE WHEN %(payload)s IS NULL THEN p.history ELSE
            json_insert(p.history, '$[#]', json_set(%(entry)s,
                '$.at', replace(%(now)s, ' ', 'T') || '+00:00', '$.original_payload', p.payload))
       END, p.poison_count, CASE WHEN q.name = p.queue OR p.origin IS NOT NULL THEN p.source_id END, p.origin,
       CASE WHEN q.name = p.queue THEN p.death END,
       CASE WHEN q.name = p.queue AND p.moved_at IS NOT NULL THEN p.fingerprint END,
       CASE WHEN q.name = p.queue AND p.moved_at IS NOT NULL THEN p.poisoned_at END,
       p.instance, p.execution_id, p.activity_id, django_format_dtdelta('+', %(now)s, q.expire_timeout),
       p.original_created_at
  FROM json_each(%(ids)s) i
  JOIN json_each(%(delays)s) d ON d.key = i.key
  JOIN deadletter_poison p ON p.id = i.value
  JOIN deadletter_queue q ON q.name = COALESCE(%(queue)s, p.queue)
 WHERE true
 ORDER BY p.message_id
    ON CONFLICT DO NOTHING
RETURNING id, queue_id, stream;

-- restore_dead --
INSERT INTO deadletter_message
       (id, queue_id, name, kind, payload, headers, stream, key, priority, status, attempts, fence,
        available_at, failure_reason, error, history, poison_count, source_id, origin, instance,
        execution_id, activity_id, expires_at, created_at)
SELECT m.source_id, q.id, m.name, m.kind, COALESCE(%(payload)s, m.payload), m.headers, m.stream,
       json_extract(r.value, '$.key'), m.priority, json_extract(r.value, '$.status'), 0,
       json_extract(r.value, '$.fence'),
       django_format_dtdelta('+', %(now)s, json_extract(r.value, '$.delay')),
       m.failure_reason, m.error,
       CASE WHEN %(payload)s IS NULL THEN m.history ELSE
            json_insert(m.history, '$[#]', json_set(%(entry)s,
                '$.at', replace(%(now)s, ' ', 'T') || '+00:00', '$.original_payload', m.payload))
       END, m.poison_count + (m.died_at IS NULL), json_extract(r.value, '$.source_id'),
       json_extract(r.value, '$.origin'), m.instance, m.execution_id, m.activity_id,
       django_format_dtdelta('+', %(now)s, q.expire_timeout),
       COALESCE(json_extract(r.value, '$.created_at'), m.created_at)
  FROM json_each(%(rows)s) r
  JOIN deadletter_message m ON m.id = json_extract(r.value, '$.id')
  JOIN deadletter_queue q ON q.id = json_extract(r.value, '$.queue_id')
 WHERE NOT EXISTS (SELECT 1 FROM deadletter_poison p WHERE p.message_id = m.source_id)
 ORDER BY m.source_id
    ON CONFLICT DO NOTHING
RETURNING id, queue_id, stream;

-- import_messages --
INSERT INTO deadletter_message
       (queue_id, name, payload, headers, stream, key, priority, status, available_at, expires_at, failure_reason, error, history,
        poison_count, source_id, origin, created_at)
SELECT q.id, json_extract(g.value, '$.name'), json_extract(g.value, '$.payload'), json_extract(g.value, '$.headers'),
       json_extract(g.value, '$.stream'), json_extract(g.value, '$.key'), json_extract(g.value, '$.priority'),
       json_extract(g.value, '$.status'), %(now)s, django_format_dtdelta('+', %(now)s, q.expire_timeout),
       json_extract(g.value, '$.failure_reason'), json_extract(g.value, '$.error'), json_extract(g.value, '$.history'),
       json_extract(g.value, '$.poison_count'), json_extract(g.value, '$.source_id'), %(origin)s,
       COALESCE(json_extract(g.value, '$.created_at'), %(now)s)
  FROM json_each(%(rows)s) g
  JOIN deadletter_queue q ON q.name = %(queue)s
 WHERE true
 ORDER BY g.key
    ON CONFLICT DO NOTHING
RETURNING id, source_id;

-- read_imported --
SELECT json_extract(m.death, '$.source_id') FROM deadletter_message m
 WHERE m.death IS NOT NULL AND json_extract(m.death, '$.origin') = %(origin)s
   AND json_extract(m.death, '$.source_id') IN (SELECT value FROM json_each(%(ids)s))
   AND json_extract(m.death, '$.queue') = %(queue)s
 UNION ALL
SELECT json_extract(p.death, '$.source_id') FROM deadletter_poison p
 WHERE p.death IS NOT NULL AND json_extract(p.death, '$.origin') = %(origin)s
   AND json_extract(p.death, '$.source_id') IN (SELECT value FROM json_each(%(ids)s))
   AND json_extract(p.death, '$.queue') = %(queue)s;

-- read_buried --
SELECT b.queue, COUNT(*), MIN(b.died_at), MAX(b.id)
  FROM (SELECT json_extract(m.death, '$.queue') AS queue, m.died_at, m.id FROM deadletter_message m
         WHERE m.queue_id = %(queue_id)s AND m.died_at > %(after)s
         ORDER BY m.queue_id DESC, m.died_at DESC, m.id DESC LIMIT %(limit)s) AS b
 GROUP BY b.queue;

-- read_levels --
-- Find every level, that is (queue, priority), that has messages which are not parked, and when its first message is due.
-- Without LATERAL: first the queues that have such messages, then their levels, then the first message of each.
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
-- The same for a few queues known by name. The messages of other queues are not read.
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
-- Return the candidates of one level with a verdict, then lease the messages without a stream among them and count the attempt.
-- One (queue, level) at a time: SQLite would sort a join of several, reading every due row.
SELECT CASE WHEN stream IS NOT NULL THEN 'stream'
            -- the largest values that PostgreSQL can store; beyond 64 bits SQLite continues with inexact numbers
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
-- Read the first messages of a stream. A stream with a live lease has no run and returns no row.
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
-- Lease the chosen runs and count the attempt; park what else was leased in these streams and ran out.
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
                                  THEN json_extract(reason_counts, '$."10"') ELSE 0 END) END,
       workers = CASE WHEN lease_token IS NULL THEN workers ELSE
                 json_insert(CASE WHEN json_type(workers) = 'array' THEN
                                CASE WHEN json_array_length(workers) >= 1000 THEN json_remove(workers, '$[0]')
                                     ELSE workers END
                                ELSE '[]' END, '$[#]', worker) END
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
                     -- +stream, so that no index of streams is used: one was read from end to end, stream by stream
                FROM (SELECT DISTINCT queue_id, stream FROM deadletter_message
                       WHERE id IN (SELECT value FROM json_each(%(ids)s)) AND +stream IS NOT NULL) s
                JOIN deadletter_message old
                  ON old.queue_id = s.queue_id AND old.stream = s.stream
                 AND old.lease_token IS NOT NULL);

-- read_levels --
-- Find every level, that is (queue, priority), that has messages which are not parked, and when its first message is due. One
-- index probe for each level, however many messages there are (a loose index scan, which the planner does not do by itself).
-- within: only levels with a message that is due by then. Times are clamped to the range of Python's datetime: one damaged row
-- at the front of its level must not break every claim.
WITH RECURSIVE level AS (
    (SELECT m.queue_id, m.priority, m.available_at FROM deadletter_message m
      WHERE m.available_at IS NOT NULL
      ORDER BY m.queue_id, m.priority, m.available_at, m.id LIMIT 1)
     UNION ALL
    SELECT next.queue_id, next.priority, next.available_at
      FROM level
     CROSS JOIN LATERAL (
           SELECT m.queue_id, m.priority, m.available_at FROM deadletter_message m
            WHERE m.available_at IS NOT NULL
              AND (m.queue_id, m.priority) > (level.queue_id, level.priority)
            ORDER BY m.queue_id, m.priority, m.available_at, m.id LIMIT 1) AS next
)
SELECT level.queue_id, q.name, level.priority,
       -- Python's datetime has no infinity and no year 0
       LEAST(GREATEST(level.available_at, '0001-01-03T00:00:00Z'), '9999-12-29T00:00:00Z'),
       q.paused, q.is_dead
  FROM level
 CROSS JOIN LATERAL (
       SELECT q.name, q.paused,
              EXISTS (SELECT FROM deadletter_queue s WHERE s.dead_queue_id = q.id) AS is_dead
         FROM deadletter_queue q WHERE q.id = level.queue_id LIMIT 1) AS q
 WHERE %(within)s::interval IS NULL OR level.available_at <= %(now)s + %(within)s::interval
 ORDER BY q.name, level.priority;

-- read_levels_of --
-- The same for a few queues known by name. The messages of other queues are not read.
WITH RECURSIVE level AS (
    SELECT q.id AS queue_id, q.name, q.paused, first.priority, first.available_at
      FROM unnest(%(queues)s::text[]) AS wanted(name)
     CROSS JOIN LATERAL (
           SELECT q.id, q.name, q.paused FROM deadletter_queue q
            WHERE q.name = wanted.name LIMIT 1) AS q
     CROSS JOIN LATERAL (
           SELECT m.priority, m.available_at FROM deadletter_message m
            WHERE m.available_at IS NOT NULL AND m.queue_id = q.id
            ORDER BY m.queue_id, m.priority, m.available_at, m.id LIMIT 1) AS first
     UNION ALL
    SELECT level.queue_id, level.name, level.paused, next.priority, next.available_at
      FROM level
     CROSS JOIN LATERAL (
           SELECT m.priority, m.available_at FROM deadletter_message m
            WHERE m.available_at IS NOT NULL
              AND m.queue_id = level.queue_id AND m.priority > level.priority
            ORDER BY m.queue_id, m.priority, m.available_at, m.id LIMIT 1) AS next
)
SELECT level.queue_id, level.name, level.priority,
       LEAST(GREATEST(level.available_at, '0001-01-03T00:00:00Z'), '9999-12-29T00:00:00Z'),
       level.paused, false
  FROM level
 WHERE %(within)s::interval IS NULL OR level.available_at <= %(now)s + %(within)s::interval
 ORDER BY level.name, level.priority;

-- claim --
-- Lease due messages without a stream and count the attempt, in one statement; return the other candidates with a verdict.
WITH level AS (
    -- Each (queue, level) is probed by itself: one scan over several levels would read every future row of a level before it
    -- reached the due rows of the next. The outer LIMIT stops as soon as there are enough.
    -- The levels were found up to a second ago, so the queue is read again. A queue that was not asked for by name must not be
    -- a dead queue; a queue that was must still have that name.
    -- A limit of 0 still means one attempt. NULL means no limit; GREATEST would ignore it.
    SELECT q.id AS queue_id, wanted.priority, COALESCE(wanted.since, '-infinity') AS since, wanted.from_id,
           CASE WHEN q.max_attempts < 1 THEN 1 ELSE q.max_attempts END AS max_attempts,
           CASE WHEN q.unregistered_attempts < 1 THEN 1 ELSE q.unregistered_attempts END AS unregistered_attempts
      FROM unnest(%(queue_ids)s::bigint[], %(names)s::text[], %(priorities)s::smallint[], %(since)s::timestamptz[],
                  %(from_ids)s::bigint[])
           WITH ORDINALITY AS wanted(queue_id, name, priority, since, from_id, place)
     CROSS JOIN LATERAL (
           -- LIMIT, so that each queue is looked up by its id: a plain join could read all queues
           SELECT q.id, q.max_attempts, COALESCE(q.unregistered_attempts, q.max_attempts) AS unregistered_attempts
             FROM deadletter_queue q
            WHERE q.id = wanted.queue_id AND NOT q.paused
              AND CASE WHEN wanted.name IS NULL
                       THEN NOT EXISTS (SELECT FROM deadletter_queue s WHERE s.dead_queue_id = q.id)
                       ELSE q.name = wanted.name END
            LIMIT 1) AS q
     ORDER BY wanted.place
), candidate AS MATERIALIZED (
    -- place: an UPDATE returns rows in the order of its join, which the planner chooses in a caller's transaction
    SELECT found.*, row_number() OVER () AS place,
           CASE WHEN found.stream IS NOT NULL THEN 'stream'
                -- the largest values that the columns can store: counting up would fail the whole claim
                WHEN found.attempts >= 2147483647 OR found.fence >= 9223372036854775807 THEN 'overflow'
                     -- a failure reason or a handler may allow more attempts, but not more time
                WHEN found.attempts >= level.max_attempts
                THEN CASE WHEN found.expires_at <= %(now)s THEN 'exhausted or expired' ELSE 'exhausted' END
                WHEN found.expires_at <= %(now)s THEN 'expired'
                WHEN found.lease_token IS NOT NULL THEN 'lost'
                -- NULL for most messages; once a handler has failed, the attempts are the limit
                WHEN found.deferrals >= level.unregistered_attempts THEN 'unregistered'
                ELSE 'lease' END AS verdict
      FROM level
     CROSS JOIN LATERAL (
           SELECT m.ctid AS spot, m.id, m.queue_id, m.stream, m.name, m.attempts, m.expires_at,
                  m.lease_token, m.available_at, m.fence,
                  CASE WHEN m.failure_reason = 9 THEN m.unregistered_count END AS deferrals
             FROM deadletter_message m
            WHERE m.queue_id = level.queue_id
              AND m.priority = level.priority
              AND m.available_at <= %(now)s
                  -- earlier claims left dead index entries at the front, which only a vacuum removes
              AND (m.available_at, m.id) >= (level.since, level.from_id)
              AND NOT (m.id = ANY(%(exclude)s::bigint[]))
            ORDER BY m.available_at, m.id
            LIMIT %(limit)s
              FOR UPDATE SKIP LOCKED) AS found
     LIMIT %(limit)s
), leased AS (
    UPDATE deadletter_message m
       SET attempts = m.attempts + 1, fence = m.fence + 1, lease_token = %(token)s,
           worker = %(worker)s,
           available_at = %(now)s + COALESCE(%(lease)s::interval, q.lease_timeout)
      FROM candidate c JOIN deadletter_queue q ON q.id = c.queue_id
     WHERE m.ctid = c.spot AND c.verdict = 'lease'
    RETURNING m.id, q.name AS queue, m.name, m.kind, m.payload, m.headers, m.stream, m.attempts,
              -- the largest limit of the queue and its failure reasons; NULL means no limit
              CASE WHEN q.reason_policies = '{}'::jsonb OR jsonb_typeof(q.reason_policies) <> 'object' THEN q.max_attempts
                   ELSE (SELECT CASE WHEN count(*) = count(n) THEN max(n) END
                           FROM (SELECT q.max_attempts AS n
                                  UNION ALL
                                        -- LEAST would ignore NULL, which means no limit
                                 SELECT CASE WHEN jsonb_typeof(p.value -> 'max_attempts') = 'number'
                                             THEN GREATEST(LEAST((p.value ->> 'max_attempts')::numeric, 1000000), 0)::int END
                                   FROM jsonb_each(q.reason_policies) AS p
                                  WHERE jsonb_typeof(p.value -> 'max_attempts') IN ('number', 'null')) AS limits)
                   END AS max_attempts, m.status, m.fence, m.created_at::text, m.instance, m.execution_id,
              m.activity_id, COALESCE(%(lease)s::interval, q.lease_timeout) AS lease,
              m.failure_reason, c.place
)
-- The second column is the time at which the first candidate became due, in microseconds: the floor of the next claim.
SELECT 'leased', (SELECT (extract(epoch FROM GREATEST(min(available_at), '0001-01-03T00:00:00Z')) * 1000000)::bigint FROM candidate),
       l.place, l.id, l.queue, l.name, l.kind, l.payload, l.headers, l.stream, l.attempts, l.max_attempts, l.status,
       l.fence, l.created_at, l.instance, l.execution_id, l.activity_id, l.lease, l.failure_reason
  FROM leased l
 UNION ALL
SELECT c.verdict, c.queue_id,
       -- Try the lock, never wait. The stream itself is read by the next statement: a snapshot taken before the lock
       -- was measured to deliver messages twice.
       CASE WHEN c.verdict = 'stream' THEN
            pg_try_advisory_xact_lock(hashtextextended(c.stream, c.queue_id))::int END,
       c.id, NULL, c.name, NULL, NULL, NULL, c.stream, c.attempts, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       NULL, NULL
  FROM candidate c WHERE c.verdict <> 'lease';

-- read_streams --
-- Read the first messages of each stream whose lock is held. A stream with a live lease has no run and is left out.
SELECT s.queue_id, s.stream, q.stream_policy, halt.message_id, m.id,
       COALESCE(m.available_at > %(now)s, false) AS waiting,
       m.released_at IS NOT NULL AS released,
       COALESCE(m.attempts >= CASE WHEN q.max_attempts < 1 THEN 1 ELSE q.max_attempts END, false)
           OR COALESCE(m.unregistered_count >= CASE WHEN COALESCE(q.unregistered_attempts, q.max_attempts) < 1 THEN 1
                                                    ELSE COALESCE(q.unregistered_attempts, q.max_attempts) END
                       AND m.failure_reason = 9, false) AS suspect,
       COALESCE(m.expires_at <= %(now)s, false) AS expired, m.name, m.attempts,
       m.lease_token IS NOT NULL AS lost, m.kind,
       m.attempts >= 2147483647 OR m.fence >= 9223372036854775807 AS overflow
  FROM unnest(%(queue_ids)s::bigint[], %(streams)s::text[]) AS s(queue_id, stream)
  JOIN deadletter_queue q ON q.id = s.queue_id
  LEFT JOIN LATERAL (
       SELECT p.message_id FROM deadletter_poison p
        WHERE p.halts AND p.queue = q.name AND p.stream = s.stream
        ORDER BY p.message_id LIMIT 1) AS halt ON true
 CROSS JOIN LATERAL (
       (SELECT id, name, kind, available_at, released_at, attempts, expires_at, lease_token, fence,
               unregistered_count, failure_reason
          FROM deadletter_message
         WHERE queue_id = s.queue_id AND stream >= s.stream AND stream <= s.stream
               -- under the policy release a waiting message is skipped, so it must not use up the limit
           AND (q.stream_policy <> 'release' OR COALESCE(available_at, '-infinity') <= %(now)s)
         ORDER BY queue_id, stream, id LIMIT %(cap)s)
       UNION
       (SELECT id, name, kind, available_at, released_at, attempts, expires_at, lease_token, fence,
               unregistered_count, failure_reason
          FROM deadletter_message
         WHERE queue_id = s.queue_id AND stream >= s.stream AND stream <= s.stream
           AND released_at IS NOT NULL
               -- not an OR: without statistics that was read from the claim index, every due row
           AND COALESCE(available_at, '-infinity') <= %(now)s
         ORDER BY queue_id, stream, id LIMIT %(cap)s)) AS m
 WHERE (SELECT id FROM deadletter_message
         WHERE queue_id = s.queue_id AND stream >= s.stream AND stream <= s.stream
           AND lease_token IS NOT NULL AND COALESCE(available_at, '-infinity') > %(now)s
         ORDER BY queue_id, stream LIMIT 1) IS NULL
 ORDER BY s.queue_id, s.stream, m.id;

-- lease_runs --
-- Lease the chosen runs and count the attempt. A row that another claim has locked ends its run there: waiting for it could
-- deadlock, and leasing the messages behind it would break the order.
WITH wanted AS (
    SELECT * FROM unnest(%(ids)s::bigint[], %(runs)s::int[], %(places)s::int[]) AS w(id, run, place)
), mine AS MATERIALIZED (
    SELECT m.ctid AS spot, m.id, m.queue_id, m.stream FROM deadletter_message m
     WHERE m.id = ANY(%(ids)s::bigint[])
           -- a renewal takes no stream lock: one that began before the lease ran out may have committed since
       AND (m.available_at IS NULL OR m.available_at <= %(now)s)
     ORDER BY m.id
       FOR UPDATE SKIP LOCKED
), unbroken AS (
    SELECT spot, queue_id, stream FROM (
        SELECT mine.spot, mine.queue_id, mine.stream, w.place,
               row_number() OVER (PARTITION BY w.run ORDER BY w.place) AS got
          FROM mine JOIN wanted w ON w.id = mine.id) AS counted
     WHERE got = place
), disowned AS (
    -- The stream is leased anew, so its other expired leases are parked: a lease that ran out must not become valid again,
    -- neither when a clock is set back nor for a report that began in time.
    UPDATE deadletter_message
       SET available_at = NULL, lease_token = NULL, worker = NULL
     WHERE id = ANY(ARRAY(
           SELECT old.id
             FROM (SELECT DISTINCT queue_id, stream FROM unbroken WHERE stream IS NOT NULL) AS s
            CROSS JOIN LATERAL (
                  SELECT id FROM deadletter_message
                   WHERE queue_id = s.queue_id AND stream >= s.stream AND stream <= s.stream
                     AND lease_token IS NOT NULL AND COALESCE(available_at, 'infinity') <= %(now)s
                     AND NOT (id = ANY(%(keep)s::bigint[]))
                   ORDER BY queue_id, stream
                     FOR UPDATE SKIP LOCKED) AS old))
)
UPDATE deadletter_message m
   SET attempts = m.attempts + 1, fence = m.fence + 1, lease_token = %(token)s,
       worker = %(worker)s, available_at = %(now)s + COALESCE(%(lease)s::interval, q.lease_timeout),
       -- a lease that ran out without a report is a failed attempt: record it before worker and token are overwritten
       failure_reason = CASE WHEN m.lease_token IS NULL THEN m.failure_reason ELSE 10 END,
       error = CASE WHEN m.lease_token IS NULL THEN m.error ELSE
               'worker ' || m.worker || ' did not report before its lease ran out' END,
       history = CASE WHEN m.lease_token IS NULL THEN m.history ELSE
               CASE WHEN jsonb_typeof(m.history) <> 'array' THEN '[]'::jsonb
                    WHEN jsonb_array_length(m.history) >= %(history_limit)s
                    THEN m.history - 0 ELSE m.history END
               || jsonb_build_array(jsonb_build_object(
                    'at', m.available_at, 'worker', m.worker, 'attempt', m.attempts, 'reason', 10,
                    'error', 'worker ' || m.worker || ' did not report before its lease ran out'))
               END,
       reason_counts = CASE WHEN m.lease_token IS NULL THEN m.reason_counts ELSE
               CASE WHEN jsonb_typeof(m.reason_counts) = 'object' THEN m.reason_counts ELSE '{}'::jsonb END
               || jsonb_build_object('10', 1 + CASE WHEN jsonb_typeof(m.reason_counts -> '10') = 'number' THEN
                                                    CASE WHEN (m.reason_counts -> '10')::numeric BETWEEN 0 AND 2147483647
                                                          AND mod((m.reason_counts -> '10')::numeric, 1) = 0
                                                         THEN (m.reason_counts -> '10')::bigint ELSE 0 END ELSE 0 END)
               END,
       workers = CASE WHEN m.lease_token IS NULL THEN m.workers ELSE
               CASE WHEN jsonb_typeof(m.workers) = 'array' THEN
                    CASE WHEN jsonb_array_length(m.workers) >= 1000 THEN m.workers - 0 ELSE m.workers END
                    ELSE '[]'::jsonb END || to_jsonb(m.worker::text) END
  FROM deadletter_queue q
 WHERE m.ctid = ANY(ARRAY(SELECT spot FROM unbroken)) AND q.id = m.queue_id
RETURNING m.id, q.name, m.name, m.kind, m.payload, m.headers, m.stream, m.attempts, q.max_attempts,
          m.status, m.fence, m.created_at::text, m.instance, m.execution_id, m.activity_id,
          COALESCE(%(lease)s::interval, q.lease_timeout), m.failure_reason,
          NULLIF(q.reason_policies, '{}'::jsonb)::text;

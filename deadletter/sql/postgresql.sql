-- Named statements for PostgreSQL. A statement starts at "-- name --"; comments are dropped when read.
-- The parameter now stands for COALESCE(given, now()): the transaction's own time unless a test froze it; sent is the time of the
-- statement instead, for what counts from the send.
-- Lock order everywhere: advisory locks of streams (by key), then rows (by id). A claim never waits for either.
-- A stream is read as queue_id = … AND stream >= … AND stream <= …, in the order of an index of streams, and its ends with LIMIT 1
-- instead of EXISTS. With stream = … the order by id is also that of the primary key, and the planner was seen to read the whole table
-- for a stream that is most of it. Not as a row comparison (queue_id, stream) <= (…): before PostgreSQL 18 that ends a scan only where
-- queue_id changes, and each stream of a claim read all streams behind it. As the start of a scan, > (…), it is exact in all versions.
-- Messages named by the caller are joined to what is said of them, and named once more as "= ANY": right after a drained queue
-- was analysed the planner takes a million rows for one, and was seen to read them all in the order of their ids for a merge.
-- available_at is compared as a COALESCE for the same reason, except in the claim: compared as it is, it offers the claim index, and
-- every due message or every lease was seen to be read from it.

-- enqueue --
-- Store one message in a queue known by name. No row: the queue is missing, or the key is taken.
WITH stored AS (
    INSERT INTO deadletter_message
           (queue_id, name, kind, payload, headers, stream, key, priority, available_at, expires_at,
            instance, execution_id, activity_id, created_at)
    SELECT q.id, %(name)s, %(kind)s, %(payload)s, %(headers)s, %(stream)s, %(key)s, %(priority)s,
           COALESCE(%(at)s::timestamptz, %(now)s + %(delay)s::interval),
           %(sent)s + COALESCE(%(expires_in)s::interval, q.expire_timeout),
           %(instance)s, %(execution_id)s, %(activity_id)s, %(now)s
      FROM deadletter_queue q
     WHERE q.name = %(queue)s
        ON CONFLICT (queue_id, key) WHERE key IS NOT NULL DO NOTHING
    RETURNING id, queue_id, available_at, expires_at, created_at
), counted AS (
    INSERT INTO deadletter_count AS c (span, at, queue, name, kind, writer, sent)
    SELECT 60, date_trunc('minute', %(now)s), %(queue)s, %(name)s, %(kind)s,
           %(writer)s::text, 1
      FROM stored
     WHERE %(writer)s::text IS NOT NULL
        ON CONFLICT (span, at, queue, name, kind, reason, writer) DO UPDATE SET sent = c.sent + 1
)
SELECT id, queue_id, available_at, expires_at, created_at FROM stored;

-- draw_ids --
-- Reserve ids for messages that are about to be copied in, in order.
SELECT nextval((SELECT pg_get_serial_sequence('deadletter_message', 'id')::regclass))
  FROM generate_series(1, %(count)s);

-- enqueue_many --
-- Store messages with keys in one queue under ids that were drawn before, in the order given; says which were stored (a key may be
-- taken). The caller gives them in the order of their keys: whoever is storing one of them is waited for, and must not wait for us.
INSERT INTO deadletter_message
       (id, queue_id, name, kind, payload, headers, stream, key, priority, available_at,
        expires_at, created_at)
SELECT g.id, q.id, g.name, g.kind, g.payload, g.headers, g.stream, g.key, g.priority,
       COALESCE(g.at, %(now)s + g.delay * interval '1 microsecond'),
       %(sent)s + COALESCE(g.expires_in * interval '1 microsecond', q.expire_timeout),
       %(now)s
  FROM ROWS FROM (jsonb_to_recordset(%(rows)s::jsonb)
       AS (id bigint, name text, kind text, payload text, headers text, stream text, key text,
           priority smallint, at timestamptz, delay bigint, expires_in bigint))
       WITH ORDINALITY
         AS g(id, name, kind, payload, headers, stream, key, priority, at, delay, expires_in, place),
       deadletter_queue q
 WHERE q.id = %(queue_id)s
 ORDER BY g.place
    ON CONFLICT (queue_id, key) WHERE key IS NOT NULL DO NOTHING
RETURNING id;

-- read_levels --
-- Find every level, that is (queue, priority), at which messages are not parked, and when its first message is due: one index
-- probe for each, whatever else there is (a loose index scan, which the planner does not do by itself).
-- within: only levels with a message that is due by then. Times within what Python can read: one damaged row in front of its
-- level must not end every claim.
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
       -- Python has no infinity and no year 0
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
-- The same of a few queues known by name: what is in other queues is not read.
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
-- Lease due plain messages and count the attempt, in one statement; report the other candidates with a verdict.
WITH level AS (
    -- An index that leads with priority would read every future row of a level before it reached the next level's
    -- due rows, so each (queue, level) is probed for itself; the outer LIMIT stops as soon as there is enough.
    -- The levels were found before, maybe a second ago: what a queue is now is read now. One that is not asked for by
    -- name must not be a dead queue; one that is must have that name still.
    -- 0 still means one execution; null means never, which GREATEST would pass over.
    SELECT q.id AS queue_id, wanted.priority, COALESCE(wanted.since, '-infinity') AS since, wanted.from_id,
           CASE WHEN q.max_attempts < 1 THEN 1 ELSE q.max_attempts END AS max_attempts,
           CASE WHEN q.unregistered_attempts < 1 THEN 1 ELSE q.unregistered_attempts END AS unregistered_attempts
      FROM unnest(%(queue_ids)s::bigint[], %(names)s::text[], %(priorities)s::smallint[], %(since)s::timestamptz[],
                  %(from_ids)s::bigint[])
           WITH ORDINALITY AS wanted(queue_id, name, priority, since, from_id, place)
     CROSS JOIN LATERAL (
           -- with a limit, so that each queue is looked up by its id: a join was free to read them all
           SELECT q.id, q.max_attempts, COALESCE(q.unregistered_attempts, q.max_attempts) AS unregistered_attempts
             FROM deadletter_queue q
            WHERE q.id = wanted.queue_id AND NOT q.paused
              AND CASE WHEN wanted.name IS NULL
                       THEN NOT EXISTS (SELECT FROM deadletter_queue s WHERE s.dead_queue_id = q.id)
                       ELSE q.name = wanted.name END
            LIMIT 1) AS q
     ORDER BY wanted.place
), candidate AS MATERIALIZED (
    -- place: what an UPDATE returns is in the order of its join, which is the planner's choice in a caller's transaction
    SELECT found.*, row_number() OVER () AS place,
           CASE WHEN found.stream IS NOT NULL THEN 'stream'
                -- nothing larger can be stored: counted all the same, it would fail the whole claim
                WHEN found.attempts >= 2147483647 OR found.fence >= 9223372036854775807 THEN 'overflow'
                     -- a reason or a handler may allow more attempts, but no more time
                WHEN found.attempts >= level.max_attempts
                THEN CASE WHEN found.expires_at <= %(now)s THEN 'exhausted or expired' ELSE 'exhausted' END
                WHEN found.expires_at <= %(now)s THEN 'expired'
                WHEN found.lease_token IS NOT NULL THEN 'lost'
                -- null of all but a few; once a handler has failed, its attempts are its limit
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
                  -- what was claimed before has left dead entries in front, which only a vacuum removes
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
              -- the largest of the limits that the queue has, null meaning none
              CASE WHEN q.reason_policies = '{}'::jsonb OR jsonb_typeof(q.reason_policies) <> 'object' THEN q.max_attempts
                   ELSE (SELECT CASE WHEN count(*) = count(n) THEN max(n) END
                           FROM (SELECT q.max_attempts AS n
                                  UNION ALL
                                        -- LEAST alone would pass over null, which means no limit
                                 SELECT CASE WHEN jsonb_typeof(p.value -> 'max_attempts') = 'number'
                                             THEN GREATEST(LEAST((p.value ->> 'max_attempts')::numeric, 1000000), 0)::int END
                                   FROM jsonb_each(q.reason_policies) AS p
                                  WHERE jsonb_typeof(p.value -> 'max_attempts') IN ('number', 'null')) AS limits)
                   END AS max_attempts, m.status, m.fence, m.created_at::text, m.instance, m.execution_id,
              m.activity_id, COALESCE(%(lease)s::interval, q.lease_timeout) AS lease,
              m.failure_reason, c.place
)
-- And when the first candidate became due, in microseconds: the floor of the next claim.
SELECT 'leased', (SELECT (extract(epoch FROM GREATEST(min(available_at), '0001-01-03T00:00:00Z')) * 1000000)::bigint FROM candidate),
       l.place, l.id, l.queue, l.name, l.kind, l.payload, l.headers, l.stream, l.attempts, l.max_attempts, l.status,
       l.fence, l.created_at, l.instance, l.execution_id, l.activity_id, l.lease, l.failure_reason
  FROM leased l
 UNION ALL
SELECT c.verdict, c.queue_id,
       -- Try, never wait. The stream itself is read by the next statement: a snapshot taken before the lock
       -- was measured to deliver messages twice.
       CASE WHEN c.verdict = 'stream' THEN
            pg_try_advisory_xact_lock(hashtextextended(c.stream, c.queue_id))::int END,
       c.id, NULL, c.name, NULL, NULL, NULL, c.stream, c.attempts, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       NULL, NULL
  FROM candidate c WHERE c.verdict <> 'lease';

-- read_streams --
-- Read the head of each stream whose lock is held. A stream with a live lease has no run and is left out.
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
               -- under release a waiting message is passed, so it must not use up the limit
           AND (q.stream_policy <> 'release' OR COALESCE(available_at, '-infinity') <= %(now)s)
         ORDER BY queue_id, stream, id LIMIT %(cap)s)
       UNION
       (SELECT id, name, kind, available_at, released_at, attempts, expires_at, lease_token, fence,
               unregistered_count, failure_reason
          FROM deadletter_message
         WHERE queue_id = s.queue_id AND stream >= s.stream AND stream <= s.stream
           AND released_at IS NOT NULL
               -- not as an OR: without statistics that was read from the claim index, every due row
           AND COALESCE(available_at, '-infinity') <= %(now)s
         ORDER BY queue_id, stream, id LIMIT %(cap)s)) AS m
 WHERE (SELECT id FROM deadletter_message
         WHERE queue_id = s.queue_id AND stream >= s.stream AND stream <= s.stream
           AND lease_token IS NOT NULL AND COALESCE(available_at, '-infinity') > %(now)s
         ORDER BY queue_id, stream LIMIT 1) IS NULL
 ORDER BY s.queue_id, s.stream, m.id;

-- lease_runs --
-- Lease the chosen runs and count the attempt. A row another claim is looking at breaks its run there: waiting for it
-- could deadlock, and taking what follows it would break the order.
WITH wanted AS (
    SELECT * FROM unnest(%(ids)s::bigint[], %(runs)s::int[], %(places)s::int[]) AS w(id, run, place)
), mine AS MATERIALIZED (
    SELECT m.ctid AS spot, m.id, m.queue_id, m.stream FROM deadletter_message m
     WHERE m.id = ANY(%(ids)s::bigint[])
           -- a renewal needs no stream lock: one that began before the lease ran out may have won since
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
    -- The stream has a new holder, so what else was held of it is parked: a lease that ran out must not come alive again,
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
       -- a lease that ran out unreported is a failed attempt: say so before the trace is overwritten
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
               END
  FROM deadletter_queue q
 WHERE m.ctid = ANY(ARRAY(SELECT spot FROM unbroken)) AND q.id = m.queue_id
RETURNING m.id, q.name, m.name, m.kind, m.payload, m.headers, m.stream, m.attempts, q.max_attempts,
          m.status, m.fence, m.created_at::text, m.instance, m.execution_id, m.activity_id,
          COALESCE(%(lease)s::interval, q.lease_timeout), m.failure_reason,
          NULLIF(q.reason_policies, '{}'::jsonb)::text;

-- park --
-- Take candidates of a blocked stream out of the claim index. Only under the stream's lock: whoever unblocks the stream
-- must see them. Also those right behind, so that a long blocked stream is not met again a batch at a time.
WITH behind AS MATERIALIZED (
    SELECT p.id
      FROM unnest(%(queue_ids)s::bigint[], %(streams)s::text[], %(after)s::bigint[])
           AS s(queue_id, stream, after)
     CROSS JOIN LATERAL (
           SELECT id, available_at FROM deadletter_message
            WHERE queue_id = s.queue_id AND (stream, id) > (s.stream, s.after) AND stream <= s.stream
            ORDER BY queue_id, stream, id LIMIT %(reach)s) AS p
     WHERE p.available_at <= %(now)s AND NOT (p.id = ANY(%(exclude)s::bigint[]))
), mine AS MATERIALIZED (
    SELECT id FROM deadletter_message
     WHERE id = ANY(%(ids)s::bigint[] || ARRAY(SELECT id FROM behind))
       AND COALESCE(available_at, 'infinity') <= %(now)s
     ORDER BY id
       FOR UPDATE SKIP LOCKED
)
UPDATE deadletter_message
   SET available_at = NULL, lease_token = NULL, worker = NULL
 WHERE id = ANY(ARRAY(SELECT id FROM mine))
RETURNING id;

-- complete --
-- Delete finished messages and count them; those of a stream only get their stream's lock here (waiting, by key) and are deleted
-- by complete_streamed, in a snapshot taken after the lock. Says "all" when all are gone, unless somebody listens to each.
-- Who holds what is compared as text, here and below: to join an array, each message was compared with each where the planner
-- took the table for empty, which it often is when it is analysed.
WITH gone AS (
    DELETE FROM deadletter_message m
     WHERE m.id = ANY(%(ids)s::bigint[]) AND m.lease_token || '-' || m.id = ANY(%(pairs)s::text[])
       AND COALESCE(m.available_at, '-infinity') > %(now)s AND m.stream IS NULL
    RETURNING m.id, m.queue_id, m.name, m.kind, (%(seconds)s::jsonb ->> m.id::text)::float8 AS seconds
), counted AS (
    INSERT INTO deadletter_count AS c
           (span, at, queue, name, kind, writer, completed, seconds, longest)
    SELECT 60, date_trunc('minute', %(now)s), q.name, g.name, g.kind, %(writer)s::text, count(*),
           COALESCE(sum(g.seconds), 0), COALESCE(max(g.seconds), 0)
      FROM gone g JOIN deadletter_queue q ON q.id = g.queue_id
     WHERE %(writer)s::text IS NOT NULL
     GROUP BY q.name, g.name, g.kind
        ON CONFLICT (span, at, queue, name, kind, reason, writer)
        DO UPDATE SET completed = c.completed + excluded.completed,
                      seconds = c.seconds + excluded.seconds,
                      longest = GREATEST(c.longest, excluded.longest)
), streamed AS (
    SELECT m.id, m.queue_id, m.stream
      FROM deadletter_message m
     WHERE m.id = ANY(%(ids)s::bigint[]) AND m.lease_token || '-' || m.id = ANY(%(pairs)s::text[])
       AND COALESCE(m.available_at, '-infinity') > %(now)s AND m.stream IS NOT NULL
     ORDER BY hashtextextended(m.stream, m.queue_id), m.id
)
-- The locks first: whoever holds one of them may be waiting for a row.
SELECT pg_advisory_xact_lock(hashtextextended(stream, queue_id))::text, id, NULL, NULL, NULL
  FROM (SELECT * FROM streamed) AS ordered
 UNION ALL
SELECT NULL, id, queue_id, name, kind FROM gone
 WHERE %(named)s OR (SELECT count(*) FROM gone) < cardinality(%(ids)s::bigint[])
 UNION ALL
-- Said aloud: no row at all means that none was the caller's.
SELECT 'all', NULL, NULL, NULL, NULL
 WHERE NOT %(named)s AND (SELECT count(*) FROM gone) = cardinality(%(ids)s::bigint[]);

-- complete_plain --
-- Delete finished messages without a stream; count them when all of them were the caller's, else he knows better. Says "all" then, unless
-- somebody listens to each.
WITH gone AS (
    DELETE FROM deadletter_message m
     WHERE m.id = ANY(%(ids)s::bigint[]) AND m.lease_token || '-' || m.id = ANY(%(pairs)s::text[])
       AND COALESCE(m.available_at, '-infinity') > %(now)s AND m.stream IS NULL
    RETURNING m.id, m.queue_id, m.name, m.kind
), every AS MATERIALIZED (
    SELECT count(*) = cardinality(%(ids)s::bigint[]) AS one FROM gone
), counted AS (
    INSERT INTO deadletter_count AS c
           (span, at, queue, name, kind, writer, completed, seconds, longest)
    SELECT 60, date_trunc('minute', %(now)s), q.name, g.name, g.kind, %(writer)s::text, g.many,
           COALESCE(s.seconds, 0), COALESCE(s.longest, 0)
      FROM (SELECT queue_id, name, kind, count(*) AS many FROM gone
             WHERE %(writer)s::text IS NOT NULL AND (SELECT one FROM every)
             GROUP BY queue_id, name, kind) AS g
      JOIN deadletter_queue q ON q.id = g.queue_id
      LEFT JOIN unnest(%(queues)s::text[], %(names)s::text[], %(kinds)s::text[],
                       %(seconds)s::float8[], %(longest)s::float8[])
             AS s(queue, name, kind, seconds, longest)
             ON (s.queue, s.name, s.kind) = (q.name, g.name, g.kind)
        ON CONFLICT (span, at, queue, name, kind, reason, writer)
        DO UPDATE SET completed = c.completed + excluded.completed,
                      seconds = c.seconds + excluded.seconds,
                      longest = GREATEST(c.longest, excluded.longest)
)
SELECT NULL AS said, id, queue_id, name, kind FROM gone
 WHERE %(named)s OR NOT (SELECT one FROM every)
 UNION ALL
SELECT 'all', NULL, NULL, NULL, NULL WHERE NOT %(named)s AND (SELECT one FROM every);

-- complete_streamed --
-- Delete finished messages of streams whose lock is held.
DELETE FROM deadletter_message m
 WHERE m.id = ANY(%(ids)s::bigint[]) AND m.lease_token || '-' || m.id = ANY(%(pairs)s::text[])
   AND COALESCE(m.available_at, '-infinity') > %(now)s AND m.stream IS NOT NULL
RETURNING m.id, m.queue_id, m.name, m.kind, m.queue_id, m.stream;

-- complete_stage --
-- Finish a stage: add its flags and make the message due again, with all its attempts. Left alone: a message that has these flags
-- already, and one that is PUBLISHED, which is finished as a whole. The streams' locks are held.
UPDATE deadletter_message m
   SET status = (m.status | %(flags)s::int) & ~%(failed)s::int,
       lease_token = NULL, worker = NULL, available_at = %(now)s,
       attempts = 0, reason_counts = NULL, unregistered_count = NULL, unregistered_at = NULL
 WHERE m.id = ANY(%(ids)s::bigint[]) AND m.lease_token || '-' || m.id = ANY(%(pairs)s::text[])
   AND COALESCE(m.available_at, '-infinity') > %(now)s
   AND m.status & %(published)s::int = 0 AND m.status | %(flags)s::int <> m.status
RETURNING m.id, m.status, m.queue_id, m.stream;

-- read_stages --
-- The stages of messages that the caller holds.
SELECT m.id, m.status FROM deadletter_message m
 WHERE m.id = ANY(%(ids)s::bigint[]) AND m.lease_token || '-' || m.id = ANY(%(pairs)s::text[])
   AND COALESCE(m.available_at, '-infinity') > %(now)s;

-- record_stages --
-- Add flags to messages whose handlers go on. Waits for nobody: a row that is locked is tried again with the next exchange.
WITH mine AS MATERIALIZED (
    SELECT m.ctid AS spot FROM deadletter_message m
     WHERE m.id = ANY(%(ids)s::bigint[]) AND m.lease_token || '-' || m.id = ANY(%(pairs)s::text[])
       AND COALESCE(m.available_at, '-infinity') > %(now)s
     ORDER BY m.id
       FOR UPDATE SKIP LOCKED
)
UPDATE deadletter_message m
   SET status = m.status | %(flags)s
  FROM mine
 WHERE m.ctid = mine.spot
RETURNING m.id;

-- release_rest --
-- Give back, uncounted, what was claimed in one run with a message and is behind it. The streams' locks are held. Found among the
-- leased messages of the stream, of which there is one run at most, not among all that wait in it.
UPDATE deadletter_message
   SET lease_token = NULL, worker = NULL, available_at = %(now)s,
       attempts = GREATEST(attempts - 1, 0)
 WHERE id = ANY(ARRAY(
       SELECT r.id
         FROM unnest(%(queue_ids)s::bigint[], %(streams)s::text[], %(tokens)s::text[], %(after)s::bigint[])
              AS s(queue_id, stream, token, after)
        CROSS JOIN LATERAL (
              SELECT id, lease_token, available_at FROM deadletter_message
               WHERE queue_id = s.queue_id AND stream >= s.stream AND stream <= s.stream
                 AND lease_token IS NOT NULL
               ORDER BY queue_id, stream) AS r
        WHERE r.lease_token = s.token AND r.id > s.after
          AND COALESCE(r.available_at, '-infinity') > %(now)s))
RETURNING id, queue_id, stream;

-- lock_streams --
-- Wait for the locks of the streams these messages belong to, by key. Of a message without a stream the key is null and nothing
-- is locked; "stream IS NOT NULL" would offer the index of all streams.
SELECT pg_advisory_xact_lock(key)
  FROM (SELECT DISTINCT hashtextextended(stream, queue_id) AS key
          FROM deadletter_message
         WHERE id = ANY(%(ids)s::bigint[])
         ORDER BY key) AS ordered;

-- try_streams --
-- Take the locks of the streams these messages belong to, as far as nobody else holds them. Says for each message whether its
-- stream is ours now. Messages without a stream are left out after the read: see lock_streams. The ids are gathered by stream, not
-- joined to the locks: each message was compared with each stream.
WITH named AS MATERIALIZED (
    SELECT id, queue_id, stream FROM deadletter_message WHERE id = ANY(%(ids)s::bigint[])
), tried AS MATERIALIZED (
    SELECT queue_id, stream, ids, pg_try_advisory_xact_lock(hashtextextended(stream, queue_id)) AS got
      FROM (SELECT queue_id, stream, array_agg(id) AS ids FROM named
             WHERE stream IS NOT NULL
             GROUP BY queue_id, stream) AS s
)
SELECT unnest(ids), queue_id, stream, got FROM tried;

-- try_rows --
-- Lock the messages that were claimed under these tokens, as far as nobody else has locked them.
SELECT m.id FROM deadletter_message m
 WHERE m.id = ANY(%(ids)s::bigint[]) AND m.lease_token || '-' || m.id = ANY(%(pairs)s::text[])
 ORDER BY m.id
   FOR UPDATE SKIP LOCKED;

-- read_held --
-- Which messages have still the lease of these tokens, locked or not? And is it over?
SELECT m.id, COALESCE(m.available_at, '-infinity') > %(now)s FROM deadletter_message m
 WHERE m.id = ANY(%(ids)s::bigint[]) AND m.lease_token || '-' || m.id = ANY(%(pairs)s::text[]);

-- try_named_streams --
-- Take the locks of these streams, as far as nobody else holds them; returns those that are ours now.
SELECT queue_id, stream
  FROM (SELECT queue_id, stream,
               pg_try_advisory_xact_lock(hashtextextended(stream, queue_id)) AS got
          FROM unnest(%(queue_ids)s::bigint[], %(streams)s::text[]) AS s(queue_id, stream)) AS tried
 WHERE got;

-- lock_streams_of_poison --
-- Wait for the locks of the streams these poison records came from, by key. A record of an instance may have told it and all
-- above it: their streams as well.
WITH RECURSIVE owner(id, queue, parent) AS (
    SELECT i.id, i.queue, i.parent
      FROM deadletter_poison p JOIN deadletter_instance i ON i.id = p.instance
     WHERE p.id = ANY(%(ids)s::bigint[]) AND p.instance IS NOT NULL
     UNION
    SELECT i.id, i.queue, i.parent
      FROM owner o JOIN deadletter_instance i ON i.id = o.parent
)
SELECT pg_advisory_xact_lock(key)
  FROM (SELECT DISTINCT key
          FROM (SELECT hashtextextended(p.stream, q.id) AS key
                  FROM deadletter_poison p JOIN deadletter_queue q ON q.name = p.queue
                 WHERE p.id = ANY(%(ids)s::bigint[]) AND p.stream IS NOT NULL
                 UNION ALL
                SELECT hashtextextended('instance:' || o.id, q.id)
                  FROM owner o JOIN deadletter_queue q ON q.name = o.queue) AS found
         ORDER BY key) AS ordered;

-- read_leased --
-- Lock the messages the caller holds and read what the policy needs to decide.
SELECT m.id, m.attempts, m.queue_id, m.name, m.kind, q.max_attempts, q.backoff_base,
       q.backoff_cap, q.jitter, q.cooldown, NULLIF(q.reason_policies, '{}'::jsonb)::text,
       COALESCE(q.unregistered_attempts, q.max_attempts), m.reason_counts::text, m.unregistered_count
  FROM deadletter_message m
  JOIN deadletter_queue q ON q.id = m.queue_id
 WHERE m.id = ANY(%(ids)s::bigint[]) AND m.lease_token || '-' || m.id = ANY(%(pairs)s::text[])
   AND COALESCE(m.available_at, '-infinity') > %(now)s
 ORDER BY m.id
   FOR UPDATE OF m;

-- fail --
-- Record failed attempts and let the messages wait. Bits are only added; the count was taken by the claim, and is refunded to a
-- message whose name nobody knew. What is to be written is looked up by id, not joined: see complete.
UPDATE deadletter_message m
   SET lease_token = NULL, worker = NULL,
       (status, failure_reason, error, available_at, attempts, reason_counts, unregistered_count, unregistered_at,
        history) = (
           SELECT m.status | r.completed | r.failed,
                  -- an abandon without a word keeps the last real error
                  COALESCE(r.reason, m.failure_reason), COALESCE(r.error, m.error),
                  %(now)s + r.delay * interval '1 microsecond',
                  GREATEST(m.attempts - r.refund, 0), COALESCE(r.counts, m.reason_counts),
                  COALESCE(r.unregistered, m.unregistered_count),
                  CASE WHEN r.is_over THEN COALESCE(m.unregistered_at, %(now)s) END,
                  CASE WHEN r.entry IS NULL THEN m.history ELSE
                      CASE WHEN jsonb_typeof(m.history) <> 'array' THEN '[]'::jsonb
                           WHEN jsonb_array_length(m.history) >= %(history_limit)s
                           THEN m.history - 0 ELSE m.history END
                      || jsonb_build_array(r.entry || jsonb_build_object(
                           'at', %(now)s, 'worker', m.worker, 'attempt', m.attempts)) END
             FROM jsonb_to_record(%(rows)s::jsonb -> m.id::text)
                  AS r(reason int, error text, completed int, failed int, delay bigint, entry jsonb, refund int,
                       counts jsonb, unregistered int, is_over bool))
 WHERE m.id = ANY(%(ids)s::bigint[]) AND m.lease_token || '-' || m.id = ANY(%(pairs)s::text[])
   AND COALESCE(m.available_at, '-infinity') > %(now)s
RETURNING m.id, m.available_at, m.queue_id, m.stream;

-- release --
-- Give unprocessed messages back, uncounted. A row that is no longer ours is left alone.
UPDATE deadletter_message m
   SET lease_token = NULL, worker = NULL,
       available_at = %(now)s + %(delay)s * interval '1 microsecond',
       -- never handled, so the attempt charged by the claim is refunded
       attempts = GREATEST(m.attempts - 1, 0),
       released_at = CASE WHEN %(by_name)s THEN %(now)s ELSE m.released_at END
 WHERE m.id = ANY(%(ids)s::bigint[]) AND m.lease_token || '-' || m.id = ANY(%(pairs)s::text[])
   AND COALESCE(m.available_at, '-infinity') > %(now)s
RETURNING m.id, m.queue_id, m.stream;

-- refund --
-- Take the charge off messages that were never started and whose lease ran out, unless somebody has claimed them since.
UPDATE deadletter_message m
   SET lease_token = NULL, worker = NULL, attempts = GREATEST(m.attempts - 1, 0)
 WHERE m.id = ANY(%(ids)s::bigint[]) AND m.lease_token || '-' || m.id = ANY(%(pairs)s::text[])
   AND COALESCE(m.available_at, 'infinity') <= %(now)s
RETURNING m.id, m.queue_id, m.stream;

-- renew --
-- Let the lease end later, counted from now.
UPDATE deadletter_message m
   SET available_at = %(now)s + COALESCE(%(lease)s::interval, q.lease_timeout)
  FROM deadletter_queue q
 WHERE m.id = ANY(%(ids)s::bigint[]) AND m.lease_token || '-' || m.id = ANY(%(pairs)s::text[])
   AND COALESCE(m.available_at, '-infinity') > %(now)s AND q.id = m.queue_id
RETURNING m.id;

-- renew_free --
-- As renew, for the rows that nobody else has locked: a renewal waits for nobody, or all leases would end together.
WITH mine AS MATERIALIZED (
    SELECT m.ctid AS spot, m.queue_id FROM deadletter_message m
     WHERE m.id = ANY(%(ids)s::bigint[]) AND m.lease_token || '-' || m.id = ANY(%(pairs)s::text[])
       AND COALESCE(m.available_at, '-infinity') > %(now)s
     ORDER BY m.id
       FOR UPDATE SKIP LOCKED
)
UPDATE deadletter_message m
   SET available_at = %(now)s + COALESCE(%(lease)s::interval, q.lease_timeout)
  FROM mine JOIN deadletter_queue q ON q.id = mine.queue_id
 WHERE m.ctid = mine.spot
RETURNING m.id;

-- wake --
-- Make the first parked message of each stream due again, unless something in front of it still holds the stream. One due
-- message is enough: the next claim reads the run from the head. Messages released by name pass what waits or died.
UPDATE deadletter_message
   SET available_at = %(now)s
 WHERE id = ANY(ARRAY(
       SELECT p.id
         FROM unnest(%(queue_ids)s::bigint[], %(streams)s::text[]) AS s(queue_id, stream)
         JOIN deadletter_queue q ON q.id = s.queue_id
        CROSS JOIN LATERAL (
              (SELECT id, released_at FROM deadletter_message
                WHERE queue_id = s.queue_id AND stream >= s.stream AND stream <= s.stream
                  AND available_at IS NULL
                ORDER BY queue_id, stream, id LIMIT 1)
              UNION
              (SELECT id, released_at FROM deadletter_message
                WHERE queue_id = s.queue_id AND stream >= s.stream AND stream <= s.stream
                  AND released_at IS NOT NULL
                      -- parked; not "IS NULL", which would offer the index of all that is parked
                  AND COALESCE(available_at, 'infinity') = 'infinity'
                ORDER BY queue_id, stream, id LIMIT 100)) AS p
        WHERE (SELECT id FROM deadletter_message
                WHERE queue_id = s.queue_id AND stream >= s.stream AND stream <= s.stream
                  AND lease_token IS NOT NULL AND COALESCE(available_at, '-infinity') > %(now)s
                ORDER BY queue_id, stream LIMIT 1) IS NULL
          AND (p.released_at IS NOT NULL
               OR ((q.stream_policy = 'release'
                    OR p.id = (
                       SELECT id FROM deadletter_message
                        WHERE queue_id = s.queue_id AND stream >= s.stream AND stream <= s.stream
                        ORDER BY queue_id, stream, id LIMIT 1))
                   AND NOT EXISTS (
                       SELECT 1 FROM deadletter_poison halt
                        WHERE halt.halts AND halt.queue = q.name AND halt.stream = s.stream
                          AND halt.message_id < p.id)))))
RETURNING id;

-- wake_queue --
-- Under release: make the first parked message due in each stream of a queue whose head only waits for its retry. Waits for
-- nobody; one index probe a stream.
WITH RECURSIVE parked AS (
    (SELECT stream, id FROM deadletter_message
      WHERE queue_id = %(queue_id)s AND available_at IS NULL ORDER BY queue_id, stream, id LIMIT 1)
    UNION ALL
    SELECT n.stream, n.id
      FROM parked p
     CROSS JOIN LATERAL (
           SELECT stream, id FROM deadletter_message
            WHERE queue_id = %(queue_id)s AND available_at IS NULL AND stream > p.stream
            ORDER BY queue_id, stream, id LIMIT 1) AS n
), free AS MATERIALIZED (
    SELECT m.id FROM deadletter_message m
     WHERE m.id = ANY(ARRAY(
           SELECT p.id
             FROM parked p
            CROSS JOIN LATERAL (
                  SELECT available_at, lease_token FROM deadletter_message
                   WHERE queue_id = %(queue_id)s AND stream >= p.stream AND stream <= p.stream
                   ORDER BY queue_id, stream, id LIMIT 1) AS head
            WHERE head.available_at > %(now)s AND head.lease_token IS NULL
              AND NOT EXISTS (
                  SELECT 1 FROM deadletter_poison halt
                   WHERE halt.halts AND halt.queue = %(queue)s AND halt.stream = p.stream
                     AND halt.message_id < p.id)))
           -- still parked; not "IS NULL", which would offer the index of all that is parked
       AND COALESCE(m.available_at, 'infinity') = 'infinity'
     ORDER BY m.id
       FOR UPDATE SKIP LOCKED
)
UPDATE deadletter_message
   SET available_at = %(now)s
 WHERE id = ANY(ARRAY(SELECT id FROM free))
RETURNING id;

-- read_dying --
-- Lock messages about to leave the queue for good and read what the quarantine needs. Never waits: a row somebody else
-- is looking at is left for the next claim.
SELECT m.id, m.queue_id, m.stream, m.name, m.attempts, m.failure_reason, m.error,
       m.history -> -1 ->> 'exception', m.history -> -1 ->> 'frame',
       m.lease_token IS NOT NULL AND m.available_at <= %(now)s AS lost, m.worker,
       q.name, q.max_attempts, q.stream_policy,
       -- Checked again where rows are written: a policy damaged by hand must not lose a message.
       CASE WHEN q.on_poison = 'dead_queue' AND (d.id IS NULL OR d.id = q.id OR d.dead_queue_id IS NOT NULL)
            THEN 'broken' ELSE q.on_poison END,
       d.name, m.kind, m.instance, m.execution_id, m.activity_id,
       -- it died before, and was moved here
       m.source_id IS NOT NULL AND m.origin IS NULL, CASE WHEN m.died_at IS NOT NULL THEN m.fingerprint END,
       m.death ->> 'exception', m.death ->> 'frame'
  FROM deadletter_message m
  JOIN deadletter_queue q ON q.id = m.queue_id
  LEFT JOIN deadletter_queue d ON d.id = q.dead_queue_id
 WHERE m.id = ANY(%(ids)s::bigint[])
 ORDER BY m.id
   FOR UPDATE OF m SKIP LOCKED;

-- record_lost --
-- Write down that a lease ran out unreported, before the message is quarantined for it.
UPDATE deadletter_message m
   SET failure_reason = 10,
       error = 'worker ' || m.worker || ' did not report before its lease ran out',
       history = CASE WHEN jsonb_typeof(m.history) <> 'array' THEN '[]'::jsonb
                      WHEN jsonb_array_length(m.history) >= %(history_limit)s
                      THEN m.history - 0 ELSE m.history END
           || jsonb_build_array(jsonb_build_object(
                'at', m.available_at, 'worker', m.worker, 'attempt', m.attempts, 'reason', 10,
                'error', 'worker ' || m.worker || ' did not report before its lease ran out')),
       reason_counts = CASE WHEN jsonb_typeof(m.reason_counts) = 'object' THEN m.reason_counts ELSE '{}'::jsonb END
           || jsonb_build_object('10', 1 + CASE WHEN jsonb_typeof(m.reason_counts -> '10') = 'number' THEN
                                                CASE WHEN (m.reason_counts -> '10')::numeric BETWEEN 0 AND 2147483647
                                                      AND mod((m.reason_counts -> '10')::numeric, 1) = 0
                                                     THEN (m.reason_counts -> '10')::bigint ELSE 0 END ELSE 0 END),
       lease_token = NULL, worker = NULL
 WHERE m.id = ANY(%(ids)s::bigint[]) AND m.lease_token IS NOT NULL
   AND COALESCE(m.available_at, 'infinity') <= %(now)s;

-- quarantine --
-- Copy dying messages into poison records. Two racers produce one. What died before and was moved to a dead queue keeps that death:
-- it is not counted again.
INSERT INTO deadletter_poison
       (message_id, queue, name, kind, payload, headers, stream, key, priority, status, attempts,
        max_attempts, fence, reason, verdict, last_failure_reason, last_error, history, fingerprint,
        exception, frame, halts, poison_count, source_id, origin, death, moved_at, instance, execution_id, activity_id,
        expires_at, original_created_at, poisoned_at, poisoned_by)
SELECT m.id, q.name, m.name, m.kind, m.payload, m.headers, m.stream, m.key, m.priority, m.status,
       r.attempts, r.max_attempts, m.fence, r.reason, r.verdict, m.failure_reason, m.error,
       m.history, r.fingerprint, r.exception, r.frame, r.halts,
       m.poison_count + CASE WHEN m.died_at IS NULL THEN 1 ELSE 0 END, m.source_id, m.origin, m.death,
       CASE WHEN m.died_at IS NOT NULL THEN %(now)s END, m.instance, m.execution_id, m.activity_id,
       m.expires_at, m.created_at, COALESCE(m.died_at, %(now)s), %(by)s
  FROM deadletter_message m
  JOIN deadletter_queue q ON q.id = m.queue_id
       -- looked up by its id, not joined: see complete
 CROSS JOIN LATERAL jsonb_to_record(%(rows)s::jsonb -> m.id::text)
       AS r(reason int, verdict text, fingerprint text, exception text, frame text, halts bool,
            attempts int, max_attempts int)
 WHERE m.id = ANY(%(ids)s::bigint[])
 ORDER BY m.id
    ON CONFLICT (message_id) DO NOTHING
RETURNING message_id;

-- bury --
-- Copy dying messages into their dead queue as new messages, with where and why they died and what a retry gives them back. A
-- repeated move finds the first copy and adds none.
INSERT INTO deadletter_message
       (queue_id, name, kind, payload, headers, stream, priority, status, available_at, expires_at,
        failure_reason, error, history, poison_count, source_id, death, fingerprint, died_at, instance,
        execution_id, activity_id, created_at)
SELECT d.id, m.name, m.kind, m.payload, m.headers, m.stream, m.priority, 1, %(now)s,
       %(now)s + d.expire_timeout, m.failure_reason, m.error, m.history, m.poison_count + 1, m.id,
       r.death || jsonb_build_object(
           'queue', q.name, 'message_id', m.id, 'at', %(now)s, 'by', %(by)s::text, 'key', m.key,
           'status', m.status, 'fence', m.fence, 'created_at', m.created_at,
           'origin', m.origin, 'source_id', m.source_id),
       r.fingerprint, %(now)s, m.instance, m.execution_id, m.activity_id, %(now)s
  FROM deadletter_message m
  JOIN deadletter_queue q ON q.id = m.queue_id
  JOIN deadletter_queue d ON d.id = q.dead_queue_id
       -- looked up by its id, not joined: see complete
 CROSS JOIN LATERAL jsonb_to_record(%(rows)s::jsonb -> m.id::text) AS r(fingerprint text, death jsonb)
 WHERE m.id = ANY(%(ids)s::bigint[])
 ORDER BY m.id
    ON CONFLICT (queue_id, source_id) WHERE origin IS NULL AND source_id IS NOT NULL DO NOTHING
RETURNING id;

-- delete --
-- Delete messages whose rows are locked and which have been moved elsewhere.
DELETE FROM deadletter_message WHERE id = ANY(%(ids)s::bigint[]) RETURNING id;

-- read_expired --
-- Find messages past their time that are neither leased nor scheduled.
SELECT id FROM deadletter_message
 WHERE expires_at <= %(now)s AND (available_at IS NULL OR available_at <= %(now)s)
 ORDER BY expires_at, id
 LIMIT %(limit)s;

-- forget_old_poison --
-- Remove poison past its queue's retention. A record that halts a stream stays: its end is an operator's decision.
DELETE FROM deadletter_poison
 WHERE id = ANY(ARRAY(
       SELECT p.id
         FROM deadletter_queue q
        CROSS JOIN LATERAL (
              SELECT id FROM deadletter_poison
               WHERE queue = q.name AND poisoned_at <= %(now)s - q.poison_retention AND NOT halts
                     -- what died again in a dead queue is kept from then on
                 AND (moved_at IS NULL OR moved_at <= %(now)s - q.poison_retention)
               ORDER BY poisoned_at LIMIT %(limit)s
                 FOR UPDATE SKIP LOCKED) AS p
        WHERE q.poison_retention IS NOT NULL
        LIMIT %(limit)s))
RETURNING id, queue, name, kind;

-- read_orphans --
-- Find queues that are gone and still have messages: one index probe a queue. There should be none.
WITH RECURSIVE awake(queue_id) AS (
    (SELECT queue_id FROM deadletter_message
      WHERE available_at IS NOT NULL ORDER BY queue_id LIMIT 1)
    UNION ALL
    SELECT (SELECT m.queue_id FROM deadletter_message m
             WHERE m.available_at IS NOT NULL AND m.queue_id > f.queue_id
             ORDER BY m.queue_id LIMIT 1)
      FROM awake f WHERE f.queue_id IS NOT NULL
), parked(queue_id) AS (
    (SELECT queue_id FROM deadletter_message
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
-- Find streams that have parked messages, nothing due, waiting or leased, and no halt. There should be none.
WITH RECURSIVE parked AS (
    -- one index probe a stream, however many messages are parked in it
    (SELECT queue_id, stream FROM deadletter_message
      WHERE available_at IS NULL ORDER BY queue_id, stream LIMIT 1)
    UNION ALL
    SELECT n.queue_id, n.stream
      FROM parked p
     CROSS JOIN LATERAL (
           SELECT queue_id, stream FROM deadletter_message
            WHERE available_at IS NULL AND (queue_id, stream) > (p.queue_id, p.stream)
            ORDER BY queue_id, stream LIMIT 1) AS n
)
SELECT p.queue_id, p.stream
  FROM parked p JOIN deadletter_queue q ON q.id = p.queue_id
 WHERE NOT EXISTS (SELECT 1 FROM deadletter_poison halt
                    WHERE halt.halts AND halt.queue = q.name AND halt.stream = p.stream)
   AND (SELECT id FROM deadletter_message
         WHERE queue_id = p.queue_id AND stream >= p.stream AND stream <= p.stream
               -- not parked; not "IS NOT NULL", which would offer the claim index
           AND COALESCE(available_at, 'infinity') < 'infinity'
         ORDER BY queue_id, stream, id LIMIT 1) IS NULL;

-- count --
-- Add what a transaction did to the rows of its writer and minute.
INSERT INTO deadletter_count AS c
       (span, at, queue, name, kind, reason, writer, sent, completed, failed, deferred, poisoned,
        retried, removed, seconds, longest)
SELECT 60, date_trunc('minute', %(now)s), COALESCE(r.queue, q.name, ''), r.name, r.kind, r.reason,
       %(writer)s, COALESCE(SUM(r.sent), 0), COALESCE(SUM(r.completed), 0),
       COALESCE(SUM(r.failed), 0), COALESCE(SUM(r.deferred), 0), COALESCE(SUM(r.poisoned), 0),
       COALESCE(SUM(r.retried), 0), COALESCE(SUM(r.removed), 0), COALESCE(SUM(r.seconds), 0),
       COALESCE(MAX(r.longest), 0)
  FROM jsonb_to_recordset(%(rows)s::jsonb)
       AS r(queue_id bigint, queue text, name text, kind text, reason smallint, sent bigint,
            completed bigint, failed bigint, deferred bigint, poisoned bigint, retried bigint,
            removed bigint, seconds float8, longest float8)
  LEFT JOIN deadletter_queue q ON q.id = r.queue_id
 GROUP BY 3, 4, 5, 6
    ON CONFLICT (span, at, queue, name, kind, reason, writer)
    DO UPDATE SET
           sent = c.sent + excluded.sent, completed = c.completed + excluded.completed,
           failed = c.failed + excluded.failed, deferred = c.deferred + excluded.deferred,
           poisoned = c.poisoned + excluded.poisoned, retried = c.retried + excluded.retried,
           removed = c.removed + excluded.removed, seconds = c.seconds + excluded.seconds,
           longest = GREATEST(c.longest, excluded.longest);

-- fold_writers --
-- Fold the rows of all writers of a past minute into one without a writer. A writer may still be busy: its row comes later.
WITH gone AS (
    DELETE FROM deadletter_count
     WHERE id = ANY(ARRAY(
           SELECT id FROM deadletter_count
            WHERE writer <> '' AND span = 60 AND at < %(before)s
            ORDER BY span, at LIMIT %(limit)s
              FOR UPDATE SKIP LOCKED))
    RETURNING *
), folded AS (
    INSERT INTO deadletter_count AS c
           (span, at, queue, name, kind, reason, writer, sent, completed, failed, deferred, poisoned,
        retried, removed, seconds, longest)
    SELECT span, at, queue, name, kind, reason, '', SUM(sent), SUM(completed), SUM(failed),
           SUM(deferred), SUM(poisoned), SUM(retried), SUM(removed), SUM(seconds), MAX(longest)
      FROM gone
     GROUP BY span, at, queue, name, kind, reason
     ORDER BY span, at, queue, name, kind, reason
        ON CONFLICT (span, at, queue, name, kind, reason, writer)
        DO UPDATE SET
           sent = c.sent + excluded.sent, completed = c.completed + excluded.completed,
           failed = c.failed + excluded.failed, deferred = c.deferred + excluded.deferred,
           poisoned = c.poisoned + excluded.poisoned, retried = c.retried + excluded.retried,
           removed = c.removed + excluded.removed, seconds = c.seconds + excluded.seconds,
           longest = GREATEST(c.longest, excluded.longest)
)
SELECT id FROM gone;

-- fold_spans --
-- Fold the rows of past minutes into hours, of past hours into days, or of old days into one that stays.
WITH gone AS (
    DELETE FROM deadletter_count
     WHERE id = ANY(ARRAY(
           SELECT id FROM deadletter_count
            WHERE span = %(span)s AND at < %(before)s
            ORDER BY span, at LIMIT %(limit)s
              FOR UPDATE SKIP LOCKED))
    RETURNING *
), folded AS (
    INSERT INTO deadletter_count AS c
           (span, at, queue, name, kind, reason, writer, sent, completed, failed, deferred, poisoned,
        retried, removed, seconds, longest)
    SELECT %(into)s::int, start, queue, name, kind, reason, '', SUM(sent), SUM(completed), SUM(failed),
           SUM(deferred), SUM(poisoned), SUM(retried), SUM(removed), SUM(seconds), MAX(longest)
      FROM (SELECT *, CASE %(into)s::int WHEN 3600 THEN date_trunc('hour', at, 'UTC')
                                    WHEN 86400 THEN date_trunc('day', at, 'UTC')
                                    ELSE 'epoch' END AS start
              FROM gone) AS g
     GROUP BY start, queue, name, kind, reason
     ORDER BY start, queue, name, kind, reason
        ON CONFLICT (span, at, queue, name, kind, reason, writer)
        DO UPDATE SET
           sent = c.sent + excluded.sent, completed = c.completed + excluded.completed,
           failed = c.failed + excluded.failed, deferred = c.deferred + excluded.deferred,
           poisoned = c.poisoned + excluded.poisoned, retried = c.retried + excluded.retried,
           removed = c.removed + excluded.removed, seconds = c.seconds + excluded.seconds,
           longest = GREATEST(c.longest, excluded.longest)
)
SELECT id FROM gone;

-- lock_named_streams --
-- Wait for the locks of these streams, by key.
SELECT pg_advisory_xact_lock(key)
  FROM (SELECT DISTINCT hashtextextended(stream, queue_id) AS key
          FROM unnest(%(queue_ids)s::bigint[], %(streams)s::text[]) AS s(queue_id, stream)
         ORDER BY key) AS ordered;

-- mark_deaths --
-- Say of retried messages that died again whether it was of the same cause.
UPDATE deadletter_audited_message a
   SET outcome = CASE WHEN a.fingerprint = r.fingerprint THEN 2 ELSE 3 END
  FROM jsonb_to_recordset(%(rows)s::jsonb) AS r(id bigint, fingerprint text)
 WHERE a.message_id = ANY(%(ids)s::bigint[]) AND a.message_id = r.id AND a.is_open AND a.outcome IS NULL;

-- mark_removed --
-- Say of retried messages that they were removed before they were handled.
UPDATE deadletter_audited_message
   SET outcome = 4
 WHERE message_id = ANY(%(ids)s::bigint[]) AND is_open AND outcome IS NULL;

-- mark_completed --
-- A retried message that neither died nor was removed and is in no queue any more has been completed.
UPDATE deadletter_audited_message
   SET outcome = 1
 WHERE id = ANY(ARRAY(
       SELECT a.id FROM deadletter_audited_message a
        WHERE a.is_open AND a.outcome IS NULL
          AND NOT EXISTS (SELECT 1 FROM deadletter_message m WHERE m.id = a.message_id)
        ORDER BY a.id LIMIT %(limit)s
          FOR UPDATE SKIP LOCKED))
RETURNING id;

-- read_groups --
-- The groups of what died, the latest first: poison records, and messages in dead queues. One index probe a group and table, however
-- many it has.
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
-- Times within what Python can read: a damaged row must not take the page with it.
SELECT page.fingerprint,
       LEAST(GREATEST((SELECT MIN(e.at)
          FROM (SELECT MIN(p.poisoned_at) AS at FROM deadletter_poison p WHERE p.fingerprint = page.fingerprint
                 UNION ALL
                SELECT MIN(m.died_at) FROM deadletter_message m WHERE m.fingerprint = page.fingerprint) AS e), '0001-01-03T00:00:00Z'), '9999-12-29T00:00:00Z'),
       LEAST(GREATEST(page.last_seen, '0001-01-03T00:00:00Z'), '9999-12-29T00:00:00Z'),
       -- the page is known: only its groups are counted, and only so far
       (SELECT COUNT(*) FROM (SELECT 1 FROM deadletter_poison p
                               WHERE p.fingerprint = page.fingerprint LIMIT %(counted)s) AS c),
       (SELECT COUNT(*) FROM (SELECT 1 FROM deadletter_poison p
                               WHERE p.fingerprint = page.fingerprint AND p.halts
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
-- How often each of these groups died in each hour, between two edges: an index range each and table, up to a limit.
SELECT s.fingerprint,
       (SELECT COUNT(*) FROM (SELECT 1 FROM deadletter_poison p
                               WHERE p.fingerprint = s.fingerprint
                                 AND p.poisoned_at > hour.start AND p.poisoned_at <= hour.until
                               LIMIT %(counted)s) AS c)
       + (SELECT COUNT(*) FROM (SELECT 1 FROM deadletter_message m
                                 WHERE m.fingerprint = s.fingerprint
                                   AND m.died_at > hour.start AND m.died_at <= hour.until
                                 LIMIT %(counted)s) AS c)
  FROM unnest(%(fingerprints)s::text[]) AS s(fingerprint)
 CROSS JOIN (SELECT n, at AS start, LEAD(at) OVER (ORDER BY n) AS until
               FROM unnest(%(edges)s::timestamptz[]) WITH ORDINALITY AS e(at, n)) AS hour
 WHERE hour.until IS NOT NULL
 ORDER BY s.fingerprint, hour.n;

-- read_group_times --
-- When the groups behind a fingerprint began and last grew: index probes, however many records and messages in dead queues.
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
       LEAST(GREATEST((SELECT MIN(e.at)
          FROM (SELECT MIN(p.poisoned_at) AS at FROM deadletter_poison p WHERE p.fingerprint = g.fingerprint
                 UNION ALL
                SELECT MIN(m.died_at) FROM deadletter_message m WHERE m.fingerprint = g.fingerprint) AS e), '0001-01-03T00:00:00Z'), '9999-12-29T00:00:00Z'),
       LEAST(GREATEST((SELECT MAX(e.at)
          FROM (SELECT MAX(p.poisoned_at) AS at FROM deadletter_poison p WHERE p.fingerprint = g.fingerprint
                 UNION ALL
                SELECT MAX(m.died_at) FROM deadletter_message m WHERE m.fingerprint = g.fingerprint) AS e), '0001-01-03T00:00:00Z'), '9999-12-29T00:00:00Z'),
       (SELECT p.id FROM deadletter_poison p WHERE p.fingerprint = g.fingerprint
         ORDER BY p.poisoned_at DESC, p.id DESC LIMIT 1),
       (SELECT m.id FROM deadletter_message m WHERE m.fingerprint = g.fingerprint
         ORDER BY m.died_at DESC, m.id DESC LIMIT 1)
  FROM g WHERE g.fingerprint IS NOT NULL
 ORDER BY g.fingerprint;

-- read_names --
-- The message names that have poison.
WITH RECURSIVE g(name) AS (
    SELECT MIN(name) FROM deadletter_poison
     UNION ALL
    SELECT (SELECT MIN(p.name) FROM deadletter_poison p WHERE p.name > g.name)
      FROM g WHERE g.name IS NOT NULL
)
SELECT g.name FROM g WHERE g.name IS NOT NULL ORDER BY g.name LIMIT %(limit)s;

-- read_exceptions --
-- The exceptions that have poison.
WITH RECURSIVE g(exception) AS (
    SELECT MIN(exception) FROM deadletter_poison
     UNION ALL
    SELECT (SELECT MIN(p.exception) FROM deadletter_poison p WHERE p.exception > g.exception)
      FROM g WHERE g.exception IS NOT NULL
)
SELECT g.exception FROM g WHERE g.exception IS NOT NULL ORDER BY g.exception LIMIT %(limit)s;

-- read_blocked_streams --
-- The streams that have parked messages, each with the first of them: one index probe a stream.
WITH RECURSIVE parked AS (
    (SELECT queue_id, stream, id, created_at FROM deadletter_message
      WHERE available_at IS NULL ORDER BY queue_id, stream, id LIMIT 1)
    UNION ALL
    SELECT n.queue_id, n.stream, n.id, n.created_at
      FROM parked p
     CROSS JOIN LATERAL (
           SELECT queue_id, stream, id, created_at FROM deadletter_message
            WHERE available_at IS NULL AND (queue_id, stream) > (p.queue_id, p.stream)
            ORDER BY queue_id, stream, id LIMIT 1) AS n
)
SELECT s.queue_id, s.stream, s.id, LEAST(GREATEST(s.created_at, '0001-01-03T00:00:00Z'), '9999-12-29T00:00:00Z')
  FROM (SELECT * FROM parked LIMIT %(reach)s) AS s
 ORDER BY s.created_at, s.id
 LIMIT %(limit)s;

-- restore --
-- Put poisoned messages back under their own ids. No row: the id, the key or the origin's id is in use. The id of where it was moved from
-- means something in that queue only; with an origin it is who the message is.
INSERT INTO deadletter_message
       (id, queue_id, name, kind, payload, headers, stream, key, priority, status, attempts, fence,
        available_at, failure_reason, error, history, poison_count, source_id, origin, death, fingerprint,
        died_at, instance, execution_id, activity_id, expires_at, created_at)
SELECT p.message_id, q.id, p.name, p.kind, COALESCE(%(payload)s::text, p.payload), p.headers,
       p.stream, p.key, p.priority, p.status & ~32768, 0, p.fence,
       %(now)s + r.delay * interval '1 microsecond', p.last_failure_reason, p.last_error,
       -- what was edited stays readable
       CASE WHEN %(payload)s::text IS NULL THEN p.history ELSE
            p.history || jsonb_build_array(%(entry)s::jsonb || jsonb_build_object(
                'at', %(now)s, 'original_payload', p.payload)) END,
       p.poison_count, CASE WHEN q.name = p.queue OR p.origin IS NOT NULL THEN p.source_id END, p.origin,
       -- back in its dead queue it has died once, as before
       CASE WHEN q.name = p.queue THEN p.death END,
       CASE WHEN q.name = p.queue AND p.moved_at IS NOT NULL THEN p.fingerprint END,
       CASE WHEN q.name = p.queue AND p.moved_at IS NOT NULL THEN p.poisoned_at END,
       p.instance, p.execution_id, p.activity_id, %(now)s + q.expire_timeout, p.original_created_at
  FROM unnest(%(ids)s::bigint[], %(delays)s::bigint[]) AS r(id, delay)
  JOIN deadletter_poison p ON p.id = r.id
  JOIN deadletter_queue q ON q.name = COALESCE(%(queue)s::text, p.queue)
 WHERE p.id = ANY(%(ids)s::bigint[])
 ORDER BY p.message_id + 0 -- not by the index of that order, which would read all poison
    ON CONFLICT DO NOTHING
RETURNING id, queue_id, stream;

-- restore_dead --
-- Put messages of dead queues back under the ids they had, with what they had then. No row: the id or the key is in use.
INSERT INTO deadletter_message
       (id, queue_id, name, kind, payload, headers, stream, key, priority, status, attempts, fence,
        available_at, failure_reason, error, history, poison_count, source_id, origin, instance,
        execution_id, activity_id, expires_at, created_at)
SELECT m.source_id, q.id, m.name, m.kind, COALESCE(%(payload)s::text, m.payload), m.headers, m.stream,
       r.key, m.priority, r.status, 0, r.fence, %(now)s + r.delay * interval '1 microsecond',
       m.failure_reason, m.error,
       -- what was edited stays readable
       CASE WHEN %(payload)s::text IS NULL THEN m.history ELSE
            m.history || jsonb_build_array(%(entry)s::jsonb || jsonb_build_object(
                'at', %(now)s, 'original_payload', m.payload)) END,
       -- an older release did not count the death
       m.poison_count + CASE WHEN m.died_at IS NULL THEN 1 ELSE 0 END, r.source_id, r.origin,
       m.instance, m.execution_id, m.activity_id, %(now)s + q.expire_timeout,
       COALESCE(r.created_at, m.created_at)
  FROM deadletter_message m
       -- looked up by its id, not joined: see complete
 CROSS JOIN LATERAL jsonb_to_record(%(rows)s::jsonb -> m.id::text)
       AS r(queue_id bigint, key text, status int, fence bigint, delay bigint, source_id bigint,
            origin text, created_at timestamptz)
  JOIN deadletter_queue q ON q.id = r.queue_id
 WHERE m.id = ANY(%(ids)s::bigint[])
   AND NOT EXISTS (SELECT 1 FROM deadletter_poison p WHERE p.message_id = m.source_id)
 ORDER BY m.source_id + 0
    ON CONFLICT DO NOTHING
RETURNING id, queue_id, stream;

-- import_messages --
-- Store messages of another system in a queue known by name, in the order given; says which were stored. The others are there already
-- (their id in their origin, or their key), or the queue is missing. Whoever is storing the same id is waited for: the caller gives them
-- in the order of those ids. What died here meanwhile is for the caller to look up, in a later statement: see lifecycle/imports.py.
INSERT INTO deadletter_message
       (queue_id, name, payload, headers, stream, key, priority, status, available_at, expires_at, failure_reason, error, history,
        poison_count, source_id, origin, created_at)
SELECT q.id, g.name, g.payload, g.headers, g.stream, g.key, g.priority, g.status, %(now)s, %(now)s + q.expire_timeout,
       g.failure_reason, g.error, g.history, g.poison_count, g.source_id, %(origin)s, COALESCE(g.created_at, %(now)s)
  FROM ROWS FROM (jsonb_to_recordset(%(rows)s::jsonb)
       AS (name text, payload text, headers text, stream text, key text, priority smallint, status int, failure_reason smallint,
           error text, history jsonb, poison_count int, source_id bigint, created_at timestamptz))
       WITH ORDINALITY
         AS g(name, payload, headers, stream, key, priority, status, failure_reason, error, history, poison_count, source_id,
              created_at, place),
       deadletter_queue q
 WHERE q.name = %(queue)s
 ORDER BY g.place
    ON CONFLICT DO NOTHING
RETURNING id, source_id;

-- read_imported --
-- Which ids of an origin died in a queue and lie in a dead queue, or died again there: an index probe each.
SELECT (m.death ->> 'source_id')::bigint FROM deadletter_message m
 WHERE m.death IS NOT NULL AND m.death ->> 'origin' = %(origin)s AND m.death ->> 'source_id' = ANY(%(ids)s::text[])
   AND m.death ->> 'queue' = %(queue)s
 UNION ALL
SELECT (p.death ->> 'source_id')::bigint FROM deadletter_poison p
 WHERE p.death IS NOT NULL AND p.death ->> 'origin' = %(origin)s AND p.death ->> 'source_id' = ANY(%(ids)s::text[])
   AND p.death ->> 'queue' = %(queue)s;

-- read_buried --
-- What lies in a dead queue and died after a time, by the queue it died in: of the newest so many, how many, the first and the last.
SELECT b.queue, COUNT(*), LEAST(GREATEST(MIN(b.died_at), '0001-01-03T00:00:00Z'), '9999-12-29T00:00:00Z'), MAX(b.id)
  FROM (SELECT m.death ->> 'queue' AS queue, m.died_at, m.id FROM deadletter_message m
         WHERE m.queue_id = %(queue_id)s AND m.died_at > %(after)s
         ORDER BY m.queue_id DESC, m.died_at DESC, m.id DESC LIMIT %(limit)s) AS b
 GROUP BY b.queue;

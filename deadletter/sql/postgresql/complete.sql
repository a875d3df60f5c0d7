-- complete --
-- Delete finished messages and count them. For messages of a stream only the stream's lock is taken here (waiting, in the order of
-- the keys); complete_streamed deletes them, in a snapshot taken after the lock. Returns the row "all" when all are deleted, unless
-- a signal receiver needs each of them (named).
-- Ids and tokens are compared as text, here and below: in a join with an array each message was compared with each where the planner
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
-- The locks first: a transaction that has one of them may be waiting for a row.
SELECT pg_advisory_xact_lock(hashtextextended(stream, queue_id))::text, id, NULL, NULL, NULL
  FROM (SELECT * FROM streamed) AS ordered
 UNION ALL
SELECT NULL, id, queue_id, name, kind FROM gone
 WHERE %(named)s OR (SELECT count(*) FROM gone) < cardinality(%(ids)s::bigint[])
 UNION ALL
-- A row of its own: no row at all means that the caller held none of them.
SELECT 'all', NULL, NULL, NULL, NULL
 WHERE NOT %(named)s AND (SELECT count(*) FROM gone) = cardinality(%(ids)s::bigint[]);

-- complete_plain --
-- Delete finished messages without a stream. Count them if the caller still held all of them; otherwise the caller counts those that
-- are returned. Returns the row "all" if all are deleted, unless a signal receiver needs each of them (named).
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

-- park --
-- Park the candidates of a blocked stream, which takes them out of the claim index. Only under the stream's lock: the transaction
-- that unblocks the stream must see them. Due messages right behind them are parked too, so that a long blocked stream does not
-- come up again in every batch.
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

-- wake --
-- Make the first parked message of each stream due, unless a message in front of it still blocks the stream. One due message is
-- enough: the next claim reads the run from the head. Messages released by name pass those that wait or died.
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
                      -- parked; not "IS NULL", which would offer the index of all parked messages
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
-- Under the policy release: make the first parked message due in each stream of a queue whose head only waits for its retry.
-- Never waits for a lock; one index probe for each stream.
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
           -- still parked; not "IS NULL", which would offer the index of all parked messages
       AND COALESCE(m.available_at, 'infinity') = 'infinity'
     ORDER BY m.id
       FOR UPDATE SKIP LOCKED
)
UPDATE deadletter_message
   SET available_at = %(now)s
 WHERE id = ANY(ARRAY(SELECT id FROM free))
RETURNING id;

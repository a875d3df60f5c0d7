-- park --
-- Park the candidates of a blocked stream and the due messages right behind them.
UPDATE deadletter_message
   SET available_at = NULL, lease_token = NULL, worker = NULL
 WHERE id IN (SELECT value FROM json_each(%(ids)s))
    OR (id IN (SELECT id FROM deadletter_message
                WHERE queue_id = %(queue_id)s AND stream = %(stream)s AND id > %(after)s
                ORDER BY id LIMIT %(reach)s)
        AND available_at <= %(now)s
        AND id NOT IN (SELECT value FROM json_each(%(exclude)s)))
RETURNING id;

-- wake --
-- Make the first parked message of a stream due, unless a message in front of it still blocks the stream.
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
-- Under the policy release: make the first parked message due in each stream of a queue whose head only waits for its retry.
-- One index probe for each stream.
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

-- read_old_poison --
-- Find poison records past the retention of their queue. A record that halts a stream stays: an operator decides about it.
-- In the order of the index, queue by queue: in the order of ids every record would be read.
SELECT p.id, p.queue, p.name, p.kind
  FROM deadletter_queue q
 CROSS JOIN deadletter_poison p
 WHERE q.poison_retention IS NOT NULL AND p.queue = q.name
   AND p.poisoned_at <= django_format_dtdelta('-', %(now)s, q.poison_retention)
   AND (p.moved_at IS NULL
        OR p.moved_at <= django_format_dtdelta('-', %(now)s, q.poison_retention))
   AND NOT p.halts
 ORDER BY q.id, p.poisoned_at
 LIMIT %(limit)s;

-- read_deleted_queues --
-- Find the ids of deleted queues that still have messages, with one index probe for each queue. There should be none.
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

-- read_stuck_streams --
-- Find streams that have parked messages, no message that is due, waiting or leased, and no halt. There should be none.
WITH RECURSIVE parked(queue_id, stream) AS (
    SELECT queue_id, stream FROM (
           SELECT queue_id, stream FROM deadletter_message
            WHERE available_at IS NULL ORDER BY queue_id, stream LIMIT 1)
    UNION ALL
    SELECT n.queue_id, n.stream
      FROM parked p
      JOIN deadletter_message n
           -- two probes: of (queue_id, stream) > (…) SQLite would use only the first column
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

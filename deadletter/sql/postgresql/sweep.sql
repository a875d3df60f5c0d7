-- read_old_poison --
-- Lock poison records past the retention of their queue. A record that halts a stream stays: an operator decides about it.
SELECT p.id, p.queue, p.name, p.kind
  FROM deadletter_queue q
 CROSS JOIN LATERAL (
       SELECT id, queue, name, kind FROM deadletter_poison
        WHERE queue = q.name AND poisoned_at <= %(now)s - q.poison_retention AND NOT halts
              -- the retention of a message that died again in a dead queue counts from then
          AND (moved_at IS NULL OR moved_at <= %(now)s - q.poison_retention)
        ORDER BY poisoned_at LIMIT %(limit)s
          FOR UPDATE SKIP LOCKED) AS p
 WHERE q.poison_retention IS NOT NULL
 LIMIT %(limit)s;

-- read_deleted_queues --
-- Find the ids of deleted queues that still have messages, with one index probe for each queue. There should be none.
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

-- read_stuck_streams --
-- Find streams that have parked messages, no message that is due, waiting or leased, and no halt. There should be none.
WITH RECURSIVE parked AS (
    -- one index probe for each stream, however many messages are parked in it
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

-- read_expired --
-- Find messages past their expiry that are neither leased nor scheduled.
SELECT id FROM deadletter_message
 WHERE expires_at <= %(now)s AND (available_at IS NULL OR available_at <= %(now)s)
 ORDER BY expires_at, id
 LIMIT %(limit)s;

-- read_names --
-- Return the message names that have poison records: one index probe for each.
WITH RECURSIVE g(name) AS (
    SELECT MIN(name) FROM deadletter_poison
     UNION ALL
    SELECT (SELECT MIN(p.name) FROM deadletter_poison p WHERE p.name > g.name)
      FROM g WHERE g.name IS NOT NULL
)
SELECT g.name FROM g WHERE g.name IS NOT NULL ORDER BY g.name LIMIT %(limit)s;

-- read_exceptions --
-- Return the exceptions that have poison records: one index probe for each.
WITH RECURSIVE g(exception) AS (
    SELECT MIN(exception) FROM deadletter_poison
     UNION ALL
    SELECT (SELECT MIN(p.exception) FROM deadletter_poison p WHERE p.exception > g.exception)
      FROM g WHERE g.exception IS NOT NULL
)
SELECT g.exception FROM g WHERE g.exception IS NOT NULL ORDER BY g.exception LIMIT %(limit)s;

-- find_result --
-- Read the result of a message and whether the message is in its queue, both at one moment: what an earlier end of its id left behind
-- is no longer true. Always one row.
SELECT {columns}, EXISTS (SELECT 1 FROM deadletter_message WHERE id = %(id)s) AS is_in_queue
  FROM (SELECT 1 AS one) AS always
  LEFT JOIN deadletter_task_result r ON r.message_id = %(id)s;

-- read_message --
-- Read a message that is in its queue, with the name of the queue and the server's time.
SELECT {columns}, q.name AS queue_name, %(sent)s AS read_at
  FROM deadletter_message r
  JOIN deadletter_queue q ON q.id = r.queue_id
 WHERE r.id = %(id)s;

-- find_message --
-- Say where a message is, all at one moment: 0 in its queue, 1 in the results, 2 dead; moved to a dead queue, it is 3 there or 4 dead
-- again. NULL: nowhere. A place is looked at only if the message is in none before it.
SELECT CASE
       WHEN EXISTS (SELECT 1 FROM deadletter_message WHERE id = %(id)s) THEN 0
       WHEN EXISTS (SELECT 1 FROM deadletter_task_result WHERE message_id = %(id)s) THEN 1
       WHEN EXISTS (SELECT 1 FROM deadletter_poison WHERE message_id = %(id)s) THEN 2
       WHEN EXISTS (SELECT 1 FROM deadletter_message m
                     -- all queues: the index begins with the queue
                     WHERE m.queue_id IN (SELECT q.id FROM deadletter_queue q)
                       AND m.source_id = %(id)s AND m.origin IS NULL) THEN 3
       WHEN EXISTS (SELECT 1 FROM deadletter_poison
                     WHERE source_id = %(id)s AND origin IS NULL AND moved_at IS NOT NULL) THEN 4
       END;

-- enter_inbox --
-- Remember that a consumer handles a message in this transaction. No row: it was handled before. Waits for a transaction that
-- handles it now.
INSERT INTO deadletter_inbox (consumer, message_id, handled_at)
VALUES (%(consumer)s, %(message_id)s, %(now)s)
    ON CONFLICT (consumer, message_id) DO NOTHING
RETURNING id;

-- complete_with_results --
-- Store the results of finished messages and delete them. Returns the messages that were deleted.
INSERT INTO deadletter_task_result
       (message_id, queue, name, kind, outcome, payload, headers, priority, value, history, workers,
        progress, created_at, attempted_at, finished_at, expires_at)
SELECT CASE WHEN m.origin IS NULL THEN COALESCE(m.source_id, m.id) ELSE m.id END, q.name, m.name, m.kind,
       'successful', m.payload, m.headers, m.priority, json_extract(r.value, '$.value'), NULLIF(m.history, '[]'),
       json_insert(CASE WHEN json_type(m.workers) = 'array' THEN
                      CASE WHEN json_array_length(m.workers) >= 1000 THEN json_remove(m.workers, '$[0]')
                           ELSE m.workers END
                      ELSE '[]' END, '$[#]', m.worker),
       COALESCE(json_set(json_extract(r.value, '$.progress'), '$.at', replace(%(now)s, ' ', 'T') || '+00:00'), m.progress),
       m.created_at,
       django_format_dtdelta('-', %(now)s, CAST(json_extract(r.value, '$.seconds') * 1000000 AS INTEGER)), %(now)s,
       django_format_dtdelta('+', %(now)s, json_extract(r.value, '$.kept'))
       -- CROSS JOIN: in this order. By other statistics the planner reads the whole queue.
  FROM json_each(%(rows)s) r
 CROSS JOIN deadletter_message m ON m.id = CAST(r.key AS INTEGER)
 CROSS JOIN deadletter_queue q ON q.id = m.queue_id
 WHERE m.lease_token || '-' || m.id IN (SELECT value FROM json_each(%(pairs)s))
   AND m.available_at > %(now)s
       -- what an earlier end of this id left behind is no longer true
    ON CONFLICT (message_id) DO UPDATE
   SET queue = excluded.queue, name = excluded.name, kind = excluded.kind, outcome = excluded.outcome,
       payload = excluded.payload, headers = excluded.headers, priority = excluded.priority,
       value = excluded.value, history = excluded.history, workers = excluded.workers,
       progress = excluded.progress, created_at = excluded.created_at,
       attempted_at = excluded.attempted_at, finished_at = excluded.finished_at,
       expires_at = excluded.expires_at;
DELETE FROM deadletter_message
 WHERE id IN (SELECT value FROM json_each(%(ids)s))
   AND lease_token || '-' || id IN (SELECT value FROM json_each(%(pairs)s))
   AND available_at > %(now)s
-- not the id of the result: SQLite 3.40 takes "origin IS NULL" for false here
RETURNING id, queue_id, name, kind, source_id, origin, queue_id, stream;

-- keep_results_of_messages --
-- Store the results of tasks whose messages are about to be deleted without having succeeded. In a dead queue: with the queue that
-- they died in.
INSERT INTO deadletter_task_result
       (message_id, queue, name, kind, outcome, payload, headers, priority, history, workers, progress,
        created_at, finished_at, expires_at)
SELECT CASE WHEN m.origin IS NULL THEN COALESCE(m.source_id, m.id) ELSE m.id END,
       CASE WHEN m.origin IS NULL AND m.source_id IS NOT NULL
            THEN substr(COALESCE(json_extract(m.death, '$.queue'), q.name), 1, 200) ELSE q.name END, m.name, m.kind,
       %(outcome)s, m.payload, m.headers, m.priority, NULLIF(m.history, '[]'), m.workers, m.progress, m.created_at,
       %(now)s, django_format_dtdelta('+', %(now)s, %(kept)s)
  FROM deadletter_message m
 CROSS JOIN deadletter_queue q ON q.id = m.queue_id
 WHERE m.id IN (SELECT value FROM json_each(%(ids)s)) AND m.kind = 'task'
 ORDER BY m.id
    ON CONFLICT (message_id) DO NOTHING;

-- keep_results_of_poison --
-- Store the results of dead tasks whose poison records are about to be deleted, as above.
INSERT INTO deadletter_task_result
       (message_id, queue, name, kind, outcome, payload, headers, priority, history, workers, progress,
        created_at, finished_at, expires_at)
SELECT CASE WHEN p.origin IS NULL THEN COALESCE(p.source_id, p.message_id) ELSE p.message_id END,
       CASE WHEN p.origin IS NULL AND p.source_id IS NOT NULL
            THEN substr(COALESCE(json_extract(p.death, '$.queue'), p.queue), 1, 200) ELSE p.queue END, p.name, p.kind,
       'removed', p.payload, p.headers, p.priority, NULLIF(p.history, '[]'), p.workers, p.progress,
       p.original_created_at, p.poisoned_at, django_format_dtdelta('+', %(now)s, %(kept)s)
  FROM deadletter_poison p
 WHERE p.id IN (SELECT value FROM json_each(%(ids)s)) AND p.kind = 'task'
 ORDER BY p.id
    ON CONFLICT (message_id) DO NOTHING;

-- delete_old_results --
-- Delete some results that are past their time, the oldest first.
DELETE FROM deadletter_task_result
 WHERE message_id IN (
       SELECT message_id FROM deadletter_task_result
        WHERE expires_at IS NOT NULL AND expires_at <= %(now)s
        ORDER BY expires_at LIMIT %(limit)s)
RETURNING message_id;

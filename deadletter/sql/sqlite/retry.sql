-- retry --
-- Put poisoned messages back under their own ids. No row: the id, the key or the id in the origin is in use.
INSERT INTO deadletter_message
       (id, queue_id, name, kind, payload, headers, stream, key, priority, status, attempts, fence,
        available_at, failure_reason, error, history, poison_count, source_id, origin, death, fingerprint,
        died_at, instance, execution_id, activity_id, workers, progress, expires_at, created_at)
SELECT p.message_id, q.id, p.name, p.kind, COALESCE(%(payload)s, p.payload), p.headers, p.stream,
       p.key, p.priority, p.status & ~32768, 0, p.fence,
       django_format_dtdelta('+', %(now)s, d.value), p.last_failure_reason, p.last_error,
       CASE WHEN %(payload)s IS NULL THEN p.history ELSE
            json_insert(p.history, '$[#]', json_set(%(entry)s,
                '$.at', replace(%(now)s, ' ', 'T') || '+00:00', '$.original_payload', p.payload))
       END, p.poison_count, CASE WHEN q.name = p.queue OR p.origin IS NOT NULL THEN p.source_id END, p.origin,
       CASE WHEN q.name = p.queue THEN p.death END,
       CASE WHEN q.name = p.queue AND p.moved_at IS NOT NULL THEN p.fingerprint END,
       CASE WHEN q.name = p.queue AND p.moved_at IS NOT NULL THEN p.poisoned_at END,
       p.instance, p.execution_id, p.activity_id, p.workers, p.progress,
       django_format_dtdelta('+', %(now)s, q.expire_timeout), p.original_created_at
  FROM json_each(%(ids)s) i
  JOIN json_each(%(delays)s) d ON d.key = i.key
  JOIN deadletter_poison p ON p.id = i.value
  JOIN deadletter_queue q ON q.name = COALESCE(%(queue)s, p.queue)
 WHERE true
 ORDER BY p.message_id
    ON CONFLICT DO NOTHING
RETURNING id, queue_id, stream;

-- retry_dead --
-- Put messages of dead queues back under the ids and with the values they had before. No row: the id or the key is in use.
INSERT INTO deadletter_message
       (id, queue_id, name, kind, payload, headers, stream, key, priority, status, attempts, fence,
        available_at, failure_reason, error, history, poison_count, source_id, origin, instance,
        execution_id, activity_id, workers, progress, expires_at, created_at)
SELECT m.source_id, q.id, m.name, m.kind, COALESCE(%(payload)s, m.payload), m.headers, m.stream,
       json_extract(r.value, '$.key'), m.priority, json_extract(r.value, '$.status'), 0,
       json_extract(r.value, '$.fence'),
       django_format_dtdelta('+', %(now)s, json_extract(r.value, '$.delay')),
       m.failure_reason, m.error,
       CASE WHEN %(payload)s IS NULL THEN m.history ELSE
            json_insert(m.history, '$[#]', json_set(%(entry)s,
                '$.at', replace(%(now)s, ' ', 'T') || '+00:00', '$.original_payload', m.payload))
       END, m.poison_count + (m.died_at IS NULL), json_extract(r.value, '$.source_id'),
       json_extract(r.value, '$.origin'), m.instance, m.execution_id, m.activity_id, m.workers, m.progress,
       django_format_dtdelta('+', %(now)s, q.expire_timeout),
       COALESCE(json_extract(r.value, '$.created_at'), m.created_at)
  FROM json_each(%(rows)s) r
  JOIN deadletter_message m ON m.id = json_extract(r.value, '$.id')
  JOIN deadletter_queue q ON q.id = json_extract(r.value, '$.queue_id')
 WHERE NOT EXISTS (SELECT 1 FROM deadletter_poison p WHERE p.message_id = m.source_id)
 ORDER BY m.source_id
    ON CONFLICT DO NOTHING
RETURNING id, queue_id, stream;

-- mark_deaths --
-- Record for retried messages that died again whether the fingerprint is the same (2) or another (3).
UPDATE deadletter_audited_message
   SET outcome = CASE WHEN fingerprint = r.died_of THEN 2 ELSE 3 END
  FROM (SELECT json_extract(value, '$.id') AS row_id,
               json_extract(value, '$.fingerprint') AS died_of
          FROM json_each(%(rows)s)) AS r
 WHERE message_id = r.row_id AND is_open AND outcome IS NULL;

-- mark_removed --
-- Record for retried messages that they were removed before they were handled.
UPDATE deadletter_audited_message
   SET outcome = 4
 WHERE message_id IN (SELECT value FROM json_each(%(ids)s)) AND is_open AND outcome IS NULL;

-- mark_completed --
-- Record as completed the retried messages that neither died nor were removed and are in no queue and not in the
-- outbox any more.
UPDATE deadletter_audited_message
   SET outcome = 1
 WHERE id IN (
       SELECT a.id FROM deadletter_audited_message a
        WHERE a.is_open AND a.outcome IS NULL
          AND NOT EXISTS (SELECT 1 FROM deadletter_message m WHERE m.id = a.message_id)
          AND NOT EXISTS (SELECT 1 FROM deadletter_outbox o WHERE o.message_id = a.message_id)
        ORDER BY a.id LIMIT %(limit)s)
RETURNING id;

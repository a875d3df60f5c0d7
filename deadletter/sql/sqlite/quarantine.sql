-- read_for_quarantine --
-- Read what the quarantine needs of messages that are about to leave their queue for good.
SELECT m.id, m.queue_id, m.stream, m.name, m.attempts, m.failure_reason, m.error,
       json_extract(m.history, '$[#-1].exception'), json_extract(m.history, '$[#-1].frame'),
       json_extract(m.history, '$[#-1].group'), json_extract(m.history, '$[#-1].release'),
       json_extract(m.history, '$[#-1].tags'),
       m.lease_token IS NOT NULL AND m.available_at <= %(now)s, m.worker,
       q.name, q.max_attempts, q.stream_policy,
       CASE WHEN q.on_poison = 'dead_queue' AND (d.id IS NULL OR d.id = q.id OR d.dead_queue_id IS NOT NULL)
            THEN 'broken' ELSE q.on_poison END,
       d.name, m.kind, m.instance, m.execution_id, m.activity_id,
       m.source_id IS NOT NULL AND m.origin IS NULL, CASE WHEN m.died_at IS NOT NULL THEN m.fingerprint END,
       json_extract(m.death, '$.exception'), json_extract(m.death, '$.frame'), json_extract(m.death, '$.release')
  FROM deadletter_message m
  JOIN deadletter_queue q ON q.id = m.queue_id
  LEFT JOIN deadletter_queue d ON d.id = q.dead_queue_id
 WHERE m.id IN (SELECT value FROM json_each(%(ids)s))
 ORDER BY m.id;

-- record_expired_leases --
-- Record that a lease ran out without a report, before the message is quarantined for it.
UPDATE deadletter_message
   SET failure_reason = 10,
       error = 'worker ' || worker || ' did not report before its lease ran out',
       history = json_insert(CASE WHEN json_array_length(history) >= %(history_limit)s
                                  THEN json_remove(history, '$[0]') ELSE history END,
           '$[#]', json_object(
               'at', replace(available_at, ' ', 'T') || '+00:00', 'worker', worker,
               'attempt', attempts, 'reason', 10, 'error',
               'worker ' || worker || ' did not report before its lease ran out')),
       reason_counts = json_set(CASE WHEN json_type(reason_counts) = 'object' THEN reason_counts ELSE '{}' END,
           '$."10"', 1 + CASE WHEN json_extract(reason_counts, '$."10"') BETWEEN 0 AND 2147483647
                                   AND json_type(reason_counts, '$."10"') = 'integer'
                              THEN json_extract(reason_counts, '$."10"') ELSE 0 END),
       workers = json_insert(CASE WHEN json_type(workers) = 'array' THEN
                                CASE WHEN json_array_length(workers) >= 1000 THEN json_remove(workers, '$[0]')
                                     ELSE workers END
                                ELSE '[]' END, '$[#]', worker),
       lease_token = NULL, worker = NULL
 WHERE id IN (SELECT value FROM json_each(%(ids)s))
   AND lease_token IS NOT NULL AND available_at <= %(now)s;

-- quarantine --
-- Copy messages into poison records, one for each message.
INSERT INTO deadletter_poison
       (message_id, queue, name, kind, payload, headers, stream, key, priority, status, attempts,
        max_attempts, fence, reason, verdict, last_failure_reason, last_error, history, fingerprint,
        exception, frame, release, halts, poison_count, source_id, origin, death, moved_at, instance, execution_id, activity_id,
        workers, progress, expires_at, original_created_at, poisoned_at, poisoned_by)
SELECT m.id, q.name, m.name, m.kind, m.payload, m.headers, m.stream, m.key, m.priority, m.status,
       json_extract(r.value, '$.attempts'), json_extract(r.value, '$.max_attempts'), m.fence,
       json_extract(r.value, '$.reason'),
       json_extract(r.value, '$.verdict'), m.failure_reason, m.error, m.history,
       json_extract(r.value, '$.fingerprint'), json_extract(r.value, '$.exception'),
       json_extract(r.value, '$.frame'), json_extract(r.value, '$.release'), json_extract(r.value, '$.halts'),
       m.poison_count + (m.died_at IS NULL), m.source_id, m.origin, m.death,
       CASE WHEN m.died_at IS NOT NULL THEN %(now)s END, m.instance, m.execution_id, m.activity_id,
       m.workers, m.progress, m.expires_at, m.created_at, COALESCE(m.died_at, %(now)s), %(by)s
  FROM json_each(%(rows)s) r
  JOIN deadletter_message m ON m.id = json_extract(r.value, '$.id')
  JOIN deadletter_queue q ON q.id = m.queue_id
 WHERE true
 ORDER BY m.id
    ON CONFLICT (message_id) DO NOTHING
RETURNING message_id;

-- move_to_dead_queue --
-- Copy messages into their dead queue as new messages, with the circumstances of their death.
INSERT INTO deadletter_message
       (queue_id, name, kind, payload, headers, stream, priority, status, available_at, expires_at,
        failure_reason, error, history, poison_count, source_id, death, fingerprint, died_at, instance,
        execution_id, activity_id, workers, progress, created_at)
SELECT d.id, m.name, m.kind, m.payload, m.headers, m.stream, m.priority, 1, %(now)s,
       django_format_dtdelta('+', %(now)s, d.expire_timeout), m.failure_reason, m.error, m.history,
       m.poison_count + 1, m.id,
       json_set(json_extract(r.value, '$.death'),
           '$.queue', q.name, '$.message_id', m.id, '$.at', replace(%(now)s, ' ', 'T') || '+00:00',
           '$.by', %(by)s, '$.key', m.key, '$.status', m.status, '$.fence', m.fence,
           '$.created_at', replace(m.created_at, ' ', 'T') || '+00:00',
           '$.origin', m.origin, '$.source_id', m.source_id),
       json_extract(r.value, '$.fingerprint'), %(now)s, m.instance, m.execution_id, m.activity_id,
       m.workers, m.progress, %(now)s
  FROM json_each(%(rows)s) r
  JOIN deadletter_message m ON m.id = json_extract(r.value, '$.id')
  JOIN deadletter_queue q ON q.id = m.queue_id
  JOIN deadletter_queue d ON d.id = q.dead_queue_id
 WHERE true
 ORDER BY m.id
    ON CONFLICT (queue_id, source_id) WHERE origin IS NULL AND source_id IS NOT NULL DO NOTHING
RETURNING id, source_id;

-- delete --
-- Delete messages that have been copied elsewhere.
DELETE FROM deadletter_message WHERE id IN (SELECT value FROM json_each(%(ids)s)) RETURNING id;

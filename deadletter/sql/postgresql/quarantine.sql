-- read_for_quarantine --
-- Lock messages that are about to leave their queue for good and read what the quarantine needs. Never waits: a row that another
-- transaction has locked is left for the next claim.
SELECT m.id, m.queue_id, m.stream, m.name, m.attempts, m.failure_reason, m.error,
       m.history -> -1 ->> 'exception', m.history -> -1 ->> 'frame',
       m.history -> -1 ->> 'group', m.history -> -1 ->> 'release', m.history -> -1 ->> 'tags',
       m.lease_token IS NOT NULL AND m.available_at <= %(now)s AS lost, m.worker,
       q.name, q.max_attempts, q.stream_policy,
       -- checked again where rows are written: a policy damaged by hand must not lose a message
       CASE WHEN q.on_poison = 'dead_queue' AND (d.id IS NULL OR d.id = q.id OR d.dead_queue_id IS NOT NULL)
            THEN 'broken' ELSE q.on_poison END,
       d.name, m.kind, m.instance, m.execution_id, m.activity_id,
       -- true if it died before and was moved to this dead queue
       m.source_id IS NOT NULL AND m.origin IS NULL, CASE WHEN m.died_at IS NOT NULL THEN m.fingerprint END,
       m.death ->> 'exception', m.death ->> 'frame', m.death ->> 'release'
  FROM deadletter_message m
  JOIN deadletter_queue q ON q.id = m.queue_id
  LEFT JOIN deadletter_queue d ON d.id = q.dead_queue_id
 WHERE m.id = ANY(%(ids)s::bigint[])
 ORDER BY m.id
   FOR UPDATE OF m SKIP LOCKED;

-- record_expired_leases --
-- Record that a lease ran out without a report, before the message is quarantined for it.
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
       workers = CASE WHEN jsonb_typeof(m.workers) = 'array' THEN
                 CASE WHEN jsonb_array_length(m.workers) >= 1000 THEN m.workers - 0 ELSE m.workers END
                 ELSE '[]'::jsonb END || to_jsonb(m.worker::text),
       lease_token = NULL, worker = NULL
 WHERE m.id = ANY(%(ids)s::bigint[]) AND m.lease_token IS NOT NULL
   AND COALESCE(m.available_at, 'infinity') <= %(now)s;

-- quarantine --
-- Copy messages into poison records, one for each message. Of two transactions that race, one inserts. A message that died
-- before and was moved to a dead queue keeps that death: it is not counted again.
INSERT INTO deadletter_poison
       (message_id, queue, name, kind, payload, headers, stream, key, priority, status, attempts,
        max_attempts, fence, reason, verdict, last_failure_reason, last_error, history, fingerprint,
        exception, frame, release, halts, poison_count, source_id, origin, death, moved_at, instance, execution_id, activity_id,
        workers, progress, expires_at, original_created_at, poisoned_at, poisoned_by)
SELECT m.id, q.name, m.name, m.kind, m.payload, m.headers, m.stream, m.key, m.priority, m.status,
       r.attempts, r.max_attempts, m.fence, r.reason, r.verdict, m.failure_reason, m.error,
       m.history, r.fingerprint, r.exception, r.frame, r.release, r.halts,
       m.poison_count + CASE WHEN m.died_at IS NULL THEN 1 ELSE 0 END, m.source_id, m.origin, m.death,
       CASE WHEN m.died_at IS NOT NULL THEN %(now)s END, m.instance, m.execution_id, m.activity_id,
       m.workers, m.progress, m.expires_at, m.created_at, COALESCE(m.died_at, %(now)s), %(by)s
  FROM deadletter_message m
  JOIN deadletter_queue q ON q.id = m.queue_id
       -- looked up by id, not joined: see complete
 CROSS JOIN LATERAL jsonb_to_record(%(rows)s::jsonb -> m.id::text)
       AS r(reason int, verdict text, fingerprint text, exception text, frame text, release text, halts bool,
            attempts int, max_attempts int)
 WHERE m.id = ANY(%(ids)s::bigint[])
 ORDER BY m.id
    ON CONFLICT (message_id) DO NOTHING
RETURNING message_id;

-- move_to_dead_queue --
-- Copy messages into their dead queue as new messages, with the circumstances of their death and the values that a retry
-- restores. A repeated move finds the first copy and adds none.
INSERT INTO deadletter_message
       (queue_id, name, kind, payload, headers, stream, priority, status, available_at, expires_at,
        failure_reason, error, history, poison_count, source_id, death, fingerprint, died_at, instance,
        execution_id, activity_id, workers, progress, created_at)
SELECT d.id, m.name, m.kind, m.payload, m.headers, m.stream, m.priority, 1, %(now)s,
       %(now)s + d.expire_timeout, m.failure_reason, m.error, m.history, m.poison_count + 1, m.id,
       r.death || jsonb_build_object(
           'queue', q.name, 'message_id', m.id, 'at', %(now)s, 'by', %(by)s::text, 'key', m.key,
           'status', m.status, 'fence', m.fence, 'created_at', m.created_at,
           'origin', m.origin, 'source_id', m.source_id),
       r.fingerprint, %(now)s, m.instance, m.execution_id, m.activity_id, m.workers, m.progress, %(now)s
  FROM deadletter_message m
  JOIN deadletter_queue q ON q.id = m.queue_id
  JOIN deadletter_queue d ON d.id = q.dead_queue_id
       -- looked up by id, not joined: see complete
 CROSS JOIN LATERAL jsonb_to_record(%(rows)s::jsonb -> m.id::text) AS r(fingerprint text, death jsonb)
 WHERE m.id = ANY(%(ids)s::bigint[])
 ORDER BY m.id
    ON CONFLICT (queue_id, source_id) WHERE origin IS NULL AND source_id IS NOT NULL DO NOTHING
RETURNING id, source_id;

-- delete --
-- Delete messages whose rows are locked and that have been copied elsewhere.
DELETE FROM deadletter_message WHERE id = ANY(%(ids)s::bigint[]) RETURNING id;

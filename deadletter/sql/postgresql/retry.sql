-- retry --
-- Put poisoned messages back under their own ids. No row: the id, the key or the id in the origin is in use. Without an origin,
-- source_id has a meaning only in the queue the message was moved to; with an origin it identifies the message.
INSERT INTO deadletter_message
       (id, queue_id, name, kind, payload, headers, stream, key, priority, status, attempts, fence,
        available_at, failure_reason, error, history, poison_count, source_id, origin, death, fingerprint,
        died_at, instance, execution_id, activity_id, workers, progress, expires_at, created_at)
SELECT p.message_id, q.id, p.name, p.kind, COALESCE(%(payload)s::text, p.payload), p.headers,
       p.stream, p.key, p.priority, p.status & ~32768, 0, p.fence,
       %(now)s + r.delay * interval '1 microsecond', p.last_failure_reason, p.last_error,
       -- the payload before an edit is kept in the history
       CASE WHEN %(payload)s::text IS NULL THEN p.history ELSE
            p.history || jsonb_build_array(%(entry)s::jsonb || jsonb_build_object(
                'at', %(now)s, 'original_payload', p.payload)) END,
       p.poison_count, CASE WHEN q.name = p.queue OR p.origin IS NOT NULL THEN p.source_id END, p.origin,
       -- back in its dead queue the message has its earlier death again
       CASE WHEN q.name = p.queue THEN p.death END,
       CASE WHEN q.name = p.queue AND p.moved_at IS NOT NULL THEN p.fingerprint END,
       CASE WHEN q.name = p.queue AND p.moved_at IS NOT NULL THEN p.poisoned_at END,
       p.instance, p.execution_id, p.activity_id, p.workers, p.progress, %(now)s + q.expire_timeout,
       p.original_created_at
  FROM unnest(%(ids)s::bigint[], %(delays)s::bigint[]) AS r(id, delay)
  JOIN deadletter_poison p ON p.id = r.id
  JOIN deadletter_queue q ON q.name = COALESCE(%(queue)s::text, p.queue)
 WHERE p.id = ANY(%(ids)s::bigint[])
 ORDER BY p.message_id + 0 -- + 0: the index of that order would read all poison
    ON CONFLICT DO NOTHING
RETURNING id, queue_id, stream;

-- retry_dead --
-- Put messages of dead queues back under the ids and with the values they had before. No row: the id or the key is in use.
INSERT INTO deadletter_message
       (id, queue_id, name, kind, payload, headers, stream, key, priority, status, attempts, fence,
        available_at, failure_reason, error, history, poison_count, source_id, origin, instance,
        execution_id, activity_id, workers, progress, expires_at, created_at)
SELECT m.source_id, q.id, m.name, m.kind, COALESCE(%(payload)s::text, m.payload), m.headers, m.stream,
       r.key, m.priority, r.status, 0, r.fence, %(now)s + r.delay * interval '1 microsecond',
       m.failure_reason, m.error,
       -- the payload before an edit is kept in the history
       CASE WHEN %(payload)s::text IS NULL THEN m.history ELSE
            m.history || jsonb_build_array(%(entry)s::jsonb || jsonb_build_object(
                'at', %(now)s, 'original_payload', m.payload)) END,
       -- an older version did not count the death
       m.poison_count + CASE WHEN m.died_at IS NULL THEN 1 ELSE 0 END, r.source_id, r.origin,
       m.instance, m.execution_id, m.activity_id, m.workers, m.progress, %(now)s + q.expire_timeout,
       COALESCE(r.created_at, m.created_at)
  FROM deadletter_message m
       -- looked up by id, not joined: see complete
 CROSS JOIN LATERAL jsonb_to_record(%(rows)s::jsonb -> m.id::text)
       AS r(queue_id bigint, key text, status int, fence bigint, delay bigint, source_id bigint,
            origin text, created_at timestamptz)
  JOIN deadletter_queue q ON q.id = r.queue_id
 WHERE m.id = ANY(%(ids)s::bigint[])
   AND NOT EXISTS (SELECT 1 FROM deadletter_poison p WHERE p.message_id = m.source_id)
 ORDER BY m.source_id + 0
    ON CONFLICT DO NOTHING
RETURNING id, queue_id, stream;

-- mark_deaths --
-- Record for retried messages that died again whether the fingerprint is the same (2) or another (3).
UPDATE deadletter_audited_message a
   SET outcome = CASE WHEN a.fingerprint = r.fingerprint THEN 2 ELSE 3 END
  FROM jsonb_to_recordset(%(rows)s::jsonb) AS r(id bigint, fingerprint text)
 WHERE a.message_id = ANY(%(ids)s::bigint[]) AND a.message_id = r.id AND a.is_open AND a.outcome IS NULL;

-- mark_removed --
-- Record for retried messages that they were removed before they were handled.
UPDATE deadletter_audited_message
   SET outcome = 4
 WHERE message_id = ANY(%(ids)s::bigint[]) AND is_open AND outcome IS NULL;

-- mark_completed --
-- Record as completed the retried messages that neither died nor were removed and are in no queue and not in the
-- outbox any more.
UPDATE deadletter_audited_message
   SET outcome = 1
 WHERE id = ANY(ARRAY(
       SELECT a.id FROM deadletter_audited_message a
        WHERE a.is_open AND a.outcome IS NULL
          AND NOT EXISTS (SELECT 1 FROM deadletter_message m WHERE m.id = a.message_id)
          AND NOT EXISTS (SELECT 1 FROM deadletter_outbox o WHERE o.message_id = a.message_id)
        ORDER BY a.id LIMIT %(limit)s
          FOR UPDATE SKIP LOCKED))
RETURNING id;

-- insert --
-- Store one message in a queue known by name. No row: the queue does not exist, or the key is in use.
INSERT INTO deadletter_message
       (queue_id, name, kind, payload, headers, stream, key, priority, available_at, expires_at,
        instance, execution_id, activity_id, created_at)
SELECT q.id, %(name)s, %(kind)s, %(payload)s, %(headers)s, %(stream)s, %(key)s, %(priority)s,
       COALESCE(%(at)s, django_format_dtdelta('+', %(now)s, %(delay)s)),
       django_format_dtdelta('+', %(now)s, COALESCE(%(expires_in)s, q.expire_timeout)),
       %(instance)s, %(execution_id)s, %(activity_id)s, %(now)s
  FROM deadletter_queue q
 WHERE q.name = %(queue)s
    ON CONFLICT (queue_id, key) WHERE key IS NOT NULL DO NOTHING
RETURNING id, queue_id, available_at, expires_at, created_at;

-- insert --
-- Store one message in a queue known by name. No row: the queue does not exist, or the key is in use.
WITH stored AS (
    INSERT INTO deadletter_message
           (queue_id, name, kind, payload, headers, stream, key, priority, available_at, expires_at,
            instance, execution_id, activity_id, created_at)
    SELECT q.id, %(name)s, %(kind)s, %(payload)s, %(headers)s, %(stream)s, %(key)s, %(priority)s,
           COALESCE(%(at)s::timestamptz, %(now)s + %(delay)s::interval),
           %(sent)s + COALESCE(%(expires_in)s::interval, q.expire_timeout),
           %(instance)s, %(execution_id)s, %(activity_id)s, %(now)s
      FROM deadletter_queue q
     WHERE q.name = %(queue)s
        ON CONFLICT (queue_id, key) WHERE key IS NOT NULL DO NOTHING
    RETURNING id, queue_id, available_at, expires_at, created_at
), counted AS (
    INSERT INTO deadletter_count AS c (span, at, queue, name, kind, writer, sent)
    SELECT 60, date_trunc('minute', %(now)s), %(queue)s, %(name)s, %(kind)s,
           %(writer)s::text, 1
      FROM stored
     WHERE %(writer)s::text IS NOT NULL
        ON CONFLICT (span, at, queue, name, kind, reason, writer) DO UPDATE SET sent = c.sent + 1
)
SELECT id, queue_id, available_at, expires_at, created_at FROM stored;

-- reserve_ids --
-- Reserve ids, in ascending order, for messages that are about to be copied in.
SELECT nextval((SELECT pg_get_serial_sequence('deadletter_message', 'id')::regclass))
  FROM generate_series(1, %(count)s);

-- insert_many --
-- Store messages with keys in one queue, under ids reserved before and in the given order; return the ids that were stored
-- (a key may be in use). The caller orders the messages by key: an insert waits for another transaction that stores the same
-- key, and two that wait for each other would deadlock.
INSERT INTO deadletter_message
       (id, queue_id, name, kind, payload, headers, stream, key, priority, available_at,
        expires_at, created_at)
SELECT g.id, q.id, g.name, g.kind, g.payload, g.headers, g.stream, g.key, g.priority,
       COALESCE(g.at, %(now)s + g.delay * interval '1 microsecond'),
       %(sent)s + COALESCE(g.expires_in * interval '1 microsecond', q.expire_timeout),
       %(now)s
  FROM ROWS FROM (jsonb_to_recordset(%(rows)s::jsonb)
       AS (id bigint, name text, kind text, payload text, headers text, stream text, key text,
           priority smallint, at timestamptz, delay bigint, expires_in bigint))
       WITH ORDINALITY
         AS g(id, name, kind, payload, headers, stream, key, priority, at, delay, expires_in, place),
       deadletter_queue q
 WHERE q.id = %(queue_id)s
 ORDER BY g.place
    ON CONFLICT (queue_id, key) WHERE key IS NOT NULL DO NOTHING
RETURNING id;

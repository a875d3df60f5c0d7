-- import_messages --
-- Store messages of another system in a queue known by name, in the given order; return those that were stored. The others exist
-- already (their id in their origin, or their key), or the queue does not exist. An insert waits for another transaction that stores
-- the same id, so the caller orders the messages by these ids. Whether a message died here meanwhile is looked up by the caller in a
-- later statement: see lifecycle/imports.py.
INSERT INTO deadletter_message
       (queue_id, name, kind, payload, headers, stream, key, priority, status, available_at, expires_at, failure_reason, error, history,
        poison_count, source_id, origin, created_at)
SELECT q.id, g.name, g.kind, g.payload, g.headers, g.stream, g.key, g.priority, g.status, %(now)s, %(now)s + q.expire_timeout,
       g.failure_reason, g.error, g.history, g.poison_count, g.source_id, %(origin)s, COALESCE(g.created_at, %(now)s)
  FROM ROWS FROM (jsonb_to_recordset(%(rows)s::jsonb)
       AS (name text, kind text, payload text, headers text, stream text, key text, priority smallint, status int, failure_reason smallint,
           error text, history jsonb, poison_count int, source_id bigint, created_at timestamptz))
       WITH ORDINALITY
         AS g(name, kind, payload, headers, stream, key, priority, status, failure_reason, error, history, poison_count, source_id,
              created_at, place),
       deadletter_queue q
 WHERE q.name = %(queue)s
 ORDER BY g.place
    ON CONFLICT DO NOTHING
RETURNING id, source_id;

-- read_imported --
-- Return which ids of an origin died in a queue and are in a dead queue, or died again there: one index probe for each.
SELECT (m.death ->> 'source_id')::bigint FROM deadletter_message m
 WHERE m.death IS NOT NULL AND m.death ->> 'origin' = %(origin)s AND m.death ->> 'source_id' = ANY(%(ids)s::text[])
   AND m.death ->> 'queue' = %(queue)s
 UNION ALL
SELECT (p.death ->> 'source_id')::bigint FROM deadletter_poison p
 WHERE p.death IS NOT NULL AND p.death ->> 'origin' = %(origin)s AND p.death ->> 'source_id' = ANY(%(ids)s::text[])
   AND p.death ->> 'queue' = %(queue)s;

-- import_messages --
-- Store messages of another system in a queue known by name, in the given order; return those that were stored. The others exist
-- already (their id in their origin, or their key), or the queue does not exist.
INSERT INTO deadletter_message
       (queue_id, name, kind, payload, headers, stream, key, priority, status, available_at, expires_at, failure_reason, error, history,
        poison_count, source_id, origin, created_at)
SELECT q.id, json_extract(g.value, '$.name'), json_extract(g.value, '$.kind'), json_extract(g.value, '$.payload'),
       json_extract(g.value, '$.headers'),
       json_extract(g.value, '$.stream'), json_extract(g.value, '$.key'), json_extract(g.value, '$.priority'),
       json_extract(g.value, '$.status'), %(now)s, django_format_dtdelta('+', %(now)s, q.expire_timeout),
       json_extract(g.value, '$.failure_reason'), json_extract(g.value, '$.error'), json_extract(g.value, '$.history'),
       json_extract(g.value, '$.poison_count'), json_extract(g.value, '$.source_id'), %(origin)s,
       COALESCE(json_extract(g.value, '$.created_at'), %(now)s)
  FROM json_each(%(rows)s) g
  JOIN deadletter_queue q ON q.name = %(queue)s
 WHERE true
 ORDER BY g.key
    ON CONFLICT DO NOTHING
RETURNING id, source_id;

-- read_imported --
-- Return which ids of an origin died in a queue and are in a dead queue, or died again there: one index probe for each.
SELECT json_extract(m.death, '$.source_id') FROM deadletter_message m
 WHERE m.death IS NOT NULL AND json_extract(m.death, '$.origin') = %(origin)s
   AND json_extract(m.death, '$.source_id') IN (SELECT value FROM json_each(%(ids)s))
   AND json_extract(m.death, '$.queue') = %(queue)s
 UNION ALL
SELECT json_extract(p.death, '$.source_id') FROM deadletter_poison p
 WHERE p.death IS NOT NULL AND json_extract(p.death, '$.origin') = %(origin)s
   AND json_extract(p.death, '$.source_id') IN (SELECT value FROM json_each(%(ids)s))
   AND json_extract(p.death, '$.queue') = %(queue)s;

-- complete_with_results --
-- Delete finished messages and store their results. The locks of their streams are held. A message that was moved to a dead queue
-- has its result under the id that it was sent with. Returns the messages that were deleted.
WITH gone AS (
    DELETE FROM deadletter_message m
     WHERE m.id = ANY(%(ids)s::bigint[]) AND m.lease_token || '-' || m.id = ANY(%(pairs)s::text[])
       AND COALESCE(m.available_at, '-infinity') > %(now)s
    RETURNING m.id, m.queue_id, m.name, m.kind, m.stream, m.payload, m.headers, m.priority, m.history,
              m.workers, m.worker, m.progress, m.created_at, m.source_id, m.origin,
              CASE WHEN m.origin IS NULL THEN COALESCE(m.source_id, m.id) ELSE m.id END AS result_id
), stored AS (
    INSERT INTO deadletter_task_result
           (message_id, queue, name, kind, outcome, payload, headers, priority, value, history, workers,
            progress, created_at, attempted_at, finished_at, expires_at)
    SELECT g.result_id, q.name, g.name, g.kind, 'successful', g.payload, g.headers, g.priority, r.value,
           NULLIF(g.history, '[]'::jsonb),
           CASE WHEN jsonb_typeof(g.workers) = 'array' THEN
                CASE WHEN jsonb_array_length(g.workers) >= 1000 THEN g.workers - 0 ELSE g.workers END
                ELSE '[]'::jsonb END || to_jsonb(g.worker::text),
           COALESCE(r.progress || jsonb_build_object('at', %(now)s), g.progress), g.created_at,
           %(now)s - r.seconds * interval '1 second', %(now)s,
           %(now)s + r.kept * interval '1 microsecond'
      FROM gone g
      JOIN deadletter_queue q ON q.id = g.queue_id
           -- looked up by id, not joined: see complete
     CROSS JOIN LATERAL jsonb_to_record(%(rows)s::jsonb -> g.id::text)
           AS r(value text, seconds float8, kept bigint, progress jsonb)
        -- what an earlier end of this id left behind is no longer true
        ON CONFLICT (message_id) DO UPDATE
       SET queue = excluded.queue, name = excluded.name, kind = excluded.kind, outcome = excluded.outcome,
           payload = excluded.payload, headers = excluded.headers, priority = excluded.priority,
           value = excluded.value, history = excluded.history, workers = excluded.workers,
           progress = excluded.progress, created_at = excluded.created_at,
           attempted_at = excluded.attempted_at, finished_at = excluded.finished_at,
           expires_at = excluded.expires_at
)
SELECT id, queue_id, name, kind, source_id, origin, queue_id, stream FROM gone;

-- keep_results_of_messages --
-- Store the results of tasks whose messages are about to be deleted without having succeeded. In a dead queue: with the queue that
-- they died in.
INSERT INTO deadletter_task_result
       (message_id, queue, name, kind, outcome, payload, headers, priority, history, workers, progress,
        created_at, finished_at, expires_at)
SELECT CASE WHEN m.origin IS NULL THEN COALESCE(m.source_id, m.id) ELSE m.id END,
       LEFT(CASE WHEN m.origin IS NULL AND m.source_id IS NOT NULL THEN COALESCE(m.death ->> 'queue', q.name)
                 ELSE q.name END, 200), m.name, m.kind,
       %(outcome)s, m.payload, m.headers, m.priority, NULLIF(m.history, '[]'::jsonb), m.workers, m.progress,
       m.created_at, %(now)s, %(now)s + %(kept)s::interval
  FROM deadletter_message m
  JOIN deadletter_queue q ON q.id = m.queue_id
 WHERE m.id = ANY(%(ids)s::bigint[]) AND m.kind = 'task'
 ORDER BY m.id
    ON CONFLICT (message_id) DO NOTHING;

-- keep_results_of_poison --
-- Store the results of dead tasks whose poison records are about to be deleted, as above.
INSERT INTO deadletter_task_result
       (message_id, queue, name, kind, outcome, payload, headers, priority, history, workers, progress,
        created_at, finished_at, expires_at)
SELECT CASE WHEN p.origin IS NULL THEN COALESCE(p.source_id, p.message_id) ELSE p.message_id END,
       LEFT(CASE WHEN p.origin IS NULL AND p.source_id IS NOT NULL THEN COALESCE(p.death ->> 'queue', p.queue)
                 ELSE p.queue END, 200), p.name, p.kind, 'removed', p.payload, p.headers, p.priority,
       NULLIF(p.history, '[]'::jsonb), p.workers, p.progress, p.original_created_at, p.poisoned_at,
       %(now)s + %(kept)s::interval
  FROM deadletter_poison p
 WHERE p.id = ANY(%(ids)s::bigint[]) AND p.kind = 'task'
 ORDER BY p.id
    ON CONFLICT (message_id) DO NOTHING;

-- delete_old_results --
-- Delete some results that are past their time, the oldest first. Locked rows are left for the next sweep.
DELETE FROM deadletter_task_result
 WHERE message_id = ANY(ARRAY(
       SELECT message_id FROM deadletter_task_result
        WHERE expires_at IS NOT NULL AND expires_at <= %(now)s
        ORDER BY expires_at LIMIT %(limit)s
          FOR UPDATE SKIP LOCKED))
RETURNING message_id;

-- read_for_failure --
-- Lock the messages that the caller has leased and read what the failure policy needs.
SELECT m.id, m.attempts, m.queue_id, m.name, m.kind, q.max_attempts, q.backoff_base,
       q.backoff_cap, q.jitter, q.cooldown, NULLIF(q.reason_policies, '{}'::jsonb)::text,
       COALESCE(q.unregistered_attempts, q.max_attempts), m.reason_counts::text, m.unregistered_count
  FROM deadletter_message m
  JOIN deadletter_queue q ON q.id = m.queue_id
 WHERE m.id = ANY(%(ids)s::bigint[]) AND m.lease_token || '-' || m.id = ANY(%(pairs)s::text[])
   AND COALESCE(m.available_at, '-infinity') > %(now)s
 ORDER BY m.id
   FOR UPDATE OF m;

-- fail --
-- Record failed attempts and make the messages wait. Status bits are only added. The claim counted the attempt; it is refunded to a
-- message whose name no handler is registered for. The values to write are looked up by id, not joined: see complete.
UPDATE deadletter_message m
   SET lease_token = NULL, worker = NULL,
       (status, failure_reason, error, available_at, attempts, reason_counts, unregistered_count, unregistered_at,
        history, workers) = (
           SELECT m.status | r.completed | r.failed,
                  -- an abandoned attempt without an error text keeps the last real error
                  COALESCE(r.reason, m.failure_reason), COALESCE(r.error, m.error),
                  %(now)s + r.delay * interval '1 microsecond',
                  GREATEST(m.attempts - r.refund, 0), COALESCE(r.counts, m.reason_counts),
                  COALESCE(r.unregistered, m.unregistered_count),
                  CASE WHEN r.is_over THEN COALESCE(m.unregistered_at, %(now)s) END,
                  CASE WHEN r.entry IS NULL THEN m.history ELSE
                      CASE WHEN jsonb_typeof(m.history) <> 'array' THEN '[]'::jsonb
                           WHEN jsonb_array_length(m.history) >= %(history_limit)s
                           THEN m.history - 0 ELSE m.history END
                      || jsonb_build_array(r.entry || jsonb_build_object(
                           'at', %(now)s, 'worker', m.worker, 'attempt', m.attempts)) END,
                  -- one entry for each attempt that was counted, also beyond the limit of the history
                  CASE WHEN r.refund > 0 OR m.worker IS NULL THEN m.workers ELSE
                      CASE WHEN jsonb_typeof(m.workers) = 'array' THEN
                           CASE WHEN jsonb_array_length(m.workers) >= 1000 THEN m.workers - 0 ELSE m.workers END
                           ELSE '[]'::jsonb END || to_jsonb(m.worker::text) END
             FROM jsonb_to_record(%(rows)s::jsonb -> m.id::text)
                  AS r(reason int, error text, completed int, failed int, delay bigint, entry jsonb, refund int,
                       counts jsonb, unregistered int, is_over bool))
 WHERE m.id = ANY(%(ids)s::bigint[]) AND m.lease_token || '-' || m.id = ANY(%(pairs)s::text[])
   AND COALESCE(m.available_at, '-infinity') > %(now)s
RETURNING m.id, m.available_at, m.queue_id, m.stream;

-- read_for_failure --
-- Read what the failure policy needs of the messages that the caller has leased.
SELECT m.id, m.attempts, m.queue_id, m.name, m.kind, q.max_attempts, q.backoff_base,
       q.backoff_cap, q.jitter, q.cooldown, NULLIF(q.reason_policies, '{}'),
       COALESCE(q.unregistered_attempts, q.max_attempts), m.reason_counts, m.unregistered_count
  FROM deadletter_message m
  JOIN deadletter_queue q ON q.id = m.queue_id
 WHERE m.id IN (SELECT value FROM json_each(%(ids)s))
   AND m.lease_token || '-' || m.id IN (SELECT value FROM json_each(%(pairs)s))
   AND m.available_at > %(now)s
 ORDER BY m.id;

-- fail --
-- Record failed attempts and make the messages wait. Status bits are only added.
UPDATE deadletter_message
   SET status = status | r.completed | r.failed,
       failure_reason = COALESCE(r.reason, failure_reason),
       error = COALESCE(r.error, deadletter_message.error),
       available_at = django_format_dtdelta('+', %(now)s, r.delay),
       lease_token = NULL, worker = NULL,
       attempts = MAX(attempts - r.refund, 0), reason_counts = COALESCE(r.counts, reason_counts),
       unregistered_count = COALESCE(r.unregistered, unregistered_count),
       unregistered_at = CASE WHEN r.is_over THEN COALESCE(unregistered_at, %(now)s) END,
       history = CASE WHEN r.entry IS NULL THEN history ELSE
           json_insert(CASE WHEN json_array_length(history) >= %(history_limit)s
                            THEN json_remove(history, '$[0]') ELSE history END,
               '$[#]', json_set(r.entry,
                   '$.at', replace(%(now)s, ' ', 'T') || '+00:00', '$.worker', worker,
                   '$.attempt', attempts)) END,
       workers = CASE WHEN r.refund > 0 OR worker IS NULL THEN workers ELSE
                 json_insert(CASE WHEN json_type(workers) = 'array' THEN
                                CASE WHEN json_array_length(workers) >= 1000 THEN json_remove(workers, '$[0]')
                                     ELSE workers END
                                ELSE '[]' END, '$[#]', worker) END
  FROM (SELECT CAST(key AS INTEGER) AS row_id,
               json_extract(value, '$.reason') AS reason, json_extract(value, '$.error') AS error,
               json_extract(value, '$.completed') AS completed,
               json_extract(value, '$.failed') AS failed, json_extract(value, '$.delay') AS delay,
               json_extract(value, '$.entry') AS entry, json_extract(value, '$.refund') AS refund,
               json_extract(value, '$.counts') AS counts, json_extract(value, '$.unregistered') AS unregistered,
               json_extract(value, '$.is_over') AS is_over
          FROM json_each(%(rows)s)) AS r
 WHERE id = r.row_id
   AND lease_token || '-' || id IN (SELECT value FROM json_each(%(pairs)s))
   AND available_at > %(now)s
RETURNING id, available_at, queue_id, stream;

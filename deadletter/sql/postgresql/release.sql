-- release --
-- Release messages that were not handled, without counting the attempt. A row that the caller no longer holds is not changed.
UPDATE deadletter_message m
   SET lease_token = NULL, worker = NULL,
       available_at = %(now)s + %(delay)s * interval '1 microsecond',
       -- never handled, so the attempt that the claim counted is refunded
       attempts = GREATEST(m.attempts - 1, 0),
       released_at = CASE WHEN %(by_name)s THEN %(now)s ELSE m.released_at END
 WHERE m.id = ANY(%(ids)s::bigint[]) AND m.lease_token || '-' || m.id = ANY(%(pairs)s::text[])
   AND COALESCE(m.available_at, '-infinity') > %(now)s
RETURNING m.id, m.queue_id, m.stream;

-- refund --
-- Refund the attempt of messages that were never started and whose lease ran out, unless they were claimed again since.
UPDATE deadletter_message m
   SET lease_token = NULL, worker = NULL, attempts = GREATEST(m.attempts - 1, 0)
 WHERE m.id = ANY(%(ids)s::bigint[]) AND m.lease_token || '-' || m.id = ANY(%(pairs)s::text[])
   AND COALESCE(m.available_at, 'infinity') <= %(now)s
RETURNING m.id, m.queue_id, m.stream;

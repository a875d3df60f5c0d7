-- release --
-- Release messages that were not handled, without counting the attempt. A row that the caller no longer holds is not changed.
UPDATE deadletter_message
   SET lease_token = NULL, worker = NULL,
       available_at = django_format_dtdelta('+', %(now)s, %(delay)s),
       attempts = MAX(attempts - 1, 0),
       released_at = CASE WHEN %(by_name)s THEN %(now)s ELSE released_at END
 WHERE id IN (SELECT value FROM json_each(%(ids)s))
   AND lease_token || '-' || id IN (SELECT value FROM json_each(%(pairs)s))
   AND available_at > %(now)s
RETURNING id, queue_id, stream;

-- refund --
-- Refund the attempt of messages that were never started and whose lease ran out, unless they were claimed again since.
UPDATE deadletter_message
   SET lease_token = NULL, worker = NULL, attempts = MAX(attempts - 1, 0)
 WHERE id IN (SELECT value FROM json_each(%(ids)s))
   AND lease_token || '-' || id IN (SELECT value FROM json_each(%(pairs)s))
   AND available_at <= %(now)s
RETURNING id, queue_id, stream;

-- release --
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
UPDATE deadletter_message
   SET lease_token = NULL, worker = NULL, attempts = MAX(attempts - 1, 0)
 WHERE id IN (SELECT value FROM json_each(%(ids)s))
   AND lease_token || '-' || id IN (SELECT value FROM json_each(%(pairs)s))
   AND available_at <= %(now)s
RETURNING id, queue_id, stream;

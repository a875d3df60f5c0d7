-- renew --
-- Extend leases, counted from now.
UPDATE deadletter_message
   SET available_at = django_format_dtdelta('+', %(now)s, COALESCE(%(lease)s,
           (SELECT q.lease_timeout FROM deadletter_queue q WHERE q.id = queue_id)))
 WHERE id IN (SELECT value FROM json_each(%(ids)s))
   AND lease_token || '-' || id IN (SELECT value FROM json_each(%(pairs)s))
   AND available_at > %(now)s
RETURNING id;

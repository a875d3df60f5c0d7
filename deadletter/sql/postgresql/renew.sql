-- renew --
-- Let the lease end later, counted from now.
UPDATE deadletter_message m
   SET available_at = %(now)s + COALESCE(%(lease)s::interval, q.lease_timeout)
  FROM deadletter_queue q
 WHERE m.id = ANY(%(ids)s::bigint[]) AND m.lease_token || '-' || m.id = ANY(%(pairs)s::text[])
   AND COALESCE(m.available_at, '-infinity') > %(now)s AND q.id = m.queue_id
RETURNING m.id;

-- renew_unlocked --
-- As renew, for the rows that nobody else has locked: a renewal waits for nobody, or all leases would end together.
WITH mine AS MATERIALIZED (
    SELECT m.ctid AS spot, m.queue_id FROM deadletter_message m
     WHERE m.id = ANY(%(ids)s::bigint[]) AND m.lease_token || '-' || m.id = ANY(%(pairs)s::text[])
       AND COALESCE(m.available_at, '-infinity') > %(now)s
     ORDER BY m.id
       FOR UPDATE SKIP LOCKED
)
UPDATE deadletter_message m
   SET available_at = %(now)s + COALESCE(%(lease)s::interval, q.lease_timeout)
  FROM mine JOIN deadletter_queue q ON q.id = mine.queue_id
 WHERE m.ctid = mine.spot
RETURNING m.id;

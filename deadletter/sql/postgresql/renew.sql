-- renew --
-- Extend leases, counted from now.
UPDATE deadletter_message m
   SET available_at = %(now)s + COALESCE(%(lease)s::interval, q.lease_timeout)
  FROM deadletter_queue q
 WHERE m.id = ANY(%(ids)s::bigint[]) AND m.lease_token || '-' || m.id = ANY(%(pairs)s::text[])
   AND COALESCE(m.available_at, '-infinity') > %(now)s AND q.id = m.queue_id
RETURNING m.id;

-- renew_unlocked --
-- As renew, for the rows that no other transaction has locked: a renewal that waited for one row would let all other leases run
-- out.
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

-- complete --
-- Delete finished messages without a stream; return the ids of those with one, which complete_streamed deletes.
DELETE FROM deadletter_message
 WHERE id IN (SELECT value FROM json_each(%(ids)s))
   AND lease_token || '-' || id IN (SELECT value FROM json_each(%(pairs)s))
   AND available_at > %(now)s AND stream IS NULL
RETURNING NULL, id, queue_id, name, kind;
SELECT 'streamed', id, NULL, NULL, NULL
  FROM deadletter_message
 WHERE id IN (SELECT value FROM json_each(%(ids)s))
   AND lease_token || '-' || id IN (SELECT value FROM json_each(%(pairs)s))
   AND available_at > %(now)s AND stream IS NOT NULL
 ORDER BY id;

-- complete_streamed --
-- Delete finished messages of streams.
DELETE FROM deadletter_message
 WHERE id IN (SELECT value FROM json_each(%(ids)s))
   AND lease_token || '-' || id IN (SELECT value FROM json_each(%(pairs)s))
   AND available_at > %(now)s AND stream IS NOT NULL
RETURNING id, queue_id, name, kind, queue_id, stream;

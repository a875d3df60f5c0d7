-- complete_stage --
-- Finish a stage: add its flags and make the message due again, with all its attempts. Not changed: a message that has these flags
-- already, and one that is PUBLISHED, which is completed as a whole.
UPDATE deadletter_message
   SET status = (status | %(flags)s) & ~%(failed)s,
       lease_token = NULL, worker = NULL, available_at = %(now)s,
       attempts = 0, reason_counts = NULL, unregistered_count = NULL, unregistered_at = NULL
 WHERE id IN (SELECT value FROM json_each(%(ids)s))
   AND lease_token || '-' || id IN (SELECT value FROM json_each(%(pairs)s))
   AND available_at > %(now)s
   AND status & %(published)s = 0 AND status | %(flags)s <> status
RETURNING id, status, queue_id, stream;

-- read_stages --
-- Read the stages of messages that the caller has leased.
SELECT id, status FROM deadletter_message
 WHERE id IN (SELECT value FROM json_each(%(ids)s))
   AND lease_token || '-' || id IN (SELECT value FROM json_each(%(pairs)s))
   AND available_at > %(now)s;

-- record_stages --
-- Add flags to messages whose handlers are still running.
UPDATE deadletter_message
   SET status = status | %(flags)s
 WHERE id IN (SELECT value FROM json_each(%(ids)s))
   AND lease_token || '-' || id IN (SELECT value FROM json_each(%(pairs)s))
   AND available_at > %(now)s
RETURNING id;

-- record_progress --
-- Write what handlers reported last, with the time.
UPDATE deadletter_message
   SET progress = json_set(json_extract(%(reports)s, '$."' || id || '"'),
                           '$.at', replace(%(now)s, ' ', 'T') || '+00:00')
 WHERE id IN (SELECT value FROM json_each(%(ids)s))
   AND lease_token || '-' || id IN (SELECT value FROM json_each(%(pairs)s))
   AND available_at > %(now)s
RETURNING id;

-- release_rest --
-- Release, without counting the attempt, the messages that were claimed in the same run and follow a message.
UPDATE deadletter_message
   SET lease_token = NULL, worker = NULL, available_at = %(now)s,
       attempts = MAX(attempts - 1, 0)
 WHERE id IN (SELECT id FROM deadletter_message
               WHERE queue_id = %(queue_id)s AND stream = %(stream)s AND lease_token IS NOT NULL
                 AND lease_token = %(token)s AND +id > %(after)s AND available_at > %(now)s)
RETURNING id, queue_id, stream;

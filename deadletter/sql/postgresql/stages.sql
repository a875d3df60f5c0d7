-- complete_stage --
-- Finish a stage: add its flags and make the message due again, with all its attempts. Not changed: a message that has these flags
-- already, and one that is PUBLISHED, which is completed as a whole. The locks of the streams are held.
UPDATE deadletter_message m
   SET status = (m.status | %(flags)s::int) & ~%(failed)s::int,
       lease_token = NULL, worker = NULL, available_at = %(now)s,
       attempts = 0, reason_counts = NULL, unregistered_count = NULL, unregistered_at = NULL
 WHERE m.id = ANY(%(ids)s::bigint[]) AND m.lease_token || '-' || m.id = ANY(%(pairs)s::text[])
   AND COALESCE(m.available_at, '-infinity') > %(now)s
   AND m.status & %(published)s::int = 0 AND m.status | %(flags)s::int <> m.status
RETURNING m.id, m.status, m.queue_id, m.stream;

-- read_stages --
-- Read the stages of messages that the caller has leased.
SELECT m.id, m.status FROM deadletter_message m
 WHERE m.id = ANY(%(ids)s::bigint[]) AND m.lease_token || '-' || m.id = ANY(%(pairs)s::text[])
   AND COALESCE(m.available_at, '-infinity') > %(now)s;

-- record_stages --
-- Add flags to messages whose handlers are still running. Never waits: a locked row is tried again with the next exchange.
WITH mine AS MATERIALIZED (
    SELECT m.ctid AS spot FROM deadletter_message m
     WHERE m.id = ANY(%(ids)s::bigint[]) AND m.lease_token || '-' || m.id = ANY(%(pairs)s::text[])
       AND COALESCE(m.available_at, '-infinity') > %(now)s
     ORDER BY m.id
       FOR UPDATE SKIP LOCKED
)
UPDATE deadletter_message m
   SET status = m.status | %(flags)s
  FROM mine
 WHERE m.ctid = mine.spot
RETURNING m.id;

-- record_progress --
-- Write what handlers reported last, with the time. Never waits: a locked row is tried again with a later exchange. The reports are
-- looked up by id, not joined: see complete.
WITH mine AS MATERIALIZED (
    SELECT m.ctid AS spot FROM deadletter_message m
     WHERE m.id = ANY(%(ids)s::bigint[]) AND m.lease_token || '-' || m.id = ANY(%(pairs)s::text[])
       AND COALESCE(m.available_at, '-infinity') > %(now)s
     ORDER BY m.id
       FOR UPDATE SKIP LOCKED
)
UPDATE deadletter_message m
   SET progress = (%(reports)s::jsonb -> m.id::text) || jsonb_build_object('at', %(now)s)
  FROM mine
 WHERE m.ctid = mine.spot
RETURNING m.id;

-- release_rest --
-- Release, without counting the attempt, the messages that were claimed in the same run and follow a message.
-- The locks of the streams are held. The rows are found among the leased messages of the stream, one run at most, not among all that
-- wait in it.
UPDATE deadletter_message
   SET lease_token = NULL, worker = NULL, available_at = %(now)s,
       attempts = GREATEST(attempts - 1, 0)
 WHERE id = ANY(ARRAY(
       SELECT r.id
         FROM unnest(%(queue_ids)s::bigint[], %(streams)s::text[], %(tokens)s::text[], %(after)s::bigint[])
              AS s(queue_id, stream, token, after)
        CROSS JOIN LATERAL (
              SELECT id, lease_token, available_at FROM deadletter_message
               WHERE queue_id = s.queue_id AND stream >= s.stream AND stream <= s.stream
                 AND lease_token IS NOT NULL
               ORDER BY queue_id, stream) AS r
        WHERE r.lease_token = s.token AND r.id > s.after
          AND COALESCE(r.available_at, '-infinity') > %(now)s))
RETURNING id, queue_id, stream;

-- lock_streams --
-- Wait for the locks of the streams that these messages belong to, in the order of their keys. For a message without a stream
-- the key is NULL and nothing is locked; "stream IS NOT NULL" would offer the index of all streams.
SELECT pg_advisory_xact_lock(key)
  FROM (SELECT DISTINCT hashtextextended(stream, queue_id) AS key
          FROM deadletter_message
         WHERE id = ANY(%(ids)s::bigint[])
         ORDER BY key) AS ordered;

-- lock_named_streams --
-- Wait for the locks of these streams, in the order of their keys.
SELECT pg_advisory_xact_lock(key)
  FROM (SELECT DISTINCT hashtextextended(stream, queue_id) AS key
          FROM unnest(%(queue_ids)s::bigint[], %(streams)s::text[]) AS s(queue_id, stream)
         ORDER BY key) AS ordered;

-- lock_streams_of_poison --
-- Wait for the locks of the streams that these poison records came from, in the order of their keys. The death of a message of an
-- instance may have been told to the instance and all its ancestors, so their streams are locked as well.
WITH RECURSIVE owner(id, queue, parent) AS (
    SELECT i.id, i.queue, i.parent
      FROM deadletter_poison p JOIN deadletter_instance i ON i.id = p.instance
     WHERE p.id = ANY(%(ids)s::bigint[]) AND p.instance IS NOT NULL
     UNION
    SELECT i.id, i.queue, i.parent
      FROM owner o JOIN deadletter_instance i ON i.id = o.parent
)
SELECT pg_advisory_xact_lock(key)
  FROM (SELECT DISTINCT key
          FROM (SELECT hashtextextended(p.stream, q.id) AS key
                  FROM deadletter_poison p JOIN deadletter_queue q ON q.name = p.queue
                 WHERE p.id = ANY(%(ids)s::bigint[]) AND p.stream IS NOT NULL
                 UNION ALL
                SELECT hashtextextended('instance:' || o.id, q.id)
                  FROM owner o JOIN deadletter_queue q ON q.name = o.queue) AS found
         ORDER BY key) AS ordered;

-- try_lock_streams --
-- Take the locks of the streams that these messages belong to, where they are free; return for each message whether its stream is
-- locked now. Messages without a stream are left out after the read: see lock_streams. The ids are gathered by stream, not joined
-- to the locks: a join compared each message with each stream.
WITH named AS MATERIALIZED (
    SELECT id, queue_id, stream FROM deadletter_message WHERE id = ANY(%(ids)s::bigint[])
), tried AS MATERIALIZED (
    SELECT queue_id, stream, ids, pg_try_advisory_xact_lock(hashtextextended(stream, queue_id)) AS got
      FROM (SELECT queue_id, stream, array_agg(id) AS ids FROM named
             WHERE stream IS NOT NULL
             GROUP BY queue_id, stream) AS s
)
SELECT unnest(ids), queue_id, stream, got FROM tried;

-- try_lock_named_streams --
-- Take the locks of these streams, where they are free; return the streams that are locked now.
SELECT queue_id, stream
  FROM (SELECT queue_id, stream,
               pg_try_advisory_xact_lock(hashtextextended(stream, queue_id)) AS got
          FROM unnest(%(queue_ids)s::bigint[], %(streams)s::text[]) AS s(queue_id, stream)) AS tried
 WHERE got;

-- try_lock_messages --
-- Lock the messages that were claimed under these tokens, where no other transaction has locked them.
SELECT m.id FROM deadletter_message m
 WHERE m.id = ANY(%(ids)s::bigint[]) AND m.lease_token || '-' || m.id = ANY(%(pairs)s::text[])
 ORDER BY m.id
   FOR UPDATE SKIP LOCKED;

-- read_leases --
-- Return which messages still have the lease of these tokens, locked or not, and whether the lease is live.
SELECT m.id, COALESCE(m.available_at, '-infinity') > %(now)s FROM deadletter_message m
 WHERE m.id = ANY(%(ids)s::bigint[]) AND m.lease_token || '-' || m.id = ANY(%(pairs)s::text[]);

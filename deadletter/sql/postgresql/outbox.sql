-- publish --
-- Store one message for a broker.
INSERT INTO deadletter_outbox (broker, lane, topic, key, payload, headers, created_at)
VALUES (%(broker)s, %(lane)s, %(topic)s, %(key)s, %(payload)s, %(headers)s, %(now)s)
RETURNING id, created_at;

-- publish_many --
-- Store messages for a broker in the given order.
INSERT INTO deadletter_outbox (broker, lane, topic, key, payload, headers, created_at)
SELECT %(broker)s, r.lane, r.topic, r.key, r.payload, r.headers, %(now)s
  FROM unnest(%(lanes)s::smallint[], %(topics)s::text[], %(keys)s::text[], %(payloads)s::text[],
              %(headerss)s::text[])
       WITH ORDINALITY AS r(lane, topic, key, payload, headers, place)
 ORDER BY r.place
RETURNING id;

-- read_lanes --
-- Read the next messages of lanes, each lane in the order of ids, and at most so many of each.
SELECT o.id, o.lane, o.topic, o.key, o.payload, o.headers, o.created_at, o.attempts, o.history, o.message_id,
       o.poison_count, false
  FROM unnest(%(lanes)s::smallint[]) AS l(lane)
 CROSS JOIN LATERAL (
       SELECT m.id, m.lane, m.topic, m.key, m.payload, m.headers, m.created_at, m.attempts, m.history, m.message_id,
              m.poison_count
         FROM deadletter_outbox m
              -- a range and its order, not lane = …: otherwise the planner may read the primary key
              -- through the messages of all lanes
        WHERE m.broker = %(broker)s AND m.lane >= l.lane AND m.lane <= l.lane AND NOT m.held
        ORDER BY m.lane, m.id
        LIMIT %(share)s) o
 ORDER BY o.id;

-- read_refused --
-- Read the messages of lanes that were refused and are to be tried again now, at most so many of each lane.
-- Those of a key have the same time: the order of ids is theirs.
SELECT o.id, o.lane, o.topic, o.key, o.payload, o.headers, o.created_at, o.attempts, o.history, o.message_id,
       o.poison_count, true
  FROM unnest(%(lanes)s::smallint[]) AS l(lane)
 CROSS JOIN LATERAL (
       SELECT m.id, m.lane, m.topic, m.key, m.payload, m.headers, m.created_at, m.attempts, m.history, m.message_id,
              m.poison_count
         FROM deadletter_outbox m
        WHERE m.broker = %(broker)s AND m.lane >= l.lane AND m.lane <= l.lane
          AND m.retry_at IS NOT NULL AND m.retry_at <= %(now)s AND NOT m.paused
        ORDER BY m.lane, m.retry_at, m.id
        LIMIT %(share)s) o
 ORDER BY o.id;

-- read_oldest_of_lanes --
-- Read when the oldest message of a broker that is not held was stored: the first of each lane.
SELECT MIN((SELECT m.created_at FROM deadletter_outbox m
             WHERE m.broker = %(broker)s AND m.lane >= l.lane AND m.lane <= l.lane AND NOT m.held
             ORDER BY m.lane, m.id LIMIT 1))
  FROM unnest(%(lanes)s::smallint[]) AS l(lane);

-- delete_published --
-- Delete messages that the broker has confirmed. Whoever published them: a confirm is true whatever became of the lane.
-- Not a message that has died and was retried since it was published: it has the same id.
DELETE FROM deadletter_outbox WHERE id = ANY(%(ids)s::bigint[]) AND poison_count = %(poison_count)s
RETURNING id, topic;

-- archive_published --
-- Delete messages that the broker has confirmed and keep them in the archive. One that is there already was published again under its id.
WITH gone AS (
    DELETE FROM deadletter_outbox WHERE id = ANY(%(ids)s::bigint[]) AND poison_count = %(poison_count)s
    RETURNING id, broker, topic, key, payload, headers, created_at
), kept AS (
    INSERT INTO deadletter_outbox_archive AS a
           (id, broker, topic, key, payload, headers, created_at, published_at)
    SELECT id, broker, topic, key, payload, headers, created_at, %(now)s FROM gone
        ON CONFLICT (id) DO UPDATE SET payload = excluded.payload, published_at = excluded.published_at
)
SELECT id, topic FROM gone;

-- hold --
-- Mark messages that wait behind a refused or paused message of their key, if it is still there.
UPDATE deadletter_outbox o
   SET held = true
 WHERE o.id = ANY(%(ids)s::bigint[]) AND NOT o.held
       -- with a limit it stays one probe for each message: EXISTS may become a join with all messages that are held
   AND (SELECT true FROM deadletter_outbox r
         WHERE r.broker = o.broker AND r.lane = o.lane AND r.key = o.key AND r.held
               -- not retry_at: the index of refused messages is not by key
           AND (r.attempts > 0 OR (r.paused AND r.retry_at IS NULL AND r.id < o.id))
         ORDER BY r.id LIMIT 1);

-- put_off_key --
-- Try the refused messages of a key again at the same time: they are read in the order of their ids.
UPDATE deadletter_outbox
   SET retry_at = %(retry_at)s
 WHERE broker = %(broker)s AND lane = %(lane)s AND key = %(key)s AND held AND attempts > 0
   AND retry_at <> %(retry_at)s;

-- free_key --
-- Let the messages of a key go on, after the one they waited behind has left the outbox. Not those behind a paused one.
UPDATE deadletter_outbox
   SET held = false
 WHERE broker = %(broker)s AND lane = %(lane)s AND key = %(key)s AND held AND retry_at IS NULL AND NOT paused
   AND id < COALESCE((SELECT p.id FROM deadletter_outbox p
                       WHERE p.broker = %(broker)s AND p.lane = %(lane)s AND p.key = %(key)s AND p.held
                         AND p.paused AND p.retry_at IS NULL
                       ORDER BY p.id LIMIT 1), 9223372036854775807);

-- free_keys --
-- The same for many keys, after paused messages of them were resumed. Not those behind a refused one.
UPDATE deadletter_outbox
   SET held = false
 WHERE id = ANY(ARRAY(
       SELECT m.id
         FROM unnest(%(lanes)s::smallint[], %(keys)s::text[]) AS k(lane, key)
              -- one probe for each key, not for each of its messages
        CROSS JOIN LATERAL (
              SELECT (SELECT p.id FROM deadletter_outbox p
                       WHERE p.broker = %(broker)s AND p.lane >= k.lane AND p.lane <= k.lane
                         AND p.key >= k.key AND p.key <= k.key AND p.held
                         AND (p.attempts > 0 OR (p.paused AND p.retry_at IS NULL))
                       ORDER BY p.lane, p.key, p.id LIMIT 1) AS id) AS first
        CROSS JOIN LATERAL (
              SELECT o.id FROM deadletter_outbox o
                     -- a range and its order, see read_lanes
               WHERE o.broker = %(broker)s AND o.lane >= k.lane AND o.lane <= k.lane
                 AND o.key >= k.key AND o.key <= k.key AND o.held AND o.retry_at IS NULL AND NOT o.paused
                 AND o.id < COALESCE(first.id, 9223372036854775807)
               ORDER BY o.lane, o.key, o.id
               LIMIT 2147483647) m));

-- free_stranded_keys --
-- Let messages go on that wait behind no refused or paused message. There are none, unless two relays settled messages of a key
-- at the same moment, one of them after its lease had ended.
UPDATE deadletter_outbox o
   SET held = false
 WHERE o.held AND o.retry_at IS NULL AND NOT o.paused
   AND NOT EXISTS (SELECT 1 FROM deadletter_outbox r
                    WHERE r.broker = o.broker AND r.lane = o.lane AND r.key = o.key AND r.held
                      AND (r.attempts > 0 OR (r.paused AND r.retry_at IS NULL AND r.id < o.id)))
RETURNING id;

-- hold_paused --
-- Mark messages whose topic is paused: they leave the lane until it is resumed, and those of their key behind them wait.
UPDATE deadletter_outbox
   SET held = true, paused = true
 WHERE id = ANY(%(ids)s::bigint[]) AND NOT paused;

-- read_paused_keys --
-- Read the first paused message of each of these keys.
SELECT k.lane, k.key,
       (SELECT m.id FROM deadletter_outbox m
               -- a range and its order, see read_lanes
         WHERE m.broker = %(broker)s AND m.lane >= k.lane AND m.lane <= k.lane
           AND m.key >= k.key AND m.key <= k.key AND m.held
           AND m.paused AND (m.retry_at IS NULL OR m.attempts > 0)
         ORDER BY m.lane, m.key, m.id LIMIT 1)
  FROM unnest(%(lanes)s::smallint[], %(keys)s::text[]) AS k(lane, key);

-- read_paused_topics --
-- Read the lanes and topics that have paused messages: one probe for each.
WITH RECURSIVE pair(lane, topic) AS (
    (SELECT m.lane, m.topic FROM deadletter_outbox m
      WHERE m.broker = %(broker)s AND m.paused ORDER BY m.lane, m.topic LIMIT 1)
     UNION ALL
    SELECT n.lane, n.topic
      FROM pair CROSS JOIN LATERAL (
           SELECT m.lane, m.topic FROM deadletter_outbox m
            WHERE m.broker = %(broker)s AND m.paused AND (m.lane, m.topic) > (pair.lane, pair.topic)
            ORDER BY m.lane, m.topic LIMIT 1) n
)
SELECT lane, topic FROM pair;

-- resume_held --
-- Let paused messages go on, in the order of ids, and at most so many of each lane and topic. Returns their keys, and whether
-- they were refused before.
UPDATE deadletter_outbox o
       -- one that was refused waits for its next try
   SET paused = false, held = o.retry_at IS NOT NULL
 WHERE o.id = ANY(ARRAY(
       SELECT m.id
         FROM unnest(%(lanes)s::smallint[], %(topics)s::text[]) AS t(lane, topic)
        CROSS JOIN LATERAL (
              SELECT p.id FROM deadletter_outbox p
               WHERE p.broker = %(broker)s AND p.lane >= t.lane AND p.lane <= t.lane
                 AND p.topic >= t.topic AND p.topic <= t.topic AND p.paused
               ORDER BY p.lane, p.topic, p.id LIMIT %(share)s) m))
RETURNING o.lane, o.key, o.retry_at IS NOT NULL AND o.attempts > 0;

-- quarantine_outbox --
-- Copy refused messages of the outbox into poison records.
INSERT INTO deadletter_poison
       (message_id, queue, name, kind, payload, headers, stream, priority, status, attempts, max_attempts, fence, reason,
        verdict, last_failure_reason, last_error, history, fingerprint, exception, frame, halts, poison_count, source_id,
        origin, original_created_at, poisoned_at, poisoned_by, release)
SELECT r.message_id, %(queue)s, o.topic, 'event', o.payload, o.headers, o.key, 0, %(status)s, r.attempts, %(max_attempts)s::int,
       0, %(reason)s, r.verdict, r.failure_reason, r.error, r.history, r.fingerprint, r.cause, '', false, o.poison_count + 1,
       o.id, left('topic:' || o.topic, 200), o.created_at, %(now)s, %(by)s, r.release
  FROM deadletter_outbox o
       -- looked up by id, not joined: see complete
 CROSS JOIN LATERAL jsonb_to_record(%(rows)s::jsonb -> o.id::text)
       AS r(message_id bigint, attempts int, verdict text, failure_reason int, error text, history jsonb,
            fingerprint text, cause text, release text)
 WHERE o.id = ANY(%(ids)s::bigint[])
 ORDER BY o.id
RETURNING source_id;

-- renew_lanes --
-- Extend the leases of a relay's lanes. Returns the lanes that it holds.
UPDATE deadletter_outbox_lane
   SET leased_until = %(now)s + %(lease)s::interval
 WHERE broker = %(broker)s AND token = %(token)s AND leased_until > %(now)s
RETURNING number;

-- take_lanes --
-- Lease lanes that nobody holds, as many as are wanted. Never waits for another relay.
UPDATE deadletter_outbox_lane
   SET token = %(token)s, worker = %(worker)s, leased_until = %(now)s + %(lease)s::interval
 WHERE id = ANY(ARRAY(
       SELECT l.id FROM deadletter_outbox_lane l
        WHERE l.broker = %(broker)s AND (l.leased_until IS NULL OR l.leased_until <= %(now)s)
        ORDER BY l.number LIMIT %(wanted)s
          FOR UPDATE SKIP LOCKED))
RETURNING number;

-- give_lanes_back --
-- End the leases of some of a relay's lanes.
UPDATE deadletter_outbox_lane
   SET leased_until = NULL, token = '', worker = ''
 WHERE broker = %(broker)s AND token = %(token)s AND number = ANY(%(numbers)s::smallint[]);

-- publish_again --
-- Store the message of a poison record in the outbox under the id that it had, to be published now or after a delay. No row: the id is there already.
INSERT INTO deadletter_outbox
       (id, broker, lane, topic, key, payload, headers, created_at, held, retry_at, history, message_id, poison_count)
SELECT p.source_id, %(broker)s, %(lane)s, p.name, p.stream, COALESCE(%(payload)s::text, p.payload), p.headers,
       p.original_created_at, %(delay)s > 0,
       CASE WHEN %(delay)s > 0 THEN %(now)s + %(delay)s * interval '1 microsecond' END,
       -- the payload before an edit is kept in the history
       CASE WHEN %(payload)s::text IS NULL THEN p.history ELSE
            p.history || jsonb_build_array(%(entry)s::jsonb || jsonb_build_object(
                'at', %(now)s, 'original_payload', p.payload)) END,
       p.message_id, p.poison_count
  FROM deadletter_poison p
 WHERE p.id = %(id)s
    ON CONFLICT DO NOTHING
RETURNING id;

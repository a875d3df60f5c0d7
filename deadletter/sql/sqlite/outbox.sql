-- publish --
-- Store one message for a broker.
INSERT INTO deadletter_outbox (broker, lane, topic, key, payload, headers, created_at, held, paused, attempts, poison_count)
VALUES (%(broker)s, %(lane)s, %(topic)s, %(key)s, %(payload)s, %(headers)s, %(now)s, 0, 0, 0, 0)
RETURNING id, created_at;

-- read_lanes --
-- Read the next messages of one lane in the order of ids.
SELECT m.id, m.lane, m.topic, m.key, m.payload, m.headers, m.created_at, m.attempts, m.history, m.message_id,
       m.poison_count, 0
  FROM deadletter_outbox m
 WHERE m.broker = %(broker)s AND m.lane = %(lane)s AND NOT m.held
 ORDER BY m.id
 LIMIT %(share)s;

-- read_refused --
-- Read the messages of one lane that were refused and are to be tried again now.
-- Those of a key have the same time: the order of ids is theirs.
SELECT m.id, m.lane, m.topic, m.key, m.payload, m.headers, m.created_at, m.attempts, m.history, m.message_id,
       m.poison_count, 1
  FROM deadletter_outbox m
 WHERE m.broker = %(broker)s AND m.lane = %(lane)s
   AND m.retry_at IS NOT NULL AND m.retry_at <= %(now)s AND NOT m.paused
 ORDER BY m.retry_at, m.id
 LIMIT %(share)s;

-- read_oldest_of_lanes --
-- Read when the oldest message of a broker that is not held was stored: the first of each lane.
SELECT MIN((SELECT m.created_at FROM deadletter_outbox m
             WHERE m.broker = %(broker)s AND m.lane = l.value AND NOT m.held
             ORDER BY m.id LIMIT 1))
  FROM json_each(%(lanes)s) l;

-- delete_published --
-- Delete messages that the broker has confirmed. Whoever published them: a confirm is true whatever became of the lane.
-- Not a message that has died and was retried since it was published: it has the same id.
DELETE FROM deadletter_outbox WHERE id IN (SELECT value FROM json_each(%(ids)s)) AND poison_count = %(poison_count)s
RETURNING id, topic;

-- archive_published --
-- Delete messages that the broker has confirmed and keep them in the archive. One that is there already was published again under its id.
INSERT INTO deadletter_outbox_archive (id, broker, topic, key, payload, headers, created_at, published_at)
SELECT id, broker, topic, key, payload, headers, created_at, %(now)s
  FROM deadletter_outbox
 WHERE id IN (SELECT value FROM json_each(%(ids)s)) AND poison_count = %(poison_count)s
    ON CONFLICT (id) DO UPDATE SET payload = excluded.payload, published_at = excluded.published_at;
DELETE FROM deadletter_outbox WHERE id IN (SELECT value FROM json_each(%(ids)s)) AND poison_count = %(poison_count)s
RETURNING id, topic;

-- hold --
-- Mark messages that wait behind a refused or paused message of their key, if it is still there.
UPDATE deadletter_outbox AS o
   SET held = 1
 WHERE o.id IN (SELECT value FROM json_each(%(ids)s)) AND NOT o.held
   AND EXISTS (SELECT 1 FROM deadletter_outbox r
                WHERE r.broker = o.broker AND r.lane = o.lane AND r.key = o.key AND r.held AND r.held = 1
                  AND (r.attempts > 0 OR (r.paused AND r.retry_at IS NULL AND r.id < o.id)));

-- put_off_key --
-- Try the refused messages of a key again at the same time: they are read in the order of their ids.
UPDATE deadletter_outbox
   SET retry_at = %(retry_at)s
 WHERE broker = %(broker)s AND lane = %(lane)s AND key = %(key)s AND held AND held = 1 AND attempts > 0
   AND retry_at <> %(retry_at)s;

-- free_key --
-- Let the messages of a key go on, after the one they waited behind has left the outbox. Not those behind a paused one.
UPDATE deadletter_outbox
   SET held = 0
 WHERE broker = %(broker)s AND lane = %(lane)s AND key = %(key)s AND held AND held = 1 AND retry_at IS NULL AND NOT paused
   AND id < COALESCE((SELECT MIN(p.id) FROM deadletter_outbox p
                       WHERE p.broker = %(broker)s AND p.lane = %(lane)s AND p.key = %(key)s AND p.held AND p.held = 1
                         AND p.paused AND p.retry_at IS NULL), 9223372036854775807);

-- free_stranded_keys --
-- Let messages go on that wait behind no refused or paused message.
UPDATE deadletter_outbox AS o
   SET held = 0
 WHERE o.held AND o.held = 1 AND o.retry_at IS NULL AND NOT o.paused
   AND NOT EXISTS (SELECT 1 FROM deadletter_outbox r
                    WHERE r.broker = o.broker AND r.lane = o.lane AND r.key = o.key AND r.held AND r.held = 1
                      AND (r.attempts > 0 OR (r.paused AND r.retry_at IS NULL AND r.id < o.id)))
RETURNING id;

-- hold_paused --
-- Mark messages whose topic is paused: they leave the lane until it is resumed, and those of their key behind them wait.
UPDATE deadletter_outbox
   SET held = 1, paused = 1
 WHERE id IN (SELECT value FROM json_each(%(ids)s)) AND NOT paused;

-- read_paused_keys --
-- Read the first paused message of each of these keys.
SELECT json_extract(k.value, '$[0]'), json_extract(k.value, '$[1]'),
       (SELECT MIN(m.id) FROM deadletter_outbox m
         WHERE m.broker = %(broker)s AND m.lane = json_extract(k.value, '$[0]') AND m.key = json_extract(k.value, '$[1]')
           AND m.held AND m.held = 1 AND m.paused AND (m.retry_at IS NULL OR m.attempts > 0))
  FROM json_each(%(keys)s) k;

-- read_paused_topics --
-- Read the lanes and topics that have paused messages.
SELECT DISTINCT lane, topic FROM deadletter_outbox WHERE broker = %(broker)s AND paused ORDER BY lane, topic;

-- resume_held --
-- Let paused messages of one lane and topic go on, in the order of ids, and at most so many. Returns their keys, and whether they were
-- refused before.
UPDATE deadletter_outbox
   SET paused = 0, held = retry_at IS NOT NULL
 WHERE id IN (
       SELECT p.id FROM deadletter_outbox p
        WHERE p.broker = %(broker)s AND p.lane = %(lane)s AND p.topic = %(topic)s AND p.paused
        ORDER BY p.id LIMIT %(share)s)
RETURNING lane, key, retry_at IS NOT NULL AND attempts > 0;

-- quarantine_outbox --
-- Copy refused messages of the outbox into poison records.
INSERT INTO deadletter_poison
       (message_id, queue, name, kind, payload, headers, stream, priority, status, attempts, max_attempts, fence, reason,
        verdict, last_failure_reason, last_error, history, fingerprint, exception, frame, halts, poison_count, source_id,
        origin, original_created_at, poisoned_at, poisoned_by, release)
SELECT json_extract(r.value, '$.message_id'), %(queue)s, o.topic, 'event', o.payload, o.headers, o.key, 0, %(status)s,
       json_extract(r.value, '$.attempts'), %(max_attempts)s, 0, %(reason)s, json_extract(r.value, '$.verdict'),
       json_extract(r.value, '$.failure_reason'), json_extract(r.value, '$.error'), json_extract(r.value, '$.history'),
       json_extract(r.value, '$.fingerprint'), json_extract(r.value, '$.cause'), '', 0, o.poison_count + 1, o.id,
       substr('topic:' || o.topic, 1, 200), o.created_at, %(now)s, %(by)s,
       json_extract(r.value, '$.release')
  FROM json_each(%(rows)s) r
 CROSS JOIN deadletter_outbox o ON o.id = CAST(r.key AS INTEGER)
 WHERE true
RETURNING source_id;

-- renew_lanes --
-- Extend the leases of a relay's lanes. Returns the lanes that it holds.
UPDATE deadletter_outbox_lane
   SET leased_until = django_format_dtdelta('+', %(now)s, %(lease)s)
 WHERE broker = %(broker)s AND token = %(token)s AND leased_until > %(now)s
RETURNING number;

-- take_lanes --
-- Lease lanes that nobody holds, as many as are wanted.
UPDATE deadletter_outbox_lane
   SET token = %(token)s, worker = %(worker)s, leased_until = django_format_dtdelta('+', %(now)s, %(lease)s)
 WHERE id IN (
       SELECT l.id FROM deadletter_outbox_lane l
        WHERE l.broker = %(broker)s AND (l.leased_until IS NULL OR l.leased_until <= %(now)s)
        ORDER BY l.number LIMIT %(wanted)s)
RETURNING number;

-- give_lanes_back --
-- End the leases of some of a relay's lanes.
UPDATE deadletter_outbox_lane
   SET leased_until = NULL, token = '', worker = ''
 WHERE broker = %(broker)s AND token = %(token)s AND number IN (SELECT value FROM json_each(%(numbers)s));

-- publish_again --
-- Store the message of a poison record in the outbox under the id that it had, to be published now or after a delay. No row: the id is there already.
INSERT INTO deadletter_outbox
       (id, broker, lane, topic, key, payload, headers, created_at, held, paused, retry_at, attempts, history, message_id,
        poison_count)
SELECT p.source_id, %(broker)s, %(lane)s, p.name, p.stream, COALESCE(%(payload)s, p.payload), p.headers,
       p.original_created_at, %(delay)s > 0, 0,
       CASE WHEN %(delay)s > 0 THEN django_format_dtdelta('+', %(now)s, %(delay)s) END, 0,
       CASE WHEN %(payload)s IS NULL THEN p.history ELSE
            json_insert(p.history, '$[#]', json_set(%(entry)s,
                '$.at', replace(%(now)s, ' ', 'T') || '+00:00', '$.original_payload', p.payload))
       END, p.message_id, p.poison_count
  FROM deadletter_poison p
 WHERE p.id = %(id)s
    ON CONFLICT DO NOTHING
RETURNING id;

-- reserve_ids --
-- Reserve ids, in ascending order, for messages that never were in a queue.
INSERT INTO sqlite_sequence (name, seq)
SELECT 'deadletter_message', 0
 WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'deadletter_message');
UPDATE sqlite_sequence SET seq = seq + %(count)s WHERE name = 'deadletter_message';
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < %(count)s)
SELECT s.seq - %(count)s + n.i FROM sqlite_sequence s CROSS JOIN n
 WHERE s.name = 'deadletter_message' ORDER BY n.i;

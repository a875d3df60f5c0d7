-- read_groups --
-- Return the groups of poison records and of messages in dead queues, the latest first.
WITH RECURSIVE g(fingerprint) AS (
    SELECT (SELECT MIN(n.fingerprint)
              FROM (SELECT MIN(p.fingerprint) AS fingerprint FROM deadletter_poison p
                     UNION ALL
                    SELECT MIN(m.fingerprint) FROM deadletter_message m
                     WHERE m.fingerprint IS NOT NULL) AS n)
     UNION ALL
    SELECT (SELECT MIN(n.fingerprint)
              FROM (SELECT MIN(p.fingerprint) AS fingerprint FROM deadletter_poison p
                     WHERE p.fingerprint > g.fingerprint
                     UNION ALL
                    SELECT MIN(m.fingerprint) FROM deadletter_message m
                     WHERE m.fingerprint > g.fingerprint) AS n)
      FROM g WHERE g.fingerprint IS NOT NULL
)
SELECT page.fingerprint,
       (SELECT MIN(e.at)
          FROM (SELECT MIN(p.poisoned_at) AS at FROM deadletter_poison p WHERE p.fingerprint = page.fingerprint
                 UNION ALL
                SELECT MIN(m.died_at) FROM deadletter_message m WHERE m.fingerprint = page.fingerprint) AS e),
       page.last_seen,
       -- only the groups of the page are counted, each up to a limit
       (SELECT COUNT(*) FROM (SELECT 1 FROM deadletter_poison p
                               WHERE p.fingerprint = page.fingerprint LIMIT %(counted)s) AS c),
       (SELECT COUNT(*) FROM (SELECT 1 FROM deadletter_poison p
                               WHERE p.fingerprint = page.fingerprint AND p.halts AND p.halts = 1
                               LIMIT %(halted)s) AS h),
       (SELECT p.id FROM deadletter_poison p WHERE p.fingerprint = page.fingerprint
         ORDER BY p.poisoned_at DESC LIMIT 1),
       (SELECT COUNT(*) FROM (SELECT 1 FROM deadletter_message m
                               WHERE m.fingerprint = page.fingerprint LIMIT %(counted)s) AS b),
       (SELECT m.id FROM deadletter_message m WHERE m.fingerprint = page.fingerprint
         ORDER BY m.died_at DESC LIMIT 1)
  FROM (SELECT g.fingerprint,
               (SELECT MAX(e.at)
          FROM (SELECT MAX(p.poisoned_at) AS at FROM deadletter_poison p WHERE p.fingerprint = g.fingerprint
                 UNION ALL
                SELECT MAX(m.died_at) FROM deadletter_message m WHERE m.fingerprint = g.fingerprint) AS e) AS last_seen
          FROM g WHERE g.fingerprint IS NOT NULL
         ORDER BY last_seen DESC, g.fingerprint
         LIMIT %(limit)s OFFSET %(offset)s) AS page
 ORDER BY page.last_seen DESC, page.fingerprint;

-- read_group_times --
-- Return when the groups behind a fingerprint began and last grew, by index probes, however many rows a group has.
WITH RECURSIVE g(fingerprint, n) AS (
    SELECT (SELECT MIN(n.fingerprint)
              FROM (SELECT MIN(p.fingerprint) AS fingerprint FROM deadletter_poison p
                     WHERE p.fingerprint > %(after)s
                     UNION ALL
                    SELECT MIN(m.fingerprint) FROM deadletter_message m
                     WHERE m.fingerprint > %(after)s) AS n), 1
     UNION ALL
    SELECT (SELECT MIN(n.fingerprint)
              FROM (SELECT MIN(p.fingerprint) AS fingerprint FROM deadletter_poison p
                     WHERE p.fingerprint > g.fingerprint
                     UNION ALL
                    SELECT MIN(m.fingerprint) FROM deadletter_message m
                     WHERE m.fingerprint > g.fingerprint) AS n), g.n + 1
      FROM g WHERE g.fingerprint IS NOT NULL AND g.n < %(limit)s
)
SELECT g.fingerprint,
       (SELECT MIN(e.at)
          FROM (SELECT MIN(p.poisoned_at) AS at FROM deadletter_poison p WHERE p.fingerprint = g.fingerprint
                 UNION ALL
                SELECT MIN(m.died_at) FROM deadletter_message m WHERE m.fingerprint = g.fingerprint) AS e),
       (SELECT MAX(e.at)
          FROM (SELECT MAX(p.poisoned_at) AS at FROM deadletter_poison p WHERE p.fingerprint = g.fingerprint
                 UNION ALL
                SELECT MAX(m.died_at) FROM deadletter_message m WHERE m.fingerprint = g.fingerprint) AS e),
       (SELECT p.id FROM deadletter_poison p WHERE p.fingerprint = g.fingerprint
         ORDER BY p.poisoned_at DESC, p.id DESC LIMIT 1),
       (SELECT m.id FROM deadletter_message m WHERE m.fingerprint = g.fingerprint
         ORDER BY m.died_at DESC, m.id DESC LIMIT 1)
  FROM g WHERE g.fingerprint IS NOT NULL
 ORDER BY g.fingerprint;

-- read_blocked_streams --
-- Return the streams that have parked messages, each with its first parked message: one index probe for each stream.
WITH RECURSIVE parked(queue_id, stream, id, created_at) AS (
    SELECT * FROM (
           SELECT queue_id, stream, id, created_at FROM deadletter_message
            WHERE available_at IS NULL ORDER BY queue_id, stream, id LIMIT 1)
    UNION ALL
    SELECT n.queue_id, n.stream, n.id, n.created_at
      FROM parked p
      JOIN deadletter_message n
           -- as in read_stuck_streams
        ON n.id = COALESCE(
           (SELECT id FROM deadletter_message
             WHERE available_at IS NULL AND queue_id = p.queue_id AND stream > p.stream
             ORDER BY stream, id LIMIT 1),
           (SELECT id FROM deadletter_message
             WHERE available_at IS NULL AND queue_id > p.queue_id
             ORDER BY queue_id, stream, id LIMIT 1))
     LIMIT %(reach)s
)
SELECT queue_id, stream, id, created_at FROM parked
 ORDER BY created_at, id
 LIMIT %(limit)s;

-- read_moved --
-- For the newest messages of a dead queue that died after a time, by the queue they died in: number, first death, last id.
SELECT b.queue, COUNT(*), MIN(b.died_at), MAX(b.id)
  FROM (SELECT json_extract(m.death, '$.queue') AS queue, m.died_at, m.id FROM deadletter_message m
         WHERE m.queue_id = %(queue_id)s AND m.died_at > %(after)s
         ORDER BY m.queue_id DESC, m.died_at DESC, m.id DESC LIMIT %(limit)s) AS b
 GROUP BY b.queue;

-- read_group_sizes --
-- Count the poison records, the messages in dead queues and the halting records of each given fingerprint: one index range for each,
-- up to a limit.
SELECT f.fingerprint,
       (SELECT COUNT(*) FROM (SELECT 1 FROM deadletter_poison p
                               WHERE p.fingerprint = f.fingerprint LIMIT %(counted)s) AS c),
       (SELECT COUNT(*) FROM (SELECT 1 FROM deadletter_message m
                               WHERE m.fingerprint = f.fingerprint LIMIT %(counted)s) AS b),
       (SELECT COUNT(*) FROM (SELECT 1 FROM deadletter_poison p
                               WHERE p.fingerprint = f.fingerprint AND p.halts AND p.halts = 1 LIMIT %(halted)s) AS h)
  FROM (SELECT value AS fingerprint FROM json_each(%(fingerprints)s)) AS f;

-- read_group_acts --
-- Return the audit entries that touched messages of a fingerprint, the latest first: one index probe for each entry.
WITH RECURSIVE acts(entry_id) AS (
    SELECT (SELECT a.entry_id FROM deadletter_audited_message a
             WHERE a.fingerprint = %(fingerprint)s AND NOT (a.fingerprint = '')
             ORDER BY a.fingerprint DESC, a.entry_id DESC LIMIT 1)
     UNION ALL
    SELECT (SELECT a.entry_id FROM deadletter_audited_message a
             WHERE a.fingerprint = %(fingerprint)s AND NOT (a.fingerprint = '') AND a.entry_id < acts.entry_id
             ORDER BY a.fingerprint DESC, a.entry_id DESC LIMIT 1)
      FROM acts WHERE acts.entry_id IS NOT NULL
     LIMIT %(limit)s
)
SELECT acts.entry_id FROM acts WHERE acts.entry_id IS NOT NULL;

-- count --
-- Add the events of a transaction to the rows of its writer and minute.
INSERT INTO deadletter_count
       (span, at, queue, name, kind, reason, writer, sent, completed, failed, deferred, poisoned,
        retried, removed, seconds, longest)
SELECT 60, strftime('%%Y-%%m-%%d %%H:%%M:00', %(now)s), r.queue, r.name, r.kind, r.reason, %(writer)s,
       SUM(r.sent), SUM(r.completed), SUM(r.failed), SUM(r.deferred), SUM(r.poisoned),
       SUM(r.retried), SUM(r.removed), SUM(r.seconds), MAX(r.longest)
  FROM (SELECT COALESCE(json_extract(value, '$.queue'),
                        (SELECT q.name FROM deadletter_queue q
                          WHERE q.id = json_extract(value, '$.queue_id')), '') AS queue,
               json_extract(value, '$.name') AS name, json_extract(value, '$.kind') AS kind,
               json_extract(value, '$.reason') AS reason,
               COALESCE(json_extract(value, '$.sent'), 0) AS sent,
               COALESCE(json_extract(value, '$.completed'), 0) AS completed,
               COALESCE(json_extract(value, '$.failed'), 0) AS failed,
               COALESCE(json_extract(value, '$.deferred'), 0) AS deferred,
               COALESCE(json_extract(value, '$.poisoned'), 0) AS poisoned,
               COALESCE(json_extract(value, '$.retried'), 0) AS retried,
               COALESCE(json_extract(value, '$.removed'), 0) AS removed,
               COALESCE(json_extract(value, '$.seconds'), 0) AS seconds,
               COALESCE(json_extract(value, '$.longest'), 0) AS longest
          FROM json_each(%(rows)s)) AS r
 GROUP BY r.queue, r.name, r.kind, r.reason
    ON CONFLICT (span, at, queue, name, kind, reason, writer)
    DO UPDATE SET
           sent = sent + excluded.sent, completed = completed + excluded.completed,
           failed = failed + excluded.failed, deferred = deferred + excluded.deferred,
           poisoned = poisoned + excluded.poisoned, retried = retried + excluded.retried,
           removed = removed + excluded.removed, seconds = seconds + excluded.seconds,
           longest = MAX(longest, excluded.longest);

-- fold_writers --
-- Fold the rows of all writers of a past minute into one row without a writer. A writer that is still busy adds a row that is
-- folded later.
INSERT INTO deadletter_count
       (span, at, queue, name, kind, reason, writer, sent, completed, failed, deferred, poisoned,
        retried, removed, seconds, longest)
SELECT span, at, queue, name, kind, reason, '', SUM(sent), SUM(completed), SUM(failed),
       SUM(deferred), SUM(poisoned), SUM(retried), SUM(removed), SUM(seconds), MAX(longest)
  FROM deadletter_count
 WHERE id IN (SELECT id FROM deadletter_count
               WHERE writer <> '' AND span = 60 AND at < %(before)s
               ORDER BY span, at, id LIMIT %(limit)s)
 GROUP BY span, at, queue, name, kind, reason
    ON CONFLICT (span, at, queue, name, kind, reason, writer)
    DO UPDATE SET
           sent = sent + excluded.sent, completed = completed + excluded.completed,
           failed = failed + excluded.failed, deferred = deferred + excluded.deferred,
           poisoned = poisoned + excluded.poisoned, retried = retried + excluded.retried,
           removed = removed + excluded.removed, seconds = seconds + excluded.seconds,
           longest = MAX(longest, excluded.longest);
DELETE FROM deadletter_count
 WHERE id IN (SELECT id FROM deadletter_count
               WHERE writer <> '' AND span = 60 AND at < %(before)s
               ORDER BY span, at, id LIMIT %(limit)s)
RETURNING id;

-- fold_spans --
-- Fold the rows of past minutes into hours, of past hours into days, or of old days into one row that stays.
INSERT INTO deadletter_count
       (span, at, queue, name, kind, reason, writer, sent, completed, failed, deferred, poisoned,
        retried, removed, seconds, longest)
SELECT %(into)s,
       -- a value that is no time counts as the oldest: one such row must not stop the sweep
       COALESCE(strftime(CASE %(into)s WHEN 3600 THEN '%%Y-%%m-%%d %%H:00:00'
                         WHEN 86400 THEN '%%Y-%%m-%%d 00:00:00'
                         ELSE '1970-01-01 00:00:00' END, at), '1970-01-01 00:00:00') AS start,
       queue, name, kind, reason, '', SUM(sent), SUM(completed), SUM(failed),
       SUM(deferred), SUM(poisoned), SUM(retried), SUM(removed), SUM(seconds), MAX(longest)
  FROM deadletter_count
 WHERE id IN (SELECT id FROM deadletter_count
               WHERE span = %(span)s AND at < %(before)s
               ORDER BY span, at, id LIMIT %(limit)s)
 GROUP BY start, queue, name, kind, reason
    ON CONFLICT (span, at, queue, name, kind, reason, writer)
    DO UPDATE SET
           sent = sent + excluded.sent, completed = completed + excluded.completed,
           failed = failed + excluded.failed, deferred = deferred + excluded.deferred,
           poisoned = poisoned + excluded.poisoned, retried = retried + excluded.retried,
           removed = removed + excluded.removed, seconds = seconds + excluded.seconds,
           longest = MAX(longest, excluded.longest);
DELETE FROM deadletter_count
 WHERE id IN (SELECT id FROM deadletter_count
               WHERE span = %(span)s AND at < %(before)s
               ORDER BY span, at, id LIMIT %(limit)s)
RETURNING id;

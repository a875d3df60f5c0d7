-- count --
-- Add the events of a transaction to the rows of its writer and minute.
INSERT INTO deadletter_count AS c
       (span, at, queue, name, kind, reason, writer, sent, completed, failed, deferred, poisoned,
        retried, removed, seconds, longest)
SELECT 60, date_trunc('minute', %(now)s), COALESCE(r.queue, q.name, ''), r.name, r.kind, r.reason,
       %(writer)s, COALESCE(SUM(r.sent), 0), COALESCE(SUM(r.completed), 0),
       COALESCE(SUM(r.failed), 0), COALESCE(SUM(r.deferred), 0), COALESCE(SUM(r.poisoned), 0),
       COALESCE(SUM(r.retried), 0), COALESCE(SUM(r.removed), 0), COALESCE(SUM(r.seconds), 0),
       COALESCE(MAX(r.longest), 0)
  FROM jsonb_to_recordset(%(rows)s::jsonb)
       AS r(queue_id bigint, queue text, name text, kind text, reason smallint, sent bigint,
            completed bigint, failed bigint, deferred bigint, poisoned bigint, retried bigint,
            removed bigint, seconds float8, longest float8)
  LEFT JOIN deadletter_queue q ON q.id = r.queue_id
 GROUP BY 3, 4, 5, 6
    ON CONFLICT (span, at, queue, name, kind, reason, writer)
    DO UPDATE SET
           sent = c.sent + excluded.sent, completed = c.completed + excluded.completed,
           failed = c.failed + excluded.failed, deferred = c.deferred + excluded.deferred,
           poisoned = c.poisoned + excluded.poisoned, retried = c.retried + excluded.retried,
           removed = c.removed + excluded.removed, seconds = c.seconds + excluded.seconds,
           longest = GREATEST(c.longest, excluded.longest);

-- fold_writers --
-- Fold the rows of all writers of a past minute into one row without a writer. A writer that is still busy adds a row that is
-- folded later.
WITH gone AS (
    DELETE FROM deadletter_count
     WHERE id = ANY(ARRAY(
           SELECT id FROM deadletter_count
            WHERE writer <> '' AND span = 60 AND at < %(before)s
            ORDER BY span, at LIMIT %(limit)s
              FOR UPDATE SKIP LOCKED))
    RETURNING *
), folded AS (
    INSERT INTO deadletter_count AS c
           (span, at, queue, name, kind, reason, writer, sent, completed, failed, deferred, poisoned,
        retried, removed, seconds, longest)
    SELECT span, at, queue, name, kind, reason, '', SUM(sent), SUM(completed), SUM(failed),
           SUM(deferred), SUM(poisoned), SUM(retried), SUM(removed), SUM(seconds), MAX(longest)
      FROM gone
     GROUP BY span, at, queue, name, kind, reason
     ORDER BY span, at, queue, name, kind, reason
        ON CONFLICT (span, at, queue, name, kind, reason, writer)
        DO UPDATE SET
           sent = c.sent + excluded.sent, completed = c.completed + excluded.completed,
           failed = c.failed + excluded.failed, deferred = c.deferred + excluded.deferred,
           poisoned = c.poisoned + excluded.poisoned, retried = c.retried + excluded.retried,
           removed = c.removed + excluded.removed, seconds = c.seconds + excluded.seconds,
           longest = GREATEST(c.longest, excluded.longest)
)
SELECT id FROM gone;

-- fold_spans --
-- Fold the rows of past minutes into hours, of past hours into days, or of old days into one row that stays.
WITH gone AS (
    DELETE FROM deadletter_count
     WHERE id = ANY(ARRAY(
           SELECT id FROM deadletter_count
            WHERE span = %(span)s AND at < %(before)s
            ORDER BY span, at LIMIT %(limit)s
              FOR UPDATE SKIP LOCKED))
    RETURNING *
), folded AS (
    INSERT INTO deadletter_count AS c
           (span, at, queue, name, kind, reason, writer, sent, completed, failed, deferred, poisoned,
        retried, removed, seconds, longest)
    SELECT %(into)s::int, start, queue, name, kind, reason, '', SUM(sent), SUM(completed), SUM(failed),
           SUM(deferred), SUM(poisoned), SUM(retried), SUM(removed), SUM(seconds), MAX(longest)
      FROM (SELECT *, CASE %(into)s::int WHEN 3600 THEN date_trunc('hour', at, 'UTC')
                                    WHEN 86400 THEN date_trunc('day', at, 'UTC')
                                    ELSE 'epoch' END AS start
              FROM gone) AS g
     GROUP BY start, queue, name, kind, reason
     ORDER BY start, queue, name, kind, reason
        ON CONFLICT (span, at, queue, name, kind, reason, writer)
        DO UPDATE SET
           sent = c.sent + excluded.sent, completed = c.completed + excluded.completed,
           failed = c.failed + excluded.failed, deferred = c.deferred + excluded.deferred,
           poisoned = c.poisoned + excluded.poisoned, retried = c.retried + excluded.retried,
           removed = c.removed + excluded.removed, seconds = c.seconds + excluded.seconds,
           longest = GREATEST(c.longest, excluded.longest)
)
SELECT id FROM gone;

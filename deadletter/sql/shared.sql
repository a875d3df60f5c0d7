-- read_expired --
-- Find messages past their expiry that are neither leased nor scheduled.
SELECT id FROM deadletter_message
 WHERE expires_at <= %(now)s AND (available_at IS NULL OR available_at <= %(now)s)
 ORDER BY expires_at, id
 LIMIT %(limit)s;

-- read_names --
-- Return the message names that have poison records: one index probe for each.
WITH RECURSIVE g(name) AS (
    SELECT MIN(name) FROM deadletter_poison
     UNION ALL
    SELECT (SELECT MIN(p.name) FROM deadletter_poison p WHERE p.name > g.name)
      FROM g WHERE g.name IS NOT NULL
)
SELECT g.name FROM g WHERE g.name IS NOT NULL ORDER BY g.name LIMIT %(limit)s;

-- read_exceptions --
-- Return the exceptions that have poison records: one index probe for each.
WITH RECURSIVE g(exception) AS (
    SELECT MIN(exception) FROM deadletter_poison
     UNION ALL
    SELECT (SELECT MIN(p.exception) FROM deadletter_poison p WHERE p.exception > g.exception)
      FROM g WHERE g.exception IS NOT NULL
)
SELECT g.exception FROM g WHERE g.exception IS NOT NULL ORDER BY g.exception LIMIT %(limit)s;

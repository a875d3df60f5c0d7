-- lock_streams --
-- Nothing to lock: one transaction writes at a time.
SELECT 1 WHERE 0;

-- lock_named_streams --
-- Nothing to lock: one transaction writes at a time.
SELECT 1 WHERE 0;

-- lock_streams_of_poison --
-- Nothing to lock: one transaction writes at a time.
SELECT 1 WHERE 0;

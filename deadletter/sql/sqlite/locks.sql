-- lock_streams --
SELECT 1 WHERE 0;

-- lock_named_streams --
SELECT 1 WHERE 0;

-- lock_streams_of_poison --
SELECT 1 WHERE 0;

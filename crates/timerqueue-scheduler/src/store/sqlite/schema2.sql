-- The ends of runs, counted by minute and handler, and kept for a week.
CREATE TABLE timerqueue_minutes (
    minute INTEGER NOT NULL,           -- since 1970
    handler INTEGER NOT NULL,
    done INTEGER NOT NULL,
    again INTEGER NOT NULL,
    failed INTEGER NOT NULL,
    died INTEGER NOT NULL,
    longest INTEGER NOT NULL,          -- the greatest lateness, in microseconds
    -- Runs by lateness: below 256 us, and each class four times as wide as the one before; the last one has no upper end.
    late0 INTEGER NOT NULL,
    late1 INTEGER NOT NULL,
    late2 INTEGER NOT NULL,
    late3 INTEGER NOT NULL,
    late4 INTEGER NOT NULL,
    late5 INTEGER NOT NULL,
    late6 INTEGER NOT NULL,
    late7 INTEGER NOT NULL,
    late8 INTEGER NOT NULL,
    late9 INTEGER NOT NULL,
    late10 INTEGER NOT NULL,
    late11 INTEGER NOT NULL,
    PRIMARY KEY (minute, handler)
) STRICT, WITHOUT ROWID;

ALTER TABLE timerqueue_jobs ADD COLUMN failures TEXT; -- the last failed attempts, as JSON

CREATE INDEX timerqueue_failing ON timerqueue_jobs (handler) WHERE state = 0 AND error IS NOT NULL;

-- Instants are microseconds since 1970 in UTC; the view `timerqueue` shows them as text.
CREATE TABLE timerqueue_store (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    version INTEGER NOT NULL,
    seed INTEGER NOT NULL,              -- a part of the identity of each run
    last_id INTEGER NOT NULL DEFAULT 0, -- numbers of jobs are not used again
    deaths INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE TABLE timerqueue_handlers (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    paused INTEGER NOT NULL DEFAULT 0,
    waiting INTEGER NOT NULL DEFAULT 0,
    queued INTEGER NOT NULL DEFAULT 0,
    running INTEGER NOT NULL DEFAULT 0,
    dead INTEGER NOT NULL DEFAULT 0,
    recurring INTEGER NOT NULL DEFAULT 0
) STRICT;

-- Each process that has the file open; it holds a lock on a file with this number.
CREATE TABLE timerqueue_processes (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    pid INTEGER NOT NULL,
    opened INTEGER NOT NULL
) STRICT;

CREATE TABLE timerqueue_jobs (
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL,
    handler INTEGER NOT NULL,
    payload TEXT NOT NULL,             -- JSON
    state INTEGER NOT NULL,            -- 0 waiting, 1 queued, 2 running, 3 dead, 4 recurring
    due INTEGER NOT NULL,
    wake INTEGER,                      -- when to look at the row; none: never
    earliest INTEGER,                  -- the clock was set back if it shows less
    recurs INTEGER NOT NULL,           -- 1 in recurring jobs
    holds_key INTEGER NOT NULL,
    paused INTEGER NOT NULL,
    cancelled INTEGER NOT NULL,        -- of a running job: no attempt follows
    span INTEGER,
    nominal INTEGER,                   -- of the occurrence
    parent INTEGER,                    -- the recurring job of a run
    attempt INTEGER NOT NULL,
    claims INTEGER NOT NULL,
    turn INTEGER NOT NULL,
    owner INTEGER NOT NULL,
    process INTEGER,                   -- that runs the job or looks at it
    lease INTEGER,
    died INTEGER NOT NULL,
    error TEXT,
    last TEXT,                         -- the last run, as JSON
    recurring TEXT                     -- the schedule and its cursor, as JSON
) STRICT;

-- One index for each handler: rows of a full, paused or unknown handler are in no claim's way.
CREATE INDEX timerqueue_due ON timerqueue_jobs (handler, recurs, wake) WHERE wake IS NOT NULL;
CREATE UNIQUE INDEX timerqueue_keys ON timerqueue_jobs (key) WHERE holds_key = 1;
CREATE INDEX timerqueue_spans ON timerqueue_jobs (earliest) WHERE earliest IS NOT NULL;
CREATE INDEX timerqueue_parents ON timerqueue_jobs (parent) WHERE parent IS NOT NULL;
CREATE INDEX timerqueue_held ON timerqueue_jobs (process) WHERE process IS NOT NULL;
CREATE INDEX timerqueue_recurring ON timerqueue_jobs (state) WHERE state = 4;
CREATE INDEX timerqueue_dead ON timerqueue_jobs (died) WHERE state = 3;
CREATE INDEX timerqueue_dead_keys ON timerqueue_jobs (key, died) WHERE state = 3;

-- Done jobs, where the options keep them.
CREATE TABLE timerqueue_finished (
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL,
    handler INTEGER NOT NULL,
    payload TEXT NOT NULL,
    ended INTEGER NOT NULL,
    last TEXT,
    keep_until INTEGER NOT NULL,       -- then the row may go
    key_until INTEGER NOT NULL         -- until then the key is taken
) STRICT;

CREATE INDEX timerqueue_finished_keys ON timerqueue_finished (key, key_until);
CREATE INDEX timerqueue_finished_ends ON timerqueue_finished (keep_until);

-- For people.
CREATE VIEW timerqueue AS
SELECT
    job.id,
    job.key,
    handler.name AS handler,
    CASE job.state WHEN 0 THEN 'waiting' WHEN 1 THEN 'queued' WHEN 2 THEN 'running' WHEN 3 THEN 'dead' ELSE 'recurring' END
        AS state,
    strftime('%Y-%m-%dT%H:%M:%S', job.due / 1000000, 'unixepoch') || printf('.%06dZ', job.due % 1000000) AS due,
    job.attempt,
    job.paused OR handler.paused AS paused,
    job.payload,
    job.error,
    json_extract(job.recurring, '$.schedule') AS schedule
FROM timerqueue_jobs AS job JOIN timerqueue_handlers AS handler ON handler.id = job.handler
ORDER BY job.id;

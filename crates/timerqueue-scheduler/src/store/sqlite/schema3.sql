-- The schedulers that have started on the file: each is a member until it leaves, or its process ends.
CREATE TABLE timerqueue_members (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    owner INTEGER NOT NULL,
    process INTEGER NOT NULL,
    name TEXT NOT NULL,
    since INTEGER NOT NULL,
    handlers TEXT NOT NULL,            -- as JSON
    dead INTEGER NOT NULL DEFAULT 0    -- its affinities are to be bound again
) STRICT;

CREATE UNIQUE INDEX timerqueue_members_live ON timerqueue_members (owner) WHERE dead = 0;

-- An affinity of a handler: one member runs all its jobs.
CREATE TABLE timerqueue_affinities (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    handler INTEGER NOT NULL,
    affinity TEXT NOT NULL,
    member INTEGER NOT NULL DEFAULT 0, -- 0: none
    next INTEGER NOT NULL DEFAULT 0,   -- the member once the runs under way have ended; 0: none
    version INTEGER NOT NULL DEFAULT 0,
    most INTEGER NOT NULL DEFAULT 0,   -- runs at a time; 0: no limit
    head INTEGER,                      -- the first wake instant of its jobs, if they may be claimed
    idle INTEGER,                      -- since when it has no job
    UNIQUE (handler, affinity)
) STRICT;

CREATE INDEX timerqueue_affinity_heads ON timerqueue_affinities (handler, member, head) WHERE head IS NOT NULL;
CREATE INDEX timerqueue_affinity_members ON timerqueue_affinities (member);
CREATE INDEX timerqueue_affinity_idle ON timerqueue_affinities (idle) WHERE idle IS NOT NULL;

ALTER TABLE timerqueue_jobs ADD COLUMN affinity TEXT;
ALTER TABLE timerqueue_jobs ADD COLUMN affinity_id INTEGER;
ALTER TABLE timerqueue_jobs ADD COLUMN counted INTEGER NOT NULL DEFAULT 0;  -- a run among those of all members
-- When to look at a job with an affinity, and at a run that is counted, instead of `wake`: these rows are in no index of their handler.
ALTER TABLE timerqueue_jobs ADD COLUMN apart INTEGER;

CREATE INDEX timerqueue_affinity_jobs ON timerqueue_jobs (affinity_id, state, apart) WHERE affinity_id IS NOT NULL;
CREATE INDEX timerqueue_leased ON timerqueue_jobs (apart) WHERE state = 2 AND apart IS NOT NULL;
CREATE INDEX timerqueue_counted ON timerqueue_jobs (handler) WHERE state = 2 AND counted = 1;

-- A process with an older version of this library knows no other column than `wake`.
CREATE TRIGGER timerqueue_apart AFTER UPDATE OF wake ON timerqueue_jobs
WHEN NEW.affinity_id IS NOT NULL AND NEW.wake IS NOT NULL AND NEW.state IN (0, 2)
BEGIN
    UPDATE timerqueue_jobs SET apart = NEW.wake, wake = NULL WHERE id = NEW.id;
END;

ALTER TABLE timerqueue_handlers ADD COLUMN full_at INTEGER; -- when the rate of runs allows a full burst again

-- The schedulers that have started on the file: each is a member until it leaves, or its process ends.
CREATE TABLE timerqueue_members (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    owner INTEGER NOT NULL,
    process INTEGER NOT NULL,
    name TEXT NOT NULL,
    since INTEGER NOT NULL,
    handlers TEXT NOT NULL,            -- with their limits, as JSON
    dead INTEGER NOT NULL DEFAULT 0    -- its affinities are to be bound again
) STRICT;

CREATE UNIQUE INDEX timerqueue_members_live ON timerqueue_members (owner) WHERE dead = 0;

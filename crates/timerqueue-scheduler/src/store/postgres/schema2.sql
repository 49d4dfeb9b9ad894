-- The schedulers. A member lives until it leaves, or another one finds that its lease is over and marks it dead.
CREATE TABLE members (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    owner bigint NOT NULL,
    name text NOT NULL,
    since bigint NOT NULL,
    until bigint NOT NULL,             -- the end of its lease
    handlers text NOT NULL,            -- with their limits, as JSON
    dead boolean NOT NULL DEFAULT false -- its affinities are to be bound again
);

CREATE UNIQUE INDEX members_live ON members (owner) WHERE NOT dead;

-- The runs of each scheduler.
CREATE INDEX jobs_running ON jobs (owner, handler) WHERE state = 2;

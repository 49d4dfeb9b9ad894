-- The schedulers. A member lives until it leaves, or another one finds that its lease is over and marks it dead.
CREATE TABLE members (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    owner bigint NOT NULL,
    name text NOT NULL,
    since bigint NOT NULL,
    until bigint NOT NULL,             -- the end of its lease
    handlers text NOT NULL,            -- as JSON
    dead boolean NOT NULL DEFAULT false -- its affinities are to be bound again
);

CREATE UNIQUE INDEX members_live ON members (owner) WHERE NOT dead;

-- The runs of each scheduler.
CREATE INDEX jobs_running ON jobs (owner, handler) WHERE state = 2;

-- An affinity of a handler: one member runs all its jobs.
CREATE TABLE affinities (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    handler bigint NOT NULL,
    affinity text COLLATE "C" NOT NULL,
    member bigint NOT NULL DEFAULT 0,  -- 0: none
    next bigint NOT NULL DEFAULT 0,    -- the member once the runs under way have ended; 0: none
    version bigint NOT NULL DEFAULT 0,
    most bigint NOT NULL DEFAULT 0,    -- runs at a time; 0: no limit
    head bigint,                       -- the first wake instant of its jobs, if they may be claimed
    idle bigint,                       -- since when it has no job
    UNIQUE (handler, affinity)
);

CREATE INDEX affinities_heads ON affinities (handler, member, head) WHERE head IS NOT NULL;
CREATE INDEX affinities_members ON affinities (member);
CREATE INDEX affinities_idle ON affinities (idle) WHERE idle IS NOT NULL;

ALTER TABLE jobs
    ADD COLUMN affinity text,
    ADD COLUMN affinity_id bigint,
    ADD COLUMN counted boolean NOT NULL DEFAULT false, -- a run among those of all members
    -- When to look at a job with an affinity, and at a run that is counted, instead of `wake`: these rows are in no index of their handler.
    ADD COLUMN apart bigint;

CREATE INDEX jobs_affinities ON jobs (affinity_id, state, apart, id) WHERE affinity_id IS NOT NULL;
CREATE INDEX jobs_leased ON jobs (apart, id) WHERE state = 2 AND apart IS NOT NULL;
CREATE INDEX jobs_counted ON jobs (handler) WHERE state = 2 AND counted;

ALTER TABLE handlers ADD COLUMN full_at bigint; -- when the rate of runs allows a full burst again

DROP FUNCTION IF EXISTS put(text, text, text, timestamptz, text);

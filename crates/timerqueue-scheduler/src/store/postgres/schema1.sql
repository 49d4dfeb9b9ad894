-- Instants are microseconds since 1970 in UTC; the view `overview` shows them as times.
CREATE TABLE store (
    one boolean PRIMARY KEY CHECK (one),
    version bigint NOT NULL,
    least bigint NOT NULL,             -- the first version whose nodes may use the tables
    seed bigint NOT NULL               -- a part of the identity of each run
);

-- The last commit of each connection that writes. By it a new connection learns whether a commit was done whose answer was lost.
CREATE TABLE writers (
    writer bigint PRIMARY KEY,
    number bigint NOT NULL,
    at bigint NOT NULL
);

CREATE SEQUENCE ids;                   -- numbers of jobs are not used again
CREATE SEQUENCE deaths;

CREATE TABLE handlers (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE,
    paused boolean NOT NULL DEFAULT false
);

-- The schedulers, until when each of them sleeps, and for which handlers it has places. Empty after a crash of the server: each comes back by itself.
CREATE UNLOGGED TABLE nodes (
    owner bigint PRIMARY KEY,
    wakes bigint NOT NULL,
    seen bigint NOT NULL,
    handlers bigint[] NOT NULL
);

CREATE TABLE jobs (
    id bigint PRIMARY KEY,
    key text COLLATE "C" NOT NULL,
    handler bigint NOT NULL,
    payload text NOT NULL,             -- JSON
    state bigint NOT NULL DEFAULT 0,   -- 0 waiting, 1 queued, 2 running, 3 dead, 4 recurring
    due bigint NOT NULL,
    wake bigint,                       -- when to look at the row; none: never
    earliest bigint,                   -- the clock was set back if it shows less
    recurs boolean NOT NULL DEFAULT false,
    holds_key boolean NOT NULL DEFAULT true,
    paused boolean NOT NULL DEFAULT false,
    cancelled boolean NOT NULL DEFAULT false, -- of a running job: no attempt follows
    span bigint,
    nominal bigint,                    -- of the occurrence
    parent bigint,                     -- the recurring job of a run
    attempt bigint NOT NULL DEFAULT 0,
    claims bigint NOT NULL DEFAULT 0,
    turn bigint NOT NULL DEFAULT 0,
    owner bigint NOT NULL DEFAULT 0,
    lease bigint,
    died bigint NOT NULL DEFAULT 0,
    error text,
    last text,                         -- the last run, as JSON
    recurring text,                    -- the schedule and its cursor, as JSON
    failures text                      -- the last failed attempts, as JSON
);

-- One index for each handler: rows of a full, paused or unknown handler are in no claim's way.
CREATE INDEX jobs_due ON jobs (handler, recurs, wake, id) WHERE wake IS NOT NULL;
CREATE UNIQUE INDEX jobs_keys ON jobs (key) WHERE holds_key;
CREATE INDEX jobs_spans ON jobs (earliest) WHERE earliest IS NOT NULL;
CREATE INDEX jobs_parents ON jobs (parent) WHERE parent IS NOT NULL;
CREATE INDEX jobs_dead ON jobs (died) WHERE state = 3;
CREATE INDEX jobs_dead_keys ON jobs (key, died) WHERE state = 3;

-- The ends of runs, counted by minute, handler and connection, and kept for a week. Of each connection, so that no node waits for another.
CREATE TABLE minutes (
    minute bigint NOT NULL,            -- since 1970
    handler bigint NOT NULL,
    connection bigint NOT NULL,
    done bigint NOT NULL,
    again bigint NOT NULL,
    failed bigint NOT NULL,
    died bigint NOT NULL,
    longest bigint NOT NULL,           -- the greatest lateness, in microseconds
    -- Runs by lateness: below 256 us, and each class four times as wide as the one before; the last one has no upper end.
    late0 bigint NOT NULL,
    late1 bigint NOT NULL,
    late2 bigint NOT NULL,
    late3 bigint NOT NULL,
    late4 bigint NOT NULL,
    late5 bigint NOT NULL,
    late6 bigint NOT NULL,
    late7 bigint NOT NULL,
    late8 bigint NOT NULL,
    late9 bigint NOT NULL,
    late10 bigint NOT NULL,
    late11 bigint NOT NULL,
    PRIMARY KEY (minute, handler, connection)
);

-- The only clock.
CREATE FUNCTION clock() RETURNS bigint LANGUAGE sql VOLATILE AS
$$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;

-- For people.
CREATE VIEW overview AS
SELECT
    job.id,
    job.key,
    handler.name AS handler,
    (ARRAY['waiting', 'queued', 'running', 'dead', 'recurring'])[job.state + 1] AS state,
    CASE WHEN job.due < 253402300800000000 THEN to_timestamp(job.due / 1000000.0) END AS due,
    job.attempt,
    job.paused OR handler.paused AS paused,
    job.payload,
    job.error
FROM jobs AS job JOIN handlers AS handler ON handler.id = job.handler
ORDER BY job.id;

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

-- Puts a job in the caller's own transaction. Returns its number; none if another job has the key and stays.
-- `clash`: `refuse` and `keep` let the other job stay, `replace` lets it make way.
CREATE FUNCTION put(
    handler text,
    key text,
    payload text DEFAULT 'null',
    due timestamptz DEFAULT NULL,
    clash text DEFAULT 'refuse'
) RETURNS bigint LANGUAGE plpgsql SET search_path = $SCHEMA$ AS $$
#variable_conflict use_column
DECLARE
    kind bigint;
    at bigint := coalesce(ceil(extract(epoch FROM put.due) * 1000000)::bigint, clock());
    new_id bigint;
    old jobs%ROWTYPE;
BEGIN
    IF octet_length(put.key) NOT BETWEEN 1 AND 512 OR octet_length(put.handler) NOT BETWEEN 1 AND 512 THEN
        RAISE EXCEPTION 'a key and the name of a handler have 1 to 512 bytes';
    END IF;
    IF octet_length(put.payload) > 262144 OR put.payload::json IS NULL THEN
        RAISE EXCEPTION 'a payload is JSON text of at most 256 KiB';
    END IF;
    IF at NOT BETWEEN 0 AND 253402300799999999 THEN
        RAISE EXCEPTION 'a due time lies between 1970 and 9999';
    END IF;
    IF put.clash NOT IN ('refuse', 'keep', 'replace') THEN
        RAISE EXCEPTION 'clash is refuse, keep or replace';
    END IF;
    SELECT h.id INTO kind FROM handlers h WHERE h.name = put.handler;
    IF kind IS NULL THEN
        INSERT INTO handlers (name) VALUES (put.handler) ON CONFLICT (name) DO UPDATE SET name = excluded.name
        RETURNING id INTO kind;
    END IF;
    LOOP
        INSERT INTO jobs (id, key, handler, payload, due, wake)
        VALUES (nextval('ids'), put.key, kind, put.payload, at, at)
        ON CONFLICT (key) WHERE holds_key DO NOTHING
        RETURNING id INTO new_id;
        EXIT WHEN new_id IS NOT NULL OR put.clash <> 'replace';
        SELECT * INTO old FROM jobs j WHERE j.key = put.key AND j.holds_key FOR UPDATE;
        CONTINUE WHEN NOT FOUND;
        IF old.state = 4 THEN
            RAISE EXCEPTION 'the key is that of a recurring job';
        ELSIF old.state = 2 THEN
            UPDATE jobs SET cancelled = true, holds_key = false WHERE id = old.id;
            PERFORM pg_notify($CHANNEL$, 'c' || old.id);
        ELSE
            DELETE FROM jobs WHERE id = old.id;
        END IF;
    END LOOP;
    -- A later job is found by a node's safety look before it is due. A notice takes a lock over the whole server at the commit.
    -- One node that has a place is named. The others look a little later.
    IF new_id IS NOT NULL AND at < clock() + 30000000 THEN
        PERFORM pg_notify($CHANNEL$, 'w' || at || ' ' || kind || ' ' || n.owner)
        FROM nodes n WHERE n.wakes > at AND n.handlers && ARRAY[kind, 0]
        ORDER BY kind = ANY(n.handlers) DESC, random() LIMIT 1;
    END IF;
    RETURN new_id;
END $$;

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

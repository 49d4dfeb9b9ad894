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

-- Statements write `wake`, those of nodes of an older version too. Of these rows it moves to `apart`.
CREATE FUNCTION set_apart() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (NEW.affinity_id IS NOT NULL AND NEW.state IN (0, 2)) OR (NEW.counted AND NEW.state = 2) THEN
        NEW.apart := NEW.wake;
        NEW.wake := NULL;
    ELSE
        NEW.apart := NULL;
    END IF;
    RETURN NEW;
END $$;

CREATE TRIGGER jobs_apart BEFORE INSERT OR UPDATE OF wake ON jobs FOR EACH ROW
WHEN (NEW.affinity_id IS NOT NULL OR NEW.counted) EXECUTE FUNCTION set_apart();

ALTER TABLE handlers ADD COLUMN full_at bigint; -- when the rate of runs allows a full burst again

DROP FUNCTION put(text, text, text, timestamptz, text);

-- Puts a job in the caller's own transaction. Returns its number; none if another job has the key and stays.
-- `affinity`: one member runs all jobs of the handler with this text. `clash`: `refuse` and `keep` let the other job stay, `replace` lets it make way.
CREATE FUNCTION put(
    handler text,
    key text,
    payload text DEFAULT 'null',
    due timestamptz DEFAULT NULL,
    clash text DEFAULT 'refuse',
    affinity text DEFAULT NULL
) RETURNS bigint LANGUAGE plpgsql SET search_path = $SCHEMA$ AS $$
#variable_conflict use_column
DECLARE
    kind bigint;
    tie bigint;
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
    IF octet_length(put.affinity) NOT BETWEEN 1 AND 512 THEN
        RAISE EXCEPTION 'an affinity has 1 to 512 bytes';
    END IF;
    SELECT h.id INTO kind FROM handlers h WHERE h.name = put.handler;
    IF kind IS NULL THEN
        INSERT INTO handlers (name) VALUES (put.handler) ON CONFLICT (name) DO UPDATE SET name = excluded.name
        RETURNING id INTO kind;
    END IF;
    IF put.affinity IS NOT NULL THEN
        INSERT INTO affinities (handler, affinity, idle) VALUES (kind, put.affinity, clock())
        ON CONFLICT (handler, affinity) DO UPDATE SET affinity = excluded.affinity
        RETURNING id INTO tie;
    END IF;
    LOOP
        INSERT INTO jobs (id, key, handler, payload, due, wake, affinity, affinity_id)
        VALUES (nextval('ids'), put.key, kind, put.payload, at, at, put.affinity, tie)
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
    -- The row of the affinity is locked, so its head is that of all commits.
    IF new_id IS NOT NULL AND tie IS NOT NULL THEN
        UPDATE affinities a SET idle = NULL, head = CASE WHEN a.next = 0 AND (a.most = 0 OR a.most >
            (SELECT count(*) FROM jobs j WHERE j.affinity_id = tie AND j.state = 2))
            THEN (SELECT min(j.apart) FROM jobs j WHERE j.affinity_id = tie AND j.state = 0) END
        WHERE a.id = tie;
    END IF;
    -- A later job is found by a node's safety look before it is due. A notice takes a lock over the whole server at the commit.
    -- One node that has a place is named, and the others look a little later. A job with an affinity is told to all: one of them alone may run it.
    IF new_id IS NOT NULL AND at < clock() + 30000000 AND tie IS NULL THEN
        PERFORM pg_notify($CHANNEL$, 'w' || at || ' ' || kind || ' ' || n.owner)
        FROM nodes n WHERE n.wakes > at AND n.handlers && ARRAY[kind, 0]
        ORDER BY kind = ANY(n.handlers) DESC, random() LIMIT 1;
    ELSIF new_id IS NOT NULL AND at < clock() + 30000000 AND EXISTS (SELECT FROM nodes n WHERE n.wakes > at) THEN
        PERFORM pg_notify($CHANNEL$, 'w' || at);
    END IF;
    RETURN new_id;
END $$;

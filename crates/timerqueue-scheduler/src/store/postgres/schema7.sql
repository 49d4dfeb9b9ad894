-- Of a recurring job, both are those of its runs.
ALTER TABLE jobs
    ADD COLUMN IF NOT EXISTS priority bigint NOT NULL DEFAULT 0, -- above zero: before others
    ADD COLUMN IF NOT EXISTS expires bigint; -- the last instant at which a run begins; of a recurring job, the time after a due time

-- A job with a priority that waits has its instant in `apart`, and is in this index, in none of those that know no priorities. Nodes of version 6 and
-- before do not find it.
CREATE INDEX IF NOT EXISTS jobs_priorities ON jobs (handler, priority, apart, id)
WHERE priority <> 0 AND state = 0 AND affinity_id IS NULL AND apart IS NOT NULL;

-- The priorities other than zero of the jobs of a handler that wait: one look into the index for each of them, and one more.
CREATE OR REPLACE FUNCTION priorities_of(kind bigint) RETURNS SETOF bigint LANGUAGE sql STABLE AS $$
    WITH RECURSIVE found (priority) AS (
        (SELECT j.priority FROM jobs j WHERE j.handler = kind AND j.priority <> 0 AND j.state = 0 AND j.affinity_id IS NULL AND j.apart IS NOT NULL
        ORDER BY j.priority LIMIT 1)
        UNION ALL
        SELECT (SELECT j.priority FROM jobs j WHERE j.handler = kind AND j.priority > found.priority AND j.priority <> 0 AND j.state = 0
            AND j.affinity_id IS NULL AND j.apart IS NOT NULL ORDER BY j.priority LIMIT 1)
        FROM found WHERE found.priority IS NOT NULL
    )
    SELECT found.priority FROM found WHERE found.priority IS NOT NULL
$$;

-- Of a job that waits and has an affinity or a priority, `wake` moves to `apart`. Of a run, nodes of version 5 and before write the end of its lease.
CREATE OR REPLACE FUNCTION set_apart() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.state = 2 THEN
        NEW.apart := NULL;
        NEW.wake := NULL;
    ELSIF (NEW.affinity_id IS NOT NULL OR NEW.priority <> 0) AND NEW.state = 0 THEN
        NEW.apart := NEW.wake;
        NEW.wake := NULL;
    ELSE
        NEW.apart := NULL;
    END IF;
    RETURN NEW;
END $$;

DROP TRIGGER IF EXISTS jobs_apart ON jobs;
CREATE TRIGGER jobs_apart BEFORE INSERT OR UPDATE OF wake ON jobs FOR EACH ROW
WHEN (NEW.affinity_id IS NOT NULL OR NEW.priority <> 0 OR NEW.counted OR (NEW.state = 2 AND NEW.wake IS NOT NULL)) EXECUTE FUNCTION set_apart();

DROP FUNCTION IF EXISTS put(text, text, text, timestamptz, text, text);

-- Puts a job in the caller's own transaction. Returns its number; none if another job has the key and stays.
-- `in_group`, which was `affinity`: one member runs all jobs of the handler with this text. `clash`: `refuse` and `keep` let the other job stay, `replace` lets it make way.
-- `priority`: from -9 to 9, and each step is worth an hour. `expires`: the last instant at which a run begins.
CREATE OR REPLACE FUNCTION put(
    handler text,
    key text,
    payload text DEFAULT 'null',
    due timestamptz DEFAULT NULL,
    clash text DEFAULT 'refuse',
    in_group text DEFAULT NULL,
    priority bigint DEFAULT 0,
    expires timestamptz DEFAULT NULL
) RETURNS bigint LANGUAGE plpgsql SET search_path = $SCHEMA$ AS $$
#variable_conflict use_column
DECLARE
    kind bigint;
    tie bigint;
    at bigint := coalesce(ceil(extract(epoch FROM put.due) * 1000000)::bigint, clock());
    last bigint := floor(extract(epoch FROM put.expires) * 1000000)::bigint;
    new_id bigint;
    old jobs%ROWTYPE;
BEGIN
    IF octet_length(put.key) NOT BETWEEN 1 AND 512 OR octet_length(put.handler) NOT BETWEEN 1 AND 512 THEN
        RAISE EXCEPTION 'a key and the name of a handler have 1 to 512 bytes';
    END IF;
    -- The type `jsonb` takes no NUL.
    IF octet_length(put.payload) > 262144 OR put.payload::jsonb IS NULL THEN
        RAISE EXCEPTION 'a payload is JSON text of at most 256 KiB';
    END IF;
    IF at NOT BETWEEN 0 AND 253402300799999999 THEN
        RAISE EXCEPTION 'a due time lies between 1970 and 9999';
    END IF;
    at := greatest(at, clock()); -- an instant that has passed means now
    IF put.clash NOT IN ('refuse', 'keep', 'replace') THEN
        RAISE EXCEPTION 'clash is refuse, keep or replace';
    END IF;
    IF octet_length(put.in_group) NOT BETWEEN 1 AND 512 THEN
        RAISE EXCEPTION 'a group has 1 to 512 bytes';
    END IF;
    IF coalesce(put.priority, 10) NOT BETWEEN -9 AND 9 THEN
        RAISE EXCEPTION 'a priority lies between -9 and 9';
    END IF;
    IF last NOT BETWEEN 0 AND 253402300799999999 THEN
        RAISE EXCEPTION 'a last instant lies between 1970 and 9999';
    END IF;
    SELECT h.id INTO kind FROM handlers h WHERE h.name = put.handler;
    IF kind IS NULL THEN
        INSERT INTO handlers (name) VALUES (put.handler) ON CONFLICT (name) DO UPDATE SET name = excluded.name
        RETURNING id INTO kind;
    END IF;
    IF put.in_group IS NOT NULL THEN
        INSERT INTO affinities (handler, affinity, idle) VALUES (kind, put.in_group, clock())
        ON CONFLICT (handler, affinity) DO UPDATE SET affinity = excluded.affinity
        RETURNING id INTO tie;
    END IF;
    LOOP
        INSERT INTO jobs (id, key, handler, payload, due, wake, affinity, affinity_id, priority, expires)
        VALUES (nextval('ids'), put.key, kind, put.payload, at, at, put.in_group, tie, put.priority, last)
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
    -- The row of the group is locked, so its head is that of all commits.
    IF new_id IS NOT NULL AND tie IS NOT NULL THEN
        UPDATE affinities a SET idle = NULL, head = CASE WHEN a.next = 0 AND (a.most = 0 OR a.most >
            (SELECT count(*) FROM jobs j WHERE j.affinity_id = tie AND j.state = 2))
            THEN (SELECT min(j.apart) FROM jobs j WHERE j.affinity_id = tie AND j.state = 0) END
        WHERE a.id = tie;
    END IF;
    -- A node that sleeps longer is told, however late the job is due: its safety look may come later. A notice takes a lock over the whole server at the
    -- commit. One node that has a place is named, and the others look a little later. A job with a group is told to all: one of them alone may run it.
    IF new_id IS NOT NULL AND tie IS NULL THEN
        PERFORM pg_notify($CHANNEL$, 'w' || at || ' ' || kind || ' ' || n.owner)
        FROM nodes n WHERE n.wakes > at AND n.handlers && ARRAY[kind, 0]
        ORDER BY kind = ANY(n.handlers) DESC, random() LIMIT 1;
    ELSIF new_id IS NOT NULL AND EXISTS (SELECT FROM nodes n WHERE n.wakes > at) THEN
        PERFORM pg_notify($CHANNEL$, 'w' || at);
    END IF;
    RETURN new_id;
END $$;

-- How many attempts the end of their process has cut off, and the last ones of these in a row, as far as they speak against the job.
ALTER TABLE jobs
    ADD COLUMN IF NOT EXISTS crashes bigint NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS suspicion bigint NOT NULL DEFAULT 0;

-- These runs, which are locked, wait again. The first two ends in a row speak against each run of a node, further ones against a run that was alone.
CREATE OR REPLACE FUNCTION take_back(runs bigint[]) RETURNS bigint LANGUAGE plpgsql SET search_path = $SCHEMA$ AS $$
DECLARE
    taken bigint;
BEGIN
    UPDATE jobs SET state = 0, lease = NULL, paused = paused AND NOT cancelled,
        wake = CASE WHEN cancelled OR NOT paused THEN due END,
        crashes = crashes + 1,
        suspicion = suspicion + CASE WHEN suspicion < 2
            OR (SELECT count(*) FROM jobs o WHERE o.state = 2 AND o.owner = jobs.owner) = 1 THEN 1 ELSE 0 END
    WHERE id = ANY(runs) AND state = 2;
    GET DIAGNOSTICS taken = ROW_COUNT;
    PERFORM FROM affinities WHERE id IN (SELECT affinity_id FROM jobs WHERE id = ANY(runs)) ORDER BY id FOR UPDATE;
    UPDATE affinities a SET head = CASE WHEN a.next = 0 AND (a.most = 0 OR a.most >
        (SELECT count(*) FROM jobs j WHERE j.affinity_id = a.id AND j.state = 2))
        THEN (SELECT min(j.apart) FROM jobs j WHERE j.affinity_id = a.id AND j.state = 0) END
    WHERE id IN (SELECT affinity_id FROM jobs WHERE id = ANY(runs));
    RETURN taken;
END $$;

ALTER TABLE jobs
    ADD COLUMN IF NOT EXISTS keep bigint, -- the end of the job is kept this long, in microseconds, and can be awaited
    ADD COLUMN IF NOT EXISTS progress text; -- what an attempt has written down for the next one, as JSON

-- Done jobs, where their handlers keep them.
CREATE SEQUENCE IF NOT EXISTS ends;
CREATE TABLE IF NOT EXISTS finished (
    id bigint PRIMARY KEY,
    key text COLLATE "C" NOT NULL,
    handler bigint NOT NULL,
    payload text NOT NULL,
    ended bigint NOT NULL,
    last text,
    keep_until bigint NOT NULL,        -- then the row may go
    key_until bigint NOT NULL,         -- until then the key is taken
    node text,                         -- the scheduler that has run the job
    result text,                       -- the value of the handler, as JSON
    seq bigint NOT NULL DEFAULT nextval('ends')
);

CREATE INDEX IF NOT EXISTS finished_keys ON finished (key, seq);
CREATE INDEX IF NOT EXISTS finished_taken ON finished (key, key_until) WHERE key_until > ended;
CREATE INDEX IF NOT EXISTS finished_ends ON finished (keep_until);
CREATE INDEX IF NOT EXISTS finished_seq ON finished (seq);
CREATE INDEX IF NOT EXISTS finished_handlers ON finished (handler, seq);

-- Keys of its done jobs may be taken, so a put looks there.
ALTER TABLE handlers ADD COLUMN IF NOT EXISTS keeps_keys boolean NOT NULL DEFAULT false;

-- What a job asks for its runs; of a recurring job, for each of them.
ALTER TABLE jobs
    ADD COLUMN IF NOT EXISTS at_most_once boolean NOT NULL DEFAULT false, -- a run is not begun again, also after the end of its node
    ADD COLUMN IF NOT EXISTS most_attempts bigint, -- instead of those of the handler
    ADD COLUMN IF NOT EXISTS time_limit bigint, -- microseconds, instead of the limit of the handler
    ADD COLUMN IF NOT EXISTS unique_for bigint; -- microseconds for which the key stays taken once the job is done, instead of what the handler says

DROP FUNCTION IF EXISTS put(text, text, text, timestamptz, text, text, bigint, timestamptz);

-- Puts a job in the caller's own transaction. Returns its number; none if another job has the key and stays.
-- `in_group`, which was `affinity`: one member runs all jobs of the handler with this text. `clash`: `refuse` and `keep` let the other job stay, `replace` lets it make way.
-- `priority`: from -9 to 9, and each step is worth an hour. `expires`: the last instant at which a run begins. `at_most_once`: the job is not begun again,
-- also after the end of its process. `attempts` and `time_limit` (of each run): instead of those of the handler. `unique_for`: how long the
-- key stays taken once the job is done.
CREATE OR REPLACE FUNCTION put(
    handler text,
    key text,
    payload text DEFAULT 'null',
    due timestamptz DEFAULT NULL,
    clash text DEFAULT 'refuse',
    in_group text DEFAULT NULL,
    priority bigint DEFAULT 0,
    expires timestamptz DEFAULT NULL,
    at_most_once boolean DEFAULT false,
    attempts bigint DEFAULT NULL,
    time_limit interval DEFAULT NULL,
    unique_for interval DEFAULT NULL
) RETURNS bigint LANGUAGE plpgsql SET search_path = $SCHEMA$ AS $$
#variable_conflict use_column
DECLARE
    kind bigint;
    tie bigint;
    at bigint := coalesce(ceil(extract(epoch FROM put.due) * 1000000)::bigint, clock());
    taken bigint := least(ceil(extract(epoch FROM put.unique_for) * 1000000), 9223372036854775807)::bigint;
    micros bigint := least(ceil(extract(epoch FROM put.time_limit) * 1000000), 9223372036854775807)::bigint;
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
    IF put.at_most_once IS NULL OR put.attempts NOT BETWEEN 1 AND 4294967295 OR micros < 0 OR taken < 0 THEN
        RAISE EXCEPTION 'attempts are at least one, time_limit and unique_for are not negative, and at_most_once is true or false';
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
        INSERT INTO jobs (id, key, handler, payload, due, wake, affinity, affinity_id, priority, expires, at_most_once, most_attempts, time_limit, unique_for)
        VALUES (nextval('ids'), put.key, kind, put.payload, at, at, put.in_group, tie, put.priority, last, put.at_most_once, put.attempts, micros, taken)
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
    -- The key of a done job may still be taken. After the insert, which waits for the end of a run that had the key.
    IF new_id IS NOT NULL AND put.clash <> 'replace' AND EXISTS (SELECT FROM finished f WHERE f.key = put.key AND f.key_until > clock() AND f.key_until > f.ended) THEN
        DELETE FROM jobs WHERE id = new_id;
        new_id := NULL;
    END IF;
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
-- When the job was put, and when its last run began. What nodes of older versions and `put` leave out is the clock.
ALTER TABLE jobs
    ADD COLUMN IF NOT EXISTS added bigint,
    ADD COLUMN IF NOT EXISTS begun bigint;
ALTER TABLE jobs ALTER COLUMN added SET DEFAULT clock();

-- Of a job that has its priority no more, `apart` moves back to `wake`.
DROP TRIGGER IF EXISTS jobs_apart ON jobs;
CREATE TRIGGER jobs_apart BEFORE INSERT OR UPDATE OF wake ON jobs FOR EACH ROW
WHEN (NEW.affinity_id IS NOT NULL OR NEW.priority <> 0 OR NEW.apart IS NOT NULL OR NEW.counted OR (NEW.state = 2 AND NEW.wake IS NOT NULL))
EXECUTE FUNCTION set_apart();

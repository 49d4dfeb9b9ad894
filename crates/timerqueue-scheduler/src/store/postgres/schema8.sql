ALTER TABLE jobs
    ADD COLUMN IF NOT EXISTS keep bigint, -- the end of the job is kept this long, in microseconds, and can be awaited
    ADD COLUMN IF NOT EXISTS progress text; -- what an attempt has written down for the next one, as JSON

-- The context of the trace in which the job was put.
ALTER TABLE jobs ADD COLUMN IF NOT EXISTS trace text;
-- Jobs whose last instant had passed; older versions count them as dead. Before `handlers`, as those lock both that read the counts.
ALTER TABLE minutes ADD COLUMN IF NOT EXISTS expired bigint NOT NULL DEFAULT 0;

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

-- The other jobs with a key are in indexes of their own: a look for keys with a begin finds all.
CREATE INDEX IF NOT EXISTS jobs_keyless ON jobs (key) WHERE NOT holds_key AND state <> 3;

-- What a job asks for its runs; of a recurring job, for each of them.
ALTER TABLE jobs
    ADD COLUMN IF NOT EXISTS at_most_once boolean NOT NULL DEFAULT false, -- a run is not begun again, also after the end of its node
    ADD COLUMN IF NOT EXISTS most_attempts bigint, -- instead of those of the handler
    ADD COLUMN IF NOT EXISTS time_limit bigint, -- microseconds, instead of the limit of the handler
    ADD COLUMN IF NOT EXISTS unique_for bigint; -- microseconds for which the key stays taken once the job is done, instead of what the handler says

DROP FUNCTION IF EXISTS put(text, text, text, timestamptz, text, text, bigint, timestamptz);

-- A run that is done by a transaction of the user's: its end, as JSON. Whatever else becomes of the run, the job is done.
ALTER TABLE jobs ADD COLUMN IF NOT EXISTS ended text;

-- Those of members that have ended. They belong to no member, and the next claim ends them.
CREATE INDEX IF NOT EXISTS jobs_ended ON jobs (id) WHERE ended IS NOT NULL AND owner = 0;

-- A session of the user's keeps the plans of a function. One that reads the whole table, made when that had few pages, would read all rows that have
-- left since. So functions that read `jobs` and its likes for the user do without, by `enable_seqscan`, whatever the session has. And those that look
-- for a run by its number write `owner + 0` and `state + 0`: the index of running rows has all runs that have left. A temporary table of the session
-- would hide one of the schema, unless `pg_temp` stands last in the path.

-- The runs that open transactions of the user's have ended. No row outlives its transaction.
CREATE UNLOGGED TABLE IF NOT EXISTS done_runs (
    job bigint NOT NULL,
    owner bigint NOT NULL,
    claim bigint NOT NULL,
    ended text NOT NULL
);

CREATE INDEX IF NOT EXISTS done_runs_jobs ON done_runs (job);

-- What follows from a change is done by triggers. A session of the user's that runs none, such as that of a subscription, would lose it.
CREATE OR REPLACE FUNCTION needs_triggers() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('session_replication_role') = 'replica' THEN
        RAISE EXCEPTION 'this session runs no triggers, which the jobs need: its session_replication_role is replica';
    END IF;
END $$;

-- The fence stands at the commit: until then the transaction holds no lock on the job, however long it stays open.
CREATE OR REPLACE FUNCTION run_ends() RETURNS trigger LANGUAGE plpgsql
SET search_path = $SCHEMA$, pg_temp SET enable_seqscan = off AS $$
BEGIN
    UPDATE jobs SET ended = NEW.ended
    WHERE id = NEW.job AND owner + 0 = NEW.owner AND claims = NEW.claim AND state + 0 = 2 AND jobs.ended IS NULL;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'TQ001', MESSAGE = 'the run is not the job''s any more';
    END IF;
    DELETE FROM done_runs WHERE job = NEW.job AND claim = NEW.claim;
    RETURN NULL;
END $$;

DROP TRIGGER IF EXISTS done_runs_fence ON done_runs;
CREATE CONSTRAINT TRIGGER done_runs_fence AFTER INSERT ON done_runs DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION run_ends();

-- Ends a run as done in the caller's own transaction. `fence` is the run (`TIMERQUEUE_FENCE`, `Run::fence`), and `lasted` the time since its begin in
-- microseconds; `keep`, if the job is to be kept, is what the scheduler says. If the run is not the job's any more, this or the commit fails with `TQ001`.
CREATE OR REPLACE FUNCTION done(fence text, lasted bigint DEFAULT 0, keep json DEFAULT NULL) RETURNS void LANGUAGE plpgsql
SET search_path = $SCHEMA$, pg_temp SET enable_seqscan = off AS $$
DECLARE
    run jobs%ROWTYPE;
    parts text[] := string_to_array(fence, '/');
BEGIN
    PERFORM needs_triggers();
    SELECT * INTO run FROM jobs j WHERE j.id = parts[1]::bigint AND j.owner + 0 = parts[2]::bigint AND j.claims = parts[3]::bigint AND j.state + 0 = 2
    AND j.ended IS NULL;
    IF NOT FOUND OR EXISTS (SELECT FROM done_runs e WHERE e.job = run.id AND e.claim = run.claims) THEN
        RAISE EXCEPTION USING ERRCODE = 'TQ001', MESSAGE = 'the run is not the job''s any more';
    END IF;
    INSERT INTO done_runs (job, owner, claim, ended) VALUES (run.id, run.owner, run.claims, json_build_object('keep', done.keep, 'last',
        json_build_object('due', run.due, 'nominal', run.nominal, 'started', greatest(clock() - lasted, 0), 'duration', greatest(lasted, 0),
        'attempt', run.attempt, 'end', 'done', 'error', NULL))::text);
END $$;

-- Heads and idle times of groups, by the columns of `affinities` with these names, which nodes of version 7 and before write and read. Each put, claim and
-- end of a run changes them. So they are in a table without a unique index: for such an index a change reads all versions of its row, which stay while a
-- snapshot is held. The last version is the first one in the order of the stamps, backwards. A group is locked in `affinities`.
CREATE TABLE IF NOT EXISTS heads (
    id bigint NOT NULL,                -- of the group
    stamp bigint NOT NULL,             -- counts the changes
    handler bigint NOT NULL,
    member bigint NOT NULL,
    head bigint,
    idle bigint,
    early boolean NOT NULL             -- the head was written late, as in `jobs`
);

-- Without one, the server would refuse changes of a table that is published.
ALTER TABLE heads REPLICA IDENTITY FULL;

CREATE INDEX IF NOT EXISTS heads_groups ON heads (id, stamp);
CREATE INDEX IF NOT EXISTS heads_due ON heads (handler, member, head, id) WHERE head IS NOT NULL;
-- By an expression, since `heads_due` would have the order as well.
CREATE INDEX IF NOT EXISTS heads_early ON heads (handler, member, (head + 0), id) WHERE early;
CREATE INDEX IF NOT EXISTS heads_idle ON heads (idle) WHERE idle IS NOT NULL;

ALTER TABLE members ADD COLUMN IF NOT EXISTS tables bigint NOT NULL DEFAULT 7; -- the version that the node knows

-- The first wake instant of the jobs of a group, which is locked, if they may be claimed.
CREATE OR REPLACE FUNCTION head_of(tie bigint) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT CASE WHEN a.next = 0 AND (a.most = 0 OR a.most > (SELECT count(*) FROM jobs j WHERE j.affinity_id = tie AND j.state = 2))
        THEN (SELECT j.apart FROM jobs j WHERE j.affinity_id = tie AND j.state = 0 AND j.apart IS NOT NULL ORDER BY j.apart LIMIT 1) END
        FROM affinities a WHERE a.id = tie);
END $$;

-- Writes the head of a group, which is locked, and whether it has a job. A transaction of the user's with a snapshot from before may have read another
-- head than there is by now: it writes in any case, and so the server undoes it.
CREATE OR REPLACE FUNCTION set_head(tie bigint, first bigint, has_job boolean, now bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE heads h SET head = first, idle = CASE WHEN NOT has_job THEN coalesce(h.idle, now) END, early = coalesce(first < numbered(), false),
        stamp = h.stamp + 1
    WHERE h.ctid = (SELECT n.ctid FROM heads n WHERE n.id = tie ORDER BY n.stamp DESC LIMIT 1)
        AND (h.head IS DISTINCT FROM first OR (h.idle IS NULL) <> has_job OR current_setting('transaction_isolation') <> 'read committed');
    IF FOUND AND EXISTS (SELECT FROM members m WHERE m.tables < 8 AND NOT m.dead) THEN
        UPDATE affinities a SET head = h.head, idle = h.idle
        FROM (SELECT n.head, n.idle FROM heads n WHERE n.id = tie ORDER BY n.stamp DESC LIMIT 1) AS h WHERE a.id = tie;
    END IF;
END $$;

-- What changes in `affinities`: groups and their members, and what nodes of older versions write.
CREATE OR REPLACE FUNCTION group_changes() RETURNS trigger LANGUAGE plpgsql SET search_path = $SCHEMA$, pg_temp AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO heads VALUES (NEW.id, 0, NEW.handler, NEW.member, NEW.head, NEW.idle, coalesce(NEW.head < numbered(), false));
    ELSIF TG_OP = 'DELETE' THEN
        DELETE FROM heads h WHERE h.id = OLD.id;
    ELSE
        UPDATE heads h SET member = NEW.member, head = CASE WHEN NEW.head IS DISTINCT FROM OLD.head THEN NEW.head ELSE h.head END,
            idle = CASE WHEN NEW.idle IS DISTINCT FROM OLD.idle THEN NEW.idle ELSE h.idle END, stamp = h.stamp + 1,
            early = CASE WHEN NEW.head IS DISTINCT FROM OLD.head THEN coalesce(NEW.head < numbered(), false) ELSE h.early OR h.head IS NOT NULL END
        WHERE h.ctid = (SELECT n.ctid FROM heads n WHERE n.id = NEW.id ORDER BY n.stamp DESC LIMIT 1)
            AND (h.member <> NEW.member OR (NEW.head IS DISTINCT FROM OLD.head AND NEW.head IS DISTINCT FROM h.head)
                OR (NEW.idle IS DISTINCT FROM OLD.idle AND NEW.idle IS DISTINCT FROM h.idle));
    END IF;
    RETURN NULL;
END $$;

DROP TRIGGER IF EXISTS affinities_heads ON affinities;
CREATE TRIGGER affinities_heads AFTER INSERT OR DELETE OR UPDATE OF member, head, idle ON affinities FOR EACH ROW EXECUTE FUNCTION group_changes();
INSERT INTO heads SELECT a.id, 0, a.handler, a.member, a.head, a.idle, a.head IS NOT NULL FROM affinities a
WHERE NOT EXISTS (SELECT FROM heads h WHERE h.id = a.id);

-- While a node of an older version is a member, it finds the heads as they are. A transaction under way as the node comes does not see it, and writes no
-- head for it. So keepers call this again and again. Returns how many heads were written.
CREATE OR REPLACE FUNCTION copy_heads() RETURNS bigint LANGUAGE plpgsql SET search_path = $SCHEMA$, pg_temp AS $$
DECLARE
    ties bigint[];
    copied bigint;
BEGIN
    IF NOT EXISTS (SELECT FROM members m WHERE m.tables < 8 AND NOT m.dead) THEN
        RETURN 0;
    END IF;
    ties := ARRAY(SELECT a.id FROM affinities a JOIN heads h ON h.id = a.id WHERE (a.head, a.idle) IS DISTINCT FROM (h.head, h.idle)
        FOR UPDATE OF a SKIP LOCKED);
    -- A statement after the locks: it sees the heads that were written before them.
    UPDATE affinities a SET head = h.head, idle = h.idle FROM heads h
    WHERE a.id = ANY(ties) AND h.id = a.id AND (a.head, a.idle) IS DISTINCT FROM (h.head, h.idle);
    GET DIAGNOSTICS copied = ROW_COUNT;
    RETURN copied;
END $$;

CREATE OR REPLACE FUNCTION older_enters() RETURNS trigger LANGUAGE plpgsql SET search_path = $SCHEMA$, pg_temp AS $$
BEGIN
    PERFORM copy_heads();
    RETURN NULL;
END $$;

DROP TRIGGER IF EXISTS members_older ON members;
CREATE TRIGGER members_older AFTER INSERT ON members FOR EACH ROW WHEN (NEW.tables < 8) EXECUTE FUNCTION older_enters();

-- Such a node removes no group that has a job.
CREATE OR REPLACE FUNCTION keep_group() RETURNS trigger LANGUAGE plpgsql SET search_path = $SCHEMA$, pg_temp AS $$
BEGIN
    RETURN CASE WHEN NOT EXISTS (SELECT FROM jobs j WHERE j.affinity_id = OLD.id) THEN OLD END;
END $$;

DROP TRIGGER IF EXISTS affinities_kept ON affinities;
CREATE TRIGGER affinities_kept BEFORE DELETE ON affinities FOR EACH ROW EXECUTE FUNCTION keep_group();

-- Removes groups that have been without jobs for so long. Those that others have locked are in use again.
CREATE OR REPLACE FUNCTION forget_idle(kept bigint) RETURNS void LANGUAGE plpgsql SET search_path = $SCHEMA$, pg_temp AS $$
DECLARE
    before bigint := clock() - kept;
    ties bigint[] := ARRAY(SELECT a.id FROM affinities a
        WHERE a.id = ANY(ARRAY(SELECT h.id FROM heads h WHERE h.idle <= before ORDER BY h.idle LIMIT 1000)) FOR UPDATE SKIP LOCKED);
BEGIN
    -- A statement after the locks: it sees the puts that came before them.
    DELETE FROM affinities a WHERE a.id = ANY(ties)
        AND (SELECT h.idle FROM heads h WHERE h.id = a.id ORDER BY h.stamp DESC LIMIT 1) <= before;
END $$;

-- These runs, which are locked, wait again, but for those that are done. The first two ends in a row speak against each run of a node, further ones
-- against a run that was alone.
CREATE OR REPLACE FUNCTION take_back(runs bigint[]) RETURNS bigint LANGUAGE plpgsql SET search_path = $SCHEMA$, pg_temp AS $$
DECLARE
    taken bigint;
    ties bigint[];
BEGIN
    UPDATE jobs SET state = 0, lease = NULL, paused = paused AND NOT cancelled,
        wake = CASE WHEN cancelled OR NOT paused THEN due END,
        crashes = crashes + 1,
        suspicion = suspicion + CASE WHEN suspicion < 2
            OR (SELECT count(*) FROM jobs o WHERE o.state = 2 AND o.owner = jobs.owner) = 1 THEN 1 ELSE 0 END
    WHERE id = ANY(runs) AND state = 2 AND ended IS NULL;
    GET DIAGNOSTICS taken = ROW_COUNT;
    UPDATE jobs SET owner = 0 WHERE id = ANY(runs) AND state = 2 AND ended IS NOT NULL;
    ties := ARRAY(SELECT a.id FROM affinities a WHERE a.id IN (SELECT affinity_id FROM jobs WHERE id = ANY(runs)) ORDER BY a.id FOR UPDATE);
    PERFORM set_head(tie, head_of(tie), true, NULL) FROM unnest(ties) AS locked (tie);
    RETURN taken;
END $$;

-- What the nodes are told at the commit of a transaction of the user's: of each handler the first instant. No row outlives its transaction.
CREATE UNLOGGED TABLE IF NOT EXISTS told (
    tx bigint NOT NULL,
    handler bigint NOT NULL,
    grouped boolean NOT NULL,
    at bigint NOT NULL,
    PRIMARY KEY (tx, handler, grouped)
);

-- A node that sleeps longer is told, however late the job is due: its safety look may come later; and one that is about to look, since it may look before
-- the commit can be seen. At the commit, since a node may go to sleep while the transaction is open. A notice takes a lock over the whole server. One node
-- that has a place is named, and the others look a little later. A job with a group is told to all: one of them alone may run it.
CREATE OR REPLACE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql
SET search_path = $SCHEMA$, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    soon bigint := clock() + 1000000;
    first bigint;
BEGIN
    DELETE FROM told t WHERE t.tx = NEW.tx AND t.handler = NEW.handler AND t.grouped = NEW.grouped RETURNING t.at INTO first;
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        PERFORM pg_notify($CHANNEL$, 'w' || first); -- its snapshot does not say how long the nodes sleep by now
    ELSIF NOT NEW.grouped THEN
        PERFORM pg_notify($CHANNEL$, 'w' || first || ' ' || NEW.handler || ' ' || n.owner)
        FROM nodes n WHERE (n.wakes > first OR n.wakes <= soon) AND n.handlers && ARRAY[NEW.handler, 0]
        ORDER BY NEW.handler = ANY(n.handlers) DESC, random() LIMIT 1;
    ELSIF EXISTS (SELECT FROM nodes n WHERE n.wakes > first OR n.wakes <= soon) THEN
        PERFORM pg_notify($CHANNEL$, 'w' || first);
    END IF;
    RETURN NULL;
END $$;

DROP TRIGGER IF EXISTS told_at_commit ON told;
CREATE CONSTRAINT TRIGGER told_at_commit AFTER INSERT ON told DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION tell();

-- A job is to be looked at from this instant on.
CREATE OR REPLACE FUNCTION wakes(kind bigint, tie bigint, first bigint) RETURNS void LANGUAGE plpgsql
SET search_path = $SCHEMA$, pg_temp AS $$
DECLARE
    is_open boolean;
BEGIN
    -- One of many puts in a transaction finds that the first one has said it.
    IF NOT EXISTS (SELECT FROM told t WHERE t.tx = txid_current() AND t.handler = kind AND t.grouped = (tie IS NOT NULL) AND t.at <= first) THEN
        INSERT INTO told (tx, handler, grouped, at) VALUES (txid_current(), kind, tie IS NOT NULL, first)
        ON CONFLICT (tx, handler, grouped) DO UPDATE SET at = excluded.at;
    END IF;
    IF tie IS NULL THEN
        RETURN;
    END IF;
    -- The row of the group is locked before its jobs are read, so its head is that of all commits. An open group has no earlier job than its head. One
    -- that was moved to later leaves the head behind: the claim that looks there sets it right.
    SELECT a.next = 0 AND a.most = 0 INTO is_open FROM affinities a WHERE a.id = tie FOR UPDATE;
    PERFORM set_head(tie, CASE WHEN is_open THEN least(first, (SELECT h.head FROM heads h WHERE h.id = tie ORDER BY h.stamp DESC LIMIT 1))
        ELSE head_of(tie) END, true, NULL);
END $$;

-- No attempt at this job, which is locked, starts any more. Returns whether a run goes on.
CREATE OR REPLACE FUNCTION call_off(job bigint) RETURNS boolean LANGUAGE plpgsql SET search_path = $SCHEMA$, pg_temp AS $$
DECLARE
    old jobs%ROWTYPE;
    run bigint;
    goes_on boolean := false;
BEGIN
    SELECT * INTO old FROM jobs j WHERE j.id = job;
    IF old.state = 2 THEN
        UPDATE jobs SET cancelled = true WHERE id = job;
        PERFORM pg_notify($CHANNEL$, 'c' || job);
        RETURN true;
    END IF;
    IF old.state = 4 THEN
        FOR run IN SELECT j.id FROM jobs j WHERE j.parent = job AND j.state <> 3 ORDER BY j.id FOR UPDATE LOOP
            goes_on := call_off(run) OR goes_on;
        END LOOP;
    END IF;
    IF goes_on THEN -- it leaves with its last run
        UPDATE jobs SET wake = NULL, earliest = NULL, recurring = (old.recurring::jsonb || jsonb_build_object('ending', true, 'next', NULL,
            'look', NULL, 'looked', false, 'version', (old.recurring::jsonb ->> 'version')::numeric + 1))::text
        WHERE id = job;
    ELSE
        DELETE FROM jobs WHERE id = job;
    END IF;
    RETURN goes_on;
END $$;

-- As `put`. Instants and times in microseconds; `after` and `expires_in` count from now, and `expires_after` from the due time. `recurring`: a schedule
-- and its rules, as in the column.
-- Returns what has become of it: added, replaced, replaced_running, kept, refused or overdue, with the number of the job.
CREATE OR REPLACE FUNCTION place(
    handler text,
    key text,
    payload text,
    due bigint,
    after bigint,
    clash text,
    in_group text,
    priority bigint,
    expires bigint,
    expires_in bigint,
    expires_after bigint,
    refuse_overdue boolean,
    recurring text,
    keep bigint,
    at_most_once boolean,
    attempts bigint,
    time_limit bigint,
    unique_for bigint,
    trace text
) RETURNS text LANGUAGE plpgsql SET search_path = $SCHEMA$, pg_temp SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    kind bigint;
    tie bigint;
    now bigint := clock();
    at bigint := greatest(coalesce(place.due, now + coalesce(place.after, 0)), now); -- an instant that has passed means now
    last bigint := coalesce(place.expires, now + place.expires_in, CASE WHEN place.recurring IS NULL THEN at ELSE 0 END + place.expires_after);
    rules jsonb := place.recurring::jsonb || jsonb_build_object('look', now);
    new_id bigint;
    done bigint;
    old jobs%ROWTYPE;
    before jsonb;
    goes_on boolean;
    placed text := 'added';
BEGIN
    PERFORM needs_triggers();
    IF octet_length(place.key) NOT BETWEEN 1 AND 512 OR octet_length(place.handler) NOT BETWEEN 1 AND 512 THEN
        RAISE EXCEPTION 'a key and the name of a handler have 1 to 512 bytes';
    END IF;
    -- The type `jsonb` takes no NUL.
    IF octet_length(place.payload) > 262144 OR place.payload::jsonb IS NULL THEN
        RAISE EXCEPTION 'a payload is JSON text of at most 256 KiB';
    END IF;
    IF coalesce(place.due, at) NOT BETWEEN 0 AND 253402300799999999 THEN
        RAISE EXCEPTION 'a due time lies between 1970 and 9999';
    END IF;
    IF coalesce(place.clash, '') NOT IN ('refuse', 'keep', 'replace') THEN
        RAISE EXCEPTION 'clash is refuse, keep or replace';
    END IF;
    IF octet_length(place.in_group) NOT BETWEEN 1 AND 512 THEN
        RAISE EXCEPTION 'a group has 1 to 512 bytes';
    END IF;
    IF coalesce(place.priority, 10) NOT BETWEEN -9 AND 9 THEN
        RAISE EXCEPTION 'a priority lies between -9 and 9';
    END IF;
    IF place.expires NOT BETWEEN 0 AND 253402300799999999 THEN
        RAISE EXCEPTION 'a last instant lies between 1970 and 9999';
    END IF;
    IF place.at_most_once IS NULL OR place.attempts NOT BETWEEN 1 AND 4294967295 OR place.time_limit < 0 OR place.unique_for < 0 THEN
        RAISE EXCEPTION 'attempts are at least one, time_limit and unique_for are not negative, and at_most_once is true or false';
    END IF;
    IF octet_length(place.trace) > 1024 THEN
        RAISE EXCEPTION 'the context of a trace has at most 1024 bytes';
    END IF;
    IF place.refuse_overdue AND place.due < now THEN
        RETURN 'overdue';
    END IF;
    SELECT h.id INTO kind FROM handlers h WHERE h.name = place.handler;
    FOR try IN 1..50 LOOP
        IF place.clash = 'replace' THEN -- rows before groups, as in all transactions
            SELECT * INTO old FROM jobs j WHERE j.key = place.key AND j.holds_key FOR UPDATE;
        ELSE
            SELECT * INTO old FROM jobs j WHERE j.key = place.key AND j.holds_key;
        END IF;
        IF FOUND AND place.clash <> 'replace' THEN
            RETURN CASE place.clash WHEN 'keep' THEN 'kept ' ELSE 'refused ' END || old.id;
        ELSIF FOUND THEN
            before := CASE WHEN rules IS NOT NULL THEN old.recurring::jsonb END;
            IF (before ->> 'ending')::boolean = false
                AND (before -> 'schedule', before -> 'catchup', before -> 'grace', before -> 'overlap')
                    IS NOT DISTINCT FROM (rules -> 'schedule', rules -> 'catchup', rules -> 'grace', rules -> 'overlap')
                AND (old.handler, old.payload, old.affinity, old.priority, old.expires, old.at_most_once, old.most_attempts, old.time_limit, old.unique_for, old.keep)
                    IS NOT DISTINCT FROM (kind, place.payload, place.in_group, place.priority, last, place.at_most_once, place.attempts, place.time_limit,
                        place.unique_for, place.keep) THEN
                RETURN 'kept ' || old.id;
            END IF;
            goes_on := call_off(old.id);
            UPDATE jobs SET holds_key = false WHERE id = old.id;
            placed := CASE WHEN goes_on THEN 'replaced_running' ELSE 'replaced' END;
        END IF;
        IF kind IS NULL THEN
            INSERT INTO handlers (name) VALUES (place.handler) ON CONFLICT (name) DO UPDATE SET name = excluded.name
            RETURNING id INTO kind;
        END IF;
        IF place.in_group IS NOT NULL THEN
            SELECT a.id INTO tie FROM affinities a WHERE a.handler = kind AND a.affinity = place.in_group FOR UPDATE;
            IF tie IS NULL THEN
                INSERT INTO affinities (handler, affinity, idle) VALUES (kind, place.in_group, now)
                ON CONFLICT (handler, affinity) DO UPDATE SET affinity = excluded.affinity
                RETURNING id INTO tie;
            END IF;
        END IF;
        PERFORM pg_current_xact_id(); -- before the insert looks at the clock: it may wait
        INSERT INTO jobs (id, key, handler, payload, due, wake, affinity, affinity_id, priority, expires, state, recurs, recurring, span, earliest, keep,
            at_most_once, most_attempts, time_limit, unique_for, trace)
        VALUES (nextval('ids'), place.key, kind, place.payload, at, at, place.in_group, tie, place.priority, last,
            CASE WHEN rules IS NULL THEN 0 ELSE 4 END, rules IS NOT NULL, rules::text, CASE WHEN rules IS NOT NULL THEN 0 END,
            CASE WHEN rules IS NOT NULL THEN at END, place.keep,
            place.at_most_once, place.attempts, place.time_limit, place.unique_for, place.trace)
        ON CONFLICT (key) WHERE holds_key DO NOTHING
        RETURNING id INTO new_id;
        EXIT WHEN new_id IS NOT NULL; -- else another transaction was first
    END LOOP;
    IF new_id IS NULL THEN
        RAISE EXCEPTION 'the key is that of a row that this session may not see, or a trigger keeps the row out';
    END IF;
    -- The key of a done job may still be taken. After the insert, which waits for the end of a run that had the key.
    SELECT f.id INTO done FROM finished f WHERE f.key = place.key AND f.key_until > now AND f.key_until > f.ended AND place.clash <> 'replace' ORDER BY f.key_until DESC LIMIT 1;
    IF done IS NOT NULL THEN
        DELETE FROM jobs WHERE id = new_id;
        RETURN CASE place.clash WHEN 'keep' THEN 'kept ' ELSE 'refused ' END || done;
    END IF;
    PERFORM wakes(kind, tie, at);
    RETURN placed || ' ' || new_id;
END $$;

-- Puts a job in the caller's own transaction. Returns its number; none if another job has the key and stays.
-- `in_group`: one member runs all jobs of the handler with this text. `clash`: `refuse` and `keep` let the other job stay, `replace` lets it make way.
-- `priority`: from -9 to 9, and each step is worth an hour. `expires`: the last instant at which a run begins. `at_most_once`: the job is not begun again,
-- also after the end of its process. `attempts` and `time_limit` (of each run): instead of those of the handler. `unique_for`: how long the
-- key stays taken once the job is done. `trace`: the context of the trace in which the job is put.
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
    unique_for interval DEFAULT NULL,
    trace text DEFAULT NULL
) RETURNS bigint LANGUAGE plpgsql SET search_path = $SCHEMA$, pg_temp AS $$
DECLARE
    placed text := place(handler, key, payload, ceil(extract(epoch FROM due) * 1000000)::bigint, NULL, clash, in_group, priority,
        floor(extract(epoch FROM expires) * 1000000)::bigint, NULL, NULL, false, NULL, NULL, at_most_once, attempts,
        least(ceil(extract(epoch FROM time_limit) * 1000000), 9223372036854775807)::bigint,
        least(ceil(extract(epoch FROM unique_for) * 1000000), 9223372036854775807)::bigint, trace);
BEGIN
    RETURN CASE WHEN placed LIKE 'added %' OR placed LIKE 'replaced%' THEN split_part(placed, ' ', 2)::bigint END;
END $$;

-- Cancels the job with the key in the caller's own transaction: once it has committed, no attempt starts any more. Returns `cancelled`; `running` if a
-- run goes on, whose token fires and after which no attempt follows; or `absent`.
CREATE OR REPLACE FUNCTION cancel(key text) RETURNS text LANGUAGE plpgsql
SET search_path = $SCHEMA$, pg_temp SET enable_seqscan = off AS $$
DECLARE
    job bigint;
BEGIN
    PERFORM needs_triggers();
    SELECT j.id INTO job FROM jobs j WHERE j.key = cancel.key AND j.holds_key FOR UPDATE;
    RETURN CASE WHEN job IS NULL THEN 'absent' WHEN call_off(job) THEN 'running' ELSE 'cancelled' END;
END $$;

-- As `move`, with an instant in microseconds, or else a time from now.
CREATE OR REPLACE FUNCTION move_to(key text, due bigint, after bigint) RETURNS text LANGUAGE plpgsql
SET search_path = $SCHEMA$, pg_temp SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    old jobs%ROWTYPE;
    now bigint := clock();
    at bigint := coalesce(move_to.due, now + move_to.after);
BEGIN
    PERFORM needs_triggers();
    IF coalesce(at, -1) NOT BETWEEN 0 AND 253402300799999999 THEN
        RAISE EXCEPTION 'a due time lies between 1970 and 9999';
    END IF;
    at := greatest(at, now);
    SELECT * INTO old FROM jobs j WHERE j.key = move_to.key AND j.holds_key FOR UPDATE;
    IF NOT FOUND THEN
        RETURN 'absent';
    ELSIF old.state = 1 AND old.until IS NOT NULL THEN -- it waits for other jobs as well
        UPDATE jobs SET due = at, span = NULL WHERE id = old.id;
        RETURN 'changed';
    ELSIF old.state <> 0 THEN
        RETURN CASE WHEN old.state = 2 THEN 'running' ELSE 'other_kind' END;
    END IF;
    UPDATE jobs SET due = at, wake = CASE WHEN NOT old.paused THEN at END, span = NULL, earliest = NULL WHERE id = old.id;
    IF NOT old.paused THEN
        PERFORM wakes(old.handler, old.affinity_id, at);
    END IF;
    RETURN 'changed';
END $$;

-- Gives the job with the key another due time in the caller's own transaction. Returns `changed`; `running`, `other_kind` (it recurs) or `absent` if
-- nothing was changed.
CREATE OR REPLACE FUNCTION move(key text, due timestamptz) RETURNS text LANGUAGE plpgsql SET search_path = $SCHEMA$, pg_temp AS $$
BEGIN
    RETURN move_to(key, ceil(extract(epoch FROM due) * 1000000)::bigint, NULL);
END $$;

-- When the job was put, and when its last run began. What nodes of older versions and `put` leave out is the clock.
ALTER TABLE jobs
    ADD COLUMN IF NOT EXISTS added bigint,
    ADD COLUMN IF NOT EXISTS begun bigint;
ALTER TABLE jobs ALTER COLUMN added SET DEFAULT clock();

-- The runs of groups, and those among all members, stand in the order of their begins, so a count of them passes by those that have left. A begin that a node of an older version has
-- not written, or long before the number of its transaction, is the clock.
-- By an expression, since the server would read the index of all running rows where its statistics say that there are few.
CREATE INDEX IF NOT EXISTS jobs_group_runs ON jobs (affinity_id, begun) WHERE state + 0 = 2 AND affinity_id IS NOT NULL;
CREATE INDEX IF NOT EXISTS jobs_counted_runs ON jobs (handler, begun) WHERE state + 0 = 2 AND counted;

CREATE OR REPLACE FUNCTION set_begun() RETURNS trigger LANGUAGE plpgsql SET search_path = $SCHEMA$, pg_temp AS $$
BEGIN
    NEW.begun := clock();
    RETURN NEW;
END $$;

-- Of a job that waits and has an affinity or a priority, `wake` moves to `apart`. Of a run, nodes of version 5 and before write the end of its lease.
CREATE OR REPLACE FUNCTION set_apart() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.state = 2 THEN
        NEW.apart := NULL;
        NEW.wake := NULL;
    ELSIF (NEW.affinity_id IS NOT NULL OR NEW.priority <> 0) AND NEW.state = 0 THEN
        NEW.apart := CASE WHEN TG_OP = 'INSERT' THEN coalesce(NEW.wake, NEW.apart) ELSE NEW.wake END; -- a row of a dump has it already
        NEW.wake := NULL;
    ELSE
        NEW.apart := NULL;
    END IF;
    RETURN NEW;
END $$;

-- Of a job that has its priority no more, `apart` moves back to `wake`.
DROP TRIGGER IF EXISTS jobs_apart ON jobs;
CREATE TRIGGER jobs_apart BEFORE INSERT OR UPDATE OF wake ON jobs FOR EACH ROW
WHEN (NEW.affinity_id IS NOT NULL OR NEW.priority <> 0 OR NEW.apart IS NOT NULL OR NEW.counted OR (NEW.state = 2 AND NEW.wake IS NOT NULL))
EXECUTE FUNCTION set_apart();

-- A row that was written with a wake instant before the number of its transaction: claims begin their walk behind such instants, and read these rows by
-- themselves. Within a quarter of a second is no such row (`SLACK` of the nodes).
ALTER TABLE jobs ADD COLUMN IF NOT EXISTS early boolean NOT NULL DEFAULT false;
CREATE INDEX IF NOT EXISTS jobs_early ON jobs (handler, recurs, wake, id) WHERE early AND wake IS NOT NULL;
CREATE INDEX IF NOT EXISTS jobs_early_priorities ON jobs (handler, priority, apart, id)
WHERE early AND priority <> 0 AND state = 0 AND affinity_id IS NULL AND apart IS NOT NULL;

-- Asked for without the state (those with `apart` wait), since the index of all jobs of groups would have the order as well.
CREATE INDEX IF NOT EXISTS jobs_early_groups ON jobs (affinity_id, apart, id) WHERE early AND affinity_id IS NOT NULL AND apart IS NOT NULL;

-- An instant at which the transaction had its number, less the quarter: what a node has written down, or the clock.
CREATE OR REPLACE FUNCTION numbered() RETURNS bigint LANGUAGE sql VOLATILE AS
$$ SELECT coalesce(nullif(current_setting('timerqueue.numbered', true), '')::bigint, $SCHEMA$.clock()) - 250000 $$;

CREATE OR REPLACE FUNCTION set_early() RETURNS trigger LANGUAGE plpgsql SET search_path = $SCHEMA$, pg_temp AS $$
BEGIN
    NEW.early := coalesce(coalesce(NEW.wake, NEW.apart) < numbered(), false);
    RETURN NEW;
END $$;

-- After `jobs_apart`, by its name. The condition of a trigger is read and planned again by each statement, which takes long for functions in SQL. So where
-- the number is not known the function decides.
DROP TRIGGER IF EXISTS jobs_early ON jobs;
CREATE TRIGGER jobs_early BEFORE INSERT OR UPDATE ON jobs FOR EACH ROW
WHEN (NEW.early OR coalesce(NEW.wake, NEW.apart)
    < coalesce(nullif(current_setting('timerqueue.numbered', true), '')::bigint, 9223372036854775807) - 250000)
EXECUTE FUNCTION set_early();

DROP TRIGGER IF EXISTS jobs_begun ON jobs;
CREATE TRIGGER jobs_begun BEFORE UPDATE OF state ON jobs FOR EACH ROW
WHEN (NEW.state = 2 AND OLD.state <> 2
    AND (NEW.begun IS NOT DISTINCT FROM OLD.begun OR NEW.begun < extract(epoch FROM clock_timestamp()) * 1000000 - 250000))
EXECUTE FUNCTION set_begun();
UPDATE jobs SET begun = clock() WHERE state = 2 AND begun IS NULL;

-- The priorities other than zero that the jobs of a handler have had, as bits: the least one is -9. Walks for jobs with priorities begin behind the rows
-- that have left, so a claim must know them beforehand.
ALTER TABLE handlers ADD COLUMN IF NOT EXISTS priorities bigint NOT NULL DEFAULT 0;

-- At the commit: until then a transaction of the user's holds no lock on the handler.
CREATE OR REPLACE FUNCTION note_priority() RETURNS trigger LANGUAGE plpgsql SET search_path = $SCHEMA$, pg_temp AS $$
BEGIN
    IF NEW.priority BETWEEN -9 AND 9 THEN
        UPDATE handlers h SET priorities = h.priorities | (1::bigint << (NEW.priority + 9)::int)
        WHERE h.id = NEW.handler AND h.priorities & (1::bigint << (NEW.priority + 9)::int) = 0;
    END IF;
    RETURN NULL;
END $$;

DROP TRIGGER IF EXISTS jobs_put_priority ON jobs;
CREATE CONSTRAINT TRIGGER jobs_put_priority AFTER INSERT ON jobs DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
WHEN (NEW.priority <> 0) EXECUTE FUNCTION note_priority();
DROP TRIGGER IF EXISTS jobs_set_priority ON jobs;
CREATE CONSTRAINT TRIGGER jobs_set_priority AFTER UPDATE ON jobs DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
WHEN (NEW.priority <> OLD.priority OR NEW.handler <> OLD.handler)
EXECUTE FUNCTION note_priority();
UPDATE handlers h SET priorities = p.bits FROM (SELECT j.handler, bit_or(1::bigint << (j.priority + 9)::int) AS bits FROM jobs j
    WHERE j.priority <> 0 AND j.priority BETWEEN -9 AND 9 GROUP BY j.handler) AS p WHERE p.handler = h.id;

CREATE OR REPLACE FUNCTION priorities_of(kind bigint) RETURNS SETOF bigint LANGUAGE sql STABLE AS $$
    SELECT p.priority FROM $SCHEMA$.handlers h CROSS JOIN generate_series(-9, 9::bigint) AS p (priority)
    WHERE h.id = kind AND p.priority <> 0 AND h.priorities & (1::bigint << (p.priority + 9)::int) <> 0
$$;

-- How many jobs of a handler wait, by the statistics of the server.
CREATE OR REPLACE FUNCTION about(kind bigint) RETURNS bigint LANGUAGE plpgsql SET search_path = $SCHEMA$, pg_temp AS $$
DECLARE
    plan json;
BEGIN
    EXECUTE format('EXPLAIN (FORMAT JSON) SELECT FROM jobs WHERE handler = %s AND NOT recurs AND wake IS NOT NULL', kind) INTO plan;
    RETURN (plan -> 0 -> 'Plan' ->> 'Plan Rows')::numeric::bigint;
END $$;

-- Jobs that wait for the ends of others.
ALTER TABLE jobs
    ADD COLUMN IF NOT EXISTS until bigint, -- of a job that was put after others: 1 all are done, 2 the same or it is dead, 3 all have ended, 4 one is dead
    ADD COLUMN IF NOT EXISTS followed bigint, -- 1: jobs were put after it
    ADD COLUMN IF NOT EXISTS blocked bigint; -- 1: what it waited for cannot come

CREATE TABLE IF NOT EXISTS links (
    follower bigint NOT NULL,
    predecessor bigint NOT NULL,
    key text COLLATE "C" NOT NULL,     -- of the predecessor
    ended bigint,                      -- 1 done, 2 dead, 3 it has left undone
    PRIMARY KEY (predecessor, follower)
);

CREATE INDEX IF NOT EXISTS links_ends ON links (follower, ended);

-- The ends of jobs that others follow, in open transactions. No row outlives its transaction.
CREATE UNLOGGED TABLE IF NOT EXISTS new_ends (
    tx bigint NOT NULL,
    job bigint NOT NULL,
    ended bigint,                      -- as in `links`; none: it is dead no more
    PRIMARY KEY (tx, job)
);

-- What becomes of a follower: it waits, begins, dies or leaves. `Until::fate` says the same.
CREATE OR REPLACE FUNCTION fate(job bigint, until bigint) RETURNS text LANGUAGE plpgsql SET search_path = $SCHEMA$, pg_temp AS $$
DECLARE
    open boolean := EXISTS (SELECT FROM links l WHERE l.follower = job AND l.ended IS NULL);
    dead boolean := EXISTS (SELECT FROM links l WHERE l.follower = job AND l.ended = 2);
    gone boolean := EXISTS (SELECT FROM links l WHERE l.follower = job AND l.ended = 3);
BEGIN
    RETURN CASE
        WHEN until = 1 AND gone THEN 'dies'
        WHEN until = 1 AND (open OR dead) THEN 'waits'
        WHEN until = 2 AND (dead OR gone) THEN 'dies'
        WHEN until = 4 AND (dead OR gone) THEN 'begins'
        WHEN until <> 1 AND open THEN 'waits'
        WHEN until = 4 THEN 'leaves'
        ELSE 'begins' END;
END $$;

-- A job that others follow has ended, or is dead no more.
CREATE OR REPLACE FUNCTION note_end() RETURNS trigger LANGUAGE plpgsql SET search_path = $SCHEMA$, pg_temp AS $$
BEGIN
    INSERT INTO new_ends (tx, job, ended) VALUES (txid_current(), OLD.id, CASE
        WHEN TG_OP = 'UPDATE' THEN CASE WHEN OLD.state <> 3 THEN 2 END
        WHEN OLD.state = 2 AND NOT OLD.cancelled THEN 1
        ELSE 3 END)
    ON CONFLICT (tx, job) DO UPDATE SET ended = excluded.ended;
    RETURN NULL;
END $$;

DROP TRIGGER IF EXISTS jobs_leave ON jobs;
CREATE TRIGGER jobs_leave AFTER DELETE ON jobs FOR EACH ROW WHEN (OLD.followed IS NOT NULL) EXECUTE FUNCTION note_end();
DROP TRIGGER IF EXISTS jobs_die ON jobs;
CREATE TRIGGER jobs_die AFTER UPDATE OF state ON jobs FOR EACH ROW WHEN (NEW.followed IS NOT NULL AND (NEW.state = 3) <> (OLD.state = 3))
EXECUTE FUNCTION note_end();

-- A follower has left.
CREATE OR REPLACE FUNCTION unlink() RETURNS trigger LANGUAGE plpgsql
SET search_path = $SCHEMA$, pg_temp SET enable_seqscan = off AS $$
BEGIN
    DELETE FROM links WHERE follower = OLD.id;
    RETURN NULL;
END $$;

DROP TRIGGER IF EXISTS jobs_unlink ON jobs;
CREATE TRIGGER jobs_unlink AFTER DELETE ON jobs FOR EACH ROW WHEN (OLD.until IS NOT NULL) EXECUTE FUNCTION unlink();

-- Followers are decided on at the commit: each of them once, however many of its predecessors have ended, and with all that the transaction has written.
CREATE OR REPLACE FUNCTION follow_up() RETURNS trigger LANGUAGE plpgsql
SET search_path = $SCHEMA$, pg_temp SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    now bigint := clock();
    followers bigint[];
    waiting bigint[];
    free bigint[];
    dying bigint[];
    leaving bigint[];
BEGIN
    IF NOT EXISTS (SELECT FROM new_ends e WHERE e.tx = NEW.tx AND e.job = NEW.job) THEN
        RETURN NULL; -- the first end has stood for all
    END IF;
    followers := ARRAY(SELECT DISTINCT l.follower FROM new_ends e JOIN links l ON l.predecessor = e.job WHERE e.tx = NEW.tx);
    -- Before their links, as where a follower leaves. The last one of several transactions to get the lock sees the ends of all.
    PERFORM FROM jobs j WHERE j.id = ANY(followers) ORDER BY j.id FOR UPDATE;
    UPDATE links l SET ended = e.ended FROM new_ends e WHERE e.tx = NEW.tx AND l.predecessor = e.job;
    DELETE FROM new_ends e WHERE e.tx = NEW.tx;
    SELECT array_agg(f.id) FILTER (WHERE f.fate = 'waits'), array_agg(f.id) FILTER (WHERE f.fate IN ('begins', 'dies')),
        array_agg(f.id) FILTER (WHERE f.fate = 'dies'), array_agg(f.id) FILTER (WHERE f.fate = 'leaves')
    INTO waiting, free, dying, leaving
    FROM (SELECT j.id, fate(j.id, j.until) FROM jobs j WHERE j.id = ANY(followers) AND j.state + 0 = 1) AS f;
    -- Written, not only locked: a transaction with a snapshot from before this end must not decide by it.
    UPDATE jobs SET until = until WHERE id = ANY(waiting);
    -- With its claim; for nodes of older versions its last instant has passed.
    UPDATE jobs SET blocked = 1, expires = 0 WHERE id = ANY(dying);
    -- One that is due stays so if the clock is set back.
    UPDATE jobs SET state = 0, due = greatest(due, now), span = CASE WHEN due <= now THEN 0 ELSE span END,
        wake = CASE WHEN NOT paused THEN greatest(due, now) END,
        earliest = CASE WHEN paused THEN NULL WHEN due <= now THEN now ELSE due - span END
    WHERE id = ANY(free);
    DELETE FROM jobs WHERE id = ANY(leaving);
    -- Groups in the order of their numbers, as elsewhere.
    PERFORM wakes(n.handler, n.affinity_id, n.first)
    FROM (SELECT j.handler, j.affinity_id, min(j.due) AS first FROM jobs j WHERE j.id = ANY(free) AND NOT j.paused
        GROUP BY j.handler, j.affinity_id ORDER BY j.affinity_id) AS n;
    RETURN NULL;
END $$;

DROP TRIGGER IF EXISTS new_ends_at_commit ON new_ends;
CREATE CONSTRAINT TRIGGER new_ends_at_commit AFTER INSERT ON new_ends DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION follow_up();

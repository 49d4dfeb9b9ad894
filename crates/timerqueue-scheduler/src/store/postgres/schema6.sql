-- A run is its member's: its row has no instant at which to look at it. It waits again in the commit that ends the member.
ALTER TABLE members ADD COLUMN IF NOT EXISTS leaving boolean NOT NULL DEFAULT false; -- it closes, and lives until its runs have ended

-- The cancelled runs, of which a member that has missed the notice learns with its renewals.
CREATE INDEX IF NOT EXISTS jobs_cancelled ON jobs (owner) WHERE state = 2 AND cancelled;
-- The runs of nodes of version 5 and before, each with a lease of its own.
CREATE INDEX IF NOT EXISTS jobs_held ON jobs (lease) WHERE state = 2 AND lease IS NOT NULL;

-- Of a job that waits and has an affinity, `wake` moves to `apart`. Of a run, nodes of version 5 and before write the end of its lease.
CREATE OR REPLACE FUNCTION set_apart() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.state = 2 THEN
        NEW.apart := NULL;
        NEW.wake := NULL;
    ELSIF NEW.affinity_id IS NOT NULL AND NEW.state = 0 THEN
        NEW.apart := NEW.wake;
        NEW.wake := NULL;
    ELSE
        NEW.apart := NULL;
    END IF;
    RETURN NEW;
END $$;

DROP TRIGGER IF EXISTS jobs_apart ON jobs;
CREATE TRIGGER jobs_apart BEFORE INSERT OR UPDATE OF wake ON jobs FOR EACH ROW
WHEN (NEW.affinity_id IS NOT NULL OR NEW.counted OR (NEW.state = 2 AND NEW.wake IS NOT NULL)) EXECUTE FUNCTION set_apart();

UPDATE jobs SET wake = NULL, apart = NULL WHERE state = 2;

-- These runs, which are locked, wait again. The attempts count. A claim takes those out that were cancelled.
CREATE OR REPLACE FUNCTION take_back(runs bigint[]) RETURNS bigint LANGUAGE plpgsql SET search_path = $SCHEMA$ AS $$
DECLARE
    taken bigint;
BEGIN
    UPDATE jobs SET state = 0, lease = NULL, paused = paused AND NOT cancelled,
        wake = CASE WHEN cancelled OR NOT paused THEN due END
    WHERE id = ANY(runs) AND state = 2;
    GET DIAGNOSTICS taken = ROW_COUNT;
    PERFORM FROM affinities WHERE id IN (SELECT affinity_id FROM jobs WHERE id = ANY(runs)) ORDER BY id FOR UPDATE;
    UPDATE affinities a SET head = CASE WHEN a.next = 0 AND (a.most = 0 OR a.most >
        (SELECT count(*) FROM jobs j WHERE j.affinity_id = a.id AND j.state = 2))
        THEN (SELECT min(j.apart) FROM jobs j WHERE j.affinity_id = a.id AND j.state = 0) END
    WHERE id IN (SELECT affinity_id FROM jobs WHERE id = ANY(runs));
    RETURN taken;
END $$;

-- The end of a member, whichever version the node has that finds its lease over. A member of version 5 and before may end by a close, while its runs go
-- on: each of these has a lease.
CREATE OR REPLACE FUNCTION member_ends() RETURNS trigger LANGUAGE plpgsql
SET search_path = $SCHEMA$ SET lock_timeout = '200ms' SET enable_seqscan = off AS $$
BEGIN
    PERFORM take_back(ARRAY(SELECT id FROM jobs WHERE state = 2 AND owner = NEW.owner
        AND (lease IS NULL OR least(lease, NEW.until) <= clock()) ORDER BY id FOR UPDATE));
    RETURN NULL;
END $$;

DROP TRIGGER IF EXISTS members_end ON members;
CREATE TRIGGER members_end AFTER UPDATE OF dead ON members FOR EACH ROW WHEN (NEW.dead AND NOT OLD.dead) EXECUTE FUNCTION member_ends();

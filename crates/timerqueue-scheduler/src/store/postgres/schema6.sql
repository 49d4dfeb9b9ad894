-- A run is its member's: its row has no instant at which to look at it. It waits again in the commit that ends the member.
ALTER TABLE members ADD COLUMN IF NOT EXISTS leaving boolean NOT NULL DEFAULT false; -- it closes, and lives until its runs have ended

-- The cancelled runs, of which a member that has missed the notice learns with its renewals.
CREATE INDEX IF NOT EXISTS jobs_cancelled ON jobs (owner) WHERE state = 2 AND cancelled;
-- The runs of nodes of version 5 and before, each with a lease of its own.
CREATE INDEX IF NOT EXISTS jobs_held ON jobs (lease) WHERE state = 2 AND lease IS NOT NULL;

UPDATE jobs SET wake = NULL, apart = NULL WHERE state = 2;

-- The end of a member, whichever version the node has that finds its lease over. A member of version 5 and before may end by a close, while its runs go
-- on: each of these has a lease.
CREATE OR REPLACE FUNCTION member_ends() RETURNS trigger LANGUAGE plpgsql
SET search_path = $SCHEMA$, pg_temp SET lock_timeout = '200ms' SET enable_seqscan = off AS $$
BEGIN
    PERFORM take_back(ARRAY(SELECT id FROM jobs WHERE state = 2 AND owner = NEW.owner
        AND (lease IS NULL OR least(lease, NEW.until) <= clock()) ORDER BY id FOR UPDATE));
    RETURN NULL;
END $$;

DROP TRIGGER IF EXISTS members_end ON members;
CREATE TRIGGER members_end AFTER UPDATE OF dead ON members FOR EACH ROW WHEN (NEW.dead AND NOT OLD.dead) EXECUTE FUNCTION member_ends();

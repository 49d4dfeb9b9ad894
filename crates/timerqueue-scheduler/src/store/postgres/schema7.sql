-- Of a recurring job, both are those of its runs.
ALTER TABLE jobs
    ADD COLUMN IF NOT EXISTS priority bigint NOT NULL DEFAULT 0, -- above zero: before others
    ADD COLUMN IF NOT EXISTS expires bigint; -- the last instant at which a run begins; of a recurring job, the time after a due time

-- A job with a priority that waits has its instant in `apart`, and is in this index, in none of those that know no priorities. Nodes of version 6 and
-- before do not find it.
CREATE INDEX IF NOT EXISTS jobs_priorities ON jobs (handler, priority, apart, id)
WHERE priority <> 0 AND state = 0 AND affinity_id IS NULL AND apart IS NOT NULL;

DROP FUNCTION IF EXISTS put(text, text, text, timestamptz, text, text);

-- How many attempts the end of their process has cut off, and the last ones of these in a row, as far as they speak against the job.
ALTER TABLE jobs
    ADD COLUMN IF NOT EXISTS crashes bigint NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS suspicion bigint NOT NULL DEFAULT 0;

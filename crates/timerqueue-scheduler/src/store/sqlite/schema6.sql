-- Of a recurring job, both are those of its runs.
ALTER TABLE timerqueue_jobs ADD COLUMN priority INTEGER NOT NULL DEFAULT 0; -- above zero: before others
ALTER TABLE timerqueue_jobs ADD COLUMN expires INTEGER; -- the last instant at which a run begins; of a recurring job, the time after a due time

-- The priorities other than zero that its jobs have had, as bits: the least one is -9.
ALTER TABLE timerqueue_handlers ADD COLUMN priorities INTEGER NOT NULL DEFAULT 0;

-- A job with a priority that waits has its instant in `apart`, and is in this index, in none of those that know no priorities.
CREATE INDEX timerqueue_priorities ON timerqueue_jobs (handler, priority, apart)
WHERE priority <> 0 AND state = 0 AND affinity_id IS NULL AND apart IS NOT NULL;

-- A process with an older version of this library knows no other column than `wake`.
DROP TRIGGER timerqueue_apart;
CREATE TRIGGER timerqueue_apart AFTER UPDATE OF wake ON timerqueue_jobs
WHEN NEW.wake IS NOT NULL AND ((NEW.affinity_id IS NOT NULL AND NEW.state IN (0, 2)) OR (NEW.priority <> 0 AND NEW.state = 0))
BEGIN
    UPDATE timerqueue_jobs SET apart = NEW.wake, wake = NULL WHERE id = NEW.id;
END;

-- How many attempts the end of their process has cut off, and the last ones of these in a row, as far as they speak against the job.
ALTER TABLE timerqueue_jobs ADD COLUMN crashes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE timerqueue_jobs ADD COLUMN suspicion INTEGER NOT NULL DEFAULT 0;

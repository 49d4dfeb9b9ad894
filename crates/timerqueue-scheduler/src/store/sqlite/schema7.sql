-- The end of the job is kept this long, in microseconds, and can be awaited.
ALTER TABLE timerqueue_jobs ADD COLUMN keep INTEGER;
ALTER TABLE timerqueue_jobs ADD COLUMN progress TEXT; -- what an attempt has written down for the next one, as JSON

ALTER TABLE timerqueue_finished ADD COLUMN node TEXT;   -- the scheduler that has run the job
ALTER TABLE timerqueue_finished ADD COLUMN result TEXT; -- the value of the handler, as JSON
ALTER TABLE timerqueue_finished ADD COLUMN seq INTEGER; -- counts the done jobs that were kept
ALTER TABLE timerqueue_store ADD COLUMN ends INTEGER NOT NULL DEFAULT 0; -- the last of these

UPDATE timerqueue_finished SET seq = one.seq
FROM (SELECT id, row_number() OVER (ORDER BY ended, id) AS seq FROM timerqueue_finished) AS one WHERE one.id = timerqueue_finished.id;
UPDATE timerqueue_store SET ends = (SELECT count(*) FROM timerqueue_finished);

CREATE INDEX timerqueue_finished_seq ON timerqueue_finished (seq);
CREATE INDEX timerqueue_finished_handlers ON timerqueue_finished (handler, seq);
-- In place of one that had each done job.
DROP INDEX timerqueue_finished_keys;
CREATE INDEX timerqueue_finished_keys ON timerqueue_finished (key, seq);
CREATE INDEX timerqueue_finished_taken ON timerqueue_finished (key, key_until) WHERE key_until > ended;

-- Also for a process with an older version of this library.
CREATE TRIGGER timerqueue_ends AFTER INSERT ON timerqueue_finished
BEGIN
    UPDATE timerqueue_store SET ends = ends + 1;
    UPDATE timerqueue_finished SET seq = (SELECT ends FROM timerqueue_store) WHERE id = NEW.id;
END;
-- When the job was put, and when its last run began. Older versions write neither.
ALTER TABLE timerqueue_jobs ADD COLUMN added INTEGER;
ALTER TABLE timerqueue_jobs ADD COLUMN begun INTEGER;

-- What a job asks for its runs; of a recurring job, for each of them.
ALTER TABLE timerqueue_jobs ADD COLUMN at_most_once INTEGER NOT NULL DEFAULT 0; -- a run is not begun again, also after the end of its process
ALTER TABLE timerqueue_jobs ADD COLUMN most_attempts INTEGER; -- instead of those of the handler
ALTER TABLE timerqueue_jobs ADD COLUMN time_limit INTEGER; -- microseconds, instead of the limit of the handler
ALTER TABLE timerqueue_jobs ADD COLUMN unique_for INTEGER; -- microseconds for which the key stays taken once the job is done, instead of what the handler says
-- The context of the trace in which the job was put. Jobs whose last instant had passed; older versions count them as dead.
ALTER TABLE timerqueue_jobs ADD COLUMN trace TEXT;
ALTER TABLE timerqueue_minutes ADD COLUMN expired INTEGER NOT NULL DEFAULT 0;

-- Jobs that wait for the ends of others.
-- Of a job that was put after others: 1 all are done, 2 the same or it is dead, 3 all have ended, 4 one is dead. And 8: jobs were put after it. And 16: what
-- it waited for cannot come.
ALTER TABLE timerqueue_jobs ADD COLUMN links INTEGER;

CREATE TABLE timerqueue_links (
    follower INTEGER NOT NULL,
    predecessor INTEGER NOT NULL,
    key TEXT NOT NULL,                 -- of the predecessor
    ended INTEGER,                     -- 1 done, 2 dead, 3 it has left undone
    seen INTEGER NOT NULL DEFAULT 0,   -- the end was looked at
    PRIMARY KEY (follower, predecessor)
) STRICT, WITHOUT ROWID;

CREATE INDEX timerqueue_links_predecessors ON timerqueue_links (predecessor);
CREATE INDEX timerqueue_links_ends ON timerqueue_links (follower, ended);
CREATE INDEX timerqueue_links_new ON timerqueue_links (follower) WHERE ended IS NOT NULL AND seen = 0;

-- Which file the tables stand in. In another one they are a copy, whose numbers the first one may have given since.
ALTER TABLE timerqueue_store ADD COLUMN place INTEGER;
-- Commits that flush those before them, and have nothing else to write.
ALTER TABLE timerqueue_store ADD COLUMN flushes INTEGER NOT NULL DEFAULT 0;

-- Lists in the order of numbers, which need no sorting: an index of a constant has its rows in that order.
CREATE INDEX timerqueue_dead_list ON timerqueue_jobs (state) WHERE state = 3;
CREATE INDEX timerqueue_queued_list ON timerqueue_jobs (state) WHERE state = 1;
CREATE INDEX timerqueue_failing_list ON timerqueue_jobs (state) WHERE state = 0 AND error IS NOT NULL;
-- The waiting jobs of affinities that are due soon.
CREATE INDEX timerqueue_apart_due ON timerqueue_jobs (apart) WHERE state = 0 AND apart IS NOT NULL;

-- A text that is no JSON is in no other row's way.
DROP VIEW IF EXISTS timerqueue;
CREATE VIEW timerqueue AS
SELECT
    job.id,
    job.key,
    handler.name AS handler,
    CASE job.state WHEN 0 THEN 'waiting' WHEN 1 THEN 'queued' WHEN 2 THEN 'running' WHEN 3 THEN 'dead' ELSE 'recurring' END
        AS state,
    strftime('%Y-%m-%dT%H:%M:%S', job.due / 1000000, 'unixepoch') || printf('.%06dZ', job.due % 1000000) AS due,
    job.attempt,
    job.paused OR handler.paused AS paused,
    job.payload,
    job.error,
    CASE WHEN json_valid(job.recurring) THEN json_extract(job.recurring, '$.schedule') END AS schedule
FROM timerqueue_jobs AS job JOIN timerqueue_handlers AS handler ON handler.id = job.handler
ORDER BY job.id;

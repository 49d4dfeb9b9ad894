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

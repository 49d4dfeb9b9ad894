-- Lists of the jobs that are few beside those that wait; the running ones have an index of their own.
CREATE INDEX IF NOT EXISTS jobs_few ON jobs (state, id) WHERE state IN (1, 3, 4) OR (state = 0 AND error IS NOT NULL);

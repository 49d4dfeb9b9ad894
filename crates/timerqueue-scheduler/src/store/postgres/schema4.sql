-- Lists in the order of due times: the waiting jobs of affinities, and those that are in no other index by their due times, since they were paused by their keys.
CREATE INDEX IF NOT EXISTS jobs_apart_due ON jobs (apart, id) WHERE state = 0 AND apart IS NOT NULL;
CREATE INDEX IF NOT EXISTS jobs_unlooked ON jobs (due, id) WHERE state = 0 AND coalesce(wake, apart) IS DISTINCT FROM due;

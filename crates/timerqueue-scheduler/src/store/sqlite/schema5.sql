-- Waiting jobs that are in no other index by their due times: those that were paused by their keys.
CREATE INDEX IF NOT EXISTS timerqueue_unlooked ON timerqueue_jobs (due) WHERE state = 0 AND coalesce(wake, apart) IS NOT due;

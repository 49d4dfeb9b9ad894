-- Which file the tables stand in. In another one they are a copy, whose numbers the first one may have given since.
ALTER TABLE timerqueue_store ADD COLUMN place INTEGER;
-- Commits that flush those before them, and have nothing else to write.
ALTER TABLE timerqueue_store ADD COLUMN flushes INTEGER NOT NULL DEFAULT 0;

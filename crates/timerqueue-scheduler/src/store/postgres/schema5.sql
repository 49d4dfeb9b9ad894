-- How often a node looks without a notice. It finds by itself what is due later than that.
ALTER TABLE nodes ADD COLUMN IF NOT EXISTS safety bigint;

SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;
CREATE SCHEMA dumped;
CREATE FUNCTION dumped.clock() RETURNS bigint
    LANGUAGE sql
    AS $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;
CREATE FUNCTION dumped.put(handler text, key text, payload text DEFAULT 'null'::text, due timestamp with time zone DEFAULT NULL::timestamp with time zone, clash text DEFAULT 'refuse'::text, affinity text DEFAULT NULL::text) RETURNS bigint
    LANGUAGE plpgsql
    SET search_path TO 'dumped'
    AS $$
#variable_conflict use_column
DECLARE
    kind bigint;
    tie bigint;
    at bigint := coalesce(ceil(extract(epoch FROM put.due) * 1000000)::bigint, clock());
    new_id bigint;
    old jobs%ROWTYPE;
BEGIN
    IF octet_length(put.key) NOT BETWEEN 1 AND 512 OR octet_length(put.handler) NOT BETWEEN 1 AND 512 THEN
        RAISE EXCEPTION 'a key and the name of a handler have 1 to 512 bytes';
    END IF;
    -- The type `jsonb` takes no NUL.
    IF octet_length(put.payload) > 262144 OR put.payload::jsonb IS NULL THEN
        RAISE EXCEPTION 'a payload is JSON text of at most 256 KiB';
    END IF;
    IF at NOT BETWEEN 0 AND 253402300799999999 THEN
        RAISE EXCEPTION 'a due time lies between 1970 and 9999';
    END IF;
    at := greatest(at, clock()); -- an instant that has passed means now
    IF put.clash NOT IN ('refuse', 'keep', 'replace') THEN
        RAISE EXCEPTION 'clash is refuse, keep or replace';
    END IF;
    IF octet_length(put.affinity) NOT BETWEEN 1 AND 512 THEN
        RAISE EXCEPTION 'an affinity has 1 to 512 bytes';
    END IF;
    SELECT h.id INTO kind FROM handlers h WHERE h.name = put.handler;
    IF kind IS NULL THEN
        INSERT INTO handlers (name) VALUES (put.handler) ON CONFLICT (name) DO UPDATE SET name = excluded.name
        RETURNING id INTO kind;
    END IF;
    IF put.affinity IS NOT NULL THEN
        INSERT INTO affinities (handler, affinity, idle) VALUES (kind, put.affinity, clock())
        ON CONFLICT (handler, affinity) DO UPDATE SET affinity = excluded.affinity
        RETURNING id INTO tie;
    END IF;
    LOOP
        INSERT INTO jobs (id, key, handler, payload, due, wake, affinity, affinity_id)
        VALUES (nextval('ids'), put.key, kind, put.payload, at, at, put.affinity, tie)
        ON CONFLICT (key) WHERE holds_key DO NOTHING
        RETURNING id INTO new_id;
        EXIT WHEN new_id IS NOT NULL OR put.clash <> 'replace';
        SELECT * INTO old FROM jobs j WHERE j.key = put.key AND j.holds_key FOR UPDATE;
        CONTINUE WHEN NOT FOUND;
        IF old.state = 4 THEN
            RAISE EXCEPTION 'the key is that of a recurring job';
        ELSIF old.state = 2 THEN
            UPDATE jobs SET cancelled = true, holds_key = false WHERE id = old.id;
            PERFORM pg_notify('timerqueue dumped', 'c' || old.id);
        ELSE
            DELETE FROM jobs WHERE id = old.id;
        END IF;
    END LOOP;
    -- The row of the affinity is locked, so its head is that of all commits.
    IF new_id IS NOT NULL AND tie IS NOT NULL THEN
        UPDATE affinities a SET idle = NULL, head = CASE WHEN a.next = 0 AND (a.most = 0 OR a.most >
            (SELECT count(*) FROM jobs j WHERE j.affinity_id = tie AND j.state = 2))
            THEN (SELECT min(j.apart) FROM jobs j WHERE j.affinity_id = tie AND j.state = 0) END
        WHERE a.id = tie;
    END IF;
    -- A node that sleeps longer is told, however late the job is due: its safety look may come later. A notice takes a lock over the whole server at the
    -- commit. One node that has a place is named, and the others look a little later. A job with an affinity is told to all: one of them alone may run it.
    IF new_id IS NOT NULL AND tie IS NULL THEN
        PERFORM pg_notify('timerqueue dumped', 'w' || at || ' ' || kind || ' ' || n.owner)
        FROM nodes n WHERE n.wakes > at AND n.handlers && ARRAY[kind, 0]
        ORDER BY kind = ANY(n.handlers) DESC, random() LIMIT 1;
    ELSIF new_id IS NOT NULL AND EXISTS (SELECT FROM nodes n WHERE n.wakes > at) THEN
        PERFORM pg_notify('timerqueue dumped', 'w' || at);
    END IF;
    RETURN new_id;
END $$;
CREATE FUNCTION dumped.set_apart() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF (NEW.affinity_id IS NOT NULL AND NEW.state IN (0, 2)) OR (NEW.counted AND NEW.state = 2) THEN
        NEW.apart := NEW.wake;
        NEW.wake := NULL;
    ELSE
        NEW.apart := NULL;
    END IF;
    RETURN NEW;
END $$;
SET default_tablespace = '';
SET default_table_access_method = heap;
CREATE TABLE dumped.affinities (
    id bigint NOT NULL,
    handler bigint NOT NULL,
    affinity text NOT NULL COLLATE pg_catalog."C",
    member bigint DEFAULT 0 NOT NULL,
    next bigint DEFAULT 0 NOT NULL,
    version bigint DEFAULT 0 NOT NULL,
    most bigint DEFAULT 0 NOT NULL,
    head bigint,
    idle bigint
);
ALTER TABLE dumped.affinities ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME dumped.affinities_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE SEQUENCE dumped.deaths
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
CREATE TABLE dumped.handlers (
    id bigint NOT NULL,
    name text NOT NULL COLLATE pg_catalog."C",
    paused boolean DEFAULT false NOT NULL,
    full_at bigint
);
ALTER TABLE dumped.handlers ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME dumped.handlers_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE SEQUENCE dumped.ids
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
CREATE TABLE dumped.jobs (
    id bigint NOT NULL,
    key text NOT NULL COLLATE pg_catalog."C",
    handler bigint NOT NULL,
    payload text NOT NULL,
    state bigint DEFAULT 0 NOT NULL,
    due bigint NOT NULL,
    wake bigint,
    earliest bigint,
    recurs boolean DEFAULT false NOT NULL,
    holds_key boolean DEFAULT true NOT NULL,
    paused boolean DEFAULT false NOT NULL,
    cancelled boolean DEFAULT false NOT NULL,
    span bigint,
    nominal bigint,
    parent bigint,
    attempt bigint DEFAULT 0 NOT NULL,
    claims bigint DEFAULT 0 NOT NULL,
    turn bigint DEFAULT 0 NOT NULL,
    owner bigint DEFAULT 0 NOT NULL,
    lease bigint,
    died bigint DEFAULT 0 NOT NULL,
    error text,
    last text,
    recurring text,
    failures text,
    affinity text,
    affinity_id bigint,
    counted boolean DEFAULT false NOT NULL,
    apart bigint
);
CREATE TABLE dumped.members (
    id bigint NOT NULL,
    owner bigint NOT NULL,
    name text NOT NULL,
    since bigint NOT NULL,
    until bigint NOT NULL,
    handlers text NOT NULL,
    dead boolean DEFAULT false NOT NULL
);
ALTER TABLE dumped.members ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME dumped.members_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE dumped.minutes (
    minute bigint NOT NULL,
    handler bigint NOT NULL,
    connection bigint NOT NULL,
    done bigint NOT NULL,
    again bigint NOT NULL,
    failed bigint NOT NULL,
    died bigint NOT NULL,
    longest bigint NOT NULL,
    late0 bigint NOT NULL,
    late1 bigint NOT NULL,
    late2 bigint NOT NULL,
    late3 bigint NOT NULL,
    late4 bigint NOT NULL,
    late5 bigint NOT NULL,
    late6 bigint NOT NULL,
    late7 bigint NOT NULL,
    late8 bigint NOT NULL,
    late9 bigint NOT NULL,
    late10 bigint NOT NULL,
    late11 bigint NOT NULL
);
CREATE UNLOGGED TABLE dumped.nodes (
    owner bigint NOT NULL,
    wakes bigint NOT NULL,
    seen bigint NOT NULL,
    handlers bigint[] NOT NULL,
    safety bigint
);
CREATE VIEW dumped.overview AS
 SELECT job.id,
    job.key,
    handler.name AS handler,
    (ARRAY['waiting'::text, 'queued'::text, 'running'::text, 'dead'::text, 'recurring'::text])[(job.state + 1)] AS state,
        CASE
            WHEN (job.due < '253402300800000000'::bigint) THEN to_timestamp((((job.due)::numeric / 1000000.0))::double precision)
            ELSE NULL::timestamp with time zone
        END AS due,
    job.attempt,
    (job.paused OR handler.paused) AS paused,
    job.payload,
    job.error
   FROM (dumped.jobs job
     JOIN dumped.handlers handler ON ((handler.id = job.handler)))
  ORDER BY job.id;
CREATE TABLE dumped.store (
    one boolean NOT NULL,
    version bigint NOT NULL,
    "least" bigint NOT NULL,
    seed bigint NOT NULL,
    CONSTRAINT store_one_check CHECK (one)
);
CREATE TABLE dumped.writers (
    writer bigint NOT NULL,
    number bigint NOT NULL,
    at bigint NOT NULL
);
INSERT INTO dumped.affinities OVERRIDING SYSTEM VALUE VALUES (1, 1, 'x', 1, 0, 2, 0, 4102444800000000, NULL);
INSERT INTO dumped.handlers OVERRIDING SYSTEM VALUE VALUES (1, 'log', false, NULL);
INSERT INTO dumped.jobs VALUES (3, 'later', 1, '3', 0, 4102444800000000, 4102444800000000, NULL, false, true, false, false, NULL, NULL, NULL, 0, 0, 0, 0, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, false, NULL);
INSERT INTO dumped.jobs VALUES (4, 'bound later', 1, '4', 0, 4102444800000000, NULL, NULL, false, true, false, false, NULL, NULL, NULL, 0, 0, 0, 0, NULL, 0, NULL, NULL, NULL, NULL, 'x', 1, false, 4102444800000000);
INSERT INTO dumped.jobs VALUES (1, 'a', 1, '1', 2, 1795675750303919, 1795675755384397, NULL, false, true, false, false, NULL, NULL, NULL, 1, 1, 0, 1520247674113392246, 1795675755384405, 0, NULL, NULL, NULL, NULL, NULL, NULL, false, NULL);
INSERT INTO dumped.jobs VALUES (2, 'b', 1, '2', 2, 1795675750310603, NULL, NULL, false, true, false, false, NULL, NULL, NULL, 1, 1, 0, 1520247674113392246, 1795675755384496, 0, NULL, NULL, NULL, NULL, 'x', 1, false, 1795675755384495);
INSERT INTO dumped.members OVERRIDING SYSTEM VALUE VALUES (1, 1520247674113392246, 'vm:7710', 1795675746505342, 1795675755397816, '[{"name":"log","parallel":32}]', false);
INSERT INTO dumped.nodes VALUES (1520247674113392246, 1795675755116293, 1795675754606142, '{1}', 3600000000);
INSERT INTO dumped.store VALUES (true, 5, 1, 2876712619201841695);
INSERT INTO dumped.writers VALUES (-6450010344701533546, 6, 1795675750374603);
SELECT pg_catalog.setval('dumped.affinities_id_seq', 2, true);
SELECT pg_catalog.setval('dumped.deaths', 1, false);
SELECT pg_catalog.setval('dumped.handlers_id_seq', 1, true);
SELECT pg_catalog.setval('dumped.ids', 4, true);
SELECT pg_catalog.setval('dumped.members_id_seq', 1, true);
ALTER TABLE ONLY dumped.affinities
    ADD CONSTRAINT affinities_handler_affinity_key UNIQUE (handler, affinity);
ALTER TABLE ONLY dumped.affinities
    ADD CONSTRAINT affinities_pkey PRIMARY KEY (id);
ALTER TABLE ONLY dumped.handlers
    ADD CONSTRAINT handlers_name_key UNIQUE (name);
ALTER TABLE ONLY dumped.handlers
    ADD CONSTRAINT handlers_pkey PRIMARY KEY (id);
ALTER TABLE ONLY dumped.jobs
    ADD CONSTRAINT jobs_pkey PRIMARY KEY (id);
ALTER TABLE ONLY dumped.members
    ADD CONSTRAINT members_pkey PRIMARY KEY (id);
ALTER TABLE ONLY dumped.minutes
    ADD CONSTRAINT minutes_pkey PRIMARY KEY (minute, handler, connection);
ALTER TABLE ONLY dumped.nodes
    ADD CONSTRAINT nodes_pkey PRIMARY KEY (owner);
ALTER TABLE ONLY dumped.store
    ADD CONSTRAINT store_pkey PRIMARY KEY (one);
ALTER TABLE ONLY dumped.writers
    ADD CONSTRAINT writers_pkey PRIMARY KEY (writer);
CREATE INDEX affinities_heads ON dumped.affinities USING btree (handler, member, head) WHERE (head IS NOT NULL);
CREATE INDEX affinities_idle ON dumped.affinities USING btree (idle) WHERE (idle IS NOT NULL);
CREATE INDEX affinities_members ON dumped.affinities USING btree (member);
CREATE INDEX jobs_affinities ON dumped.jobs USING btree (affinity_id, state, apart, id) WHERE (affinity_id IS NOT NULL);
CREATE INDEX jobs_apart_due ON dumped.jobs USING btree (apart, id) WHERE ((state = 0) AND (apart IS NOT NULL));
CREATE INDEX jobs_counted ON dumped.jobs USING btree (handler) WHERE ((state = 2) AND counted);
CREATE INDEX jobs_dead ON dumped.jobs USING btree (died) WHERE (state = 3);
CREATE INDEX jobs_dead_keys ON dumped.jobs USING btree (key, died) WHERE (state = 3);
CREATE INDEX jobs_due ON dumped.jobs USING btree (handler, recurs, wake, id) WHERE (wake IS NOT NULL);
CREATE INDEX jobs_few ON dumped.jobs USING btree (state, id) WHERE ((state = ANY (ARRAY[(1)::bigint, (3)::bigint, (4)::bigint])) OR ((state = 0) AND (error IS NOT NULL)));
CREATE UNIQUE INDEX jobs_keys ON dumped.jobs USING btree (key) WHERE holds_key;
CREATE INDEX jobs_leased ON dumped.jobs USING btree (apart, id) WHERE ((state = 2) AND (apart IS NOT NULL));
CREATE INDEX jobs_parents ON dumped.jobs USING btree (parent) WHERE (parent IS NOT NULL);
CREATE INDEX jobs_running ON dumped.jobs USING btree (owner, handler) WHERE (state = 2);
CREATE INDEX jobs_spans ON dumped.jobs USING btree (earliest) WHERE (earliest IS NOT NULL);
CREATE INDEX jobs_unlooked ON dumped.jobs USING btree (due, id) WHERE ((state = 0) AND (COALESCE(wake, apart) IS DISTINCT FROM due));
CREATE UNIQUE INDEX members_live ON dumped.members USING btree (owner) WHERE (NOT dead);
CREATE TRIGGER jobs_apart BEFORE INSERT OR UPDATE OF wake ON dumped.jobs FOR EACH ROW WHEN (((new.affinity_id IS NOT NULL) OR new.counted)) EXECUTE FUNCTION dumped.set_apart();

-- Runs that several machines work on: where the controller is (`controller_url`), the SHA-256 of the key that opens it to
-- nodes, and whether everybody who works on the run is asked to stop.
ALTER TABLE osmosis.runs
    ADD COLUMN controller_url   text,
    ADD COLUMN node_key_sha256  text,
    ADD COLUMN stop_asked       text CHECK (stop_asked IN ('drain', 'now'));

ALTER TABLE osmosis.members
    -- It begins nothing new.
    ADD COLUMN draining  boolean NOT NULL DEFAULT false,
    -- Rollouts that it has finished.
    ADD COLUMN done      bigint NOT NULL DEFAULT 0;

ALTER TABLE osmosis.rollouts
    -- The member whose result it has.
    ADD COLUMN done_by   bigint,
    -- The transaction that brought it. What a reader has not seen yet is not older than the oldest transaction that went on
    -- when it last looked.
    ADD COLUMN done_xid  bigint;
CREATE INDEX rollouts_done ON osmosis.rollouts (run_id, done_xid) WHERE state = 'done';

-- What a node needs of a run: a manifest (a JSON object), and files by SHA-256.
CREATE TABLE osmosis.packages (
    run_id    integer PRIMARY KEY,
    manifest  text NOT NULL
);
CREATE TABLE osmosis.package_files (
    run_id   integer NOT NULL,
    sha256   text NOT NULL,
    content  bytea NOT NULL,
    PRIMARY KEY (run_id, sha256)
);

DO $$
DECLARE
    one text;
    role_of_run name;
BEGIN
    FOREACH one IN ARRAY ARRAY['packages', 'package_files']
    LOOP
        EXECUTE format('ALTER TABLE osmosis.%I ENABLE ROW LEVEL SECURITY', one);
        EXECUTE format('CREATE POLICY own_run ON osmosis.%I USING (run_id IN (SELECT roles.run_id FROM '
            'osmosis.run_roles AS roles WHERE roles.role_name = current_user))', one);
        FOR role_of_run IN SELECT role_name FROM osmosis.run_roles WHERE to_regrole(role_name::text) IS NOT NULL
        LOOP
            EXECUTE format('GRANT SELECT ON osmosis.%I TO %I', one, role_of_run);
        END LOOP;
    END LOOP;
END $$;

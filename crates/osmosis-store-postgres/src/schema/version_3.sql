-- The controller's session: the run is its as long as the session lives. Nodes can't write here, nor lock these rows.
ALTER TABLE osmosis.runs
    ADD COLUMN controller_pid    integer,
    ADD COLUMN controller_began  text;

ALTER TABLE osmosis.run_roles
    -- From then on the role sees nothing, whatever its password and its sessions. The controller moves it on.
    ADD COLUMN valid_until  timestamptz NOT NULL DEFAULT clock_timestamp() + interval '1 day',
    -- The run is over, or was given up.
    ADD COLUMN ended        boolean NOT NULL DEFAULT false;

-- A right to delete is a right to lock the table against everybody, so a node has none.
CREATE FUNCTION osmosis.leave_run(of_run integer, of_member bigint) RETURNS void
    LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog
    AS $$
        DELETE FROM osmosis.members WHERE run_id = of_run AND member_id = of_member AND kind = 'node'
            AND of_run IN (SELECT roles.run_id FROM osmosis.run_roles AS roles WHERE roles.role_name = session_user)
    $$;

DO $$
DECLARE
    one text;
    role_of_run name;
BEGIN
    FOREACH one IN ARRAY ARRAY['runs', 'members', 'call_ids', 'run_records', 'rows', 'rollouts', 'samples', 'calls',
        'steps', 'batches', 'requests', 'packages', 'package_files']
    LOOP
        EXECUTE format('DROP POLICY own_run ON osmosis.%I', one);
        EXECUTE format('CREATE POLICY own_run ON osmosis.%I USING (run_id IN (SELECT roles.run_id FROM '
            'osmosis.run_roles AS roles WHERE roles.role_name = current_user AND roles.valid_until > clock_timestamp()))',
            one);
    END LOOP;
    FOR role_of_run IN SELECT role_name FROM osmosis.run_roles WHERE to_regrole(role_name::text) IS NOT NULL
    LOOP
        EXECUTE format('REVOKE INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA osmosis FROM %I', role_of_run);
    END LOOP;
END $$;

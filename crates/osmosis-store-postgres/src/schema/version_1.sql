-- The runs of this database. A run that is archived has `archived_as`, its name in the archive.
CREATE TABLE osmosis.runs (
    run_id          integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind            text NOT NULL CHECK (kind IN ('evaluation', 'training', 'serving')),
    name            text NOT NULL,
    archived_as     text UNIQUE,
    archived_at     timestamptz,
    made_at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    tags            text[] NOT NULL DEFAULT '{}',
    former_names    text[] NOT NULL DEFAULT '{}',
    -- Goes up with every opening for writing; a controller that finds another one stops.
    epoch           bigint NOT NULL DEFAULT 0,
    holder          text,
    holder_seen_at  timestamptz
);
CREATE UNIQUE INDEX runs_by_name ON osmosis.runs (kind, name) WHERE archived_as IS NULL;

-- Database roles that may see one run each.
CREATE TABLE osmosis.run_roles (
    role_name  name PRIMARY KEY,
    run_id     integer NOT NULL REFERENCES osmosis.runs ON DELETE CASCADE
);
CREATE INDEX run_roles_by_run ON osmosis.run_roles (run_id);

-- Processes that write to a run: its controller, and nodes that claim from it.
CREATE TABLE osmosis.members (
    run_id       integer NOT NULL,
    member_id    bigint GENERATED ALWAYS AS IDENTITY,
    kind         text NOT NULL CHECK (kind IN ('controller', 'node')),
    holder       text NOT NULL,
    joined_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- So many commits changed something; who listens and heard nothing looks at this now and then.
    commits      bigint NOT NULL DEFAULT 0,
    -- The number of the last commit that changed something: asked for when the answer to a commit was lost.
    last_commit  bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (run_id, member_id)
);

-- The next call id of a run that no writer has reserved.
CREATE TABLE osmosis.call_ids (
    run_id   integer PRIMARY KEY,
    next_id  bigint NOT NULL
);

-- The run's own record.
CREATE TABLE osmosis.run_records (
    run_id          integer PRIMARY KEY,
    name            text NOT NULL,
    kind            text NOT NULL,
    status          text NOT NULL,
    created_at_ms   bigint NOT NULL,
    finished_at_ms  bigint,
    config_toml     text NOT NULL,
    pinned          text NOT NULL
);

CREATE TABLE osmosis.rows (
    run_id     integer NOT NULL,
    row_index  bigint NOT NULL,
    line       bigint NOT NULL,
    body       text NOT NULL,
    PRIMARY KEY (run_id, row_index)
);

CREATE TABLE osmosis.rollouts (
    run_id                   integer NOT NULL,
    rollout_id               text NOT NULL,
    row_index                bigint NOT NULL,
    run_index                bigint NOT NULL,
    state                    text NOT NULL DEFAULT 'queued' CHECK (state IN ('queued', 'leased', 'done')),
    attempt                  bigint NOT NULL DEFAULT 0,
    failures                 bigint NOT NULL DEFAULT 0,
    losses                   bigint NOT NULL DEFAULT 0,
    owner                    text,
    -- Whose lease it is; null for one that is held back.
    member_id                bigint,
    lease_until_ms           bigint,
    outcome                  text,
    reward                   double precision,
    passed                   boolean,
    error                    text,
    sample_rewards           text,
    model_calls              bigint NOT NULL DEFAULT 0,
    prompt_tokens            bigint NOT NULL DEFAULT 0,
    completion_tokens        bigint NOT NULL DEFAULT 0,
    cached_tokens            bigint,
    reasoning_tokens         bigint,
    judge_calls              bigint NOT NULL DEFAULT 0,
    judge_prompt_tokens      bigint NOT NULL DEFAULT 0,
    judge_completion_tokens  bigint NOT NULL DEFAULT 0,
    queue_ms                 double precision NOT NULL DEFAULT 0,
    agent_ms                 double precision NOT NULL DEFAULT 0,
    model_ms                 double precision NOT NULL DEFAULT 0,
    grade_ms                 double precision NOT NULL DEFAULT 0,
    started_at_ms            bigint,
    finished_at_ms           bigint,
    metrics                  text,
    outcome_detail           text,
    PRIMARY KEY (run_id, rollout_id),
    UNIQUE (run_id, row_index, run_index),
    FOREIGN KEY (run_id, row_index) REFERENCES osmosis.rows
);
-- Claims take the first of these.
CREATE INDEX rollouts_queued ON osmosis.rollouts (run_id, row_index, run_index) WHERE state = 'queued';
-- Leases that have run out.
CREATE INDEX rollouts_leased ON osmosis.rollouts (run_id, lease_until_ms) WHERE state = 'leased';

CREATE TABLE osmosis.samples (
    run_id        integer NOT NULL,
    rollout_id    text NOT NULL,
    sample_id     text NOT NULL,
    position      bigint NOT NULL,
    reward        double precision,
    removed       boolean NOT NULL,
    metrics       text,
    extra_fields  text,
    messages      text NOT NULL,
    PRIMARY KEY (run_id, rollout_id, sample_id)
);

-- Bodies are compressed by the writer where that pays (bits of `compressed`: 1 request, 2 response, 4 tokens).
-- The request is whole when `base_call_id` is null; otherwise it is the first `shared_prefix_bytes` of the request of
-- that call, then `request`, then the last `shared_suffix_bytes` of the base's request.
CREATE TABLE osmosis.calls (
    run_id               integer NOT NULL,
    call_id              bigint NOT NULL,
    rollout_id           text NOT NULL,
    attempt              bigint NOT NULL,
    sample_id            text NOT NULL,
    purpose              text NOT NULL,
    dialect              text NOT NULL,
    model                text NOT NULL,
    upstream             text NOT NULL,
    policy_version       bigint NOT NULL,
    streamed             boolean NOT NULL,
    status               integer NOT NULL,
    error                text,
    prompt_tokens        bigint,
    completion_tokens    bigint,
    cached_tokens        bigint,
    reasoning_tokens     bigint,
    queued_at_ms         bigint NOT NULL,
    sent_at_ms           bigint,
    first_byte_at_ms     bigint,
    done_at_ms           bigint NOT NULL,
    request_bytes        bigint NOT NULL,
    response_bytes       bigint NOT NULL,
    tokens_bytes         bigint NOT NULL,
    token_records        bigint NOT NULL,
    base_call_id         bigint,
    shared_prefix_bytes  bigint NOT NULL,
    shared_suffix_bytes  bigint NOT NULL,
    chain_length         bigint NOT NULL,
    compressed           smallint NOT NULL,
    -- CRC-32 over the whole request, the response and the token records.
    checksum             bigint NOT NULL,
    request              bytea NOT NULL,
    response             bytea NOT NULL,
    tokens               bytea NOT NULL,
    PRIMARY KEY (run_id, call_id)
);
CREATE INDEX calls_by_rollout ON osmosis.calls (run_id, rollout_id, attempt, call_id);
-- They are compressed already, or not worth it.
ALTER TABLE osmosis.calls ALTER COLUMN request SET STORAGE EXTERNAL;
ALTER TABLE osmosis.calls ALTER COLUMN response SET STORAGE EXTERNAL;
ALTER TABLE osmosis.calls ALTER COLUMN tokens SET STORAGE EXTERNAL;

CREATE TABLE osmosis.steps (
    run_id          integer NOT NULL,
    step            bigint NOT NULL,
    policy_version  bigint NOT NULL,
    metrics         text NOT NULL,
    finished_at_ms  bigint NOT NULL,
    PRIMARY KEY (run_id, step)
);

CREATE TABLE osmosis.batches (
    run_id              integer NOT NULL,
    number              bigint NOT NULL,
    policy_version      bigint NOT NULL,
    content             text NOT NULL,
    formed_at_ms        bigint NOT NULL,
    acknowledged_at_ms  bigint,
    PRIMARY KEY (run_id, number)
);

CREATE TABLE osmosis.requests (
    run_id                      integer NOT NULL,
    rollout_id                  text NOT NULL,
    sealed                      bytea,
    cancel_asked_at_ms          bigint,
    agent_done_at_ms            bigint,
    completion_delivered_at_ms  bigint,
    settled_at_ms               bigint,
    PRIMARY KEY (run_id, rollout_id),
    FOREIGN KEY (run_id, rollout_id) REFERENCES osmosis.rollouts
);
CREATE INDEX requests_unsettled ON osmosis.requests (run_id) WHERE settled_at_ms IS NULL;

-- Leases are counted by the clock of the database, which all members share.
CREATE FUNCTION osmosis.now_ms() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE
    AS $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint $$;

-- A role of one run sees the rows of that run and no others. The owner of the tables sees all.
ALTER TABLE osmosis.run_roles ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_role ON osmosis.run_roles USING (role_name = current_user);
DO $$
DECLARE
    one text;
BEGIN
    FOREACH one IN ARRAY ARRAY['runs', 'members', 'call_ids', 'run_records', 'rows', 'rollouts', 'samples', 'calls',
        'steps', 'batches', 'requests']
    LOOP
        EXECUTE format('ALTER TABLE osmosis.%I ENABLE ROW LEVEL SECURITY', one);
        EXECUTE format('CREATE POLICY own_run ON osmosis.%I USING (run_id IN (SELECT roles.run_id FROM '
            'osmosis.run_roles AS roles WHERE roles.role_name = current_user))', one);
    END LOOP;
END $$;

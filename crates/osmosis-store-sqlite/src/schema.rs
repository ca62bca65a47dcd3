//! The tables of `run.db`. They are a public promise: people read them with the `sqlite3` shell, and
//! an old file stays readable. A change is a new entry in [`MIGRATIONS`], never an edit of one.
//!
//! | table | one row per |
//! |---|---|
//! | `run` | the run itself, exactly one |
//! | `rows` | dataset row that takes part, `body` as JSON text |
//! | `rollouts` | execution of the workflow on a row: the queue, and the result |
//! | `samples` | sample of a finished rollout, `messages` as JSON text |
//! | `calls` | model call, of every attempt, in the order they finished |
//! | `steps` | step of training that is done, `metrics` as JSON text |
//! | `batches` | batch of groups to train on, `content` (which rollouts) as JSON text |
//! | `requests` | request that a rollout server accepted: how far its callbacks are |
//! | `writer` | the process that writes, exactly one, see [`super::fence`] |
//!
//! `checksum`, in every table but `writer` and `requests`, is a CRC-32 over the row, see [`super::checksum`]; it is null
//! in rows of programs from before version 5. `writer.all_checksummed` says that no row may lack one.
//!
//! `mac`, in the same tables, is a message authentication code of the row, and `writer.seal` holds the totals of the tables
//! with one of its own (`seal_mac`), see [`super::authentic`]; null where the run is not authenticated. `writer.run_uid` and
//! `writer.key_id` say which key. `calls.body_macs` has three, one after the other: of the stored request, the response and
//! the token records.
//!
//! Times end in `_at_ms` and are milliseconds since 1970; durations end in `_ms`.
//!
//! **`rollouts`**: `state` is `queued`, `leased` or `done`. `attempt` counts claims and fences: only
//! the attempt that is leased may become the result. `suspect` counts the workers that were lost while
//! they held it (before this program counted, it was 1 from the first on), `failures` the failures of the
//! infrastructure. `outcome` is the kind (`scored`, `agent_failed`,
//! `timed_out`, `ungraded`, `rejected`, `infrastructure_failed`, `cancelled`), `reward` and `passed`
//! are set for `scored` alone, `error` is one line for people and `outcome_detail` the whole story as
//! JSON. `cached_tokens` (of the prompt) and `reasoning_tokens` (of the completion), here and in `calls`,
//! are null when no reply told them. `sample_rewards` repeats the rewards of the kept samples as a JSON object, so that a report
//! over every rollout reads one table.
//!
//! **`calls`**: the bodies are in `segments/NNNNNN.seg`, see [`super::segment`] for the record format.
//! The response is the record at `response_offset`. The request is the record at `request_offset` when
//! `base_call_id` is null; otherwise it is the first `shared_prefix_bytes` of the request of call
//! `base_call_id`, that record, and the last `shared_suffix_bytes` of the base's request.
//! `chain_length` says how many bases have to be read. When the policy knew its tokens, `token_records`
//! says for how many choices, and the record at `tokens_offset` of `tokens_bytes` holds them, each with
//! its length (`u32`, little endian) before it. `purpose` is `policy`, or `judge` for a call that the
//! grader made, which is summed up in `rollouts.judge_…` alone, or `other` for a call that a workflow's client
//! made without an address, which is in no sum. A call whose rollout is not in `rollouts` came
//! through a gateway without a run.
//!
//! **`requests`**: `sealed` holds addresses and keys, encrypted, and is null once `settled_at_ms` is set:
//! then every callback was acknowledged, or refused for good. A rollout whose keys are missing is `leased`
//! by the owner `held back` until the next start, so that nobody claims it.

use camino::Utf8Path;
use osmosis_store::StoreError;
use rusqlite::Connection;

use crate::sql::sqlite_error;

/// `PRAGMA application_id`, "OSMO": lets `file` tell what this is.
const APPLICATION_ID: i64 = 0x4f53_4d4f;

/// Entry `n` takes a database from `user_version` n to n + 1.
const MIGRATIONS: &[&str] = &[
    VERSION_1, VERSION_2, VERSION_3, VERSION_4, VERSION_5, VERSION_6, VERSION_7,
];

/// The `user_version` this program writes.
pub(crate) const KNOWN_VERSION: i64 = MIGRATIONS.len().cast_signed() as i64;

const VERSION_1: &str = "
CREATE TABLE run (
    only_one        INTEGER PRIMARY KEY CHECK (only_one = 1),
    name            TEXT NOT NULL,
    kind            TEXT NOT NULL,
    status          TEXT NOT NULL,
    created_at_ms   INTEGER NOT NULL,
    finished_at_ms  INTEGER,
    config_toml     TEXT NOT NULL,
    pinned          TEXT NOT NULL
) STRICT;

CREATE TABLE rows (
    row_index  INTEGER PRIMARY KEY,
    line       INTEGER NOT NULL,
    body       TEXT NOT NULL
) STRICT;

CREATE TABLE rollouts (
    rollout_key        INTEGER PRIMARY KEY,
    rollout_id         TEXT NOT NULL UNIQUE,
    row_index          INTEGER NOT NULL REFERENCES rows,
    run_index          INTEGER NOT NULL,
    state              TEXT NOT NULL DEFAULT 'queued' CHECK (state IN ('queued', 'leased', 'done')),
    attempt            INTEGER NOT NULL DEFAULT 0,
    failures           INTEGER NOT NULL DEFAULT 0,
    suspect            INTEGER NOT NULL DEFAULT 0,
    owner              TEXT,
    lease_until_ms     INTEGER,
    outcome            TEXT,
    reward             REAL,
    passed             INTEGER,
    error              TEXT,
    sample_rewards     TEXT,
    model_calls        INTEGER NOT NULL DEFAULT 0,
    prompt_tokens      INTEGER NOT NULL DEFAULT 0,
    completion_tokens  INTEGER NOT NULL DEFAULT 0,
    queue_ms           REAL NOT NULL DEFAULT 0,
    agent_ms           REAL NOT NULL DEFAULT 0,
    model_ms           REAL NOT NULL DEFAULT 0,
    grade_ms           REAL NOT NULL DEFAULT 0,
    started_at_ms      INTEGER,
    finished_at_ms     INTEGER,
    metrics            TEXT,
    outcome_detail     TEXT,
    UNIQUE (row_index, run_index)
) STRICT;

-- Claims take the first queued ones; counts read this index alone.
CREATE INDEX rollouts_by_state ON rollouts (state, row_index, run_index);
-- Leases that have run out.
CREATE INDEX rollouts_by_lease ON rollouts (lease_until_ms) WHERE state = 'leased';

CREATE TABLE samples (
    rollout_id    TEXT NOT NULL REFERENCES rollouts (rollout_id),
    sample_id     TEXT NOT NULL,
    position      INTEGER NOT NULL,
    reward        REAL,
    removed       INTEGER NOT NULL,
    metrics       TEXT,
    extra_fields  TEXT,
    messages      TEXT NOT NULL,
    PRIMARY KEY (rollout_id, sample_id)
) STRICT;

CREATE TABLE calls (
    call_id               INTEGER PRIMARY KEY,
    rollout_id            TEXT NOT NULL,
    attempt               INTEGER NOT NULL,
    sample_id             TEXT NOT NULL,
    dialect               TEXT NOT NULL,
    model                 TEXT NOT NULL,
    upstream              TEXT NOT NULL,
    policy_version        INTEGER NOT NULL,
    streamed              INTEGER NOT NULL,
    status                INTEGER NOT NULL,
    error                 TEXT,
    prompt_tokens         INTEGER,
    completion_tokens     INTEGER,
    queued_at_ms          INTEGER NOT NULL,
    sent_at_ms            INTEGER,
    first_byte_at_ms      INTEGER,
    done_at_ms            INTEGER NOT NULL,
    request_bytes         INTEGER NOT NULL,
    response_bytes        INTEGER NOT NULL,
    segment               INTEGER NOT NULL,
    request_offset        INTEGER NOT NULL,
    response_offset       INTEGER NOT NULL,
    base_call_id          INTEGER,
    shared_prefix_bytes   INTEGER NOT NULL DEFAULT 0,
    shared_suffix_bytes   INTEGER NOT NULL DEFAULT 0,
    chain_length          INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE INDEX calls_by_rollout ON calls (rollout_id, attempt);
";

const VERSION_2: &str = "
ALTER TABLE calls ADD COLUMN token_records INTEGER NOT NULL DEFAULT 0;
ALTER TABLE calls ADD COLUMN tokens_offset INTEGER;
ALTER TABLE calls ADD COLUMN tokens_bytes INTEGER;

CREATE TABLE steps (
    step            INTEGER PRIMARY KEY,
    policy_version  INTEGER NOT NULL,
    metrics         TEXT NOT NULL,
    finished_at_ms  INTEGER NOT NULL
) STRICT;
";

const VERSION_3: &str = "
ALTER TABLE rollouts ADD COLUMN cached_tokens INTEGER;
ALTER TABLE rollouts ADD COLUMN reasoning_tokens INTEGER;
ALTER TABLE calls ADD COLUMN cached_tokens INTEGER;
ALTER TABLE calls ADD COLUMN reasoning_tokens INTEGER;
ALTER TABLE calls ADD COLUMN purpose TEXT NOT NULL DEFAULT 'policy';
ALTER TABLE rollouts ADD COLUMN judge_calls INTEGER NOT NULL DEFAULT 0;
ALTER TABLE rollouts ADD COLUMN judge_prompt_tokens INTEGER NOT NULL DEFAULT 0;
ALTER TABLE rollouts ADD COLUMN judge_completion_tokens INTEGER NOT NULL DEFAULT 0;
";

const VERSION_4: &str = "
CREATE TABLE batches (
    number              INTEGER PRIMARY KEY,
    policy_version      INTEGER NOT NULL,
    content             TEXT NOT NULL,
    formed_at_ms        INTEGER NOT NULL,
    acknowledged_at_ms  INTEGER
) STRICT;
";

const VERSION_5: &str = "
ALTER TABLE run ADD COLUMN checksum INTEGER;
ALTER TABLE rows ADD COLUMN checksum INTEGER;
ALTER TABLE rollouts ADD COLUMN checksum INTEGER;
ALTER TABLE samples ADD COLUMN checksum INTEGER;
ALTER TABLE calls ADD COLUMN checksum INTEGER;
ALTER TABLE steps ADD COLUMN checksum INTEGER;
ALTER TABLE batches ADD COLUMN checksum INTEGER;

CREATE TABLE writer (
    only_one         INTEGER PRIMARY KEY CHECK (only_one = 1),
    epoch            INTEGER NOT NULL,
    holder           TEXT NOT NULL,
    all_checksummed  INTEGER NOT NULL
) STRICT;

-- What is there now has no checksums.
INSERT INTO writer SELECT 1, 0, '', NOT EXISTS (SELECT 1 FROM run) AND NOT EXISTS (SELECT 1 FROM calls);
";

const VERSION_6: &str = "
CREATE TABLE requests (
    rollout_id                  TEXT PRIMARY KEY REFERENCES rollouts (rollout_id),
    sealed                      BLOB,
    cancel_asked_at_ms          INTEGER,
    agent_done_at_ms            INTEGER,
    completion_delivered_at_ms  INTEGER,
    settled_at_ms               INTEGER
) STRICT;
CREATE INDEX requests_unsettled ON requests (rollout_id) WHERE settled_at_ms IS NULL;
";

const VERSION_7: &str = "
ALTER TABLE calls ADD COLUMN body_macs BLOB;
ALTER TABLE run ADD COLUMN mac BLOB;
ALTER TABLE rows ADD COLUMN mac BLOB;
ALTER TABLE rollouts ADD COLUMN mac BLOB;
ALTER TABLE samples ADD COLUMN mac BLOB;
ALTER TABLE calls ADD COLUMN mac BLOB;
ALTER TABLE steps ADD COLUMN mac BLOB;
ALTER TABLE batches ADD COLUMN mac BLOB;
ALTER TABLE writer ADD COLUMN key_id TEXT;
ALTER TABLE writer ADD COLUMN run_uid TEXT;
ALTER TABLE writer ADD COLUMN seal TEXT;
ALTER TABLE writer ADD COLUMN seal_mac BLOB;
";

/// Rows of this version and later ones can carry MACs.
pub(crate) const AUTHENTICATED_SINCE: i64 = 7;

/// The columns that a version brought, with what they are in an older database: what a reader that must
/// not write sees, for itself alone, in their place.
const ADDED_COLUMNS: &[(i64, &str, &str)] = &[
    (
        2,
        "calls",
        "0 AS token_records, NULL AS tokens_offset, NULL AS tokens_bytes",
    ),
    (
        3,
        "calls",
        "NULL AS cached_tokens, NULL AS reasoning_tokens, 'policy' AS purpose",
    ),
    (
        3,
        "rollouts",
        "NULL AS cached_tokens, NULL AS reasoning_tokens, 0 AS judge_calls, 0 AS judge_prompt_tokens,
            0 AS judge_completion_tokens",
    ),
    (5, "run", "NULL AS checksum"),
    (5, "rows", "NULL AS checksum"),
    (5, "rollouts", "NULL AS checksum"),
    (5, "samples", "NULL AS checksum"),
    (5, "calls", "NULL AS checksum"),
    (5, "steps", "NULL AS checksum"),
    (5, "batches", "NULL AS checksum"),
    (7, "calls", "NULL AS body_macs, NULL AS mac"),
    (7, "run", "NULL AS mac"),
    (7, "rows", "NULL AS mac"),
    (7, "rollouts", "NULL AS mac"),
    (7, "samples", "NULL AS mac"),
    (7, "steps", "NULL AS mac"),
    (7, "batches", "NULL AS mac"),
];

/// The same for whole tables, which are empty there.
const ADDED_TABLES: &[(i64, &str, &str)] = &[
    (
        2,
        "steps",
        "0 AS step, 0 AS policy_version, '' AS metrics, 0 AS finished_at_ms, NULL AS checksum,
            NULL AS mac",
    ),
    (
        4,
        "batches",
        "0 AS number, 0 AS policy_version, '' AS content, 0 AS formed_at_ms,
            NULL AS acknowledged_at_ms, NULL AS checksum, NULL AS mac",
    ),
    (
        5,
        "writer",
        "1 AS only_one, 0 AS epoch, '' AS holder, 0 AS all_checksummed",
    ),
    (
        6,
        "requests",
        "'' AS rollout_id, NULL AS sealed, NULL AS cancel_asked_at_ms, NULL AS agent_done_at_ms,
            NULL AS completion_delivered_at_ms, NULL AS settled_at_ms",
    ),
];

/// Brings a database to [`KNOWN_VERSION`], each step in a transaction of its own.
pub(crate) fn migrate(connection: &mut Connection, path: &Utf8Path) -> Result<(), StoreError> {
    let failed = |error: &rusqlite::Error| sqlite_error(path, error);
    loop {
        let transaction = connection.transaction().map_err(|e| failed(&e))?;
        let found = version(&transaction).map_err(|e| failed(&e))?;
        check(path, found)?;
        let step = usize::try_from(found)
            .ok()
            .and_then(|found| MIGRATIONS.get(found));
        let Some(step) = step else { return Ok(()) };
        transaction.execute_batch(step).map_err(|e| failed(&e))?;
        transaction
            .pragma_update(None, "application_id", APPLICATION_ID)
            .map_err(|e| failed(&e))?;
        transaction
            .pragma_update(None, "user_version", found + 1)
            .map_err(|e| failed(&e))?;
        transaction.commit().map_err(|e| failed(&e))?;
    }
}

/// Whether a reader that must not write can make sense of the database.
pub(crate) fn check_readable(connection: &Connection, path: &Utf8Path) -> Result<(), StoreError> {
    let found = version(connection).map_err(|error| sqlite_error(path, &error))?;
    check(path, found)?;
    if found == 0 {
        return Err(StoreError::Io {
            path: path.to_owned(),
            message: "holds no run yet".to_owned(),
            full: false,
        });
    }
    Ok(())
}

/// Lets a connection that only reads see an older database as [`KNOWN_VERSION`] has it.
pub(crate) fn read_as_known(connection: &Connection) -> rusqlite::Result<()> {
    let found = version(connection)?;
    // A version of 0 holds nothing, and is refused by `check_readable`.
    if found == 0 || found >= KNOWN_VERSION {
        return Ok(());
    }
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    let missing = |table: &str| {
        let mut tables = ADDED_TABLES.iter();
        tables.any(|(since, of, _)| *since > found && *of == table)
    };
    let tables = super::checksum::TABLES.iter().map(|checked| checked.table);
    for table in tables.filter(|table| !missing(table)) {
        let added: Vec<&str> = ADDED_COLUMNS
            .iter()
            .filter(|(since, of, _)| *since > found && *of == table)
            .map(|(_, _, columns)| *columns)
            .collect();
        if !added.is_empty() {
            connection.execute_batch(&format!(
                "CREATE TEMP VIEW {table} AS SELECT rowid AS rowid, *, {} FROM main.{table};",
                added.join(", ")
            ))?;
        }
    }
    for (_, table, columns) in ADDED_TABLES.iter().filter(|(since, ..)| *since > found) {
        connection.execute_batch(&format!(
            "CREATE TEMP VIEW {table} AS SELECT 0 AS rowid, {columns} WHERE false;"
        ))?;
    }
    Ok(())
}

pub(crate) fn version(connection: &Connection) -> rusqlite::Result<i64> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0))
}

fn check(path: &Utf8Path, found: i64) -> Result<(), StoreError> {
    if (0..=KNOWN_VERSION).contains(&found) {
        Ok(())
    } else {
        Err(StoreError::SchemaVersion {
            path: path.to_owned(),
            found,
            known: KNOWN_VERSION,
        })
    }
}

/// Everything that the tables of a version are made of, as SQLite tells it, in order.
pub(crate) fn layout(connection: &Connection) -> rusqlite::Result<Vec<String>> {
    let mut select = connection.prepare(
        "SELECT type || ' ' || name || ' on ' || tbl_name || ': ' || coalesce(sql, '')
         FROM sqlite_schema ORDER BY 1",
    )?;
    let found = select.query_map([], |row| row.get::<_, String>(0))?;
    // Spaces are kept as they were written, by whichever program.
    found
        .map(|text| Ok(text?.split_whitespace().collect::<Vec<_>>().join(" ")))
        .collect()
}

/// What [`layout`] is of a sound database of a version.
pub(crate) fn expected_layout(version: i64) -> rusqlite::Result<Vec<String>> {
    let connection = Connection::open_in_memory()?;
    let steps = usize::try_from(version).unwrap_or(0);
    for step in MIGRATIONS.iter().take(steps) {
        connection.execute_batch(step)?;
    }
    layout(&connection)
}

/// Whether `PRAGMA application_id` is ours.
pub(crate) fn is_ours(connection: &Connection) -> rusqlite::Result<bool> {
    let found: i64 = connection.pragma_query_value(None, "application_id", |row| row.get(0))?;
    Ok(found == APPLICATION_ID)
}

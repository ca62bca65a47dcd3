//! The authentication of rows: what a connection does with the key of the run.
//!
//! Every statement that reads passes views of the tables' names, which only our connections have: they compare each row
//! with its MAC. What does not fit is noted, and [`Ledger::take_altered`] is asked after every read and every write
//! (`reader`, `writer`), so that no statement can forget it. Writes name the tables themselves (`main.rollouts`); triggers
//! of the writer's connection compare the row that a change replaces, and count what comes and goes.
//!
//! SQLite puts the value of a term like `state = 'done'` in the place of the column wherever else it stands, also into that
//! comparison, and may compare before it has looked at the term. So a term that no index answers is written with a plus,
//! `+state = 'done'`, which SQLite leaves alone. Without it, rows that it excludes look altered.
//!
//! Totals are sealed in the transaction that changes them. A reader of everything compares them with the tables
//! ([`check_seal`]): rows that were removed, or put back to what they were before, are right by themselves.
//!
//! Triggers and views that somebody added to the file are not run: they would act with our hands.

use std::collections::BTreeMap;
use std::sync::Arc;

use camino::Utf8Path;
use osmosis_store::authenticity::{
    KeyFolder, RecordKey, RowBytes, Seal, SealedPlace, TableTotal, Value, is_same_mac, new_run_uid,
};
use osmosis_store::{Authenticity, MissingKey, StoreError};
use parking_lot::Mutex;
use rusqlite::config::DbConfig;
use rusqlite::functions::{Context, FunctionFlags};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension as _, params};

use crate::checksum::{Checked, TABLES};
use crate::schema;
use crate::sql::{SqlError, sqlite_error};

/// So many altered rows are named; more are counted.
pub(crate) const NAMED: usize = 20;

/// `row_mac(table, first column, …)`: what the writer's statements put into the column `mac`. Null without a key.
pub(crate) const ROW_MAC: &str = "row_mac";
/// `row_checked(table, key, mac, first column, …)`: notes a row that is not what was written.
const ROW_CHECKED: &str = "row_checked";
/// `row_counted(table, 1 or -1, mac)`: counts what comes and goes.
const ROW_COUNTED: &str = "row_counted";

/// The run's id and its key.
#[derive(Debug, Clone)]
pub(crate) struct RunIdentity {
    pub(crate) uid: String,
    pub(crate) key: RecordKey,
}

/// How the rows of an open run are authenticated.
#[derive(Debug, Clone)]
pub(crate) struct Authentication {
    pub(crate) keys: KeyFolder,
    /// Where the run is, for [`KeyFolder::recall`].
    pub(crate) place: String,
    pub(crate) identity: Result<RunIdentity, MissingKey>,
}

impl Authentication {
    pub(crate) fn key(&self) -> Option<&RecordKey> {
        self.identity.as_ref().ok().map(|identity| &identity.key)
    }

    pub(crate) fn state(&self) -> Authenticity {
        match &self.identity {
            Ok(_) => Authenticity::Authenticated,
            Err(missing) => Authenticity::Unauthenticated(*missing),
        }
    }

    /// The seal that the run must have reached.
    pub(crate) fn least_number(&self) -> u64 {
        let recalled = self.keys.recall(&self.place);
        recalled.map_or(0, |sealed| sealed.number)
    }
}

/// What the columns of `writer` say.
struct Stored {
    key_id: Option<String>,
    uid: Option<String>,
}

fn stored(connection: &Connection) -> rusqlite::Result<Stored> {
    let found = connection
        .query_row("SELECT key_id, run_uid FROM main.writer", [], |row| {
            Ok(Stored {
                key_id: row.get(0)?,
                uid: row.get(1)?,
            })
        })
        .optional()?;
    Ok(found.unwrap_or(Stored {
        key_id: None,
        uid: None,
    }))
}

/// Finds out how the rows of a run are authenticated. An error where it must be and is not.
pub(crate) fn identify(
    connection: &Connection,
    database: &Utf8Path,
    keys: &KeyFolder,
) -> Result<Authentication, StoreError> {
    let place = place_of(database);
    let failed = |error: rusqlite::Error| sqlite_error(database, &error);
    let version = schema::version(connection).map_err(failed)?;
    let stored = if version >= schema::AUTHENTICATED_SINCE {
        stored(connection).map_err(failed)?
    } else {
        Stored {
            key_id: None,
            uid: None,
        }
    };
    let our_id = keys.key_id()?;
    let identity = match (our_id, stored.key_id, stored.uid) {
        (_, None, _) | (_, _, None) => Err(MissingKey::NoMacs),
        (None, ..) if !keys.is_there() => Err(MissingKey::NoKeyFolder),
        (None, ..) => Err(MissingKey::OtherKey),
        (Some(ours), Some(theirs), _) if ours != theirs => Err(MissingKey::OtherKey),
        (Some(_), Some(_), Some(uid)) => match keys.record_key(&uid)? {
            Some((key, _)) => Ok(RunIdentity { uid, key }),
            None => Err(MissingKey::NoKeyFolder),
        },
    };
    if let Some(sealed) = keys.recall(&place)
        && identity.as_ref().ok().map(|identity| &identity.uid) != Some(&sealed.run_uid)
    {
        return Err(StoreError::Altered {
            path: database.to_owned(),
            records: vec![
                "its authentication was taken off, or another run was put in its place".to_owned(),
            ],
            more: 0,
        });
    }
    Ok(Authentication {
        keys: keys.clone(),
        place,
        identity,
    })
}

/// A run's folder, as it is remembered.
pub(crate) fn place_of(database: &Utf8Path) -> String {
    let folder = database.parent().unwrap_or(database);
    let whole = folder.canonicalize_utf8();
    whole.unwrap_or_else(|_| folder.to_owned()).into_string()
}

/// The same for a process that is going to write. A new run gets an id; one whose rows can't be authenticated says so
/// itself from now on, because rows without MACs come to it.
pub(crate) fn identify_to_write(
    connection: &Connection,
    database: &Utf8Path,
    keys: &KeyFolder,
) -> Result<Authentication, StoreError> {
    let failed = |error: rusqlite::Error| sqlite_error(database, &error);
    if is_new(connection).map_err(failed)? {
        if let Err(error) = keys.make_key() {
            tracing::warn!(%error, "the records of the run are not authenticated");
        }
        return begin(connection, database, keys);
    }
    let found = identify(connection, database, keys)?;
    if found.identity.is_err() {
        forget(connection).map_err(failed)?;
    }
    Ok(found)
}

fn is_new(connection: &Connection) -> rusqlite::Result<bool> {
    connection.query_row(
        "SELECT run_uid IS NULL AND epoch = 0 AND NOT EXISTS (SELECT 1 FROM main.run)
            AND NOT EXISTS (SELECT 1 FROM main.calls) FROM main.writer",
        [],
        |row| row.get(0),
    )
}

/// Gives a new run its id.
pub(crate) fn begin(
    connection: &Connection,
    database: &Utf8Path,
    keys: &KeyFolder,
) -> Result<Authentication, StoreError> {
    let uid = new_run_uid()?;
    let place = place_of(database);
    let identity = match keys.record_key(&uid)? {
        None => Err(MissingKey::NoKeyFolder),
        Some((key, key_id)) => {
            let failed = |error: rusqlite::Error| sqlite_error(database, &error);
            let seal = Seal {
                number: 0,
                totals: TABLES
                    .iter()
                    .map(|table| (table.table.to_owned(), TableTotal::default()))
                    .collect(),
            };
            connection
                .execute(
                    "UPDATE main.writer SET key_id = ?1, run_uid = ?2",
                    params![key_id, uid],
                )
                .map_err(failed)?;
            let identity = RunIdentity { uid, key };
            store_seal(connection, &identity, &seal).map_err(failed)?;
            keys.remember(
                &place,
                &SealedPlace {
                    run_uid: identity.uid.clone(),
                    number: 0,
                },
            );
            Ok(identity)
        }
    };
    Ok(Authentication {
        keys: keys.clone(),
        place,
        identity,
    })
}

/// From now on nothing is said about who wrote the rows.
pub(crate) fn forget(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(
        "UPDATE main.writer SET key_id = NULL, run_uid = NULL, seal = NULL, seal_mac = NULL",
    )
}

fn store_seal(
    connection: &Connection,
    identity: &RunIdentity,
    seal: &Seal,
) -> rusqlite::Result<()> {
    let Some((text, mac)) = seal.write(&identity.key, &identity.uid) else {
        return Ok(());
    };
    connection
        .prepare_cached("UPDATE main.writer SET seal = ?1, seal_mac = ?2")?
        .execute(params![text, mac])?;
    Ok(())
}

/// What a connection has found, and what the writer's has counted.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ledger(Arc<Mutex<Counted>>);

#[derive(Debug, Clone, Default)]
struct Counted {
    altered: Vec<String>,
    more: u64,
    totals: Totals,
}

/// The totals at a moment, in the order of [`TABLES`].
pub(crate) type Totals = [TableTotal; TABLES.len()];

impl Ledger {
    /// Fails when rows were read that are not what was written; names them.
    pub(crate) fn take_altered(&self, database: &Utf8Path) -> Result<(), StoreError> {
        let mut counted = self.0.lock();
        if counted.altered.is_empty() {
            return Ok(());
        }
        Err(StoreError::Altered {
            path: database.to_owned(),
            records: std::mem::take(&mut counted.altered),
            more: std::mem::take(&mut counted.more),
        })
    }

    pub(crate) fn totals(&self) -> Totals {
        self.0.lock().totals
    }

    pub(crate) fn set_totals(&self, totals: Totals) {
        self.0.lock().totals = totals;
    }

    fn alter(&self, place: String) {
        let mut counted = self.0.lock();
        if counted.altered.contains(&place) {
            return;
        }
        if counted.altered.len() < NAMED {
            counted.altered.push(place);
        } else {
            counted.more += 1;
        }
    }

    fn count(&self, table: &str, comes: bool, mac: &[u8]) {
        let Some((at, table)) = TABLES
            .iter()
            .enumerate()
            .find(|(_, known)| known.table == table)
        else {
            return;
        };
        // Others are only counted: see `found_totals`.
        let mac = if table.changes { mac } else { &[] };
        let mut counted = self.0.lock();
        let total = &mut counted.totals[at];
        if comes {
            total.add(mac);
        } else {
            total.remove(mac);
        }
    }
}

fn value(value: ValueRef<'_>) -> Value<'_> {
    match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(number) => Value::Integer(number),
        ValueRef::Real(number) => Value::Real(number),
        ValueRef::Text(text) => Value::Text(text),
        ValueRef::Blob(blob) => Value::Blob(blob),
    }
}

/// A row of [`Checked::selection`] by its values: those of the columns that the MAC covers, in order.
pub(crate) fn is_authentic<'v>(
    table: &Checked,
    key: &RecordKey,
    mac: ValueRef<'_>,
    values: impl Iterator<Item = ValueRef<'v>>,
) -> bool {
    let mut row = RowBytes::new(table.table);
    values.for_each(|of_column| row.add(value(of_column)));
    matches!(mac, ValueRef::Blob(mac) if is_same_mac(mac, &key.row(row.as_slice())))
}

/// Lets a connection read with the key of the run, or without one; what it finds is in the ledger.
pub(crate) fn prepare_to_read(
    connection: &Connection,
    key: Option<&RecordKey>,
) -> rusqlite::Result<Ledger> {
    let ledger = Ledger::default();
    // Those in the file, not ours, which are temporary.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false)?;
    let Some(key) = key else {
        return Ok(ledger);
    };
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_VIEW, false)?;
    register_check(connection, key, &ledger)?;
    for table in TABLES {
        let checked = checked_call(table, "t.");
        connection.execute_batch(&format!(
            "CREATE TEMP VIEW {name} AS SELECT t.rowid AS rowid, t.* FROM main.{name} AS t WHERE {checked};",
            name = table.table
        ))?;
    }
    Ok(ledger)
}

/// The same for the writer's connection, which also makes MACs and counts.
pub(crate) fn prepare_to_write(
    connection: &Connection,
    key: Option<&RecordKey>,
) -> rusqlite::Result<Ledger> {
    register_mac(connection, key)?;
    let ledger = prepare_to_read(connection, key)?;
    if key.is_none() {
        return Ok(ledger);
    }
    let counting = ledger.clone();
    connection.create_scalar_function(ROW_COUNTED, 3, FLAGS, move |context| {
        let mac = context.get_raw(2);
        let table = context.get_raw(0).as_str()?;
        let comes = context.get_raw(1).as_i64()? > 0;
        counting.count(table, comes, mac.as_blob().unwrap_or_default());
        Ok(true)
    })?;
    for table in TABLES {
        let name = table.table;
        let replaced = checked_call(table, "OLD.");
        connection.execute_batch(&format!(
            "CREATE TEMP TRIGGER {name}_added AFTER INSERT ON main.{name} BEGIN
                SELECT {ROW_COUNTED}('{name}', 1, NEW.mac);
             END;
             CREATE TEMP TRIGGER {name}_changed AFTER UPDATE OF mac ON main.{name} BEGIN
                SELECT {replaced}, {ROW_COUNTED}('{name}', -1, OLD.mac), {ROW_COUNTED}('{name}', 1, NEW.mac);
             END;"
        ))?;
        if table.may_be_removed {
            connection.execute_batch(&format!(
                "CREATE TEMP TRIGGER {name}_removed AFTER DELETE ON main.{name} BEGIN
                    SELECT {replaced}, {ROW_COUNTED}('{name}', -1, OLD.mac);
                 END;"
            ))?;
        }
    }
    Ok(ledger)
}

/// Not in what the file defines, which somebody else may have written.
const FLAGS: FunctionFlags = FunctionFlags::SQLITE_UTF8.union(FunctionFlags::SQLITE_DIRECTONLY);

pub(crate) fn register_mac(
    connection: &Connection,
    key: Option<&RecordKey>,
) -> rusqlite::Result<()> {
    let key = key.cloned();
    let memory = Mutex::new(RowBytes::default());
    connection.create_scalar_function(ROW_MAC, -1, FLAGS, move |context| {
        let Some(key) = &key else { return Ok(None) };
        let mut row = memory.lock();
        read_arguments(context, 1, &mut row)?;
        Ok(Some(key.row(row.as_slice()).to_vec()))
    })
}

fn register_check(
    connection: &Connection,
    key: &RecordKey,
    ledger: &Ledger,
) -> rusqlite::Result<()> {
    let (key, ledger) = (key.clone(), ledger.clone());
    let memory = Mutex::new(RowBytes::default());
    connection.create_scalar_function(ROW_CHECKED, -1, FLAGS, move |context| {
        let mut row = memory.lock();
        read_arguments(context, 3, &mut row)?;
        let right = key.row(row.as_slice());
        if !matches!(context.get_raw(2), ValueRef::Blob(mac) if is_same_mac(mac, &right)) {
            let table = context.get_raw(0).as_str()?;
            let known = TABLES.iter().find(|known| known.table == table);
            let place = match context.get_raw(1) {
                ValueRef::Integer(number) => number.to_string(),
                ValueRef::Text(text) => String::from_utf8_lossy(text).into_owned(),
                _ => "?".to_owned(),
            };
            let name = known.map_or("row", |table| table.key);
            ledger.alter(format!("table {table}, {name} {place}"));
        }
        Ok(true)
    })
}

/// The values of a row, which begin at `first`; the table is the first argument.
fn read_arguments(context: &Context<'_>, first: usize, row: &mut RowBytes) -> rusqlite::Result<()> {
    row.begin(context.get_raw(0).as_str()?);
    for at in first..context.len() {
        row.add(value(context.get_raw(at)));
    }
    Ok(())
}

fn checked_call(table: &Checked, of: &str) -> String {
    format!(
        "{ROW_CHECKED}('{}', {of}{}, {of}mac, {})",
        table.table,
        table.key,
        table
            .authenticated(|column| format!("{of}{column}"))
            .join(", ")
    )
}

/// The totals of the tables as they are.
pub(crate) fn found_totals(
    connection: &Connection,
) -> rusqlite::Result<BTreeMap<String, TableTotal>> {
    let mut totals = BTreeMap::new();
    for table in TABLES {
        let mut total = TableTotal::default();
        if table.changes {
            // Each is compared with its MAC: one that was changed to hide from a query is found here.
            let mut select =
                connection.prepare_cached(&format!("SELECT mac FROM {}", table.table))?;
            let mut rows = select.query([])?;
            while let Some(row) = rows.next()? {
                match row.get_ref(0)? {
                    ValueRef::Blob(mac) => total.add(mac),
                    _ => total.add(&[]),
                }
            }
        } else {
            // Reading the MACs of large rows would read all of them.
            total.rows = connection
                .prepare_cached(&format!("SELECT count(*) FROM main.{}", table.table))?
                .query_row([], |row| row.get::<_, i64>(0))?
                .cast_unsigned();
        }
        totals.insert(table.table.to_owned(), total);
    }
    Ok(totals)
}

/// The seal of the run; `None` when it is not one that was made with its key.
pub(crate) fn read_seal(
    connection: &Connection,
    identity: &RunIdentity,
) -> rusqlite::Result<Option<Seal>> {
    let found: Option<(Option<String>, Option<Vec<u8>>)> = connection
        .prepare_cached("SELECT seal, seal_mac FROM main.writer")?
        .query_row([], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let Some((Some(text), Some(mac))) = found else {
        return Ok(None);
    };
    Ok(Seal::read(&text, &mac, &identity.key, &identity.uid))
}

/// What of the tables is not as the process counted that controls the run. In a transaction, so that one moment is seen.
pub(crate) fn seal_differences(
    connection: &Connection,
    authentication: &Authentication,
    least_number: u64,
) -> rusqlite::Result<Vec<String>> {
    let Ok(identity) = &authentication.identity else {
        return Ok(Vec::new());
    };
    let Some(seal) = read_seal(connection, identity)? else {
        return Ok(vec![
            "the totals of its tables were not made by osmosis".to_owned(),
        ]);
    };
    let mut differences = seal.differences(&found_totals(connection)?);
    if seal.number < least_number {
        differences.push(format!(
            "it is an older state of the run: commit {}, where {least_number} was reached",
            seal.number
        ));
    }
    Ok(differences)
}

/// The same as an error, beside what the rows themselves have shown.
pub(crate) fn check_seal(
    connection: &Connection,
    database: &Utf8Path,
    authentication: &Authentication,
    least_number: u64,
) -> Result<(), SqlError> {
    let differences = seal_differences(connection, authentication, least_number)?;
    if differences.is_empty() {
        return Ok(());
    }
    Err(StoreError::Altered {
        path: database.to_owned(),
        records: differences,
        more: 0,
    }
    .into())
}

/// What the writer has sealed.
#[derive(Debug)]
pub(crate) struct Sealing {
    pub(crate) authentication: Authentication,
    pub(crate) ledger: Ledger,
    number: u64,
    /// At the last commit.
    committed: Totals,
}

impl Sealing {
    /// Goes on from the seal that the run has, if its tables are as it says.
    pub(crate) fn open(
        connection: &Connection,
        database: &Utf8Path,
        authentication: Authentication,
    ) -> Result<Self, StoreError> {
        let failed = |error: rusqlite::Error| sqlite_error(database, &error);
        let ledger = prepare_to_write(connection, authentication.key()).map_err(failed)?;
        let mut sealing = Self {
            authentication,
            ledger,
            number: 0,
            committed: Totals::default(),
        };
        if let Ok(identity) = &sealing.authentication.identity {
            let snapshot = connection.unchecked_transaction().map_err(failed)?;
            check_seal(
                connection,
                database,
                &sealing.authentication,
                sealing.authentication.least_number(),
            )
            .map_err(|error| error.into_store_error(database))?;
            sealing.ledger.take_altered(database)?;
            let seal = read_seal(connection, identity).map_err(failed)?;
            drop(snapshot);
            for (table, total) in seal.iter().flat_map(|seal| &seal.totals) {
                if let Some(at) = TABLES.iter().position(|known| known.table == table) {
                    sealing.committed[at] = *total;
                }
            }
            sealing.number = seal.map_or(0, |seal| seal.number);
            sealing.ledger.set_totals(sealing.committed);
        }
        Ok(sealing)
    }

    /// Before the commit: what it changes is sealed with it.
    pub(crate) fn seal(&mut self, connection: &Connection) -> Result<Option<Seal>, SqlError> {
        let Ok(identity) = &self.authentication.identity else {
            return Ok(None);
        };
        let totals = self.ledger.totals();
        if totals == self.committed {
            return Ok(None);
        }
        let seal = Seal {
            number: self.number + 1,
            totals: TABLES
                .iter()
                .zip(totals)
                .map(|(table, total)| (table.table.to_owned(), total))
                .collect(),
        };
        store_seal(connection, identity, &seal)?;
        Ok(Some(seal))
    }

    /// The commit was done.
    pub(crate) fn committed(&mut self, seal: Option<Seal>) {
        if let Some(seal) = seal {
            self.number = seal.number;
            self.committed = self.ledger.totals();
        }
    }

    /// It was not.
    pub(crate) fn undo(&self) {
        self.ledger.set_totals(self.committed);
    }

    /// Leaves outside of the run how far it has come.
    pub(crate) fn remember(&self) {
        if let Ok(identity) = &self.authentication.identity {
            let sealed = SealedPlace {
                run_uid: identity.uid.clone(),
                number: self.number,
            };
            self.authentication
                .keys
                .remember(&self.authentication.place, &sealed);
        }
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }
}

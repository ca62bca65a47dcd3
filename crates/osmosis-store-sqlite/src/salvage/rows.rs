//! Reads a table of a damaged database, as much of it as can be read.

use osmosis_store::authenticity::RecordKey;
use rusqlite::types::Value;
use rusqlite::{Connection, Row};

use crate::checksum::{Checked, RowCheck};
use crate::verify::database::place;

/// After a page that can't be read, so many ids are tried one by one before reading goes on in order.
const STRIDE: i64 = 512;
/// A row takes some bytes; there can't be more ids than this for the size of the file.
const LEAST_ROW_BYTES: i64 = 16;

/// A row, whole or not.
pub(super) struct SavedRow {
    pub(super) rowid: i64,
    /// What [`Checked::copied`] lists.
    pub(super) values: Vec<Value>,
    pub(super) check: RowCheck,
    pub(super) place: String,
}

impl SavedRow {
    pub(super) fn text(&self, position: usize) -> Option<&str> {
        match self.values.get(position)? {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// A small number; 0 where there is none.
    pub(super) fn small(&self, position: usize) -> u32 {
        match self.values.get(position) {
            Some(Value::Integer(number)) => u32::try_from(*number).unwrap_or(0),
            _ => 0,
        }
    }
}

/// What could be read of a table.
#[derive(Default)]
pub(super) struct SavedRows {
    pub(super) rows: Vec<SavedRow>,
    /// What could not, and why.
    pub(super) unreadable: Vec<(String, String)>,
}

pub(super) fn saved_rows(
    connection: &Connection,
    table: &Checked,
    key: Option<&RecordKey>,
) -> SavedRows {
    let mut saved = SavedRows::default();
    let last = last_id(connection, table);
    let mut next = 0;
    loop {
        let read = read_from(connection, (table, key), next, &mut saved.rows);
        let Err(error) = read else { break };
        let gap = saved
            .rows
            .last()
            .map_or(next, |row| next.max(row.rowid + 1));
        let end = gap.saturating_add(STRIDE).min(last.saturating_add(1));
        let before = saved.rows.len();
        for id in gap..end {
            if let Ok(Some(row)) = read_one(connection, (table, key), id) {
                saved.rows.push(row);
            }
        }
        let found = saved.rows.len() - before;
        if found == 0 || end - gap > i64::try_from(found).unwrap_or(0) {
            let what = format!("table {}, rows {gap} to {}", table.table, end - 1);
            saved
                .unreadable
                .push((what, format!("some of them can't be read: {error}")));
        }
        next = end;
        if next > last || end <= gap {
            break;
        }
    }
    // Where pages point at each other wrongly, a row may come twice.
    saved.rows.sort_by_key(|row| row.rowid);
    saved.rows.dedup_by_key(|row| row.rowid);
    saved
}

/// The highest id, or one that is surely higher.
fn last_id(connection: &Connection, table: &Checked) -> i64 {
    let highest = connection.query_row(
        &format!(
            "SELECT coalesce(max(rowid), 0) FROM {} NOT INDEXED",
            table.table
        ),
        [],
        |row| row.get(0),
    );
    highest.unwrap_or_else(|_| {
        let pages: i64 = connection
            .pragma_query_value(None, "page_count", |row| row.get(0))
            .unwrap_or(0);
        pages.saturating_mul(4096 / LEAST_ROW_BYTES)
    })
}

fn read_from(
    connection: &Connection,
    (table, key): (&Checked, Option<&RecordKey>),
    first: i64,
    rows: &mut Vec<SavedRow>,
) -> rusqlite::Result<()> {
    let sql = format!(
        "{select} WHERE {name}.rowid >= ?1 ORDER BY {name}.rowid",
        select = table.selection(key),
        name = table.table,
    );
    let mut statement = connection.prepare(&sql)?;
    let mut found = statement.query([first])?;
    while let Some(row) = found.next()? {
        rows.push(saved_row(table, key, row)?);
    }
    Ok(())
}

fn read_one(
    connection: &Connection,
    (table, key): (&Checked, Option<&RecordKey>),
    id: i64,
) -> rusqlite::Result<Option<SavedRow>> {
    let sql = format!("{} WHERE rowid = ?1", table.selection(key));
    let mut statement = connection.prepare_cached(&sql)?;
    let mut found = statement.query([id])?;
    found
        .next()?
        .map(|row| saved_row(table, key, row))
        .transpose()
}

fn saved_row(
    table: &Checked,
    key: Option<&RecordKey>,
    row: &Row<'_>,
) -> rusqlite::Result<SavedRow> {
    let mut values = Vec::new();
    let mut sound = true;
    for position in 1..=table.copied().len() {
        // Text that is none can't be kept, and has the wrong checksum in any case.
        values.push(Value::try_from(row.get_ref(position)?).unwrap_or_else(|_| {
            sound = false;
            Value::Null
        }));
    }
    Ok(SavedRow {
        rowid: row.get(0)?,
        check: if sound {
            table.check(row, key)?
        } else {
            RowCheck::Wrong
        },
        place: place(table, row),
        values,
    })
}

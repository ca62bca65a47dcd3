//! The database: its layout, its pages, and the checksum and the MAC of every row.

use osmosis_store::VerifyReport;
use osmosis_store::authenticity::RecordKey;
use rusqlite::{Connection, Row};

use crate::checksum::{self, Checked, RowCheck};
use crate::{rollouts, schema};

/// SQLite's own findings that are told one by one.
const TOLD: u32 = 50;

/// Of a row or a body whose MAC is wrong.
pub(crate) const ALTERED: &str = "it was changed by something else than osmosis";

/// Compares the tables with what their version says, so that a changed version or definition shows. What people
/// have added beside them is theirs.
pub(super) fn check_layout(
    connection: &Connection,
    report: &mut VerifyReport,
) -> rusqlite::Result<()> {
    let version = schema::version(connection)?;
    if !schema::is_ours(connection)? {
        report.add("database", "it does not carry the id of this program");
    }
    let found = schema::layout(connection)?;
    for expected in schema::expected_layout(version)? {
        if !found.contains(&expected) {
            let name = expected.split(':').next().unwrap_or(&expected);
            report.add(
                "database",
                format!("{name} is not defined as in version {version} of the tables"),
            );
        }
    }
    Ok(())
}

/// SQLite's check of pages, indexes and constraints.
pub(crate) fn check_structure(connection: &Connection, report: &mut VerifyReport) {
    for (sql, is_sound) in [
        (format!("PRAGMA main.integrity_check({TOLD})"), Some("ok")),
        ("PRAGMA main.foreign_key_check".to_owned(), None),
    ] {
        if let Err(error) = findings(connection, &sql, is_sound, report) {
            report.add("database", error.to_string());
        }
    }
}

fn findings(
    connection: &Connection,
    sql: &str,
    is_sound: Option<&str>,
    report: &mut VerifyReport,
) -> rusqlite::Result<()> {
    let mut statement = connection.prepare(sql)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let finding: String = row.get(0)?;
        if is_sound.is_none() {
            report.add(
                format!("table {finding}"),
                "a row refers to one that is not there",
            );
        } else if is_sound != Some(finding.as_str()) {
            report.add("database", finding);
        }
    }
    Ok(())
}

/// Compares every row with its checksum, and with its MAC where there is a key.
pub(super) fn check_rows(
    connection: &Connection,
    key: Option<&RecordKey>,
    report: &mut VerifyReport,
) {
    let all_checksummed = all_checksummed(connection).unwrap_or(false);
    for table in checksum::TABLES {
        let mut count = 0;
        let read = check_table(
            connection,
            (table, key),
            all_checksummed,
            &mut count,
            report,
        );
        if let Err(error) = read {
            report.add(format!("table {}", table.table), error.to_string());
        }
        let checked = &mut report.checked;
        match table.table {
            "rows" => checked.rows = count,
            "rollouts" => checked.rollouts = count,
            "samples" => checked.samples = count,
            "calls" => checked.calls = count,
            "steps" => checked.steps = count,
            "batches" => checked.batches = count,
            // The run's own record is one.
            _ => {}
        }
    }
    if report.without_checksum > 0
        && let Err(error) = check_form(connection)
    {
        report.add("table rollouts", error);
    }
}

/// Whether every row must carry a checksum: the database had them from its first row on.
pub(crate) fn all_checksummed(connection: &Connection) -> rusqlite::Result<bool> {
    connection.query_row(
        "SELECT coalesce((SELECT all_checksummed FROM writer), 0)",
        [],
        |row| row.get(0),
    )
}

fn check_table(
    connection: &Connection,
    (table, key): (&Checked, Option<&RecordKey>),
    all_checksummed: bool,
    count: &mut u64,
    report: &mut VerifyReport,
) -> rusqlite::Result<()> {
    let mut statement = connection.prepare(&table.selection(key))?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        *count += 1;
        match table.check(row, key)? {
            RowCheck::Right => {}
            RowCheck::Missing if !all_checksummed => report.without_checksum += 1,
            RowCheck::Missing => report.add(place(table, row), "its checksum is missing"),
            RowCheck::Wrong => report.add(place(table, row), "its checksum is wrong"),
            RowCheck::Altered => report.add_altered(place(table, row), ALTERED),
        }
    }
    Ok(())
}

/// Where a person finds the row.
pub(crate) fn place(table: &Checked, row: &Row<'_>) -> String {
    use rusqlite::types::ValueRef;
    let key = match row.get_ref(1 + table.position(table.key)) {
        Ok(ValueRef::Integer(number)) => number.to_string(),
        Ok(ValueRef::Text(text)) => String::from_utf8_lossy(text).into_owned(),
        Ok(_) | Err(_) => "?".to_owned(),
    };
    format!("table {}, {} {key}", table.table, table.key)
}

/// Rows without checksums: at least they can be read as what they are.
fn check_form(connection: &Connection) -> Result<(), String> {
    let read = || -> Result<(), crate::sql::SqlError> {
        rollouts::run(connection)?;
        let mut statement =
            connection.prepare(&format!("SELECT {} FROM rollouts", rollouts::COLUMNS))?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            rollouts::record(row)?;
        }
        Ok(())
    };
    read().map_err(|error| error.to_string())
}

//! The bodies of calls, in the segments.

use camino::Utf8Path;
use osmosis_store::{StoreError, VerifyReport};
use rusqlite::{CachedStatement, Connection, OptionalExtension as _, Row};

use super::Progress;
use super::database::ALTERED;
use crate::bodies::{BodyMacs, BodyPart, BodyReader, BodySource};
use crate::segment::{HEADER_BYTES, Place};
use crate::sql::{SqlError, number, optional_number};

pub(super) fn bytes_in(segments: &Utf8Path) -> u64 {
    let Ok(entries) = segments.read_dir_utf8() else {
        return 0;
    };
    let lengths = entries.filter_map(|entry| Some(entry.ok()?.metadata().ok()?.len()));
    lengths.sum()
}

/// Reads every record that a call refers to.
pub(super) fn check(
    connection: &Connection,
    source: BodySource<'_>,
    report: &mut VerifyReport,
    progress: &mut Progress<'_>,
) {
    if let Err(error) = check_all(connection, source, report, progress) {
        report.add("table calls", error.to_string());
    }
}

fn check_all(
    connection: &Connection,
    source: BodySource<'_>,
    report: &mut VerifyReport,
    progress: &mut Progress<'_>,
) -> Result<(), SqlError> {
    let mut statement = connection.prepare(
        "SELECT call_id, segment, request_offset, response_offset, request_bytes, response_bytes,
            base_call_id, shared_prefix_bytes, shared_suffix_bytes, tokens_offset, tokens_bytes, body_macs
         FROM calls NOT INDEXED ORDER BY call_id",
    )?;
    let mut base_length =
        connection.prepare_cached("SELECT request_bytes FROM calls WHERE call_id = ?1")?;
    let mut reader = BodyReader::new(source);
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let call_id: i64 = row.get(0)?;
        let mut bytes = 0;
        if let Err(error) = check_call(row, &mut reader, &mut base_length, &mut bytes) {
            let place = format!("call {call_id}");
            match error {
                SqlError::Refused(StoreError::Altered { .. }) => report.add_altered(place, ALTERED),
                error => report.add(place, error.to_string()),
            }
        }
        report.checked.body_bytes += bytes;
        progress.add(bytes + 3 * HEADER_BYTES);
    }
    Ok(())
}

fn check_call(
    row: &Row<'_>,
    reader: &mut BodyReader<'_>,
    base_length: &mut CachedStatement<'_>,
    bytes: &mut u64,
) -> Result<(), SqlError> {
    let segment: u32 = number(row, 1)?;
    let macs: BodyMacs = row.get(11)?;
    let mut length_at = |offset: u64, part: BodyPart| -> Result<u64, SqlError> {
        let length = reader.read(Place { segment, offset }, part, &macs)?.len() as u64;
        *bytes += length;
        Ok(length)
    };
    let wrong = |what: &str| Err(SqlError::Senseless(format!("{what} has the wrong length")));
    let (prefix, suffix): (u64, u64) = (number(row, 7)?, number(row, 8)?);
    let shared = prefix + suffix;
    if let Some(base) = row.get::<_, Option<i64>>(6)? {
        let there: Option<i64> = base_length.query_row([base], |row| row.get(0)).optional()?;
        let there = there.and_then(|there| u64::try_from(there).ok());
        if there.is_none_or(|there| there < shared) {
            return wrong("the request that it extends");
        }
    }
    if length_at(number(row, 2)?, BodyPart::Request)? + shared != number::<u64>(row, 4)? {
        return wrong("its request");
    }
    if length_at(number(row, 3)?, BodyPart::Response)? != number::<u64>(row, 5)? {
        return wrong("its response");
    }
    if let Some(offset) = optional_number(row, 9)?
        && Some(length_at(offset, BodyPart::Tokens)?) != optional_number(row, 10)?
    {
        return wrong("its token records");
    }
    Ok(())
}

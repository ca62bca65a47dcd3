//! Checksums of rows: each row of a table that people read carries a CRC-32 over its values, written in the
//! statement that writes them.
//!
//! SQLite checks the structure of its pages, not what stands in them. A CRC-32 finds every change of up to 32
//! bits in a row, and costs far less than the sync of the commit (`docs/runs.md` has the numbers). SQLite's own
//! page checksums (`cksumvfs`) would need C code of ours and a VFS that the `sqlite3` shell doesn't have.

use std::fmt::Write as _;

use osmosis_store::authenticity::RecordKey;
use rusqlite::functions::FunctionFlags;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, Row};

use crate::authentic::{self, ROW_MAC};

/// The function that the writer's statements call: `row_checksum(first column, second column, …)`.
const FUNCTION: &str = "row_checksum";

/// A table whose rows carry a checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Checked {
    pub(crate) table: &'static str,
    /// What a person finds the row by.
    pub(crate) key: &'static str,
    /// The columns that it covers. A position says which column a value is of, so a new one goes to the
    /// end; null values leave no trace, so that a row from before a column was added stays right.
    pub(crate) columns: &'static [&'static str],
    /// Columns that it leaves out, and that a copy of the row needs all the same.
    pub(crate) beside: &'static [&'static str],
    /// What else the MAC of a row covers: an expression over a column, as the text before and after the column.
    pub(crate) derived: &'static [(&'static str, &'static str, &'static str)],
    /// Rows are changed in their place, so that an older one could be put back.
    pub(crate) changes: bool,
    /// We remove rows.
    pub(crate) may_be_removed: bool,
}

pub(crate) const RUN: Checked = Checked {
    table: "run",
    key: "name",
    columns: &[
        "name",
        "kind",
        "status",
        "created_at_ms",
        "finished_at_ms",
        "config_toml",
        "pinned",
    ],
    beside: &[],
    derived: &[],
    changes: true,
    may_be_removed: false,
};

pub(crate) const ROWS: Checked = Checked {
    table: "rows",
    key: "row_index",
    columns: &["row_index", "line", "body"],
    beside: &[],
    derived: &[],
    changes: false,
    may_be_removed: false,
};

/// Without `owner` and `lease_until_ms`: a lease ends with its process, and every heartbeat changes it. Without
/// `state`, which is `done` when there is an outcome; that, and that it is one of the three, is checked otherwise. The MAC
/// covers whether it is `done`.
pub(crate) const ROLLOUTS: Checked = Checked {
    table: "rollouts",
    key: "rollout_id",
    columns: &[
        "rollout_id",
        "row_index",
        "run_index",
        "attempt",
        "failures",
        "suspect",
        "outcome",
        "reward",
        "passed",
        "error",
        "sample_rewards",
        "model_calls",
        "prompt_tokens",
        "completion_tokens",
        "queue_ms",
        "agent_ms",
        "model_ms",
        "grade_ms",
        "started_at_ms",
        "finished_at_ms",
        "metrics",
        "outcome_detail",
        "cached_tokens",
        "reasoning_tokens",
        "judge_calls",
        "judge_prompt_tokens",
        "judge_completion_tokens",
    ],
    beside: &["state"],
    derived: &[("state", "(", " = 'done')")],
    changes: true,
    may_be_removed: false,
};

/// The MAC covers the attempt of the rollout: samples of an earlier one don't belong to its result.
pub(crate) const SAMPLES: Checked = Checked {
    table: "samples",
    key: "rollout_id",
    columns: &[
        "rollout_id",
        "sample_id",
        "position",
        "reward",
        "removed",
        "metrics",
        "extra_fields",
        "messages",
    ],
    beside: &[],
    derived: &[(
        "rollout_id",
        "(SELECT r.attempt FROM main.rollouts AS r WHERE r.rollout_id = ",
        ")",
    )],
    changes: false,
    may_be_removed: true,
};

pub(crate) const CALLS: Checked = Checked {
    table: "calls",
    key: "call_id",
    columns: &[
        "call_id",
        "rollout_id",
        "attempt",
        "sample_id",
        "dialect",
        "model",
        "upstream",
        "policy_version",
        "streamed",
        "status",
        "error",
        "prompt_tokens",
        "completion_tokens",
        "queued_at_ms",
        "sent_at_ms",
        "first_byte_at_ms",
        "done_at_ms",
        "request_bytes",
        "response_bytes",
        "segment",
        "request_offset",
        "response_offset",
        "base_call_id",
        "shared_prefix_bytes",
        "shared_suffix_bytes",
        "chain_length",
        "token_records",
        "tokens_offset",
        "tokens_bytes",
        "cached_tokens",
        "reasoning_tokens",
        "purpose",
        "body_macs",
    ],
    beside: &[],
    derived: &[],
    changes: false,
    may_be_removed: false,
};

pub(crate) const STEPS: Checked = Checked {
    table: "steps",
    key: "step",
    columns: &["step", "policy_version", "metrics", "finished_at_ms"],
    beside: &[],
    derived: &[],
    changes: true,
    may_be_removed: false,
};

pub(crate) const BATCHES: Checked = Checked {
    table: "batches",
    key: "number",
    columns: &[
        "number",
        "policy_version",
        "content",
        "formed_at_ms",
        "acknowledged_at_ms",
    ],
    beside: &[],
    derived: &[],
    changes: true,
    may_be_removed: false,
};

/// Every table that has the column `checksum`, in an order in which references lead backwards.
pub(crate) const TABLES: &[Checked] = &[RUN, ROWS, ROLLOUTS, SAMPLES, CALLS, STEPS, BATCHES];

/// What a row's `checksum` column says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowCheck {
    Right,
    Wrong,
    /// It was written before rows had checksums.
    Missing,
    /// Something else than osmosis wrote it: its checksum is right and its MAC is not.
    Altered,
}

impl Checked {
    /// `INSERT INTO` with these columns, each with its value, the checksum and the MAC. Columns that are left out must
    /// be null by default.
    pub(crate) fn insertion(&self, given: &[(&str, &str)]) -> String {
        let names: Vec<&str> = given.iter().map(|(name, _)| *name).collect();
        let values: Vec<&str> = given.iter().map(|(_, value)| *value).collect();
        let checks = self.expressions(|column| {
            let given = given.iter().find(|(name, _)| *name == column);
            given.map_or("NULL", |(_, value)| value)
        });
        let [checksum, mac] = checks;
        format!(
            "INTO main.{} ({}, checksum, mac) VALUES ({}, {checksum}, {mac})",
            self.table,
            names.join(", "),
            values.join(", "),
        )
    }

    /// `INSERT INTO` with the values that [`Self::copied`] lists, and a MAC of its own.
    pub(crate) fn copy(&self) -> String {
        let columns = self.copied();
        let marks: Vec<String> = (1..=columns.len()).map(|n| format!("?{n}")).collect();
        let authenticated = self.authenticated(|column| {
            let at = columns.iter().position(|name| *name == column);
            at.map_or_else(|| "NULL".to_owned(), |at| marks[at].clone())
        });
        format!(
            "INTO main.{} ({}, mac) VALUES ({}, {ROW_MAC}('{}', {}))",
            self.table,
            columns.join(", "),
            marks.join(", "),
            self.table,
            authenticated.join(", ")
        )
    }

    /// What follows `SET` for these changes, with the checksum and the MAC of the row as it will be.
    pub(crate) fn assignments(&self, changes: &[(&str, &str)]) -> String {
        let mut text = String::new();
        for (name, value) in changes {
            // Writing to a string can't fail.
            let _ = write!(text, "{name} = {value}, ");
        }
        let [checksum, mac] = self.expressions(|column| {
            let changed = changes.iter().find(|(name, _)| *name == column);
            changed.map_or(column, |(_, value)| value)
        });
        format!("{text}checksum = {checksum}, mac = {mac}")
    }

    /// The checksum and the MAC of a row with these values.
    fn expressions<'a>(&self, value: impl Fn(&'a str) -> &'a str) -> [String; 2]
    where
        Self: 'a,
    {
        let values: Vec<&str> = self.columns.iter().map(|column| value(column)).collect();
        let authenticated = self.authenticated(|column| value(column).to_owned());
        [
            format!("{FUNCTION}({})", values.join(", ")),
            format!("{ROW_MAC}('{}', {})", self.table, authenticated.join(", ")),
        ]
    }

    /// What the MAC of a row covers, in its order; `value` says what stands for a column.
    pub(crate) fn authenticated(&self, value: impl Fn(&'static str) -> String) -> Vec<String> {
        let columns = self.columns.iter().map(|column| value(column));
        let derived = self.derived.iter();
        let derived =
            derived.map(|(column, before, after)| format!("{before}{}{after}", value(column)));
        columns.chain(derived).collect()
    }

    /// Reads rows for [`Self::check`]: `rowid` first, then what [`Self::copied`] lists, the MAC, and what else it covers.
    /// Without a key it asks for nothing that a damaged database may not have.
    pub(crate) fn selection(&self, key: Option<&RecordKey>) -> String {
        let table = self.table;
        let qualified = |column: &str| format!("{table}.{column}");
        let mut columns: Vec<String> = self.copied().into_iter().map(qualified).collect();
        columns.push(qualified("mac"));
        if key.is_some() {
            let authenticated = self.authenticated(qualified);
            columns.extend(authenticated.into_iter().skip(self.columns.len()));
        }
        let columns = columns.join(", ");
        format!("SELECT {table}.rowid, {columns} FROM {table} NOT INDEXED")
    }

    /// The columns that make a row: those that the checksum covers, `checksum`, and the others.
    pub(crate) fn copied(&self) -> Vec<&'static str> {
        [self.columns, &["checksum"], self.beside].concat()
    }

    /// The position of a column in [`Self::copied`].
    pub(crate) fn position(&self, column: &str) -> usize {
        let position = self.columns.iter().position(|name| *name == column);
        position.unwrap_or(self.columns.len())
    }

    /// Compares a row of [`Self::selection`] with its checksum, and with its MAC where there is a key.
    pub(crate) fn check(
        &self,
        row: &Row<'_>,
        key: Option<&RecordKey>,
    ) -> rusqlite::Result<RowCheck> {
        match (self.check_sum(row)?, key) {
            (RowCheck::Right, Some(key)) if !self.is_authentic(row, key)? => Ok(RowCheck::Altered),
            (found, _) => Ok(found),
        }
    }

    fn is_authentic(&self, row: &Row<'_>, key: &RecordKey) -> rusqlite::Result<bool> {
        let mac_at = 1 + self.copied().len();
        let columns = 1..=self.columns.len();
        let derived = mac_at + 1..=mac_at + self.derived.len();
        let values: Vec<ValueRef<'_>> = columns
            .chain(derived)
            .map(|at| row.get_ref(at))
            .collect::<Result<_, _>>()?;
        Ok(authentic::is_authentic(
            self,
            key,
            row.get_ref(mac_at)?,
            values.into_iter(),
        ))
    }

    fn check_sum(&self, row: &Row<'_>) -> rusqlite::Result<RowCheck> {
        let stored: i64 = match row.get_ref(1 + self.columns.len())? {
            ValueRef::Null => return Ok(RowCheck::Missing),
            ValueRef::Integer(stored) => stored,
            _ => return Ok(RowCheck::Wrong),
        };
        let mut sum = Sum::default();
        for position in 0..self.columns.len() {
            sum.add(position, row.get_ref(1 + position)?);
        }
        Ok(if sum.finish() == stored {
            RowCheck::Right
        } else {
            RowCheck::Wrong
        })
    }
}

/// Lets the statements of a connection call [`FUNCTION`].
pub(crate) fn register(connection: &Connection) -> rusqlite::Result<()> {
    let flags = FunctionFlags::SQLITE_UTF8
        | FunctionFlags::SQLITE_DETERMINISTIC
        | FunctionFlags::SQLITE_INNOCUOUS;
    connection.create_scalar_function(FUNCTION, -1, flags, |context| {
        let mut sum = Sum::default();
        for position in 0..context.len() {
            sum.add(position, context.get_raw(position));
        }
        Ok(sum.finish())
    })
}

#[derive(Default)]
struct Sum(crc32fast::Hasher);

impl Sum {
    fn add(&mut self, position: usize, value: ValueRef<'_>) {
        // A table has fewer than 256 columns.
        let position = position.to_le_bytes()[0];
        match value {
            ValueRef::Null => {}
            ValueRef::Integer(number) => self.number(position, number),
            // SQLite keeps a whole number as an integer and gives it back as a float, by the column's type. What is
            // bound to a statement has not met a column yet.
            ValueRef::Real(number) if is_whole(number) => {
                #[expect(clippy::cast_possible_truncation, reason = "it is whole, and small")]
                self.number(position, number as i64);
            }
            ValueRef::Real(number) => {
                self.0.update(&[position, 2]);
                self.0.update(&number.to_bits().to_le_bytes());
            }
            ValueRef::Text(bytes) => self.bytes(position, 3, bytes),
            ValueRef::Blob(bytes) => self.bytes(position, 4, bytes),
        }
    }

    fn number(&mut self, position: u8, number: i64) {
        self.0.update(&[position, 1]);
        self.0.update(&number.to_le_bytes());
    }

    fn bytes(&mut self, position: u8, kind: u8, bytes: &[u8]) {
        self.0.update(&[position, kind]);
        self.0.update(&(bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
    }

    fn finish(self) -> i64 {
        i64::from(self.0.finalize())
    }
}

fn is_whole(number: f64) -> bool {
    number.fract() == 0.0 && number.abs() < 9e18
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One row of every type, written by the functions, read back by Rust.
    fn written(values: &str) -> RowCheck {
        const TABLE: Checked = Checked {
            table: "t",
            key: "a",
            columns: &["a", "b", "c"],
            beside: &[],
            derived: &[],
            changes: false,
            may_be_removed: false,
        };
        let connection = Connection::open_in_memory().unwrap();
        register(&connection).unwrap();
        let key = RecordKey::derive(b"user", "run");
        authentic::register_mac(&connection, Some(&key)).unwrap();
        connection
            .execute_batch(
                "CREATE TABLE t (a INTEGER, b REAL, c TEXT, checksum INTEGER, mac BLOB) STRICT",
            )
            .unwrap();
        let values: Vec<&str> = values.split('|').collect();
        let given = [("a", values[0]), ("b", values[1]), ("c", values[2])];
        let insert = format!("INSERT {}", TABLE.insertion(&given));
        connection.execute(&insert, []).unwrap();
        connection
            .query_row(&TABLE.selection(Some(&key)), [], |row| {
                TABLE.check(row, Some(&key))
            })
            .unwrap()
    }

    #[test]
    fn what_is_bound_and_what_is_read_back_have_one_checksum_and_one_mac() {
        for values in [
            "1|2|'x'",
            "1|2.5|'x'",
            "-1|-0.0|''",
            "9223372036854775807|1e300|NULL",
            "0|9007199254740992|'ä'",
            "NULL|NULL|NULL",
            "1|0.1|'a''b'",
        ] {
            assert_eq!(written(values), RowCheck::Right, "{values}");
        }
    }

    #[test]
    fn values_that_changed_places_do_not_look_the_same() {
        let mut one = Sum::default();
        one.add(0, ValueRef::Text(b"ab"));
        one.add(1, ValueRef::Null);
        let mut other = Sum::default();
        other.add(0, ValueRef::Null);
        other.add(1, ValueRef::Text(b"ab"));
        assert_ne!(one.finish(), other.finish());
    }
}

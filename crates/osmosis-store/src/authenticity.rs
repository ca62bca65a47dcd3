//! Who wrote a row: the keys that rows are authenticated with, and what readers find out by them.
//!
//! A checksum shows damage, and whoever changes a row can compute it again. A message authentication code (MAC) can be
//! made by those alone who have the key. Each run has keys of its own, derived from one key of this user and the run's id:
//! [`RecordKey::row`] for rows, and another for the run's totals, which only the process that controls the run has.

use std::fmt;
use std::sync::Arc;

use ring::hmac::{self, HMAC_SHA256};

mod key_folder;
mod seal;

pub use key_folder::{KeyFolder, SealedPlace, new_run_uid};
pub use seal::Seal;

/// The bytes of a MAC: HMAC-SHA256, its first half.
pub const MAC_BYTES: usize = 16;

/// A message authentication code.
pub type Mac = [u8; MAC_BYTES];

/// Whether the rows of a run were written by who has the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Authenticity {
    /// Every row that is read is compared with its MAC.
    Authenticated,
    /// Nothing can be said about who wrote them.
    Unauthenticated(MissingKey),
}

/// Why the rows of a run can't be authenticated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MissingKey {
    /// They carry no MACs: an older program wrote them, they were copied of a run that has none, or a process without a key
    /// went on with the run.
    NoMacs,
    /// They were written on another machine or by another user.
    OtherKey,
    /// This process has no key: neither `XDG_STATE_HOME` nor `HOME` is set.
    NoKeyFolder,
}

impl Authenticity {
    pub fn is_authenticated(self) -> bool {
        self == Self::Authenticated
    }

    /// Why nothing can be said about who wrote the rows, in words.
    pub fn missing(self) -> Option<String> {
        match self {
            Self::Authenticated => None,
            Self::Unauthenticated(missing) => Some(missing.to_string()),
        }
    }
}

impl fmt::Display for MissingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoMacs => "its records carry no authentication codes",
            Self::OtherKey => "its records were made with the key of another machine or user",
            Self::NoKeyFolder => "there is no key: neither XDG_STATE_HOME nor HOME is set",
        })
    }
}

/// The keys of one run. Not shown, and not written anywhere.
#[derive(Clone)]
pub struct RecordKey(Arc<Keys>);

struct Keys {
    rows: hmac::Key,
    /// `None` for a node, which has the key of rows alone.
    seal: Option<hmac::Key>,
    row_secret: [u8; 32],
}

impl fmt::Debug for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordKey").finish_non_exhaustive()
    }
}

impl RecordKey {
    /// Of the run with this id, by the key of a user.
    pub fn derive(user_key: &[u8], run_uid: &str) -> Self {
        let root = hmac::Key::new(HMAC_SHA256, user_key);
        let row_secret = derived(&root, "rows", run_uid);
        Self(Arc::new(Keys {
            rows: hmac::Key::new(HMAC_SHA256, &row_secret),
            seal: Some(hmac::Key::new(
                HMAC_SHA256,
                &derived(&root, "seal", run_uid),
            )),
            row_secret,
        }))
    }

    /// Of a node, which was given [`Self::row_secret`].
    pub fn from_row_secret(row_secret: [u8; 32]) -> Self {
        Self(Arc::new(Keys {
            rows: hmac::Key::new(HMAC_SHA256, &row_secret),
            seal: None,
            row_secret,
        }))
    }

    /// What a node needs to write rows of this run. Whoever has it can write rows, and can't change the totals of the run.
    pub fn row_secret(&self) -> &[u8; 32] {
        &self.0.row_secret
    }

    /// The MAC of a row, by its [`RowBytes`].
    pub fn row(&self, bytes: &[u8]) -> Mac {
        truncated(hmac::sign(&self.0.rows, bytes).as_ref())
    }

    /// The MAC of a body that is in pieces.
    pub fn body(&self, pieces: &[&[u8]]) -> Mac {
        let mut context = hmac::Context::with_key(&self.0.rows);
        context.update(b"body\0");
        for piece in pieces {
            context.update(piece);
        }
        truncated(context.sign().as_ref())
    }

    /// The MAC of a run's totals; `None` for a node.
    pub fn seal(&self, bytes: &[u8]) -> Option<Mac> {
        let key = self.0.seal.as_ref()?;
        Some(truncated(hmac::sign(key, bytes).as_ref()))
    }
}

fn derived(root: &hmac::Key, what: &str, run_uid: &str) -> [u8; 32] {
    let tag = hmac::sign(root, format!("osmosis {what} of {run_uid}").as_bytes());
    let mut secret = [0; 32];
    secret.copy_from_slice(tag.as_ref());
    secret
}

fn truncated(tag: &[u8]) -> Mac {
    let mut mac = [0; MAC_BYTES];
    mac.copy_from_slice(&tag[..MAC_BYTES]);
    mac
}

/// Compares without saying by its time where two differ.
pub fn is_same_mac(one: &[u8], other: &Mac) -> bool {
    one.len() == MAC_BYTES
        && one
            .iter()
            .zip(other)
            .fold(0, |differing, (one, other)| differing | (one ^ other))
            == 0
}

/// A value of a column, as a MAC sees it.
#[derive(Debug, Clone, Copy)]
pub enum Value<'v> {
    Null,
    Integer(i64),
    Real(f64),
    Text(&'v [u8]),
    Blob(&'v [u8]),
}

/// The bytes that the MAC of a row is made of: the table, and its values by position. A null value leaves no trace, so that a
/// column can be added at the end.
#[derive(Debug, Clone, Default)]
pub struct RowBytes {
    bytes: Vec<u8>,
    position: u8,
}

impl RowBytes {
    pub fn new(table: &str) -> Self {
        let mut row = Self::default();
        row.begin(table);
        row
    }

    /// Begins another row with the same memory.
    pub fn begin(&mut self, table: &str) {
        self.bytes.clear();
        self.position = 0;
        self.bytes.extend_from_slice(table.as_bytes());
        self.bytes.push(0);
    }

    /// Adds the value of the next column.
    pub fn add(&mut self, value: Value<'_>) {
        let position = self.position;
        // A table has fewer than 256 columns.
        self.position = position.wrapping_add(1);
        match value {
            Value::Null => {}
            Value::Integer(number) => self.number(position, number),
            // A backend may keep a whole number as an integer and give it back as a float.
            Value::Real(number) if number.fract() == 0.0 && number.abs() < 9e18 => {
                #[expect(clippy::cast_possible_truncation, reason = "it is whole, and small")]
                self.number(position, number as i64);
            }
            Value::Real(number) => {
                self.bytes.extend_from_slice(&[position, 2]);
                self.bytes
                    .extend_from_slice(&number.to_bits().to_le_bytes());
            }
            Value::Text(text) => self.long(position, 3, text),
            Value::Blob(blob) => self.long(position, 4, blob),
        }
    }

    fn number(&mut self, position: u8, number: i64) {
        self.bytes.extend_from_slice(&[position, 1]);
        self.bytes.extend_from_slice(&number.to_le_bytes());
    }

    fn long(&mut self, position: u8, kind: u8, bytes: &[u8]) {
        self.bytes.extend_from_slice(&[position, kind]);
        self.bytes
            .extend_from_slice(&(bytes.len() as u64).to_le_bytes());
        self.bytes.extend_from_slice(bytes);
    }

    pub fn as_slice(&self) -> &[u8] {
        &self.bytes
    }
}

/// How many rows a table has, and the sum of their MACs: another one when a row was added, taken away or put back to what it
/// was before, each of which leaves rows that are right by themselves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TableTotal {
    pub rows: u64,
    pub sum: u128,
}

impl TableTotal {
    pub fn add(&mut self, mac: &[u8]) {
        self.rows = self.rows.wrapping_add(1);
        self.sum = self.sum.wrapping_add(number(mac));
    }

    pub fn remove(&mut self, mac: &[u8]) {
        self.rows = self.rows.wrapping_sub(1);
        self.sum = self.sum.wrapping_sub(number(mac));
    }
}

fn number(mac: &[u8]) -> u128 {
    Mac::try_from(mac).map_or(0, u128::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(values: &[Value<'_>]) -> Vec<u8> {
        let mut row = RowBytes::new("t");
        for value in values {
            row.add(*value);
        }
        row.as_slice().to_vec()
    }

    #[test]
    fn values_that_changed_places_types_or_tables_do_not_look_the_same() {
        let a = Value::Text(b"ab");
        let rows = [
            row(&[a, Value::Null]),
            row(&[Value::Null, a]),
            row(&[Value::Blob(b"ab"), Value::Null]),
            row(&[Value::Text(b"a"), Value::Text(b"b")]),
            row(&[Value::Integer(1), Value::Integer(2)]),
            row(&[Value::Integer(2), Value::Integer(1)]),
            RowBytes::new("u").as_slice().to_vec(),
            row(&[]),
        ];
        for (n, one) in rows.iter().enumerate() {
            assert!(rows.iter().skip(n + 1).all(|other| one != other), "{n}");
        }
        assert_eq!(row(&[Value::Real(2.0)]), row(&[Value::Integer(2)]));
    }

    #[test]
    fn keys_differ_by_user_run_and_purpose_and_a_node_has_no_key_for_totals() {
        let key = RecordKey::derive(b"user", "a");
        let macs = [
            key.row(b"x"),
            key.seal(b"x").unwrap(),
            RecordKey::derive(b"user", "b").row(b"x"),
            RecordKey::derive(b"other", "a").row(b"x"),
        ];
        for (n, one) in macs.iter().enumerate() {
            assert!(
                macs.iter()
                    .skip(n + 1)
                    .all(|other| !is_same_mac(one, other))
            );
        }
        let node = RecordKey::from_row_secret(*key.row_secret());
        assert!(is_same_mac(&node.row(b"x"), &key.row(b"x")));
        assert_eq!(node.seal(b"x"), None);
        assert!(!is_same_mac(&[], &key.row(b"x")));
    }

    #[test]
    fn a_total_changes_when_a_row_is_put_back_to_what_it_was() {
        let key = RecordKey::derive(b"user", "a");
        let (old, new) = (key.row(b"old"), key.row(b"new"));
        let mut total = TableTotal::default();
        total.add(&old);
        let before = total;
        total.remove(&old);
        total.add(&new);
        assert_ne!(before, total);
        total.remove(&new);
        assert_eq!(total, TableTotal::default());
    }
}

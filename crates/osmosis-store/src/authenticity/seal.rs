//! What the process that controls a run has counted, in words that it alone can write.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Mac, RecordKey, TableTotal, is_same_mac};

/// The totals of a run's tables, numbered: each goes up from the one before.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seal {
    pub number: u64,
    pub totals: BTreeMap<String, TableTotal>,
}

/// The same in JSON.
#[derive(Serialize, Deserialize)]
struct SealText {
    number: u64,
    tables: BTreeMap<String, (u64, String)>,
}

impl Seal {
    /// As text, and its MAC.
    pub fn write(&self, key: &RecordKey, run_uid: &str) -> Option<(String, Mac)> {
        let tables = self.totals.iter();
        let text = SealText {
            number: self.number,
            tables: tables
                .map(|(table, total)| (table.clone(), (total.rows, format!("{:032x}", total.sum))))
                .collect(),
        };
        let text = serde_json::to_string(&text).ok()?;
        let mac = key.seal(sealed(run_uid, &text).as_bytes())?;
        Some((text, mac))
    }

    /// `None` when it was not written by who has the key.
    pub fn read(text: &str, mac: &[u8], key: &RecordKey, run_uid: &str) -> Option<Self> {
        let right = key.seal(sealed(run_uid, text).as_bytes())?;
        if !is_same_mac(mac, &right) {
            return None;
        }
        let text: SealText = serde_json::from_str(text).ok()?;
        let totals = text.tables.into_iter().map(|(table, (rows, sum))| {
            let sum = u128::from_str_radix(&sum, 16).ok()?;
            Some((table, TableTotal { rows, sum }))
        });
        Some(Self {
            number: text.number,
            totals: totals.collect::<Option<_>>()?,
        })
    }

    /// What is not as it was sealed, in words; `found` are the totals of the tables as they are.
    pub fn differences(&self, found: &BTreeMap<String, TableTotal>) -> Vec<String> {
        let mut differences = Vec::new();
        for (table, sealed) in &self.totals {
            let found = found.get(table).copied().unwrap_or_default();
            if found.rows != sealed.rows {
                differences.push(format!(
                    "table {table}: {} rows, where {} were recorded",
                    found.rows, sealed.rows
                ));
            } else if found.sum != sealed.sum {
                differences.push(format!(
                    "table {table}: some rows are older ones than the last that were recorded"
                ));
            }
        }
        differences
    }
}

fn sealed(run_uid: &str, text: &str) -> String {
    format!("{run_uid} {text}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seal_is_read_by_its_key_and_run_alone_and_says_what_differs() {
        let key = RecordKey::derive(b"user", "run");
        let mut total = TableTotal::default();
        total.add(&key.row(b"a row"));
        let seal = Seal {
            number: 7,
            totals: BTreeMap::from([("rows".to_owned(), total)]),
        };
        let (text, mac) = seal.write(&key, "run").unwrap();
        assert_eq!(Seal::read(&text, &mac, &key, "run"), Some(seal.clone()));
        let forged = text.replace(":7,", ":8,");
        assert_ne!(forged, text);
        for (text, mac, key, run) in [
            (&forged, &mac[..], &key, "run"),
            (&text, &mac[1..], &key, "run"),
            (&text, &mac[..], &key, "another"),
            (&text, &mac[..], &RecordKey::derive(b"other", "run"), "run"),
        ] {
            assert_eq!(Seal::read(text, mac, key, run), None);
        }
        assert!(seal.differences(&seal.totals).is_empty());
        let fewer = seal.differences(&BTreeMap::new());
        assert_eq!(fewer, ["table rows: 0 rows, where 1 were recorded"]);
        let node = RecordKey::from_row_secret(*key.row_secret());
        assert!(seal.write(&node, "run").is_none());
    }
}

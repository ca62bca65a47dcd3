//! Is a run as it was written, and what of a damaged one could be kept: the reports. How a backend finds out is its own.

use crate::{Authenticity, Holder};

/// So many findings are told one by one; more are counted.
const TOLD: usize = 200;

/// What checking a run found.
#[derive(Debug, Clone, Default)]
pub struct VerifyReport {
    /// The first findings, in the order they were found.
    pub damage: Vec<Damage>,
    /// How many there are.
    pub findings: u64,
    pub checked: CheckedCounts,
    /// Rows that carry no checksum, because an older program wrote them: only their form was checked.
    pub without_checksum: u64,
    /// So many of the findings are records that something else than osmosis wrote.
    pub altered: u64,
    /// Whether it can be told who wrote the records; `None` when not even that could be read.
    pub authenticity: Option<Authenticity>,
    /// The version of the tables; `None` when the database can't be read.
    pub schema_version: Option<i64>,
    /// The process that was writing meanwhile. Then the end of the log was not checked.
    pub holder: Option<Holder>,
}

impl VerifyReport {
    pub fn is_whole(&self) -> bool {
        self.findings == 0
    }

    /// Adds a record that something else than osmosis wrote.
    pub fn add_altered(&mut self, place: impl Into<String>, message: impl Into<String>) {
        self.altered += 1;
        self.add(place, message);
    }

    /// Adds a finding.
    pub fn add(&mut self, place: impl Into<String>, message: impl Into<String>) {
        self.findings += 1;
        if self.damage.len() < TOLD {
            self.damage.push(Damage {
                place: place.into(),
                message: message.into(),
            });
        }
    }
}

/// Something that is not as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// The file, table or record.
    pub place: String,
    pub message: String,
}

/// How many of each were checked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CheckedCounts {
    pub rows: u64,
    pub rollouts: u64,
    pub samples: u64,
    pub calls: u64,
    pub steps: u64,
    pub batches: u64,
    /// Bytes of call bodies.
    pub body_bytes: u64,
}

/// How far a check has come, in bytes of the run's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VerifyProgress {
    pub done: u64,
    pub total: u64,
}

/// What salvaging a damaged run kept and lost.
#[derive(Debug, Clone, Default)]
pub struct SalvageReport {
    /// The run's own record is whole. Without it, the run has to be submitted again under its new name.
    pub has_record: bool,
    pub rows: u64,
    /// Rollouts with their results.
    pub results: u64,
    /// Rollouts that wait: those that waited before, and those whose result was lost.
    pub waiting: u64,
    pub calls: u64,
    pub steps: u64,
    pub batches: u64,
    /// What was lost, as far as it can be named.
    pub lost: Vec<LostRecord>,
}

/// Something that could not be kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostRecord {
    pub what: String,
    pub why: String,
}

impl SalvageReport {
    /// Adds something that could not be kept.
    pub fn lose(&mut self, what: impl Into<String>, why: impl Into<String>) {
        self.lost.push(LostRecord {
            what: what.into(),
            why: why.into(),
        });
    }
}

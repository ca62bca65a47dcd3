//! Exports for trainers: rows of tokens with a loss mask, logprobs and a reward, in the layout that AReaL, verl
//! or slime works with. Advantages are left to the trainer; rows of one group can be compared.

mod areal;
mod row_groups;
mod slime;
mod spoken;
mod verl;

use std::io::Write;

use camino::Utf8Path;
use osmosis_core::{PolicyVersion, Redactor, SampleId};

use self::areal::ArealExport;
use self::slime::SlimeExport;
use self::verl::VerlExport;
use super::lines::JsonLines;
use super::target::Target;
use super::{ExportRecord, RunFacts, SampleTalk};
use crate::DataError;

/// Whose trainer it is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenFormat {
    Areal,
    Verl,
    Slime,
}

impl TokenFormat {
    /// What a file of this format is called after the run's name.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Areal => "areal.parquet",
            Self::Verl => "verl.parquet",
            Self::Slime => "slime.jsonl",
        }
    }

    /// Whether it also tells what was said, and not in token ids alone.
    pub fn has_text(self) -> bool {
        match self {
            Self::Areal => false,
            Self::Verl | Self::Slime => true,
        }
    }
}

/// Tokens to train on, and what they earned. All lists have the length of `ids`; at least one token is
/// trained on.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenRow {
    pub sample: SampleId,
    /// Rows of one dataset row, visit, sample and turn are a group.
    pub visit: u32,
    /// From 0; always 0 for rewards of whole samples.
    pub turn: u32,
    pub reward: f64,
    /// How many model calls it is made of.
    pub calls: u64,
    pub ids: Vec<u32>,
    pub loss_mask: Vec<bool>,
    /// 0 where nothing was sampled.
    pub logprobs: Vec<f32>,
    /// `None` where nothing was sampled.
    pub versions: Vec<Option<PolicyVersion>>,
    /// Of the sampled tokens; 1 elsewhere.
    pub temperatures: Vec<f32>,
}

impl TokenRow {
    /// Where the response begins: at the first token that is trained on.
    fn split(&self) -> usize {
        self.loss_mask
            .iter()
            .position(|trained| *trained)
            .unwrap_or(self.ids.len())
    }

    /// The temperature that the first token to train on was sampled with.
    fn temperature(&self) -> f64 {
        let temperature = self.temperatures.get(self.split()).copied().unwrap_or(1.0);
        // By its digits: 0.7 and not 0.699999988079071.
        temperature.to_string().parse().unwrap_or(1.0)
    }

    /// A name that rows have in common when their rewards can be compared.
    fn group(&self, record: &ExportRecord) -> String {
        let Self {
            sample,
            visit,
            turn,
            ..
        } = self;
        format!("{}.{visit}.{sample}.{turn}", record.row_index)
    }
}

/// An export of tokens.
#[derive(Debug)]
pub enum TokenExport {
    Areal(Box<ArealExport>),
    Verl(Box<VerlExport>),
    Slime(Box<SlimeExport>),
}

impl TokenExport {
    /// Starts a file that gets its name when it is finished.
    pub fn create(
        format: TokenFormat,
        path: &Utf8Path,
        redactor: Redactor,
    ) -> Result<Self, DataError> {
        Ok(match format {
            TokenFormat::Areal => {
                Self::Areal(Box::new(ArealExport::new(Target::create(path)?, redactor)?))
            }
            TokenFormat::Verl => {
                Self::Verl(Box::new(VerlExport::new(Target::create(path)?, redactor)?))
            }
            TokenFormat::Slime => Self::Slime(Box::new(SlimeExport::new(JsonLines::create(
                path, redactor,
            )?))),
        })
    }

    /// Writes to what is open already. `None` for parquet, which is no text.
    pub fn to(
        format: TokenFormat,
        writer: impl Write + Send + 'static,
        redactor: Redactor,
    ) -> Option<Self> {
        match format {
            TokenFormat::Areal | TokenFormat::Verl => None,
            TokenFormat::Slime => {
                let lines = JsonLines::to(writer, redactor);
                Some(Self::Slime(Box::new(SlimeExport::new(lines))))
            }
        }
    }

    /// Adds the rows of a rollout. Rollouts come in the order of the dataset's rows. What was said in its
    /// samples is looked at where the format has text, with the token ids of the calls.
    pub fn write(
        &mut self,
        run: &RunFacts,
        record: &ExportRecord,
        rows: &[TokenRow],
        samples: &[SampleTalk],
    ) -> Result<(), DataError> {
        match self {
            Self::Areal(export) => rows.iter().try_for_each(|row| export.write(record, row)),
            Self::Verl(export) => rows
                .iter()
                .try_for_each(|row| export.write(run, record, row, samples)),
            Self::Slime(export) => rows
                .iter()
                .try_for_each(|row| export.write(record, row, samples)),
        }
    }

    /// How many rows were written so far.
    pub fn rows(&self) -> u64 {
        match self {
            Self::Areal(export) => export.rows(),
            Self::Verl(export) => export.rows(),
            Self::Slime(export) => export.rows(),
        }
    }

    /// Ends the file and gives it its name. Returns how many rows it has.
    pub fn finish(self) -> Result<u64, DataError> {
        match self {
            Self::Areal(export) => export.finish(),
            Self::Verl(export) => export.finish(),
            Self::Slime(export) => export.finish(),
        }
    }
}

/// -1 where nothing was sampled.
fn version_number(version: Option<PolicyVersion>) -> i64 {
    version.map_or(-1, |version| i64::try_from(version.0).unwrap_or(i64::MAX))
}

/// As the trainers have it: a 32-bit integer.
fn small(to: &str, number: impl TryInto<i32> + Copy + std::fmt::Display) -> Result<i32, DataError> {
    number.try_into().map_err(|_| DataError::Unwritable {
        to: to.to_owned(),
        error: std::io::Error::other(format!("{number} is too large for 32 bits")),
    })
}

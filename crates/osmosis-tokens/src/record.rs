//! What one model call was, in tokens.

use osmosis_core::PolicyVersion;
use osmosis_core::generation::{Constraint, LogprobsOf};

use crate::TokensError;

/// One call in tokens: what the policy saw, and what it sampled.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenRecord {
    /// The call's number within its sample, from 0, in order of arrival.
    pub call: u32,
    pub origin: Origin,
    /// The ids after the `kept` ones of the origin (all of them for a root).
    pub prompt_suffix: Vec<u32>,
    pub sampled: Vec<u32>,
    /// One for each sampled token: log-softmax(logits / temperature) before top-p and top-k, unless
    /// `logprobs_of` says otherwise.
    pub logprobs: Vec<f32>,
    /// What the logprobs are. Only `Tempered` ones can be trained with.
    pub logprobs_of: LogprobsOf,
    /// One for each sampled token.
    pub versions: Vec<PolicyVersion>,
    pub temperature: f32,
    /// The whole answer went to the caller. What was cut off is no part of a training row.
    pub complete: bool,
    /// One of the several choices of a call with `n` above 1.
    pub one_of_several: bool,
    /// Calls of the same request whose answers did not reach the caller, which asked again.
    pub replaces: Vec<u32>,
    /// What the sampled tokens had to follow; `None` when they were sampled freely.
    pub constraint: Option<RecordedConstraint>,
}

/// The grammar of a call, from which the allowed tokens of each position can be found again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedConstraint {
    pub constraint: Constraint,
    /// One for each sampled token: how many tokens were allowed there. The logprob is that among them.
    pub allowed: Vec<u32>,
}

/// Where the prompt of a call comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// The first `kept` ids are those that call `call` saw and sampled, verbatim.
    Continues { call: u32, kept: u32 },
    /// Rendered anew; `reason` says why when there were earlier calls it might have continued.
    Root { reason: Option<String> },
}

const VERSION: u8 = 1;
const COMPLETE: u8 = 1;
const CONTINUES: u8 = 2;
const HAS_REASON: u8 = 4;
/// The logprobs are not the promised ones; a byte says what they are.
const OTHER_LOGPROBS: u8 = 8;
const ONE_OF_SEVERAL: u8 = 16;
const REPLACES: u8 = 32;
/// The tokens followed a grammar; it is there, with the numbers of allowed tokens.
const CONSTRAINED: u8 = 64;
const KNOWN_FLAGS: u8 =
    COMPLETE | CONTINUES | HAS_REASON | OTHER_LOGPROBS | ONE_OF_SEVERAL | REPLACES | CONSTRAINED;
/// How the reason of a record begins that says only why the ids are not known.
const IDS_UNKNOWN: &str = "token ids unknown: ";

impl TokenRecord {
    /// The record of a call whose token ids nobody could tell. It is no part of a training row.
    pub fn unknown(call: u32, why: &str) -> Self {
        Self {
            call,
            origin: Origin::Root {
                reason: Some(format!("{IDS_UNKNOWN}{why}")),
            },
            prompt_suffix: Vec::new(),
            sampled: Vec::new(),
            logprobs: Vec::new(),
            logprobs_of: LogprobsOf::Unknown,
            versions: Vec::new(),
            temperature: 1.0,
            complete: false,
            one_of_several: false,
            replaces: Vec::new(),
            constraint: None,
        }
    }

    /// Why the token ids of the call are not known, when they are not.
    pub fn ids_unknown(&self) -> Option<&str> {
        match &self.origin {
            Origin::Root {
                reason: Some(reason),
            } => reason.strip_prefix(IDS_UNKNOWN),
            Origin::Root { reason: None } | Origin::Continues { .. } => None,
        }
    }

    /// A compact binary form, with a version byte first.
    ///
    /// Then flags; call; origin (call and kept, or reason); what other logprobs these are, when they
    /// are; the calls it replaces, when there are; the grammar, when there is one, and a number of allowed tokens for
    /// each sampled one; temperature; prompt ids; sampled ids; logprobs; versions as (run length, version). Numbers are
    /// LEB128, floats little endian.
    pub fn encode(&self) -> Vec<u8> {
        let mut out =
            Vec::with_capacity(32 + 3 * self.prompt_suffix.len() + 7 * self.sampled.len());
        let origin_flag = match &self.origin {
            Origin::Continues { .. } => CONTINUES,
            Origin::Root { reason: Some(_) } => HAS_REASON,
            Origin::Root { reason: None } => 0,
        };
        out.push(VERSION);
        let other_logprobs = match self.logprobs_of {
            LogprobsOf::Tempered => None,
            LogprobsOf::Untempered => Some(1),
            LogprobsOf::Filtered => Some(2),
            LogprobsOf::Unknown => Some(3),
        };
        let complete = if self.complete { COMPLETE } else { 0 };
        let other = other_logprobs.map_or(0, |_| OTHER_LOGPROBS);
        let several = if self.one_of_several {
            ONE_OF_SEVERAL
        } else {
            0
        };
        let replaces = if self.replaces.is_empty() {
            0
        } else {
            REPLACES
        };
        let constrained = self.constraint.as_ref().map_or(0, |_| CONSTRAINED);
        out.push(origin_flag | complete | other | several | replaces | constrained);
        write_number(&mut out, self.call.into());
        match &self.origin {
            Origin::Continues { call, kept } => {
                write_number(&mut out, (*call).into());
                write_number(&mut out, (*kept).into());
            }
            Origin::Root { reason } => {
                if let Some(reason) = reason {
                    write_number(&mut out, reason.len() as u64);
                    out.extend_from_slice(reason.as_bytes());
                }
            }
        }
        out.extend(other_logprobs);
        if !self.replaces.is_empty() {
            write_number(&mut out, self.replaces.len() as u64);
            for call in &self.replaces {
                write_number(&mut out, (*call).into());
            }
        }
        if let Some(RecordedConstraint {
            constraint,
            allowed,
        }) = &self.constraint
        {
            write_number(&mut out, constraint.grammar.len() as u64);
            out.extend_from_slice(constraint.grammar.as_bytes());
            write_number(&mut out, allowed.len() as u64);
            for count in allowed {
                write_number(&mut out, (*count).into());
            }
        }
        out.extend_from_slice(&self.temperature.to_le_bytes());
        for ids in [&self.prompt_suffix, &self.sampled] {
            write_number(&mut out, ids.len() as u64);
            for id in ids {
                write_number(&mut out, (*id).into());
            }
        }
        write_number(&mut out, self.logprobs.len() as u64);
        for logprob in &self.logprobs {
            out.extend_from_slice(&logprob.to_le_bytes());
        }
        for run in self.versions.chunk_by(|a, b| a == b) {
            write_number(&mut out, run.len() as u64);
            write_number(&mut out, run[0].0);
        }
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, TokensError> {
        let mut reader = Reader { rest: bytes };
        let version = reader.byte()?;
        if version != VERSION {
            return Err(damaged(format!(
                "it has format version {version}, this program knows {VERSION}"
            )));
        }
        let flags = reader.byte()?;
        if flags & !KNOWN_FLAGS != 0 || flags & CONTINUES != 0 && flags & HAS_REASON != 0 {
            return Err(damaged(format!("unknown flags {flags:#04x}")));
        }
        let call = reader.small()?;
        let origin = if flags & CONTINUES != 0 {
            Origin::Continues {
                call: reader.small()?,
                kept: reader.small()?,
            }
        } else if flags & HAS_REASON != 0 {
            let length = reader.length(1)?;
            let text = str::from_utf8(reader.take(length)?)
                .map_err(|_| damaged("the reason is no text"))?;
            Origin::Root {
                reason: Some(text.to_owned()),
            }
        } else {
            Origin::Root { reason: None }
        };
        let logprobs_of = if flags & OTHER_LOGPROBS == 0 {
            LogprobsOf::Tempered
        } else {
            match reader.byte()? {
                1 => LogprobsOf::Untempered,
                2 => LogprobsOf::Filtered,
                3 => LogprobsOf::Unknown,
                other => return Err(damaged(format!("unknown logprobs {other:#04x}"))),
            }
        };
        let replaces = if flags & REPLACES == 0 {
            Vec::new()
        } else {
            reader.ids()?
        };
        let constraint = if flags & CONSTRAINED == 0 {
            None
        } else {
            let length = reader.length(1)?;
            let grammar = str::from_utf8(reader.take(length)?)
                .map_err(|_| damaged("the grammar is no text"))?;
            Some(RecordedConstraint {
                constraint: Constraint {
                    grammar: grammar.into(),
                },
                allowed: reader.ids()?,
            })
        };
        let temperature = reader.float()?;
        let prompt_suffix = reader.ids()?;
        let sampled = reader.ids()?;
        if let Some(RecordedConstraint { allowed, .. }) = &constraint
            && allowed.len() != sampled.len()
        {
            return Err(damaged(format!(
                "{} numbers of allowed tokens for {} sampled tokens",
                allowed.len(),
                sampled.len()
            )));
        }
        let logprobs = (0..reader.length(4)?)
            .map(|_| reader.float())
            .collect::<Result<Vec<f32>, TokensError>>()?;
        if logprobs.len() != sampled.len() {
            return Err(damaged(format!(
                "{} logprobs for {} sampled tokens",
                logprobs.len(),
                sampled.len()
            )));
        }
        let mut versions = Vec::with_capacity(sampled.len());
        while !reader.rest.is_empty() {
            let run = usize::try_from(reader.number()?).unwrap_or(usize::MAX);
            let version = PolicyVersion(reader.number()?);
            if run == 0 || run > sampled.len() - versions.len() {
                return Err(damaged("more versions than sampled tokens"));
            }
            versions.resize(versions.len() + run, version);
        }
        if versions.len() != sampled.len() {
            return Err(damaged(format!(
                "{} versions for {} sampled tokens",
                versions.len(),
                sampled.len()
            )));
        }
        Ok(Self {
            call,
            origin,
            prompt_suffix,
            sampled,
            logprobs,
            logprobs_of,
            versions,
            temperature,
            complete: flags & COMPLETE != 0,
            one_of_several: flags & ONE_OF_SEVERAL != 0,
            replaces,
            constraint,
        })
    }
}

fn damaged(message: impl Into<String>) -> TokensError {
    TokensError::Damaged {
        message: message.into(),
    }
}

fn write_number(out: &mut Vec<u8>, number: u64) {
    let mut rest = number;
    loop {
        let [low, ..] = rest.to_le_bytes();
        rest >>= 7;
        if rest == 0 {
            out.push(low & 0x7f);
            return;
        }
        out.push(low | 0x80);
    }
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], TokensError> {
        let (taken, rest) = self
            .rest
            .split_at_checked(length)
            .ok_or_else(|| damaged("it ends too early"))?;
        self.rest = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, TokensError> {
        Ok(self.take(1)?[0])
    }

    fn number(&mut self) -> Result<u64, TokensError> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let part = u64::from(byte & 0x7f);
            if shift == 63 && part > 1 {
                break;
            }
            number |= part << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(damaged("a number is too large"))
    }

    fn small(&mut self) -> Result<u32, TokensError> {
        u32::try_from(self.number()?).map_err(|_| damaged("a number is too large"))
    }

    /// A count of items of at least `size` bytes each: never more than the bytes that are left can hold,
    /// so that a damaged count allocates nothing.
    fn length(&mut self, size: usize) -> Result<usize, TokensError> {
        usize::try_from(self.number()?)
            .ok()
            .filter(|length| *length <= self.rest.len() / size)
            .ok_or_else(|| damaged("it ends too early"))
    }

    fn float(&mut self) -> Result<f32, TokensError> {
        let bytes = self.take(4)?;
        Ok(f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    fn ids(&mut self) -> Result<Vec<u32>, TokensError> {
        let length = self.length(1)?;
        (0..length).map(|_| self.small()).collect()
    }
}

#[cfg(test)]
mod tests;

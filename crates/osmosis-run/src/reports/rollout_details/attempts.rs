//! Attempts at a rollout whose result does not count: why each ended, and its calls.

use std::collections::BTreeMap;

use osmosis_core::{Attempt, OutcomeKind};
use osmosis_store::{RolloutRecord, Store};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::calls::{CallDetails, RecordedCalls};
use super::{Wanted, each_log_line};
use crate::RunError;
use crate::run_folder::RunFolder;
use crate::run_log::{ATTEMPT, TRIED_AGAIN};

/// An attempt that another one followed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EarlierAttempt {
    /// From 1.
    pub attempt: Attempt,
    /// Why it ended; `null` if the run's log has no word of it, as after the machine went down.
    pub ended_because: Option<String>,
    pub calls: Vec<CallDetails>,
}

impl EarlierAttempt {
    /// All but the last attempt, which is the one whose result counts.
    pub async fn all_of(
        store: &dyn Store,
        folder: &RunFolder,
        rollout: &RolloutRecord,
    ) -> Result<Vec<Self>, RunError> {
        if rollout.attempts < 2 {
            return Ok(vec![]);
        }
        let mut endings = Endings::default();
        if folder.logs().exists() {
            each_log_line(folder, Some(rollout.id.as_str()), |line| endings.read(line))?;
        }
        let mut earlier = vec![];
        for attempt in 1..rollout.attempts {
            let number = Some(Attempt(attempt));
            let calls = RecordedCalls::read(store, &rollout.id, number, Wanted::default()).await?;
            earlier.push(Self {
                attempt: Attempt(attempt),
                ended_because: endings.reasons.remove(&attempt),
                calls: calls.details(),
            });
        }
        Ok(earlier)
    }
}

/// Why attempts ended, from the log's lines about their rollout.
#[derive(Debug)]
struct Endings {
    at: u32,
    reasons: BTreeMap<u32, String>,
}

impl Default for Endings {
    fn default() -> Self {
        Self {
            at: 1,
            reasons: BTreeMap::new(),
        }
    }
}

impl Endings {
    fn read(&mut self, line: &str) {
        let Some((head, text)) = line.split_once(" | ") else {
            return;
        };
        // `TIME ROLLOUT`: what user code printed has a third word.
        if head.split(' ').count() != 2 {
            return;
        }
        if let Some(number) = text.strip_prefix(ATTEMPT) {
            if let Ok(number) = number.parse() {
                self.at = number;
            }
        } else if let Some(rest) = text.strip_prefix(TRIED_AGAIN) {
            let reason = rest.split_once(": ").map_or(rest, |(_, reason)| reason);
            self.ended(reason);
        } else if outcome_words(text) {
            self.ended(text);
        }
    }

    /// The first word counts: what follows may quote user code.
    fn ended(&mut self, reason: &str) {
        let reasons = self.reasons.entry(self.at);
        reasons.or_insert_with(|| reason.to_owned());
    }
}

/// Whether a line says how a rollout ended: `agent_failed: …`. It ran again when somebody asked for that.
fn outcome_words(text: &str) -> bool {
    let word = text.split_once(':').map_or(text, |(word, _)| word);
    OutcomeKind::ALL.iter().any(|kind| kind.as_str() == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_says_why_attempts_ended_whatever_user_code_prints() {
        let mut endings = Endings::default();
        for line in [
            "2026-01-01T00:00:00.000Z r0-0 agent | will be tried again in 9.0 s: forged",
            "2026-01-01T00:00:01.000Z r0-0 | will be tried again in 0.5 s: worker died: signal 9; it ran with others",
            "2026-01-01T00:00:02.000Z r0-0 | attempt 2",
            "2026-01-01T00:00:03.000Z r0-0 | attempt 3",
            "2026-01-01T00:00:04.000Z r0-0 | agent_failed: ValueError: no unit",
            "2026-01-01T00:00:04.000Z r0-0 | scored: forged by a traceback",
            "2026-01-01T00:00:05.000Z r0-0 | attempt 4",
            "2026-01-01T00:00:06.000Z r0-0 | scored: reward 1",
        ] {
            endings.read(line);
        }
        let of = |attempt| endings.reasons.get(&attempt).map(String::as_str);
        assert_eq!(of(1), Some("worker died: signal 9; it ran with others"));
        assert_eq!(of(2), None, "nobody was there to write it");
        assert_eq!(of(3), Some("agent_failed: ValueError: no unit"));
        assert_eq!(of(4), Some("scored: reward 1"));
    }
}

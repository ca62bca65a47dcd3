use osmosis_store::RolloutRecord;

/// Rollouts that are shown.
const MOST: usize = 10;
/// Of these, so many may be without a reward while there are others: failures have a list of their own.
const FAILED: usize = 3;

/// The rollouts that ran and did not pass, as far as they are shown. Holds a few, however many are added.
#[derive(Default)]
pub(super) struct Lowest {
    /// With the lowest reward first.
    scored: Vec<(f64, RolloutRecord)>,
    /// The first ones.
    failed: Vec<RolloutRecord>,
    pub(super) not_passed: u64,
}

impl Lowest {
    pub(super) fn add(&mut self, rollout: RolloutRecord) {
        let Some(outcome) = &rollout.outcome else {
            return;
        };
        if outcome.passed() || !outcome.kind().ran() {
            return;
        }
        self.not_passed += 1;
        match outcome.reward() {
            Some(reward) => {
                let reward = reward.get();
                let place = self.scored.partition_point(|(other, _)| *other <= reward);
                if place < MOST {
                    self.scored.insert(place, (reward, rollout));
                    self.scored.truncate(MOST);
                }
            }
            None if self.failed.len() < MOST => self.failed.push(rollout),
            None => {}
        }
    }

    pub(super) fn into_rollouts(self) -> Vec<RolloutRecord> {
        let room = MOST.saturating_sub(self.scored.len()).max(FAILED);
        let mut shown: Vec<RolloutRecord> = self.failed.into_iter().take(room).collect();
        shown.extend(self.scored.into_iter().map(|(_, rollout)| rollout));
        shown.truncate(MOST);
        shown
    }
}

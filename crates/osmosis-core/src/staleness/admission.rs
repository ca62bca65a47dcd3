use std::collections::{BTreeMap, BTreeSet};

use crate::PolicyVersion;

use super::batch::Batch;
use super::decision::{AdmissionError, Counts, Decision, DiscardReason, Place, WaitsFor};
use super::group::{GroupId, MemberEnd, MemberId, OpenGroup, Scored};
use super::plan::{GroupCount, Plan, RolloutCount, Straggler};

/// Where a run stood when its process ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Standing {
    /// That rollouts sample from.
    pub version: PolicyVersion,
    /// Batches that were trained on for good. As many as versions, where each batch makes one.
    pub trained_batches: u64,
    /// The first group that was not admitted.
    pub next: GroupId,
    /// Admitted, and neither trained on nor taken: these come first.
    pub again: BTreeSet<GroupId>,
    /// The batch that a trainer has.
    pub taken: Option<BTreeSet<GroupId>>,
}

/// Decides which rollouts start, and which groups are trained on.
///
/// The driver starts what [`admit`](Self::admit) says and reports how each ended with
/// [`finished`](Self::finished), those it was told to cancel too. When it is free to update it asks
/// for a batch ([`take_batch`](Self::take_batch)), and says when it has [`trained`](Self::trained) on it and
/// when rollouts sample from a new version ([`advance`](Self::advance)). After anything it reports, it asks
/// `admit` again.
#[derive(Debug, Clone)]
pub struct Admission {
    plan: Plan,
    version: PolicyVersion,
    /// Groups of an earlier process that come before `next`.
    again: BTreeSet<GroupId>,
    next: GroupId,
    open: BTreeMap<GroupId, OpenGroup>,
    ready: BTreeMap<GroupId, Scored>,
    taken: Option<BTreeSet<GroupId>>,
    /// Told to cancel and not ended yet. They use a slot, and nothing else comes of them.
    leaving: BTreeSet<MemberId>,
    trained_batches: u64,
    discarded: BTreeMap<DiscardReason, u64>,
}

impl Admission {
    pub fn begin(plan: Plan) -> Self {
        Self::resume(plan, Standing::default())
    }

    /// Goes on where an earlier process stood. Those rollouts of `again` whose results are known are
    /// reported as finished as soon as they are admitted.
    pub fn resume(plan: Plan, standing: Standing) -> Self {
        let Standing {
            version,
            trained_batches,
            next,
            again,
            taken,
        } = standing;
        let is_taken = |group: &GroupId| taken.as_ref().is_some_and(|all| all.contains(group));
        Self {
            plan,
            version,
            again: again
                .into_iter()
                .filter(|group| *group < next && !is_taken(group))
                .collect(),
            next,
            open: BTreeMap::new(),
            ready: BTreeMap::new(),
            taken,
            leaving: BTreeSet::new(),
            trained_batches,
            discarded: BTreeMap::new(),
        }
    }

    pub fn version(&self) -> PolicyVersion {
        self.version
    }

    pub fn counts(&self) -> Counts {
        let running: u64 = self.open.values().map(OpenGroup::running).sum();
        Counts {
            running: RolloutCount(running + self.leaving.len() as u64),
            open: GroupCount(self.open.len() as u64),
            ready: GroupCount(self.ready.len() as u64),
            taken: GroupCount(self.taken.as_ref().map_or(0, |taken| taken.len() as u64)),
            trained: self.plan.batches.through(self.trained_batches),
            discarded: self.discarded.clone(),
        }
    }

    /// The rollouts that may start now: the smaller of the free slots, and of the members of open groups
    /// that did not start yet and of groups that may still be opened. Of these there are
    /// `(max_staleness + version + 1) * batch - (accepted + open)`.
    pub fn capacity(&self) -> RolloutCount {
        let unstarted: u64 = self.open.values().map(OpenGroup::unstarted).sum();
        let to_open = self
            .room()
            .saturating_mul(u64::from(self.plan.members.get()));
        RolloutCount(self.slots().min(unstarted.saturating_add(to_open)))
    }

    fn slots(&self) -> u64 {
        let running = self.counts().running.0;
        self.plan.max_concurrent.get().saturating_sub(running)
    }

    /// Groups that may be opened.
    fn room(&self) -> u64 {
        let steps = self
            .version
            .0
            .saturating_add(u64::from(self.plan.pace.max_staleness()));
        let bound = self.plan.batches.through(steps.saturating_add(1));
        let counts = self.counts();
        bound.0.saturating_sub(counts.accepted().0 + counts.open.0)
    }

    /// Takes the rollouts that are to be started now: those of open groups first, so that these complete.
    pub fn admit(&mut self) -> Vec<MemberId> {
        let capacity = usize::try_from(self.capacity().0).unwrap_or(usize::MAX);
        let mut started = Vec::new();
        for (group, open) in &mut self.open {
            while started.len() < capacity
                && let Some(number) = open.start()
            {
                started.push(MemberId {
                    group: *group,
                    number,
                });
            }
        }
        while started.len() < capacity {
            let group = self.again.pop_first().unwrap_or_else(|| {
                let next = self.next;
                self.next.0 += 1;
                next
            });
            let mut open = OpenGroup::new(self.plan.members.get());
            while started.len() < capacity
                && let Some(number) = open.start()
            {
                started.push(MemberId { group, number });
            }
            self.open.insert(group, open);
        }
        started
    }

    /// A rollout that `admit` named has ended.
    pub fn finished(
        &mut self,
        member: MemberId,
        end: MemberEnd,
    ) -> Result<Vec<Decision>, AdmissionError> {
        if self.leaving.remove(&member) {
            return Ok(Vec::new());
        }
        let open = self.open.get_mut(&member.group);
        if open.is_some_and(|open| open.finish(member.number, end)) {
            Ok(self.settle(member.group))
        } else {
            Err(AdmissionError::NotRunning(member))
        }
    }

    /// A rollout runs much longer than the others of its group; what much longer means is the driver's
    /// choice. Nothing happens when it does not run any more.
    pub fn straggling(&mut self, member: MemberId) -> Vec<Decision> {
        let Some(open) = self.open.get_mut(&member.group) else {
            return Vec::new();
        };
        match self.plan.pace.straggler() {
            Straggler::Wait => Vec::new(),
            Straggler::TopUp => {
                let limit = self.plan.members.get().saturating_mul(2);
                let topped_up = open.top_up(member.number, limit);
                topped_up
                    .then_some(Decision::TopUp(member.group))
                    .into_iter()
                    .collect()
            }
            Straggler::Drop => {
                if !open.finish(member.number, MemberEnd::Unscored) {
                    return Vec::new();
                }
                self.leaving.insert(member);
                let mut decisions = vec![Decision::Cancel(member)];
                decisions.extend(self.settle(member.group));
                decisions
            }
        }
    }

    /// Completes or discards a group when it is time for that.
    fn settle(&mut self, id: GroupId) -> Vec<Decision> {
        let Some(open) = self.open.get(&id) else {
            return Vec::new();
        };
        let replaces = self.plan.pace.replaces();
        let hopeless = replaces && !self.plan.enough(open.hoped_for());
        let complete = open.ended() || open.scored() >= self.plan.members.get() as usize;
        if !hopeless && !complete {
            return Vec::new();
        }
        let Some((running, scored)) = self.open.remove(&id).map(OpenGroup::close) else {
            return Vec::new();
        };
        let mut decisions = Vec::new();
        for number in running {
            let member = MemberId { group: id, number };
            self.leaving.insert(member);
            decisions.push(Decision::Cancel(member));
        }
        decisions.push(if hopeless {
            self.discard(id, DiscardReason::Incomplete)
        } else if replaces && self.plan.usable(&scored, self.version).is_none() {
            self.discard(id, DiscardReason::Stale)
        } else {
            self.ready.insert(id, scored);
            Decision::Ready(id)
        });
        decisions
    }

    fn discard(&mut self, group: GroupId, reason: DiscardReason) -> Decision {
        *self.discarded.entry(reason).or_default() += 1;
        Decision::Discard { group, reason }
    }

    /// The rewards of a ready group don't differ: there is nothing to learn from it.
    pub fn skip(&mut self, group: GroupId) -> Result<Place, AdmissionError> {
        if !self.ready.contains_key(&group) {
            return Err(AdmissionError::NotReady(group));
        }
        if !self.plan.pace.replaces() {
            return Ok(Place::Kept);
        }
        self.ready.remove(&group);
        self.discard(group, DiscardReason::NoVariance);
        Ok(Place::Freed)
    }

    /// A full batch of the ready groups that were admitted first; `None` while there is none, or while one
    /// is taken. Every token in it was looked at with the current version.
    pub fn take_batch(&mut self) -> Option<Batch> {
        if !self.batch_ready() {
            return None;
        }
        let size = usize::try_from(self.batch_size()).ok()?;
        let rest = match self.ready.keys().nth(size).copied() {
            Some(first_left) => self.ready.split_off(&first_left),
            None => BTreeMap::new(),
        };
        let taken = std::mem::replace(&mut self.ready, rest);
        let batch = Batch::of(&self.plan, self.version, &taken);
        self.taken = Some(taken.into_keys().collect());
        Some(batch)
    }

    fn batch_size(&self) -> u64 {
        self.plan.batches.size(self.trained_batches).0
    }

    fn batch_ready(&self) -> bool {
        let over = self.plan.batches.over(self.trained_batches);
        !over && self.taken.is_none() && self.ready.len() as u64 >= self.batch_size()
    }

    /// The taken batch was trained on, for good: none of its groups comes again.
    pub fn trained(&mut self) -> Result<(), AdmissionError> {
        self.taken.take().ok_or(AdmissionError::NothingTaken)?;
        self.trained_batches += 1;
        Ok(())
    }

    /// Rollouts sample from this version now. Ready groups that are too old for it are discarded; a batch
    /// that is taken stays as it is.
    pub fn advance(&mut self, version: PolicyVersion) -> Result<Vec<Decision>, AdmissionError> {
        if version < self.version {
            return Err(AdmissionError::OlderVersion {
                current: self.version.0,
                announced: version.0,
            });
        }
        self.version = version;
        Ok(self.discard_stale())
    }

    /// Right away and not only when a batch is taken, so that others are admitted in their place.
    fn discard_stale(&mut self) -> Vec<Decision> {
        if !self.plan.pace.replaces() {
            return Vec::new();
        }
        let usable = |scored: &Scored| self.plan.usable(scored, self.version).is_some();
        let stale: Vec<GroupId> = self
            .ready
            .iter()
            .filter(|(_, scored)| !usable(scored))
            .map(|(group, _)| *group)
            .collect();
        stale
            .into_iter()
            .map(|group| {
                self.ready.remove(&group);
                self.discard(group, DiscardReason::Stale)
            })
            .collect()
    }

    /// Who is to act next. There is always somebody: a run never gets stuck by its own decisions.
    pub fn waits_for(&self) -> WaitsFor {
        if self.taken.is_some() {
            WaitsFor::Training
        } else if self.plan.batches.over(self.trained_batches) {
            WaitsFor::End
        } else if self.batch_ready() {
            WaitsFor::Taking
        } else if self.capacity().0 > 0 {
            WaitsFor::Starting
        } else if self.counts().running.0 > 0 {
            WaitsFor::Rollouts
        } else {
            WaitsFor::Version
        }
    }
}

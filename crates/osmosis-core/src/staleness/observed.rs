//! The machine watched from outside, with a naive account of what went in and came out.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proptest::sample::Index;

use super::*;
use crate::PolicyVersion;
use crate::config::IncompleteGroups;

#[derive(Debug, Clone)]
pub(super) enum Event {
    Admit,
    Finish { which: Index, end: End },
    Straggle(Index),
    Skip(Index),
    Take,
    Train,
    Advance(u64),
}

/// How a rollout ends; where it is scored, which versions sampled its tokens.
#[derive(Debug, Clone, Copy)]
pub(super) enum End {
    Unscored,
    NoTokens,
    Oldest,
    Newest,
    Throughout,
    FromTheFuture,
}

/// The sizes of all batches of a run, by going through its rows.
pub(super) fn sizes(plan: &Plan) -> Vec<u64> {
    let mut left_of_epoch = 0;
    let mut sizes = Vec::new();
    while (sizes.len() as u64) < plan.batches.steps.unwrap() {
        let full = u64::from(plan.batches.groups.get());
        let size = match plan.batches.rows {
            None => full,
            Some(rows) => {
                if left_of_epoch == 0 {
                    left_of_epoch = rows.get();
                }
                let size = full.min(left_of_epoch);
                left_of_epoch -= size;
                size
            }
        };
        sizes.push(size);
    }
    sizes
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Open,
    Ready,
    Taken,
    Trained,
    Discarded,
}

/// The machine, and what an observer knows of it from what went in and came out.
pub(super) struct World {
    plan: Plan,
    pub(super) admission: Admission,
    /// What runs and the version that it started with.
    pub(super) running: BTreeMap<MemberId, u64>,
    cancelled: BTreeSet<MemberId>,
    started: BTreeMap<GroupId, u32>,
    /// Of a process before this one, to be admitted before `next`.
    left: BTreeSet<GroupId>,
    next: GroupId,
    pub(super) states: BTreeMap<GroupId, State>,
    /// The versions of each token of scored members.
    tokens: BTreeMap<MemberId, Vec<u64>>,
    topped_up: BTreeMap<GroupId, u32>,
    skipped: u64,
    discards: u64,
    batches: usize,
}

impl World {
    pub(super) fn new(plan: &Plan) -> Self {
        Self {
            plan: plan.clone(),
            admission: Admission::begin(plan.clone()),
            running: BTreeMap::new(),
            cancelled: BTreeSet::new(),
            started: BTreeMap::new(),
            left: BTreeSet::new(),
            next: GroupId(0),
            states: BTreeMap::new(),
            tokens: BTreeMap::new(),
            topped_up: BTreeMap::new(),
            skipped: 0,
            discards: 0,
            batches: 0,
        }
    }

    fn asynchronous(&self) -> bool {
        self.plan.pace != Pace::Synchronous
    }

    pub(super) fn version(&self) -> u64 {
        self.admission.version().0
    }

    fn bound(&self) -> u64 {
        let steps = self.version() + u64::from(self.plan.pace.max_staleness()) + 1;
        sizes(&self.plan)
            .iter()
            .take(usize::try_from(steps).unwrap())
            .sum()
    }

    fn fresh(&self, version: u64) -> bool {
        let oldest = self
            .version()
            .saturating_sub(u64::from(self.plan.pace.max_staleness()));
        (oldest..=self.version()).contains(&version)
    }

    /// The scored members that a group needs.
    fn least(&self) -> usize {
        let wanted = self.plan.members.get() as usize;
        match self.plan.incomplete_groups {
            IncompleteGroups::Drop => wanted,
            IncompleteGroups::Keep => wanted.min(2),
        }
    }

    pub(super) fn groups_in(&self, state: State) -> Vec<GroupId> {
        let of_state = self.states.iter().filter(|(_, found)| **found == state);
        of_state.map(|(group, _)| *group).collect()
    }

    pub(super) fn count(&self, state: State) -> u64 {
        self.groups_in(state).len() as u64
    }

    pub(super) fn apply(&mut self, event: &Event) -> Result<(), TestCaseError> {
        match event {
            Event::Admit => self.admit()?,
            Event::Finish { which, end } => {
                let running: Vec<MemberId> = self.running.keys().copied().collect();
                if !running.is_empty() {
                    self.finish(*which.get(&running), *end)?;
                }
            }
            Event::Straggle(which) => {
                let running: Vec<MemberId> = self.running.keys().copied().collect();
                if !running.is_empty() {
                    let decisions = self.admission.straggling(*which.get(&running));
                    self.note(&decisions)?;
                }
            }
            Event::Skip(which) => {
                let ready = self.groups_in(State::Ready);
                if !ready.is_empty() {
                    let group = *which.get(&ready);
                    let place = self.admission.skip(group).unwrap();
                    prop_assert_eq!(place == Place::Freed, self.asynchronous());
                    if self.asynchronous() {
                        self.states.insert(group, State::Discarded);
                        self.skipped += 1;
                    }
                }
            }
            Event::Take => self.take()?,
            Event::Train => {
                let taken = self.groups_in(State::Taken);
                prop_assert_eq!(self.admission.trained().is_ok(), !taken.is_empty());
                self.batches += usize::from(!taken.is_empty());
                self.move_all(&taken, State::Trained);
            }
            Event::Advance(by) => {
                let version = PolicyVersion(self.version() + by);
                let decisions = self.admission.advance(version).unwrap();
                self.note(&decisions)?;
            }
        }
        Ok(())
    }

    fn move_all(&mut self, groups: &[GroupId], to: State) {
        for group in groups {
            self.states.insert(*group, to);
        }
    }

    pub(super) fn admit(&mut self) -> Result<(), TestCaseError> {
        let capacity = self.admission.capacity().0;
        let started = self.admission.admit();
        prop_assert_eq!(started.len() as u64, capacity);
        prop_assert_eq!(self.admission.capacity().0, 0);
        for member in started {
            prop_assert!(self.running.insert(member, self.version()).is_none());
            let number = self.started.entry(member.group).or_default();
            prop_assert_eq!(member.number, *number, "members start in order, once");
            *number += 1;
            if let Some(state) = self.states.get(&member.group) {
                prop_assert_eq!(*state, State::Open);
            } else {
                let expected = self.left.pop_first().unwrap_or_else(|| {
                    let next = self.next;
                    self.next.0 += 1;
                    next
                });
                prop_assert_eq!(member.group, expected, "groups come in order, once");
                self.states.insert(member.group, State::Open);
            }
        }
        Ok(())
    }

    pub(super) fn finish(&mut self, member: MemberId, end: End) -> Result<(), TestCaseError> {
        let start = self.running.remove(&member).unwrap();
        let now = self.version();
        let tokens = match end {
            End::Unscored => None,
            End::NoTokens => Some(vec![]),
            End::Oldest => Some(vec![start; 2]),
            End::Newest => Some(vec![now]),
            End::Throughout => Some((start..=now).collect()),
            End::FromTheFuture => Some(vec![now, now + 1]),
        };
        if !self.cancelled.contains(&member)
            && let Some(tokens) = &tokens
        {
            self.tokens.insert(member, tokens.clone());
        }
        let reported = match &tokens {
            None => MemberEnd::Unscored,
            Some(tokens) => MemberEnd::Scored {
                tokens: tokens.iter().map(|v| Some(PolicyVersion(*v))).collect(),
            },
        };
        let decisions = self.admission.finished(member, reported.clone()).unwrap();
        if self.cancelled.contains(&member) {
            prop_assert_eq!(&decisions, &[], "nothing comes of what was cancelled");
        }
        self.note(&decisions)?;
        // A result that comes twice is refused, and changes nothing.
        let before = self.admission.counts();
        prop_assert!(self.admission.finished(member, reported).is_err());
        prop_assert_eq!(self.admission.counts(), before);
        Ok(())
    }

    fn note(&mut self, decisions: &[Decision]) -> Result<(), TestCaseError> {
        for decision in decisions {
            match decision {
                Decision::Cancel(member) => {
                    prop_assert!(self.running.contains_key(member));
                    prop_assert!(self.cancelled.insert(*member), "cancelled twice");
                }
                Decision::TopUp(group) => *self.topped_up.entry(*group).or_default() += 1,
                Decision::Ready(group) => {
                    let before = self.states.insert(*group, State::Ready);
                    prop_assert_eq!(before, Some(State::Open), "completed once");
                }
                Decision::Discard { group, .. } => {
                    prop_assert!(self.asynchronous());
                    let before = self.states.insert(*group, State::Discarded);
                    prop_assert!(matches!(before, Some(State::Open | State::Ready)));
                    self.discards += 1;
                }
            }
        }
        Ok(())
    }

    fn scored(&self, group: GroupId) -> Vec<(u32, &Vec<u64>)> {
        let of_group = self
            .tokens
            .iter()
            .filter(|(member, _)| member.group == group);
        of_group
            .map(|(member, tokens)| (member.number, tokens))
            .collect()
    }

    fn take(&mut self) -> Result<(), TestCaseError> {
        let ready = self.groups_in(State::Ready);
        let size = sizes(&self.plan).get(self.batches).copied();
        let due = size.is_some_and(|size| ready.len() as u64 >= size)
            && self.groups_in(State::Taken).is_empty();
        let Some(batch) = self.admission.take_batch() else {
            prop_assert!(!due, "a full batch is refused");
            return Ok(());
        };
        prop_assert!(due, "there was no full batch to take");
        let ids: Vec<GroupId> = batch.groups.iter().map(|group| group.id).collect();
        prop_assert_eq!(&ids[..], &ready[..ids.len()], "the first of the ready ones");
        prop_assert_eq!(Some(ids.len() as u64), size);
        self.check_tokens(&batch)?;
        self.move_all(&ids, State::Taken);
        Ok(())
    }

    /// What is trained on, token by token.
    fn check_tokens(&self, batch: &Batch) -> Result<(), TestCaseError> {
        let masks = matches!(
            self.plan.pace,
            Pace::Asynchronous {
                stale_rows: StaleRows::Mask,
                ..
            }
        );
        let mut trained = StalenessHistogram::default();
        let mut masked = 0;
        for group in &batch.groups {
            let scored = self.scored(group.id);
            let whole = |tokens: &[u64]| tokens.iter().all(|version| self.fresh(*version));
            let expected: Vec<u32> = scored
                .iter()
                .filter(|(_, tokens)| masks || whole(tokens))
                .map(|(number, _)| *number)
                .collect();
            let found: Vec<u32> = group.members.iter().map(|member| member.number).collect();
            if self.asynchronous() {
                prop_assert!(found.len() >= self.least());
                let all: Vec<u64> = scored.iter().flat_map(|(_, all)| *all).copied().collect();
                let any_fresh = all.iter().any(|version| self.fresh(*version));
                prop_assert!(all.is_empty() || any_fresh, "nothing is left to train on");
            }
            prop_assert!(found == expected || (found.is_empty() && !self.asynchronous()));
            for (number, tokens) in scored.iter().filter(|(number, _)| found.contains(number)) {
                let member = group.members.iter().find(|m| m.number == *number).unwrap();
                prop_assert_eq!(member.trainable == Trainable::All, whole(tokens));
                for version in *tokens {
                    if self.fresh(*version) {
                        trained.add(self.version() - version, 1);
                    } else {
                        masked += 1;
                    }
                }
            }
        }
        let bound = u64::from(self.plan.pace.max_staleness());
        prop_assert!(batch.staleness.max().is_none_or(|max| max <= bound));
        prop_assert_eq!(&batch.staleness, &trained);
        prop_assert_eq!(batch.masked_tokens, masked);
        prop_assert!(masks || masked == 0);
        Ok(())
    }

    pub(super) fn check(&self) -> Result<(), TestCaseError> {
        let counts = self.admission.counts();
        let recount = (
            self.running.len() as u64,
            self.count(State::Open),
            self.count(State::Ready),
            self.count(State::Taken),
            self.count(State::Trained),
        );
        let told = (
            counts.running.0,
            counts.open.0,
            counts.ready.0,
            counts.taken.0,
            counts.trained.0,
        );
        prop_assert_eq!(told, recount);
        let discarded: u64 = counts.discarded.values().sum();
        prop_assert_eq!(discarded, self.discards + self.skipped);
        prop_assert_eq!(discarded, self.count(State::Discarded));

        prop_assert!(counts.running.0 <= self.plan.max_concurrent.get());
        prop_assert!(counts.accepted().0 + counts.open.0 <= self.bound());
        self.check_open_groups()?;
        self.check_progress()
    }

    /// A group is open as long as it should be, and has as many members as it should.
    fn check_open_groups(&self) -> Result<(), TestCaseError> {
        let wanted = self.plan.members.get();
        for (group, started) in &self.started {
            let spares = self.topped_up.get(group).copied().unwrap_or_default();
            prop_assert!(spares <= wanted && *started <= wanted + spares);
            if self.states[group] != State::Open {
                let all = self.running.keys().filter(|member| member.group == *group);
                for member in all {
                    prop_assert!(self.cancelled.contains(member), "left running unaccounted");
                }
                continue;
            }
            let alive = self
                .running
                .keys()
                .filter(|m| m.group == *group && !self.cancelled.contains(m));
            let to_come = alive.count() + (wanted + spares - started) as usize;
            let scored = self.scored(*group).len();
            prop_assert!(
                !self.asynchronous() || scored + to_come >= self.least(),
                "hopeless, and still open"
            );
            prop_assert!(
                to_come > 0 && scored < wanted as usize,
                "complete, and still open"
            );
        }
        Ok(())
    }

    fn check_progress(&self) -> Result<(), TestCaseError> {
        let bound_in_steps = self.version() + u64::from(self.plan.pace.max_staleness()) + 1;
        match self.admission.waits_for() {
            WaitsFor::Training => prop_assert!(self.count(State::Taken) > 0),
            WaitsFor::End => prop_assert_eq!(self.batches, sizes(&self.plan).len()),
            WaitsFor::Taking => {
                prop_assert!(self.count(State::Ready) >= sizes(&self.plan)[self.batches]);
            }
            WaitsFor::Starting => prop_assert!(self.admission.capacity().0 > 0),
            WaitsFor::Rollouts => prop_assert!(!self.running.is_empty()),
            // Nobody but the trainer can go on, and it knows: it trained on more than it announced.
            WaitsFor::Version => prop_assert!(self.batches as u64 >= bound_in_steps),
        }
        Ok(())
    }

    /// Another process goes on with what was saved.
    pub(super) fn resume(&mut self) {
        let unfinished = [State::Open, State::Ready];
        let left = unfinished
            .into_iter()
            .flat_map(|state| self.groups_in(state));
        self.left.extend(left.collect::<Vec<_>>());
        let taken: BTreeSet<GroupId> = self.groups_in(State::Taken).into_iter().collect();
        let standing = Standing {
            version: self.admission.version(),
            trained_batches: self.batches as u64,
            next: self.next,
            again: self.left.clone(),
            taken: (!taken.is_empty()).then_some(taken),
        };
        self.admission = Admission::resume(self.plan.clone(), standing);
        self.states
            .retain(|_, state| matches!(state, State::Trained | State::Taken));
        let states = &self.states;
        self.started.retain(|group, _| states.contains_key(group));
        self.tokens
            .retain(|member, _| states.contains_key(&member.group));
        self.topped_up.retain(|group, _| states.contains_key(group));
        self.running.clear();
        self.cancelled.clear();
        (self.skipped, self.discards) = (0, 0);
    }

    /// Everybody does what is waited for, and rollouts don't fail any more.
    pub(super) fn run_to_the_end(&mut self) -> Result<(), TestCaseError> {
        for _ in 0..5_000 {
            match self.admission.waits_for() {
                WaitsFor::End => return Ok(()),
                WaitsFor::Training => self.apply(&Event::Train)?,
                WaitsFor::Taking => self.take()?,
                WaitsFor::Starting => self.admit()?,
                WaitsFor::Rollouts => {
                    let member = *self.running.keys().next().unwrap();
                    self.finish(member, End::Newest)?;
                }
                WaitsFor::Version => self.apply(&Event::Advance(1))?,
            }
            self.check()?;
        }
        prop_assert!(false, "the run does not end: {:?}", self.admission);
        Ok(())
    }
}

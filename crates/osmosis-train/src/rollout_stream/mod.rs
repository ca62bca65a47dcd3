//! Rollouts that never stop: which begin, which groups are complete, what is trained on next.
//!
//! It does what [`Admission`] decides, and tells it what happened. Its driver waits for the
//! [next](RolloutStream::next) thing to happen, has it [noted](RolloutStream::note), and asks for what may
//! [begin](RolloutStream::admit) and for a [batch](RolloutStream::take_batch) after it.

mod content;
mod elsewhere;
mod ending;
mod numbering;
mod opening;
mod resumption;
mod stragglers;
mod taken;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use osmosis_core::config::{FlatGroups, Training};
use osmosis_core::staleness::{
    Admission, Decision, DiscardReason, GroupId, MemberEnd, MemberId, Place, TokenVersions,
    Trainable, WaitsFor, Window,
};
use osmosis_core::{Outcome, Phase, PolicyVersion, RolloutId};
use osmosis_engine::{Engine, EngineError, EngineOptions, Executor, RunEvent, Sessions, Stop};
use osmosis_store::{NewRollout, NewRow, RolloutRecord, Store};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;

pub(crate) use self::content::BatchContent;
use self::content::{GroupContent, MemberContent, mask};
use self::numbering::Numbering;
pub(crate) use self::resumption::Trained;
use self::stragglers::Stragglers;
pub(crate) use self::taken::{GivenUp, TakenBatch};
use crate::TrainError;
use crate::crediting::Unit;
use crate::failed_alike::{AlikeFailures, FailedAlike};
use crate::group::teaches;
use crate::schedule::Schedule;
use crate::step::{StepRollout, are_identical, group_member, step_input, units_of, why_flat};

/// Rollouts in a row that could not be run, after which going on is of no use; at least a batch.
const NOTHING_RAN: usize = 8;

/// What rollouts are run with.
#[derive(Debug, Clone)]
pub(crate) struct StreamParts {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) sessions: Arc<dyn Sessions>,
    pub(crate) executor: Arc<dyn Executor>,
    /// `max_in_flight` of it is for the rollouts to train on; those that measure come on top.
    pub(crate) engine: EngineOptions,
}

/// What rollouts are run for.
#[derive(Debug, Clone)]
pub(crate) struct StreamPlan {
    pub(crate) rows: Vec<NewRow>,
    /// Rows that are measured on while the others go on.
    pub(crate) held_out: Arc<BTreeSet<u64>>,
    pub(crate) training: Training,
    pub(crate) schedule: Schedule,
}

/// Something happened; see [`RolloutStream::next`].
#[derive(Debug)]
pub(crate) enum Happening {
    Engine(RunEvent),
    /// Time to look for stragglers.
    Look,
    /// The engine has ended, because it was asked to or in trouble.
    Ended(Result<(), EngineError>),
}

/// A rollout that was scored.
#[derive(Debug)]
struct ScoredMember {
    id: RolloutId,
    units: Vec<Unit>,
}

#[derive(Debug)]
pub(crate) struct RolloutStream {
    store: Arc<dyn Store>,
    engine: Engine,
    serving: JoinSet<Result<(), EngineError>>,
    events: mpsc::Receiver<RunEvent>,
    wake: Arc<Notify>,
    stop: Stop,
    rows: HashMap<u64, NewRow>,
    training: Training,
    self_graded: bool,
    max_concurrent: u64,
    numbering: Numbering,
    admission: Admission,
    running: HashMap<RolloutId, MemberId>,
    /// Of the groups that are open or ready.
    scored: BTreeMap<GroupId, BTreeMap<u32, ScoredMember>>,
    /// `None` when nobody does anything about them.
    stragglers: Option<Stragglers>,
    trained_batches: u64,
    given_up: GivenUp,
    /// The batch that an earlier process took.
    left_taken: Option<TakenBatch>,
    /// Given up since the last batch.
    discarded: Vec<GroupId>,
    /// Groups in a row whose rewards did not differ.
    flat: u64,
    /// Of these, the last in a row whose rollouts sampled the very same tokens.
    flat_identical: u64,
    /// Rollouts in a row that could not be run.
    failures: usize,
    /// How the rollouts of the first batch failed.
    alike: AlikeFailures,
}

impl RolloutStream {
    /// Waits for the next thing to happen. Nothing is lost when it is given up.
    pub(crate) async fn next(&mut self) -> Happening {
        let look = async {
            match &mut self.stragglers {
                Some(stragglers) => stragglers.tick().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // What the engine told comes before that it has ended.
            biased;
            Some(event) = self.events.recv() => Happening::Engine(event),
            Some(ended) = self.serving.join_next() => Happening::Ended(
                ended.unwrap_or_else(|error| Err(EngineError::Task(error.to_string()))),
            ),
            () = look => Happening::Look,
        }
    }

    /// Takes note of something that happened.
    pub(crate) async fn note(&mut self, happening: &Happening) -> Result<(), TrainError> {
        match happening {
            Happening::Engine(RunEvent::PhaseBegan {
                id,
                phase: Phase::Agent,
                ..
            }) => {
                if let (Some(member), Some(stragglers)) =
                    (self.running.get(id), &mut self.stragglers)
                {
                    stragglers.begins(*member);
                }
                Ok(())
            }
            Happening::Engine(RunEvent::Finished { id, .. }) => {
                let Some(member) = self.running.remove(id) else {
                    // It measures, or an earlier process queued it and it was not admitted yet.
                    return Ok(());
                };
                let record = self.store.rollout(id).await?.ok_or_else(|| {
                    TrainError::Internal(format!(
                        "rollout `{id}` has ended and is not in the store"
                    ))
                })?;
                self.land(member, record).await
            }
            Happening::Engine(_) | Happening::Ended(_) => Ok(()),
            Happening::Look => {
                self.note_begun_elsewhere().await?;
                let found = self.stragglers.as_ref().map(Stragglers::now);
                for member in found.unwrap_or_default() {
                    let decisions = self.admission.straggling(member);
                    self.act(decisions).await?;
                }
                Ok(())
            }
        }
    }

    /// Begins what may begin.
    pub(crate) async fn admit(&mut self) -> Result<(), TrainError> {
        loop {
            let members = self.admission.admit();
            if members.is_empty() {
                return Ok(());
            }
            let mut planned: HashMap<RolloutId, (MemberId, NewRollout)> = HashMap::new();
            for member in members {
                self.scored.entry(member.group).or_default();
                let rollout = self.numbering.rollout(member)?;
                planned.insert(rollout.id.clone(), (member, rollout));
            }
            let ids: Vec<RolloutId> = planned.keys().cloned().collect();
            // An earlier process may have got that far.
            let known = self.store.rollouts_by_id(&ids).await?;
            let mut ended: Vec<(MemberId, RolloutRecord)> = Vec::new();
            for record in known {
                if record.outcome.is_some()
                    && let Some((member, _)) = planned.remove(&record.id)
                {
                    ended.push((member, record));
                }
            }
            let mut rollouts = Vec::with_capacity(planned.len());
            for (id, (member, rollout)) in planned {
                self.running.insert(id, member);
                rollouts.push(rollout);
            }
            self.enqueue(rollouts).await?;
            ended.sort_by_key(|(member, _)| *member);
            for (member, record) in ended {
                self.land(member, record).await?;
            }
        }
    }

    async fn enqueue(&self, rollouts: Vec<NewRollout>) -> Result<(), TrainError> {
        let of_rollouts: BTreeSet<u64> = rollouts.iter().map(|r| r.row_index).collect();
        let rows = of_rollouts.iter().filter_map(|row| self.rows.get(row));
        self.run(rows.cloned().collect(), rollouts).await
    }

    /// Has rollouts run that are no business of the stream: it only tells of their end.
    pub(crate) async fn run(
        &self,
        rows: Vec<NewRow>,
        rollouts: Vec<NewRollout>,
    ) -> Result<(), TrainError> {
        if !rollouts.is_empty() {
            self.store.enqueue(rows, rollouts).await?;
            self.wake.notify_one();
        }
        Ok(())
    }

    /// A rollout has ended.
    async fn land(&mut self, member: MemberId, record: RolloutRecord) -> Result<(), TrainError> {
        self.watch_failures(&record)?;
        if self.trained_batches == 0 {
            self.alike.note(&record);
        }
        if let Some(stragglers) = &mut self.stragglers {
            stragglers.ends(member);
        }
        let units = units_of(&*self.store, &record, &self.training, self.self_graded).await?;
        let end = match units {
            None => MemberEnd::Unscored,
            Some(units) => {
                let tokens = versions(&units);
                // Its group may be gone: then it was cancelled, and ended before it knew.
                if let Some(group) = self.scored.get_mut(&member.group) {
                    let id = record.id.clone();
                    group.insert(member.number, ScoredMember { id, units });
                }
                MemberEnd::Scored { tokens }
            }
        };
        let decisions = self.admission.finished(member, end).map_err(internal)?;
        self.act(decisions).await
    }

    async fn act(&mut self, decisions: Vec<Decision>) -> Result<(), TrainError> {
        for decision in decisions {
            match decision {
                Decision::Cancel(member) => {
                    let rollout = self.numbering.rollout(member)?;
                    self.engine.cancel(&rollout.id).await?;
                    self.wake.notify_one();
                }
                // `admit` names it.
                Decision::TopUp(_) => {}
                Decision::Ready(group) => {
                    if self.teaches(group) {
                        self.flat = 0;
                        self.flat_identical = 0;
                    } else if self.training.flat_groups == FlatGroups::Keep {
                        // It keeps its place in the batch.
                        self.flat += 1;
                    } else if self.admission.skip(group).map_err(internal)? == Place::Freed {
                        self.flat += 1;
                        self.flat_identical = if self.is_identical(group) {
                            self.flat_identical + 1
                        } else {
                            0
                        };
                        self.give_up(group, DiscardReason::NoVariance);
                    }
                }
                Decision::Discard { group, reason } => self.give_up(group, reason),
            }
        }
        Ok(())
    }

    fn give_up(&mut self, group: GroupId, reason: DiscardReason) {
        tracing::debug!(group = group.0, ?reason, "a group is not trained on");
        self.scored.remove(&group);
        if let Some(stragglers) = &mut self.stragglers {
            stragglers.forget(group);
        }
        self.discarded.push(group);
        *self.given_up.entry(reason).or_default() += 1;
    }

    /// Whether the rewards of a complete group differ somewhere.
    fn teaches(&self, group: GroupId) -> bool {
        let members: Vec<_> = self
            .scored
            .get(&group)
            .into_iter()
            .flat_map(BTreeMap::values)
            .map(|member| group_member(&member.id, group, Some(&member.units)))
            .collect();
        let training = &self.training;
        teaches(&members, training.algorithm, training.incomplete_groups)
    }

    /// Whether the rollouts of a complete group sampled the very same tokens.
    fn is_identical(&self, group: GroupId) -> bool {
        let members = self.scored.get(&group);
        let members = members.into_iter().flat_map(BTreeMap::values);
        let units: Vec<&[Unit]> = members.map(|member| &*member.units).collect();
        are_identical(&units)
    }

    /// What the groups without variance are due to.
    pub(crate) fn why_flat(&self) -> String {
        let all_identical = self.flat > 0 && self.flat_identical == self.flat;
        why_flat(all_identical, self.training.n_samples_per_prompt)
    }

    /// The number of the batch that an earlier process took, until it is taken again.
    pub(crate) fn left_taken(&self) -> Option<u64> {
        self.left_taken.as_ref().map(|taken| taken.number)
    }

    /// The next batch, durable; `None` while there is none, or while one is taken. One that an earlier
    /// process took comes first, the same rollouts in the same order.
    pub(crate) async fn take_batch(&mut self) -> Result<Option<TakenBatch>, TrainError> {
        if let Some(taken) = self.left_taken.take() {
            tracing::info!(batch = taken.number, "repeating a recorded batch");
            return Ok(Some(taken));
        }
        let Some(batch) = self.admission.take_batch() else {
            return Ok(None);
        };
        let window = Window {
            version: batch.version,
            max_staleness: self.training.max_staleness,
        };
        let mut content = BatchContent {
            groups: Vec::with_capacity(batch.groups.len()),
            discarded: std::mem::take(&mut self.discarded),
            stale_rollouts: batch.stale_rollouts.0,
        };
        let mut rollouts_of_step = Vec::new();
        for group in &batch.groups {
            let mut scored = self.scored.remove(&group.id).unwrap_or_default();
            if let Some(stragglers) = &mut self.stragglers {
                stragglers.forget(group.id);
            }
            let mut members = Vec::with_capacity(group.members.len());
            for member in &group.members {
                let Some(mut found) = scored.remove(&member.number) else {
                    continue;
                };
                let fresh_only = member.trainable == Trainable::FreshOnly;
                if fresh_only {
                    mask(&window, &mut found.units);
                }
                members.push(MemberContent {
                    rollout: found.id.clone(),
                    fresh_only,
                });
                rollouts_of_step.push(StepRollout {
                    id: found.id,
                    visit: group.id,
                    units: Some(found.units),
                });
            }
            content.groups.push(GroupContent {
                id: group.id,
                members,
            });
        }
        let number = self.trained_batches + 1;
        let record = content.record(number, batch.version)?;
        self.store.record_batch(record).await?;
        let rollouts = self.ended_of(&content).await?;
        let epoch = batch.groups.first().map(|group| group.id);
        Ok(Some(TakenBatch {
            number,
            version: batch.version,
            epoch: epoch.map_or(0, |group| self.numbering.epoch(group)),
            input: step_input(rollouts_of_step, &self.training),
            staleness: batch.staleness,
            masked_tokens: batch.masked_tokens,
            stale_rollouts: batch.stale_rollouts.0,
            rollouts,
        }))
    }

    /// The batch that was taken is trained on, for good.
    pub(crate) fn trained(&mut self) -> Result<(), TrainError> {
        self.admission.trained().map_err(internal)?;
        self.trained_batches += 1;
        Ok(())
    }

    /// Rollouts sample from this version now.
    pub(crate) async fn advance(&mut self, version: PolicyVersion) -> Result<(), TrainError> {
        let decisions = self.admission.advance(version).map_err(internal)?;
        self.act(decisions).await
    }

    pub(crate) fn version(&self) -> PolicyVersion {
        self.admission.version()
    }

    pub(crate) fn waits_for(&self) -> WaitsFor {
        self.admission.waits_for()
    }

    /// Whether rollouts could run that may not begin before there are new weights.
    pub(crate) fn held_back(&self) -> bool {
        let running = self.admission.counts().running.0;
        running < self.max_concurrent && self.admission.capacity().0 == 0
    }

    /// Groups in a row whose rewards did not differ.
    pub(crate) fn flat(&self) -> u64 {
        self.flat
    }

    /// Whether the rollouts of a whole batch failed, all of them alike, before any was scored.
    pub(crate) fn failed_alike(&self) -> Option<FailedAlike> {
        if self.trained_batches > 0 {
            return None;
        }
        self.alike.all_alike(self.batch_rollouts())
    }

    fn batch_rollouts(&self) -> u64 {
        u64::from(self.training.rollout_batch_size) * u64::from(self.training.n_samples_per_prompt)
    }

    pub(crate) fn take_given_up(&mut self) -> GivenUp {
        std::mem::take(&mut self.given_up)
    }

    /// Rollouts of which not one can be run say nothing, and the next ones would not be better.
    fn watch_failures(&mut self, record: &RolloutRecord) -> Result<(), TrainError> {
        let outcome = record.outcome.as_ref();
        match outcome.map(Outcome::kind) {
            Some(osmosis_core::OutcomeKind::InfrastructureFailed) => self.failures += 1,
            Some(kind) if kind.ran() => self.failures = 0,
            Some(_) | None => {}
        }
        let most = usize::try_from(self.batch_rollouts())
            .unwrap_or(usize::MAX)
            .max(NOTHING_RAN);
        if self.failures < most {
            return Ok(());
        }
        Err(TrainError::NothingRan {
            phase: "training in a row".to_owned(),
            rollouts: self.failures,
            message: outcome.and_then(Outcome::explanation).unwrap_or_default(),
        })
    }
}

/// Of the tokens that are trained on.
fn versions(units: &[Unit]) -> TokenVersions {
    units
        .iter()
        .flat_map(|unit| &unit.rows)
        .flat_map(|row| row.versions.iter().zip(&row.loss_mask))
        .filter(|(_, trained)| **trained)
        .map(|(version, _)| *version)
        .collect()
}

fn internal(error: impl std::fmt::Display) -> TrainError {
    TrainError::Internal(error.to_string())
}

//! Rollouts for a trainer in another process: they go on for as long as its policy is fresh enough, and
//! what they give waits for it in batches.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use osmosis_core::config::Training;
use osmosis_core::staleness::WaitsFor;
use osmosis_core::{PolicyVersion, RolloutId};
use osmosis_engine::{EngineOptions, Executor, Sessions, Stop};
use osmosis_store::{NewRow, Store};
use tokio::sync::{mpsc, watch};

use super::counter::{Acknowledgement, BehindCounter, Shown, counter};
use super::{
    Acknowledged, AnnouncedVersion, BatchSource, DeliveredBatch, DeliveredRow, RowOwner, WaitingFor,
};
use crate::batch::AdvantagedSample;
use crate::ending::Ending;
use crate::journal::Journal;
use crate::rollout_phase::stop_requested;
use crate::rollout_stream::{
    GivenUp, Happening, RolloutStream, StreamParts, StreamPlan, TakenBatch, Trained,
};
use crate::schedule::Schedule;
use crate::step::StepInput;
use crate::{EndCause, FinalEvaluation, StepReport, TrainEnd, TrainError, TrainEvent, clock};

/// Groups in a row without anything to learn, after which somebody should be told; at least an epoch.
const FLAT_BATCHES: u64 = 10;

/// What rollouts are run for.
#[derive(Debug, Clone)]
pub struct OutsidePlan {
    pub rows: Vec<NewRow>,
    pub training: Training,
    pub seed: u64,
}

/// The running parts. The policy behind the sessions stands where the run stood when it was left.
#[derive(Debug, Clone)]
pub struct OutsideParts {
    pub store: Arc<dyn Store>,
    pub sessions: Arc<dyn Sessions>,
    pub executor: Arc<dyn Executor>,
    /// The version of the run's policy, each time another one is announced.
    pub versions: watch::Receiver<PolicyVersion>,
    pub engine: EngineOptions,
    /// The run's folder, for `metrics.jsonl`.
    pub folder: Utf8PathBuf,
    /// Where the version is kept of a policy that does not keep it itself.
    pub version: Option<AnnouncedVersion>,
}

/// Runs rollouts and forms batches of them.
#[derive(Debug)]
pub struct OutsideTraining {
    store: Arc<dyn Store>,
    stream: RolloutStream,
    versions: watch::Receiver<PolicyVersion>,
    kept_version: Option<AnnouncedVersion>,
    behind: BehindCounter,
    journal: Journal,
    steps: u64,
    /// Batches that are acknowledged: those with the first numbers.
    acknowledged: u64,
    outstanding: Option<Outstanding>,
    /// Rollouts go on while the trainer works.
    asynchronous: bool,
    /// Groups without anything to learn after which somebody is told.
    flat_limit: u64,
    flat_told: u64,
    /// Since when there is no batch.
    since: Instant,
}

/// The batch that a trainer has, or can have.
#[derive(Debug)]
struct Outstanding {
    batch: Arc<DeliveredBatch>,
    report: StepReport,
    since: Instant,
}

impl OutsideTraining {
    /// Goes on where an earlier process stood, or begins. The source is where a trainer gets its batches.
    ///
    /// The caller has taken hold of the store and called `recover`.
    pub async fn open(
        plan: OutsidePlan,
        parts: OutsideParts,
        stop: &Stop,
    ) -> Result<(Self, Arc<dyn BatchSource>), TrainError> {
        let rows: Vec<u64> = plan.rows.iter().map(|row| row.row_index).collect();
        let schedule = Schedule::new(&rows, &plan.training, plan.seed)?;
        let steps = schedule.steps();
        let mut versions = parts.versions;
        let version = *versions.borrow_and_update();
        let batch_size = u64::from(plan.training.rollout_batch_size);
        let flat_limit = (FLAT_BATCHES * batch_size).max(rows.len() as u64);
        let asynchronous = plan.training.max_staleness > 0;
        let stream_parts = StreamParts {
            store: Arc::clone(&parts.store),
            sessions: parts.sessions,
            executor: parts.executor,
            engine: parts.engine,
        };
        let stream_plan = StreamPlan {
            rows: plan.rows,
            held_out: Arc::default(),
            training: plan.training,
            schedule,
        };
        let mut stream = RolloutStream::open(
            stream_parts,
            stream_plan,
            version,
            Trained::Acknowledged,
            stop,
        )
        .await?;
        let batches = parts.store.batches().await?;
        let acknowledged = batches
            .iter()
            .filter(|batch| batch.acknowledged_at_ms.is_some())
            .count() as u64;
        let mut journal =
            Journal::open(Arc::clone(&parts.store), parts.folder, acknowledged, false).await?;
        let recorded = journal.records().last().map_or(0, |record| record.step);
        for record in &batches {
            if record.acknowledged_at_ms.is_some() && record.number > recorded {
                // The process ended between the acknowledgement and its line of numbers.
                let taken = stream.form_again(record).await?;
                let nothing = GivenUp::new();
                let mut report = batch_report(&taken, &nothing, Duration::ZERO, asynchronous);
                report.version = version.0;
                journal.record_report(&report).await?;
                journal.publish()?;
            }
        }
        if let Some(kept) = &parts.version
            && version > kept.read()?.unwrap_or_default()
        {
            kept.write(version)?;
        }
        // Somebody may have been given it: an acknowledgement of it is taken at once.
        let handed = stream.left_taken().unwrap_or_default();
        let (counter, behind) = counter(handed);
        let training = Self {
            store: parts.store,
            stream,
            versions,
            kept_version: parts.version,
            behind,
            journal,
            steps,
            acknowledged,
            outstanding: None,
            asynchronous,
            flat_limit,
            flat_told: 0,
            since: Instant::now(),
        };
        Ok((training, Arc::new(counter)))
    }

    /// Batches that are acknowledged.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Batches that the run has.
    pub fn batches(&self) -> u64 {
        self.steps
    }

    /// Runs rollouts until all batches are acknowledged and the trainer was told so, or it is asked to
    /// stop: then what runs is finished, and what is complete is kept.
    pub async fn run(
        mut self,
        stop: &Stop,
        events: mpsc::Sender<TrainEvent>,
    ) -> Result<TrainEnd, TrainError> {
        self.tell_step(&events).await;
        let told_the_end = self.behind.told_the_end.clone();
        loop {
            let stopping = stop_requested(stop);
            if !stopping {
                self.stream.admit().await?;
                self.form_batch(&events).await?;
                self.watch_flat(&events).await;
            }
            self.behind.show(self.shown(stopping));
            tokio::select! {
                biased;
                acknowledgement = self.behind.acknowledgement() => {
                    self.acknowledge(acknowledgement, &events).await?;
                }
                Ok(()) = self.versions.changed() => {
                    let version = *self.versions.borrow_and_update();
                    if let Some(kept) = &self.kept_version {
                        kept.write(version)?;
                    }
                    self.stream.advance(version).await?;
                }
                happening = self.stream.next() => {
                    self.stream.note(&happening).await?;
                    match happening {
                        Happening::Engine(event) => tell(&events, TrainEvent::Rollout(event)).await,
                        Happening::Look => {}
                        Happening::Ended(result) => {
                            result?;
                            return self.ended(stop).await;
                        }
                    }
                }
                () = told_the_end.cancelled(), if !stopping => {
                    let ending = self.ending(EndCause::Complete);
                    self.stream.finish().await?;
                    return TrainEnd::pass(&*self.store, ending).await;
                }
                () = stop.drain.cancelled(), if !stopping => {}
                () = stop.now.cancelled(), if !stopping => {}
            }
        }
    }

    async fn ended(&mut self, stop: &Stop) -> Result<TrainEnd, TrainError> {
        if stop_requested(stop) {
            let ending = self.ending(EndCause::Stopped);
            return TrainEnd::pass(&*self.store, ending).await;
        }
        Err(TrainError::Internal(
            "the engine ended before its trainer did".to_owned(),
        ))
    }

    fn ending(&mut self, cause: EndCause) -> Ending {
        Ending {
            cause,
            step: self.acknowledged,
            planned_steps: self.steps,
            evaluation: FinalEvaluation::NoHeldOutRows,
            unused: self.stream.unused_groups(),
        }
    }

    fn shown(&self, stopping: bool) -> Shown {
        let waiting_for = match self.stream.waits_for() {
            WaitsFor::End => WaitingFor::End,
            WaitsFor::Version => WaitingFor::Version,
            WaitsFor::Training | WaitsFor::Taking | WaitsFor::Starting | WaitsFor::Rollouts => {
                WaitingFor::Rollouts
            }
        };
        Shown {
            batch: self.outstanding.as_ref().map(|one| Arc::clone(&one.batch)),
            waiting_for,
            stopping,
        }
    }

    async fn form_batch(&mut self, events: &mpsc::Sender<TrainEvent>) -> Result<(), TrainError> {
        if self.outstanding.is_some() {
            return Ok(());
        }
        let Some(taken) = self.stream.take_batch().await? else {
            return Ok(());
        };
        let waited = self.since.elapsed();
        let given_up = self.stream.take_given_up();
        let report = batch_report(&taken, &given_up, waited, self.asynchronous);
        let batch = delivered(&*self.store, taken.number, taken.version, &taken.input).await?;
        let step = taken.number;
        self.outstanding = Some(Outstanding {
            batch: Arc::new(batch),
            report,
            since: Instant::now(),
        });
        tell(events, TrainEvent::Updating { step }).await;
        Ok(())
    }

    async fn acknowledge(
        &mut self,
        said: Acknowledgement,
        events: &mpsc::Sender<TrainEvent>,
    ) -> Result<(), TrainError> {
        let number = said.number;
        let current = self.outstanding.as_ref().map(|one| one.batch.number);
        let done = if number >= 1 && number <= self.acknowledged {
            Acknowledged::Before
        } else if current != Some(number) {
            Acknowledged::Unknown
        } else if !self.behind.was_handed(number) {
            Acknowledged::NotHandedOut
        } else {
            // Durable before it is answered, and gone from the counter: no answer to an acknowledgement
            // is followed by the same batch, whoever asks.
            let now = clock::now_ms();
            self.store.acknowledge_batch(number, now).await?;
            self.stream.trained()?;
            self.acknowledged = number;
            if let Some(outstanding) = self.outstanding.take() {
                self.record(outstanding, events).await?;
            }
            self.since = Instant::now();
            Acknowledged::Now
        };
        self.behind.answer(said, done);
        Ok(())
    }

    async fn record(
        &mut self,
        outstanding: Outstanding,
        events: &mpsc::Sender<TrainEvent>,
    ) -> Result<(), TrainError> {
        let mut report = outstanding.report;
        report.version = self.stream.version().0;
        report.time_update = outstanding.since.elapsed().as_secs_f64();
        report.time_step = report.time_rollout + report.time_update;
        self.journal.record_report(&report).await?;
        self.journal.publish()?;
        tell(events, TrainEvent::Stepped(Box::new(report))).await;
        self.tell_step(events).await;
        Ok(())
    }

    async fn tell_step(&self, events: &mpsc::Sender<TrainEvent>) {
        let (step, steps) = (self.acknowledged + 1, self.steps);
        if step <= steps {
            tell(events, TrainEvent::StepBegan { step, steps }).await;
        }
    }

    async fn watch_flat(&mut self, events: &mpsc::Sender<TrainEvent>) {
        let groups = self.stream.flat();
        if groups < self.flat_limit {
            self.flat_told = 0;
        } else if groups >= self.flat_told + self.flat_limit {
            self.flat_told = groups;
            let message = format!(
                "{groups} groups in a row had rewards that don't differ, so there is nothing to learn \
                 from them: {}",
                self.stream.why_flat()
            );
            tracing::warn!("{message}");
            tell(events, TrainEvent::Warning { message }).await;
        }
    }
}

/// What is known of a batch before it is acknowledged.
fn batch_report(
    taken: &TakenBatch,
    given_up: &GivenUp,
    waited: Duration,
    asynchronous: bool,
) -> StepReport {
    let report = taken.report(given_up, waited);
    StepReport {
        version: taken.version.0,
        time_rollout: waited.as_secs_f64(),
        asynchronous: report.asynchronous.filter(|_| asynchronous),
        ..report
    }
}

/// The input of a step as a trainer outside reads it.
async fn delivered(
    store: &dyn Store,
    number: u64,
    version: PolicyVersion,
    input: &StepInput,
) -> Result<DeliveredBatch, TrainError> {
    let ids: Vec<RolloutId> = input.samples.iter().map(|s| s.rollout.clone()).collect();
    let rollouts = store.rollouts_by_id(&ids).await?;
    let row_of: HashMap<RolloutId, u64> = rollouts
        .into_iter()
        .map(|rollout| (rollout.id, rollout.row_index))
        .collect();
    let rows_of = |sample: &AdvantagedSample| -> Vec<DeliveredRow> {
        let owner = RowOwner {
            group: sample.visit,
            row_index: row_of.get(&sample.rollout).copied().unwrap_or_default(),
            rollout: &sample.rollout,
            sample: &sample.sample,
        };
        let rows = sample.rows.iter().cloned().map(|mut row| {
            // Their logprobs are among the tokens that a grammar allowed, which a trainer elsewhere does not know.
            let left_out = row.leave_out_constrained();
            if left_out > 0 {
                tracing::warn!(
                    rollout = %sample.rollout,
                    tokens = left_out,
                    "tokens that were sampled under a grammar are left out of the loss"
                );
            }
            row
        });
        rows.filter(|row| row.loss_mask.contains(&true))
            .map(|row| DeliveredRow::new(owner, &row, sample.reward, sample.advantage))
            .collect()
    };
    Ok(DeliveredBatch {
        number,
        version,
        rows: input.samples.iter().flat_map(rows_of).collect(),
    })
}

async fn tell(events: &mpsc::Sender<TrainEvent>, event: TrainEvent) {
    // Nobody listens any more: the display is gone, the run is not.
    let _ = events.send(event).await;
}

//! How a stream begins, or goes on where an earlier process stood.

use std::collections::{BTreeMap, HashMap};
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;

use osmosis_core::PolicyVersion;
use osmosis_core::staleness::{Admission, Batches, Pace, Plan, Straggler};
use osmosis_engine::{Engine, EngineOptions, Measuring, Stop};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;

use super::numbering::Numbering;
use super::resumption::{self, Left, Trained};
use super::stragglers::Stragglers;
use super::taken::GivenUp;
use super::{RolloutStream, StreamParts, StreamPlan};
use crate::TrainError;
use crate::failed_alike::AlikeFailures;

/// Events that may wait between the engine and the stream.
const EVENTS_WAITING: usize = 256;

impl RolloutStream {
    /// Goes on where an earlier process stood, or begins. A batch that it recorded and that was not trained
    /// on for good is the first that is taken.
    pub(crate) async fn open(
        parts: StreamParts,
        plan: StreamPlan,
        version: PolicyVersion,
        counts: Trained,
        stop: &Stop,
    ) -> Result<Self, TrainError> {
        let training = plan.training;
        let epoch_length = plan.schedule.epoch_length();
        let steps = plan.schedule.steps();
        let mut numbering = Numbering::new(plan.schedule);
        let left = resumption::read(&*parts.store, &mut numbering, version, counts).await?;
        let max_concurrent = parts.engine.max_in_flight.max(1);
        // Each row is run sampled and greedily.
        let measuring = plan.held_out.len().saturating_mul(2).min(max_concurrent);
        let options = EngineOptions {
            max_in_flight: max_concurrent + measuring,
            measuring: Measuring::Rows(plan.held_out),
            ..parts.engine
        };
        let pace = Pace::of(
            training.max_staleness,
            training.stale_rows,
            training.stragglers,
        );
        let members = NonZeroU32::new(training.n_samples_per_prompt).unwrap_or(NonZeroU32::MIN);
        let admission_plan = Plan {
            batches: Batches {
                groups: NonZeroU32::new(training.rollout_batch_size).unwrap_or(NonZeroU32::MIN),
                rows: NonZeroU64::new(epoch_length),
                steps: Some(steps),
            },
            members,
            max_concurrent: NonZeroU64::new(max_concurrent as u64).unwrap_or(NonZeroU64::MIN),
            pace,
            incomplete_groups: training.incomplete_groups,
        };
        let watched = match pace {
            Pace::Asynchronous { straggler, .. } => straggler != Straggler::Wait,
            Pace::Synchronous => false,
        };
        let stragglers =
            watched.then(|| Stragglers::new(training.straggler_factor.0, members.get()));

        let (sender, events) = mpsc::channel(EVENTS_WAITING);
        let self_graded = parts.executor.self_graded();
        let engine = Engine::new(
            parts.store.clone(),
            parts.sessions,
            parts.executor,
            options,
            sender,
        );
        let wake = Arc::new(Notify::new());
        let stop = Stop {
            drain: stop.drain.child_token(),
            now: stop.now.child_token(),
        };
        let mut serving = JoinSet::new();
        serving.spawn({
            let (engine, wake, stop) = (engine.clone(), Arc::clone(&wake), stop.clone());
            async move { engine.serve(&stop, &wake).await }
        });
        let Left {
            standing,
            discarded,
            outstanding,
        } = left;
        let mut stream = Self {
            store: parts.store,
            engine,
            serving,
            events,
            wake,
            stop,
            rows: plan
                .rows
                .into_iter()
                .map(|row| (row.row_index, row))
                .collect(),
            training,
            self_graded,
            max_concurrent: max_concurrent as u64,
            numbering,
            trained_batches: standing.trained_batches,
            admission: Admission::resume(admission_plan, standing),
            running: HashMap::new(),
            scored: BTreeMap::new(),
            stragglers,
            given_up: GivenUp::new(),
            left_taken: None,
            discarded,
            flat: 0,
            flat_identical: 0,
            failures: 0,
            alike: AlikeFailures::default(),
        };
        if let Some(record) = outstanding {
            stream.left_taken = Some(stream.form_again(&record).await?);
        }
        Ok(stream)
    }
}

//! An engine and its fakes.

use std::sync::Arc;
use std::time::Duration;

use osmosis_core::Redactor;
use osmosis_core::config::ModelErrors;
use osmosis_engine::{
    Claims, Engine, EngineError, EngineOptions, Measuring, Recorded, RunEnd, RunEvent, Stop,
};
use tokio::sync::mpsc;

use crate::fake_executor::FakeExecutor;
use crate::fake_sessions::FakeSessions;
use crate::memory_queue::{Company, MemoryQueue};

pub(crate) const LEASE: Duration = Duration::from_mins(1);
pub(crate) const RETRY_WAIT: Duration = Duration::from_millis(500);

/// Nothing in these tests takes that long. Time is paused, so that waiting for it costs nothing.
const FOREVER: Duration = Duration::from_hours(24);

pub(crate) struct House {
    pub(crate) queue: Arc<MemoryQueue>,
    pub(crate) executor: Arc<FakeExecutor>,
    pub(crate) sessions: Arc<FakeSessions>,
    pub(crate) engine: Engine,
    pub(crate) stop: Stop,
    events: mpsc::Receiver<RunEvent>,
}

pub(crate) fn options(max_in_flight: usize) -> EngineOptions {
    EngineOptions {
        owner: "this engine".to_owned(),
        max_in_flight,
        claims: Claims::Everything,
        agent_limit: Duration::from_secs(450),
        grade_limit: Duration::from_secs(150),
        pass_threshold: 1.0,
        reward_range: None,
        model_errors: ModelErrors::Infrastructure,
        max_failures: 3,
        retry_wait: RETRY_WAIT,
        lease: LEASE,
        artifacts_root: None,
        measuring: Measuring::Everything,
        redactor: Redactor::default(),
    }
}

impl House {
    /// With a queue of so many rollouts, of which so many run at once.
    pub(crate) fn of(rows: u64, max_in_flight: usize) -> Self {
        Self::with(rows, max_in_flight, FakeSessions::default())
    }

    pub(crate) fn with(rows: u64, max_in_flight: usize, sessions: FakeSessions) -> Self {
        Self::build(MemoryQueue::of(rows), max_in_flight, sessions, false)
    }

    /// One of several who work on a run.
    pub(crate) fn shared(rows: u64, max_in_flight: usize) -> Self {
        let queue = MemoryQueue::shared(rows);
        Self::build(queue, max_in_flight, FakeSessions::default(), false)
    }

    pub(crate) fn company(&self) -> &Company {
        self.queue.company.as_ref().unwrap()
    }

    /// One whose rollouts are requests to a rollout server.
    pub(crate) fn serving(rows: u64, max_in_flight: usize) -> Self {
        let queue = MemoryQueue::of(rows);
        Self::build(queue, max_in_flight, FakeSessions::default(), true)
    }

    /// One that grades the samples of another's rollouts.
    pub(crate) fn regrading(recorded: &Arc<MemoryQueue>, rows: u64, max_in_flight: usize) -> Self {
        let queue = Arc::new(MemoryQueue::of(rows));
        let executor = Arc::new(FakeExecutor::default());
        let sessions = Arc::new(FakeSessions::default());
        let (told, events) = mpsc::channel(1024);
        let recorded = Recorded {
            store: Arc::<MemoryQueue>::clone(recorded),
            artifacts_root: "/nowhere".into(),
        };
        let engine = Engine::for_regrade(
            recorded,
            Arc::<MemoryQueue>::clone(&queue),
            Arc::<FakeSessions>::clone(&sessions),
            Arc::<FakeExecutor>::clone(&executor),
            options(max_in_flight),
            told,
        );
        Self {
            queue,
            executor,
            sessions,
            engine,
            stop: Stop::default(),
            events,
        }
    }

    fn build(
        queue: MemoryQueue,
        max_in_flight: usize,
        sessions: FakeSessions,
        requests: bool,
    ) -> Self {
        let queue = Arc::new(queue);
        let executor = Arc::new(FakeExecutor::default());
        let sessions = Arc::new(sessions);
        let (told, events) = mpsc::channel(1024);
        let make = if requests {
            Engine::for_requests
        } else {
            Engine::new
        };
        let engine = make(
            Arc::<MemoryQueue>::clone(&queue),
            Arc::<FakeSessions>::clone(&sessions),
            Arc::<FakeExecutor>::clone(&executor),
            options(max_in_flight),
            told,
        );
        Self {
            queue,
            executor,
            sessions,
            engine,
            stop: Stop::default(),
            events,
        }
    }

    /// Runs the engine until it ends.
    pub(crate) async fn run(&self) -> Result<RunEnd, EngineError> {
        within(self.engine.run(&self.stop)).await
    }

    /// The outcomes so far, `-` for what has none.
    pub(crate) fn outcomes(&self, rows: u64) -> Vec<String> {
        (0..rows)
            .map(|row| match self.queue.completion(row) {
                Some(done) => done.outcome.kind().to_string(),
                None => "-".to_owned(),
            })
            .collect()
    }

    /// What was told so far.
    pub(crate) fn events(&mut self) -> Vec<RunEvent> {
        let mut events = vec![];
        while let Ok(event) = self.events.try_recv() {
            events.push(event);
        }
        events
    }
}

/// The future's output, which must come.
pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    let ended = tokio::time::timeout(FOREVER, future).await;
    ended.expect("it ends")
}

//! One place where the events of a run and of its workers arrive: the run's log and the front end's
//! observer.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use osmosis_engine::RunEvent;
use osmosis_store::Store;
use osmosis_worker::WorkerEvent;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::RunError;
use crate::run_log::RunLog;

/// Events waiting to be observed; more than this and the sender waits.
const EVENT_QUEUE: usize = 1024;

/// How long the last events may take. Longer is only possible when a sender outlives its run.
const LAST_EVENTS: Duration = Duration::from_mins(1);

/// Lines, and their bytes, that are kept before there is a log to write them to.
const BUFFERED_EVENTS: usize = 10_000;
const BUFFERED_BYTES: usize = 4 * 1024 * 1024;

/// How a front end follows the events of one kind of run.
#[async_trait]
pub trait Observer<E>: Send {
    /// The run is open: what it has from earlier is there to be read.
    async fn opened(&mut self, _store: &Arc<dyn Store>) -> Result<(), RunError> {
        Ok(())
    }
    fn event(&mut self, event: &E);
    /// Something of a worker: a line that user code printed, say. The log has it already.
    fn worker_event(&mut self, _event: &WorkerEvent) {}
    /// Writes down what belongs into the run's log.
    fn log(&self, event: &E, log: &mut RunLog);
    /// Called every second, so that a quiet run can still show a sign of life.
    fn tick(&mut self);
    /// No more events will come.
    fn finish(&mut self);
}

/// Has the events of rollouts written to the run's log, and shows nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct LogOnly;

impl Observer<RunEvent> for LogOnly {
    fn event(&mut self, _event: &RunEvent) {}

    fn log(&self, event: &RunEvent, log: &mut RunLog) {
        log.run_event(event);
    }

    fn tick(&mut self) {}

    fn finish(&mut self) {}
}

/// Consumes events until [`EventSink::finish`]. Output of workers that comes before there is a log is kept
/// for it.
#[derive(Debug)]
pub struct EventSink<E> {
    worker_events: Option<mpsc::Sender<WorkerEvent>>,
    run_events: Option<mpsc::Sender<E>>,
    target: Arc<Mutex<Target<E>>>,
    tasks: JoinSet<()>,
}

/// Where events go.
enum Target<E> {
    /// To nobody yet.
    Waiting(Waiting),
    Open {
        log: RunLog,
        observer: Box<dyn Observer<E>>,
    },
}

impl<E> std::fmt::Debug for Target<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Waiting(waiting) => f.debug_tuple("Waiting").field(waiting).finish(),
            Self::Open { log, .. } => f
                .debug_struct("Open")
                .field("log", log)
                .finish_non_exhaustive(),
        }
    }
}

/// What goes to the log once it is open.
#[derive(Debug, Default)]
struct Waiting {
    events: Vec<WorkerEvent>,
    bytes: usize,
    /// What found no room.
    dropped: usize,
}

impl<E: Send + 'static> EventSink<E> {
    pub fn start() -> Self {
        let (worker_sender, mut worker_events) = mpsc::channel(EVENT_QUEUE);
        let (run_sender, mut run_events) = mpsc::channel::<E>(EVENT_QUEUE);
        let target = Arc::new(Mutex::new(Target::Waiting(Waiting::default())));
        let shared = Arc::clone(&target);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut ticks = tokio::time::interval(Duration::from_secs(1));
            let (mut workers_open, mut run_open) = (true, true);
            while workers_open || run_open {
                tokio::select! {
                    event = worker_events.recv(), if workers_open => match event {
                        Some(event) => shared.lock().worker_event(event),
                        None => workers_open = false,
                    },
                    event = run_events.recv(), if run_open => match event {
                        Some(event) => shared.lock().run_event(&event),
                        None => run_open = false,
                    },
                    _ = ticks.tick() => shared.lock().tick(),
                }
            }
            shared.lock().finish();
        });
        Self {
            worker_events: Some(worker_sender),
            run_events: Some(run_sender),
            target,
            tasks,
        }
    }

    /// Where workers report to.
    pub fn worker_events(&self) -> mpsc::Sender<WorkerEvent> {
        sender(self.worker_events.as_ref())
    }

    /// Where the engine or the trainer reports to.
    pub fn run_events(&self) -> mpsc::Sender<E> {
        sender(self.run_events.as_ref())
    }

    /// From now on everything goes to this log and this observer; the log gets what came before first.
    pub fn open(&self, mut log: RunLog, observer: Box<dyn Observer<E>>) {
        let mut target = self.target.lock();
        if let Target::Waiting(Waiting {
            events, dropped, ..
        }) = &*target
        {
            for event in events {
                log.worker_event(event);
            }
            if *dropped > 0 {
                log.run(&format!(
                    "[osmosis: {dropped} lines from before the log was open were not kept]"
                ));
            }
        }
        *target = Target::Open { log, observer };
    }

    /// Has what is still queued observed, and ends. All other senders must be gone by then.
    pub async fn finish(&mut self) {
        self.worker_events = None;
        self.run_events = None;
        let last = async { while self.tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(LAST_EVENTS, last).await.is_err() {
            tracing::warn!("somebody still reports events of a run that has ended");
            self.tasks.shutdown().await;
            self.target.lock().finish();
        }
    }
}

/// A sender whose events nobody sees, after `finish`.
fn sender<T>(sender: Option<&mpsc::Sender<T>>) -> mpsc::Sender<T> {
    sender.cloned().unwrap_or_else(|| mpsc::channel(1).0)
}

impl<E> Target<E> {
    fn worker_event(&mut self, event: WorkerEvent) {
        match self {
            Self::Waiting(waiting) => waiting.keep(event),
            Self::Open { log, observer } => {
                log.worker_event(&event);
                observer.worker_event(&event);
            }
        }
    }

    fn run_event(&mut self, event: &E) {
        if let Self::Open { log, observer } = self {
            observer.event(event);
            observer.log(event, log);
        }
    }

    fn tick(&mut self) {
        if let Self::Open { observer, .. } = self {
            observer.tick();
        }
    }

    fn finish(&mut self) {
        if let Self::Open { observer, .. } = self {
            observer.finish();
        }
    }
}

impl Waiting {
    fn keep(&mut self, event: WorkerEvent) {
        let size = match &event {
            WorkerEvent::Output { line, .. } => line.len(),
            WorkerEvent::LoopBlocked { stack, .. } => stack.len(),
            WorkerEvent::Started { .. } | WorkerEvent::Died { .. } | WorkerEvent::Killed { .. } => {
                0
            }
        };
        if self.events.len() < BUFFERED_EVENTS && self.bytes + size <= BUFFERED_BYTES {
            self.bytes += size;
            self.events.push(event);
        } else {
            self.dropped += 1;
        }
    }
}

//! One place where events of the run and of its workers arrive: progress and log.

use std::sync::Arc;
use std::time::Duration;

use osmosis_worker::WorkerEvent;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::run_log::RunLog;

/// Events waiting to be shown; more than this and the sender waits.
const EVENT_QUEUE: usize = 1024;

/// Lines, and their bytes, that are kept before there is a log to write them to.
const BUFFERED_EVENTS: usize = 10_000;
const BUFFERED_BYTES: usize = 4 * 1024 * 1024;

/// How the events of one kind of run are shown.
pub(crate) trait View: Send + 'static {
    type Event: Send + 'static;
    fn event(&mut self, event: &Self::Event);
    /// Writes down what belongs into the run's log.
    fn log(event: &Self::Event, log: &mut RunLog);
    /// Called now and then, so that a quiet run still shows a sign of life.
    fn tick(&mut self);
    fn finish(&mut self);
}

/// Consumes events until [`Display::finish`].
#[derive(Debug)]
pub(crate) struct Display<E> {
    worker_events: Option<mpsc::Sender<WorkerEvent>>,
    run_events: Option<mpsc::Sender<E>>,
    log: Arc<Mutex<Log>>,
    tasks: JoinSet<()>,
}

/// The run's log, or what is to go there once it is open.
#[derive(Debug)]
enum Log {
    Waiting {
        events: Vec<WorkerEvent>,
        bytes: usize,
        /// What found no room.
        dropped: usize,
    },
    Open(RunLog),
}

impl<E: Send + 'static> Display<E> {
    pub(crate) fn start<V: View<Event = E>>(mut view: V) -> Self {
        let (worker_sender, mut worker_events) = mpsc::channel(EVENT_QUEUE);
        let (run_sender, mut run_events) = mpsc::channel::<E>(EVENT_QUEUE);
        let log = Arc::new(Mutex::new(Log::Waiting {
            events: vec![],
            bytes: 0,
            dropped: 0,
        }));
        let shared = Arc::clone(&log);
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
                        Some(event) => {
                            view.event(&event);
                            if let Log::Open(log) = &mut *shared.lock() {
                                V::log(&event, log);
                            }
                        }
                        None => run_open = false,
                    },
                    _ = ticks.tick() => view.tick(),
                }
            }
            view.finish();
        });
        Self {
            worker_events: Some(worker_sender),
            run_events: Some(run_sender),
            log,
            tasks,
        }
    }

    /// Where workers report to.
    pub(crate) fn worker_events(&self) -> mpsc::Sender<WorkerEvent> {
        sender(self.worker_events.as_ref())
    }

    /// Where the engine or the trainer reports to.
    pub(crate) fn run_events(&self) -> mpsc::Sender<E> {
        sender(self.run_events.as_ref())
    }

    /// From now on everything goes to this log, what came before first.
    pub(crate) fn attach(&mut self, mut log: RunLog) {
        let mut current = self.log.lock();
        if let Log::Waiting {
            events, dropped, ..
        } = &*current
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
        *current = Log::Open(log);
    }

    /// Shows what is still queued and ends. All other senders must be gone by then.
    pub(crate) async fn finish(&mut self) {
        self.worker_events = None;
        self.run_events = None;
        while self.tasks.join_next().await.is_some() {}
    }
}

/// A sender whose events nobody sees, after `finish`.
fn sender<T>(sender: Option<&mpsc::Sender<T>>) -> mpsc::Sender<T> {
    sender.cloned().unwrap_or_else(|| mpsc::channel(1).0)
}

impl Log {
    fn worker_event(&mut self, event: WorkerEvent) {
        match self {
            Self::Waiting {
                events,
                bytes,
                dropped,
            } => {
                let size = match &event {
                    WorkerEvent::Output { line, .. } => line.len(),
                    WorkerEvent::LoopBlocked { stack, .. } => stack.len(),
                    WorkerEvent::Started { .. }
                    | WorkerEvent::Died { .. }
                    | WorkerEvent::Killed { .. } => 0,
                };
                if events.len() < BUFFERED_EVENTS && *bytes + size <= BUFFERED_BYTES {
                    *bytes += size;
                    events.push(event);
                } else {
                    *dropped += 1;
                }
            }
            Self::Open(log) => log.worker_event(&event),
        }
    }
}

//! Sessions that open nothing and count what is open.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use async_trait::async_trait;
use osmosis_core::{Attempt, RolloutId, TaskClock};
use osmosis_engine::{
    AgentSession, JudgeSession, ModelFault, RunFault, RunFaultKind, Session, SessionCalls, Sessions,
};
use osmosis_store::CallSummary;
use parking_lot::Mutex;
use tokio::sync::Notify;

pub(crate) const ADVERTISED: &str = "http://gateway.example:8000/v1";
/// What the user configured.
pub(crate) const ENDPOINT: &str = "https://models.example/v1";

#[derive(Debug, Default)]
pub(crate) struct FakeSessions {
    shared: Arc<Shared>,
    /// What the calls of a rollout's attempts suffer, one after the other.
    faults: Mutex<HashMap<RolloutId, VecDeque<ModelFault>>>,
    judged: bool,
    /// Why no rollout can be served, once that is known.
    unusable: Mutex<Option<RunFault>>,
    known: Notify,
}

#[derive(Debug, Default)]
struct Shared {
    open: Mutex<Vec<String>>,
    /// Those that were ended in order, rather than dropped.
    ended: Mutex<Vec<String>>,
}

impl FakeSessions {
    pub(crate) fn with_judge() -> Self {
        Self {
            judged: true,
            ..Self::default()
        }
    }

    /// The calls of the next attempt at a rollout fail like this.
    pub(crate) fn fails(&self, row: u64, fault: ModelFault) {
        let mut faults = self.faults.lock();
        let of_rollout = faults.entry(RolloutId::of(row, 0)).or_default();
        of_rollout.push_back(fault);
    }

    /// From now on no rollout can be served.
    pub(crate) fn is_unusable(&self, message: &str) {
        *self.unusable.lock() = Some(RunFault {
            kind: RunFaultKind::ToolsIgnored,
            message: message.to_owned(),
            hint: Some("do something".to_owned()),
        });
        self.known.notify_waiters();
    }

    pub(crate) fn open_keys(&self) -> Vec<String> {
        self.shared.open.lock().clone()
    }

    pub(crate) fn ended_keys(&self) -> Vec<String> {
        self.shared.ended.lock().clone()
    }

    fn session(&self, key: String, fault: Option<ModelFault>) -> Box<dyn Session> {
        self.shared.open.lock().push(key.clone());
        Box::new(FakeSession {
            key,
            fault,
            shared: Arc::clone(&self.shared),
        })
    }
}

#[async_trait]
impl Sessions for FakeSessions {
    async fn run_fault(&self) -> RunFault {
        loop {
            let known = self.known.notified();
            let fault = self.unusable.lock().clone();
            match fault {
                Some(fault) => return fault,
                None => known.await,
            }
        }
    }

    fn open(&self, wanted: AgentSession) -> Box<dyn Session> {
        let mut faults = self.faults.lock();
        let fault = faults
            .get_mut(&wanted.rollout)
            .and_then(VecDeque::pop_front);
        drop(faults);
        self.session(format!("{}#{}", wanted.rollout, wanted.attempt), fault)
    }

    fn open_other(&self, rollout: RolloutId, attempt: Attempt) -> Box<dyn Session> {
        self.session(format!("{rollout}#{attempt} other"), None)
    }

    fn open_judge(
        &self,
        rollout: RolloutId,
        attempt: Attempt,
        _clock: Arc<TaskClock>,
    ) -> Option<JudgeSession> {
        self.judged.then(|| JudgeSession {
            session: self.session(format!("{rollout}#{attempt} judge"), None),
            model: "judge".to_owned(),
        })
    }
}

#[derive(Debug)]
struct FakeSession {
    key: String,
    fault: Option<ModelFault>,
    shared: Arc<Shared>,
}

#[async_trait]
impl Session for FakeSession {
    fn url(&self) -> &str {
        ADVERTISED
    }

    fn endpoint(&self) -> Option<&str> {
        Some(ENDPOINT)
    }

    fn key(&self) -> &str {
        &self.key
    }

    async fn end(self: Box<Self>) -> SessionCalls {
        self.shared.ended.lock().push(self.key.clone());
        SessionCalls {
            summary: CallSummary {
                model_calls: 1,
                prompt_tokens: 10,
                completion_tokens: 2,
                ..CallSummary::default()
            },
            fault: self.fault.clone(),
            fault_when_late: self.fault.clone(),
            ..SessionCalls::default()
        }
    }
}

impl Drop for FakeSession {
    fn drop(&mut self) {
        self.shared.open.lock().retain(|key| *key != self.key);
    }
}

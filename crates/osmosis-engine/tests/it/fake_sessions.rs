//! Sessions that open nothing and count what is open.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use async_trait::async_trait;
use osmosis_core::{Attempt, RolloutId, TaskClock};
use osmosis_engine::{AgentSession, JudgeSession, ModelFault, Session, SessionCalls, Sessions};
use osmosis_store::CallSummary;
use parking_lot::Mutex;

pub(crate) const ADVERTISED: &str = "http://gateway.example:8000/v1";

#[derive(Debug, Default)]
pub(crate) struct FakeSessions {
    shared: Arc<Shared>,
    /// What the calls of a rollout's attempts suffer, one after the other.
    faults: Mutex<HashMap<RolloutId, VecDeque<ModelFault>>>,
    judged: bool,
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

impl Sessions for FakeSessions {
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

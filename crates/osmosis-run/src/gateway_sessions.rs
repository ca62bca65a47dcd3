//! The gateway as the engine sees it.

use std::sync::Arc;

use async_trait::async_trait;
use osmosis_core::{Attempt, RolloutId, TaskClock};
use osmosis_engine::{
    AgentSession, GivenAnswer, JudgeSession, ModelFault, RunFault, RunFaultKind, Session,
    SessionCalls, Sessions,
};
use osmosis_gateway::{Fault, FaultKind, Gateway, RolloutCalls, RolloutSession};

/// Opens sessions at a gateway of this process.
#[derive(Debug, Clone)]
pub struct GatewaySessions {
    gateway: Arc<Gateway>,
    /// Where user code reaches the gateway, which may not be where it listens.
    advertised_url: Arc<str>,
}

impl GatewaySessions {
    /// For user code on this machine.
    pub fn local(gateway: Arc<Gateway>) -> Self {
        let advertised_url = gateway.url().into();
        Self {
            gateway,
            advertised_url,
        }
    }

    /// For user code that reaches the gateway at another address, which ends in `/v1`.
    pub fn advertised(gateway: Arc<Gateway>, advertised_url: &str) -> Self {
        Self {
            gateway,
            advertised_url: advertised_url.into(),
        }
    }

    fn session(&self, session: RolloutSession, endpoint: String) -> Box<dyn Session> {
        Box::new(GatewaySession {
            session,
            url: Arc::clone(&self.advertised_url),
            endpoint,
        })
    }
}

#[async_trait]
impl Sessions for GatewaySessions {
    fn open(&self, wanted: AgentSession) -> Box<dyn Session> {
        let AgentSession {
            rollout,
            attempt,
            alias,
            greedy,
            keeps_details,
            clock,
        } = wanted;
        let endpoint = self.gateway.endpoint_for(&rollout);
        let session = self.gateway.open_as(rollout, attempt, alias);
        if greedy {
            session.decode_greedily();
        }
        session.keep_completions();
        if keeps_details {
            session.keep_details();
        }
        session.keep_time(clock);
        self.session(session, endpoint)
    }

    fn open_other(&self, rollout: RolloutId, attempt: Attempt) -> Box<dyn Session> {
        let endpoint = self.gateway.endpoint_for(&rollout);
        self.session(self.gateway.open_other(rollout, attempt), endpoint)
    }

    fn open_judge(
        &self,
        rollout: RolloutId,
        attempt: Attempt,
        clock: Arc<TaskClock>,
    ) -> Option<JudgeSession> {
        let (session, judge) = self.gateway.open_judge(rollout, attempt)?;
        session.keep_time(clock);
        let session = self.session(session, judge.endpoint);
        Some(JudgeSession {
            session,
            model: judge.model,
        })
    }

    async fn run_fault(&self) -> RunFault {
        let fault = self.gateway.run_fault().await;
        RunFault {
            kind: match fault.kind {
                FaultKind::OutOfDescriptors => RunFaultKind::OutOfDescriptors,
                // The one other that ends runs.
                _ => RunFaultKind::ToolsIgnored,
            },
            message: fault.message,
            hint: fault.kind.hint().map(str::to_owned),
        }
    }
}

#[derive(Debug)]
struct GatewaySession {
    session: RolloutSession,
    url: Arc<str>,
    endpoint: String,
}

#[async_trait]
impl Session for GatewaySession {
    fn url(&self) -> &str {
        &self.url
    }

    fn key(&self) -> &str {
        self.session.key()
    }

    fn endpoint(&self) -> Option<&str> {
        Some(&self.endpoint)
    }

    async fn end(self: Box<Self>) -> SessionCalls {
        session_calls(self.session.close().await)
    }
}

fn session_calls(calls: RolloutCalls) -> SessionCalls {
    let fault = calls.fault_behind(false).map(model_fault);
    let fault_when_late = calls.fault_behind(true).map(model_fault);
    let answers = calls.completions.into_iter().map(|given| GivenAnswer {
        id: given.id,
        sample: given.sample,
        calls: given.calls,
        replaces: given.replaces,
    });
    SessionCalls {
        summary: calls.summary,
        model_time: calls.model_time,
        fault,
        fault_when_late,
        answers: answers.collect(),
        token_records: calls.token_records,
    }
}

fn model_fault(fault: &Fault) -> ModelFault {
    ModelFault {
        code: fault.kind.as_str(),
        message: fault.message.clone(),
        worth_retrying: fault.kind.worth_retrying(),
    }
}

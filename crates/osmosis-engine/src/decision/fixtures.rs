//! What the tests of several decisions are made of.

use std::time::Duration;

use osmosis_core::config::ModelErrors;
use osmosis_core::execution::{LossCause, TaskResult};
use osmosis_core::frame::TurnRewards;
use osmosis_core::{ErrorCategory, Failure, JsonText, Reward, Sample, SampleId};

use super::Rules;
use crate::attempts::Tried;
use crate::sessions::ModelFault;

pub(super) const RULES: Rules = Rules {
    agent_limit: Duration::from_secs(450),
    grade_limit: Duration::from_secs(150),
    pass_threshold: 1.0,
    reward_range: None,
    max_failures: 3,
    model_errors: ModelErrors::Infrastructure,
};

pub(crate) fn sample(id: &str, reward: Option<f64>, remove_sample: bool) -> Sample {
    Sample {
        id: SampleId::new(id).unwrap(),
        messages: JsonText::parse("[]").unwrap(),
        reward: reward.map(|r| Reward::new(r).unwrap()),
        remove_sample,
        metrics: None,
        extra_fields: None,
    }
}

pub(super) fn fault(worth_retrying: bool) -> ModelFault {
    ModelFault {
        code: "upstream_unreachable",
        message: "upstream is down".to_owned(),
        worth_retrying,
    }
}

pub(super) fn failed(failures: u32) -> Tried {
    Tried {
        losses: 0,
        failures,
    }
}

pub(super) fn raised() -> TaskResult {
    TaskResult::Failed {
        failure: Failure::new(ErrorCategory::AgentError, "RuntimeError", "boom"),
    }
}

pub(super) fn out_of_descriptors() -> TaskResult {
    let message = "OSError: [Errno 24] Too many open files";
    let kind = Failure::OUT_OF_DESCRIPTORS;
    TaskResult::Failed {
        failure: Failure::new(ErrorCategory::AgentError, kind, message),
    }
}

pub(super) fn done(samples: Vec<Sample>) -> TaskResult {
    TaskResult::Done {
        samples,
        metrics: None,
        interactions: vec![],
        turn_rewards: TurnRewards::new(),
    }
}

pub(super) fn worker_gone(cause: LossCause) -> TaskResult {
    TaskResult::WorkerLost {
        detail: "was killed by signal 9 (SIGKILL)".to_owned(),
        cause,
    }
}

//! Rollouts at a rollout server behave as those of every executor do. The server is the real one of this crate.

use std::sync::Arc;

use osmosis_core::execution::RunJob;
use osmosis_core::{Attempt, JsonText, RolloutId};
use osmosis_engine::conformance::{self, ExecutorKind, ExecutorUnderTest, UserCode};
use osmosis_engine::{Executor as _, for_each_executor_behaviour};
use osmosis_gateway::{Gateway, RolloutSession};
use osmosis_server::RemoteRollouts;
use parking_lot::Mutex;
use serde_json::json;

use crate::remote::{Evaluation, options};
use crate::serving::Serving;

/// Makes jobs whose workflows reach the gateway beside the executor, as an engine does.
struct Jobs {
    gateway: Arc<Gateway>,
    rollouts: Arc<RemoteRollouts>,
    /// Open as long as the test.
    sessions: Mutex<Vec<RolloutSession>>,
}

impl Jobs {
    fn job(&self, row: u64, code: UserCode) -> RunJob {
        let does = match code {
            UserCode::Answers => "answer",
            UserCode::Raises => "raise",
            UserCode::Waits => "hang",
            UserCode::EndsItsProcess => "end the process",
        };
        let rollout_id = RolloutId::of(row, 0);
        let alias = self.rollouts.alias(&rollout_id, Attempt(1));
        let session = self.gateway.open_as(rollout_id.clone(), Attempt(1), alias);
        let api_key = session.key().to_owned();
        self.sessions.lock().push(session);
        let prompt = json!([{"role": "user", "content": "What is 6 times 7?"}]);
        RunJob {
            rollout_id,
            prompt: JsonText::of(&prompt).unwrap(),
            label: Some("42".to_owned()),
            metadata: Some(JsonText::of(&json!({ "do": does })).unwrap()),
            chat_completions_url: self.gateway.url().to_owned(),
            api_key,
            artifacts_dir: None,
            row: None,
            is_eval: true,
            clock: None,
            other_api_key: None,
        }
    }
}

macro_rules! each {
    ($($name:ident)*) => {$(
        #[tokio::test(flavor = "multi_thread")]
        async fn $name() {
            let serving = Serving::start().await;
            let evaluation = Evaluation::start(options(&serving.url), &[]).await;
            let jobs = Jobs {
                gateway: Arc::clone(&evaluation.gateway),
                rollouts: Arc::clone(&evaluation.rollouts),
                sessions: Mutex::default(),
            };
            let test = ExecutorUnderTest {
                executor: Arc::<RemoteRollouts>::clone(&evaluation.rollouts),
                kind: ExecutorKind::Rollouts,
                job: Box::new(move |row, code| jobs.job(row, code)),
            };
            conformance::$name(test).await;
            evaluation.rollouts.close().await;
            serving.drain().await;
        }
    )*};
}
for_each_executor_behaviour!(each);

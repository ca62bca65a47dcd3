//! The fake of these tests behaves as real executors do.

use std::sync::Arc;

use osmosis_core::execution::{LossCause, RunJob};
use osmosis_core::{JsonText, Phase, RolloutId};
use osmosis_engine::conformance::{self, ExecutorKind, ExecutorUnderTest, UserCode};
use osmosis_engine::for_each_executor_behaviour;

use crate::fake_executor::{FakeExecutor, Play};

fn under_test() -> ExecutorUnderTest {
    let executor = Arc::new(FakeExecutor::default());
    let plays = Arc::clone(&executor);
    let job = move |row, code| {
        let play = match code {
            UserCode::Answers => Play::Works,
            UserCode::Raises => Play::Raises,
            UserCode::Waits => Play::UntilCancelled,
            UserCode::EndsItsProcess => Play::LosesItsWorker(LossCause::Own),
        };
        plays.plays(row, Phase::Agent, [play]);
        RunJob {
            rollout_id: RolloutId::of(row, 0),
            prompt: JsonText::parse("[]").unwrap(),
            label: None,
            metadata: None,
            chat_completions_url: "http://127.0.0.1:1/v1".to_owned(),
            api_key: "key".to_owned(),
            artifacts_dir: None,
            row: None,
            is_eval: false,
            clock: None,
            other_api_key: None,
        }
    };
    ExecutorUnderTest {
        executor,
        kind: ExecutorKind::Tasks,
        job: Box::new(job),
    }
}

macro_rules! each {
    ($($name:ident)*) => {$(
        #[tokio::test(start_paused = true)]
        async fn $name() {
            conformance::$name(under_test()).await;
        }
    )*};
}
for_each_executor_behaviour!(each);

//! A pool of worker processes behaves as every executor does.

use std::sync::Arc;

use osmosis_engine::conformance::{self, ExecutorKind, ExecutorUnderTest, UserCode};
use osmosis_engine::for_each_executor_behaviour;

use crate::harness::{Fixture, Setup, job};

macro_rules! each {
    ($($name:ident)*) => {$(
        #[tokio::test]
        async fn $name() {
            let started = Setup::new().start().await.unwrap();
            let Fixture { pool, mut log, folder: _, _folder } = started;
            let make = |row, code| job(row, match code {
                UserCode::Answers => r#"["echo"]"#,
                UserCode::Raises => r#"["fail"]"#,
                UserCode::Waits => r#"["wait"]"#,
                UserCode::EndsItsProcess => r#"["exit", 3]"#,
            });
            let test = ExecutorUnderTest {
                executor: Arc::new(pool),
                kind: ExecutorKind::Tasks,
                job: Box::new(make),
            };
            // Nobody reads the log here, and it must not fill up.
            let drained = async { while log.recv().await.is_some() {} };
            tokio::select! {
                () = conformance::$name(test) => {}
                () = drained => panic!("the pool ended before the behaviour was shown"),
            }
        }
    )*};
}
for_each_executor_behaviour!(each);

//! When a call's record is on the disk: with its group, or before its answer.

use std::sync::Arc;
use std::time::Duration;

use camino::Utf8Path;
use osmosis_core::{Attempt, RolloutId};
use osmosis_gateway::{Durability, Gateway, GatewayOptions};
use osmosis_store::{CallQuery, KeyFolder};
use osmosis_store_sqlite::{SqliteOptions, SqliteStore};
use serde_json::Value;

use crate::fixture::{Answer, client, script_policy, streamed, user};

/// Makes the calls one after the other, then reads what another process would find on the disk. The store
/// gathers calls for an hour when nobody waits for a commit.
async fn recorded_after(durability: Durability, calls: &[Value]) -> usize {
    let folder = tempfile::tempdir().unwrap();
    let path = Utf8Path::from_path(folder.path()).unwrap();
    let options = SqliteOptions {
        linger: Duration::from_hours(1),
        ..SqliteOptions::default()
    };
    let store = Arc::new(SqliteStore::open(path, options).unwrap());
    let options = GatewayOptions {
        durability,
        ..GatewayOptions::default()
    };
    let policy = Arc::new(script_policy("[[reply]]\ntext = 'Hello, hello.'\n"));
    let gateway = Gateway::start(options, policy, store).await.unwrap();
    let session = gateway.open(RolloutId::of(0, 0), Attempt(1));
    for body in calls {
        let response = client()
            .post(format!("{}/chat/completions", gateway.url()))
            .bearer_auth(session.key())
            .body(body.to_string())
            .send()
            .await
            .unwrap();
        let answer = Answer::of(response).await;
        assert_eq!((answer.status, answer.aborted), (200, false), "{answer:?}");
    }
    let reader = SqliteStore::open_read_only(path, &KeyFolder::none()).unwrap();
    let query = CallQuery {
        rollout_id: RolloutId::of(0, 0),
        attempt: Some(Attempt(1)),
    };
    reader.calls(query).await.unwrap().len()
}

#[tokio::test]
async fn with_durable_answers_a_call_is_on_the_disk_before_its_answer_is_complete() {
    for calls in [
        vec![user("hi")],
        vec![streamed("hi")],
        vec![user("hi"), streamed("hi")],
    ] {
        let recorded = recorded_after(Durability::Answer, &calls).await;
        assert_eq!(recorded, calls.len(), "{calls:?}");
    }
}

#[tokio::test]
async fn by_default_an_answer_does_not_wait_for_the_disk() {
    let calls = [user("hi"), streamed("hi")];
    assert_eq!(recorded_after(Durability::default(), &calls).await, 0);
}

use std::sync::Arc;
use std::time::Duration;

use osmosis_core::{Attempt, RolloutId};
use osmosis_gateway::{FaultKind, GatewayOptions};
use osmosis_store::CallPurpose;
use osmosis_testkit::model_server::{Behaviour, Gate};

use crate::fixture::{Answer, House, script_policy, streamed, user};
use crate::memory_store::MemoryStore;

#[tokio::test]
async fn closing_a_door_ends_its_key_and_records_what_was_under_way() {
    let (house, server) = House::upstream(Behaviour::Held(Gate::default())).await;
    let other = house.gateway.open(RolloutId::of(2, 0), Attempt(1));
    let House {
        gateway,
        session,
        store,
        client,
    } = house;
    let url = format!("{}/chat/completions", gateway.url());
    let key = session.key().to_owned();
    let call = client
        .post(&url)
        .bearer_auth(&key)
        .body(user("hi").to_string());
    let (answer, calls) = tokio::join!(
        async { Answer::of(call.send().await.unwrap()).await },
        async {
            server.wait_for_requests(1).await;
            session.close().await
        }
    );
    assert_eq!(answer.status, 410);
    assert!(answer.error_message().contains("rollout ended"));
    // The upstream was told as well.
    server.wait_for_hang_ups(1).await;
    assert_eq!(calls.summary.model_calls, 1);
    // The task ended while the upstream had said nothing yet.
    assert_eq!(calls.last_fault.unwrap().kind, FaultKind::TimedOut);
    assert!(calls.model_time > Duration::ZERO);
    let recorded = store.calls();
    assert_eq!(recorded.len(), 1);
    assert!(
        recorded[0]
            .error
            .as_deref()
            .unwrap()
            .starts_with("rollout_ended: ")
    );

    let ended = client
        .post(&url)
        .bearer_auth(&key)
        .body(user("hi").to_string());
    assert_eq!(ended.send().await.unwrap().status(), 401);
    let models = client
        .get(format!("{}/models", gateway.url()))
        .bearer_auth(other.key());
    assert_eq!(models.send().await.unwrap().status(), 200);
}

#[tokio::test]
async fn closing_a_door_breaks_off_its_streams() {
    let (house, server) = House::upstream(Behaviour::HeldAfterFirstEvent(Gate::default())).await;
    let mut response = house.post(streamed("hi").to_string()).send().await.unwrap();
    let first = response.chunk().await.unwrap().unwrap();
    let calls = house.session.close().await;
    assert_eq!(calls.summary.model_calls, 1);
    let recorded = house.store.calls();
    assert_eq!(recorded.len(), 1);
    assert!(
        recorded[0]
            .error
            .as_deref()
            .unwrap()
            .starts_with("rollout_ended: ")
    );
    assert!(recorded[0].response.joined().starts_with(&first));
    server.wait_for_hang_ups(1).await;
    let rest = Answer::of(response).await;
    assert!(rest.aborted);
    assert!(rest.text.contains("rollout_ended"));
}

#[tokio::test]
async fn a_door_closes_only_after_its_last_call_is_queued() {
    let house = House::scripted("[[reply]]\ntext = 'Hello.'\n").await;
    house.store.pause();
    let mut waiting = Box::pin(house.post(user("hi").to_string()).send());
    let early = tokio::time::timeout(Duration::from_millis(100), &mut waiting).await;
    assert!(early.is_err(), "answered before it was recorded");
    let mut closing = Box::pin(house.session.close());
    let early = tokio::time::timeout(Duration::from_millis(50), &mut closing).await;
    assert!(early.is_err(), "closed before the call was queued");
    house.store.resume();
    assert_eq!(closing.await.summary.model_calls, 1);
    assert_eq!(house.store.calls().len(), 1);
}

#[tokio::test]
async fn a_gateway_that_shuts_down_lets_calls_finish() {
    let gate = Gate::default();
    let (house, server) = House::upstream(Behaviour::Held(gate.clone())).await;
    let call = house.post(user("hi").to_string());
    let (answer, drained) = tokio::join!(
        async { Answer::of(call.send().await.unwrap()).await },
        async {
            server.wait_for_requests(1).await;
            let (drained, ()) =
                tokio::join!(house.gateway.shut_down(Duration::from_secs(20)), async {
                    gate.open();
                });
            drained
        }
    );
    assert!(drained);
    assert_eq!(answer.status, 200);
    assert!(
        house.post(user("hi").to_string()).send().await.is_err(),
        "still accepting"
    );
}

#[tokio::test]
async fn a_gateway_whose_grace_runs_out_ends_and_records_what_runs() {
    let (house, server) = House::upstream(Behaviour::Held(Gate::default())).await;
    let call = house.post(user("hi").to_string());
    let (answer, drained) = tokio::join!(
        async { Answer::of(call.send().await.unwrap()).await },
        async {
            server.wait_for_requests(1).await;
            house.gateway.shut_down(Duration::from_millis(10)).await
        }
    );
    assert!(!drained);
    assert_eq!(answer.status, 410);
    assert_eq!(house.store.calls().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_rollouts_share_a_gateway_and_keep_their_sums_apart() {
    let policy = script_policy("[[reply]]\ntext = 'Hello {rollout_id}.'\n");
    let house = House::with(policy, GatewayOptions::default(), MemoryStore::default()).await;
    let url = house.chat_url();
    let rollouts = (0..20_u32).map(|index| {
        let session = house.gateway.open(RolloutId::of(7, index), Attempt(1));
        let (client, url) = (house.client.clone(), url.clone());
        async move {
            for _ in 0..=index {
                let call = client
                    .post(&url)
                    .bearer_auth(session.key())
                    .body(user("hi").to_string());
                let answer = Answer::of(call.send().await.unwrap()).await;
                assert!(answer.text.contains(&format!("Hello r7-{index}.")));
            }
            session.close().await.summary.model_calls
        }
    });
    let sums = futures_util::future::join_all(rollouts).await;
    assert_eq!(sums, (1..=20).collect::<Vec<u64>>());
    assert_eq!(house.store.calls().len(), 210);
}

#[tokio::test]
async fn a_judges_door_opens_the_judge_alone_until_it_is_closed() {
    let house = House::scripted("[[reply]]\ntext = 'policy'\n").await;
    let rollout = RolloutId::of(1, 0);
    assert!(
        house
            .gateway
            .open_judge(rollout.clone(), Attempt(3))
            .is_none(),
        "there is none yet"
    );
    house
        .gateway
        .set_judge(Arc::new(script_policy("[[reply]]\ntext = 'judge'\n")));
    let (session, judge) = house.gateway.open_judge(rollout, Attempt(3)).unwrap();
    let ask = async |key: &str| {
        // Whatever model is named: the key decides.
        let call = house.client.post(house.chat_url()).bearer_auth(key);
        let call = call.body(user("hi").to_string());
        Answer::of(call.send().await.unwrap()).await
    };
    let said = |answer: &Answer| answer.json()["choices"][0]["message"]["content"].clone();
    assert_eq!(said(&ask(session.key()).await), "judge");
    assert_eq!(said(&ask(house.session.key()).await), "policy");
    let models = house
        .client
        .get(format!("{}/models", house.gateway.url()))
        .bearer_auth(session.key());
    let models = Answer::of(models.send().await.unwrap()).await.json();
    assert_eq!(models["data"][0]["id"], judge.model);
    assert_eq!(models["data"][1], serde_json::Value::Null);

    let key = session.key().to_owned();
    let calls = session.close().await;
    assert_eq!(calls.summary.model_calls, 1);
    assert_eq!(ask(&key).await.status, 401);
    assert_eq!(
        ask(house.session.key()).await.status,
        200,
        "the agent's is another"
    );
    let purposes: Vec<CallPurpose> = house
        .store
        .calls()
        .iter()
        .map(|call| call.purpose)
        .collect();
    assert_eq!(
        purposes,
        [CallPurpose::Judge, CallPurpose::Policy, CallPurpose::Policy]
    );
    assert_eq!(house.session.close().await.summary.model_calls, 2);
}

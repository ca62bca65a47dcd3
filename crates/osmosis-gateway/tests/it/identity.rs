use osmosis_core::{Attempt, RolloutId};
use serde_json::json;

use crate::fixture::{Answer, House, user};

type Pairs<'a> = &'a [(&'a str, &'a str)];

const HELLO: &str = "[[reply]]\ntext = 'Hello.'\n";

#[tokio::test]
async fn ids_that_contradict_the_key_are_refused_and_leave_no_record() {
    let house = House::scripted(HELLO).await;
    let other = house.gateway.open(RolloutId::of(2, 0), Attempt(1));
    let mine = house.session.key();
    #[rustfmt::skip]
    let cases: &[(Option<&str>, &str, Pairs<'_>, u16)] = &[
        (None, "", &[], 401),
        (Some("osm-unknown"), "", &[], 401),
        (Some(mine), "", &[], 200),
        (Some(mine), "/rollouts/r1-0", &[], 200),
        (Some(mine), "/rollouts/r1-0/samples/judge", &[("x-sample-id", "judge")], 200),
        (Some(mine), "/rollouts/r2-0", &[], 403),
        (Some(mine), "", &[("x-rollout-id", "r2-0")], 403),
        (Some(mine), "/rollouts/r1-0/samples/judge", &[("x-sample-id", "solver")], 403),
        (Some(other.key()), "/rollouts/r1-0", &[], 403),
        (Some(other.key()), "/rollouts/r2-0", &[], 200),
        (Some(mine), "/nowhere", &[], 404),
    ];
    for (key, below, headers, expected) in cases {
        let url = format!("{}{below}/chat/completions", house.gateway.url());
        let mut request = house.client.post(url).body(user("hi").to_string());
        if let Some(key) = key {
            request = request.bearer_auth(key);
        }
        for (name, value) in *headers {
            request = request.header(*name, *value);
        }
        let before = house.store.calls().len();
        let answer = Answer::of(request.send().await.unwrap()).await;
        assert_eq!(
            answer.status, *expected,
            "{below} {headers:?} {}",
            answer.text
        );
        let recorded = house.store.calls().len() - before;
        assert_eq!(
            recorded,
            usize::from(*expected == 200),
            "{below} {headers:?}"
        );
        if *expected != 200 {
            assert!(!answer.error_message().is_empty());
            let fixed = answer.error_message().contains("leave `x-rollout-id`");
            let rollout = *expected == 403 && !below.contains("samples");
            assert_eq!(fixed, rollout, "{below} {}", answer.text);
            assert_eq!(answer.headers["x-should-retry"], "false");
        }
    }
}

#[tokio::test]
async fn a_key_also_works_as_x_api_key() {
    let house = House::scripted(HELLO).await;
    let response = house
        .client
        .post(house.chat_url())
        .header("x-api-key", house.session.key())
        .body(user("hi").to_string())
        .send()
        .await
        .unwrap();
    assert_eq!(response.status(), 200);
}

#[tokio::test]
async fn calls_are_recorded_under_the_sample_they_name() {
    let house = House::scripted(HELLO).await;
    house.send(&user("hi")).await;
    let by_header = house
        .post(user("hi").to_string())
        .header("x-sample-id", "judge%20%E2%9C%93");
    assert_eq!(by_header.send().await.unwrap().status(), 200);
    let url = format!(
        "{}/rollouts/r1-0/samples/solver/chat/completions",
        house.gateway.url()
    );
    let by_url = house
        .client
        .post(url)
        .bearer_auth(house.session.key())
        .body(user("hi").to_string());
    assert_eq!(by_url.send().await.unwrap().status(), 200);
    let samples: Vec<String> = house
        .store
        .calls()
        .iter()
        .map(|call| call.sample_id.as_str().to_owned())
        .collect();
    assert_eq!(samples, ["main", "judge ✓", "solver"]);
}

#[tokio::test]
async fn models_are_listed_to_those_with_a_key() {
    let house = House::scripted(HELLO).await;
    for below in ["", "/rollouts/r1-0", "/rollouts/r1-0/samples/a"] {
        let url = format!("{}{below}/models", house.gateway.url());
        let keyless = house.client.get(&url).send().await.unwrap();
        assert_eq!(keyless.status(), 401);
        let answer = Answer::of(
            house
                .client
                .get(&url)
                .bearer_auth(house.session.key())
                .send()
                .await
                .unwrap(),
        )
        .await;
        assert_eq!(
            answer.json(),
            json!({"object": "list", "data": [{"id": "scripted", "object": "model", "created": 0, "owned_by": "osmosis"}]})
        );
    }
    let wrong = house
        .client
        .get(house.chat_url())
        .bearer_auth(house.session.key())
        .send()
        .await
        .unwrap();
    assert_eq!(wrong.status(), 405);
}

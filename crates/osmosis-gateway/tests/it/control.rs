//! The control API: switching, pausing, and who may.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use osmosis_core::PolicyVersion;
use osmosis_gateway::{
    FaultKind, GatewayErrorKind, GatewayOptions, HoldLimits, PolicyUpdate, Sampling, Secret,
    UpstreamOptions, UpstreamPolicy,
};
use serde_json::{Value, json};

use crate::fixture::{Answer, House, user};
use crate::fleet::{Fleet, Mode, Peer, options_for};

#[tokio::test]
async fn the_control_api_has_a_key_of_its_own() {
    let a = Peer::start("a").await;
    let fleet = Fleet::start(options_for(&[&a])).await;
    let session = fleet.session(0);
    let control = fleet.gateway.control_key().expose().to_owned();
    assert_ne!(control, session.key());
    assert!(!format!("{:?}", fleet.gateway).contains(&control));
    for (path, body) in [
        ("/v1/policy", None),
        ("/v1/policy", Some("{}")),
        ("/v1/policy/pause", Some("{}")),
        ("/v1/policy/resume", Some("{}")),
        ("/metrics", None),
    ] {
        for (key, expected) in [("", 401), ("osm-control-guess", 401), (session.key(), 403)] {
            let answer = Answer::of(fleet.control(path, body, key).send().await.unwrap()).await;
            assert_eq!(answer.status, expected, "{path} {key}");
            answer.error_message();
        }
    }
    let status = fleet.status();
    assert!(
        !status.paused && status.version == PolicyVersion(0),
        "nothing happened"
    );
    // A web page that found it out may not use it.
    for (path, body) in [("/v1/policy", None), ("/v1/policy/pause", Some("{}"))] {
        let page = fleet.control(path, body, &control);
        let page = page.header("origin", "https://evil.example");
        assert_eq!(page.send().await.unwrap().status(), 403, "{path}");
    }
    assert!(!fleet.status().paused);
    // And it opens nothing else.
    let chat = fleet.control("/v1/chat/completions", Some("{}"), &control);
    assert_eq!(chat.send().await.unwrap().status(), 401);
    assert!(fleet.store.calls().is_empty());
}

#[tokio::test]
async fn a_control_key_can_be_chosen_and_metrics_opened() {
    let a = Peer::start("a").await;
    let options = GatewayOptions {
        control_key: Some(Secret::new("chosen")),
        open_metrics: true,
        ..GatewayOptions::default()
    };
    let fleet = Fleet::start_with(options_for(&[&a]), options).await;
    let get = |path: &'static str, key: &'static str| fleet.control(path, None, key).send();
    assert_eq!(get("/v1/policy", "chosen").await.unwrap().status(), 200);
    assert_eq!(get("/v1/policy", "").await.unwrap().status(), 401);
    assert_eq!(get("/metrics", "").await.unwrap().status(), 200);
}

#[tokio::test]
async fn metrics_at_an_address_of_their_own_take_a_key_and_no_page() {
    let a = Peer::start("a").await;
    let fleet = Fleet::start(options_for(&[&a])).await;
    let session = fleet.session(0);
    let anywhere = "127.0.0.1:0".parse().unwrap();
    let chosen = Some(Secret::new("chosen"));
    let (address, key) = fleet.gateway.serve_metrics(anywhere, chosen).await.unwrap();
    assert_eq!(key.expose(), "chosen");
    let (other, made) = fleet.gateway.serve_metrics(anywhere, None).await.unwrap();
    let client = reqwest::Client::new();
    for (address, key, origin, path, expected) in [
        (address, "chosen", None, "/metrics", 200),
        (address, "", None, "/metrics", 401),
        (address, made.expose(), None, "/metrics", 401),
        (address, session.key(), None, "/metrics", 403),
        (
            address,
            "chosen",
            Some("https://evil.example"),
            "/metrics",
            403,
        ),
        (address, "", None, "/v1/policy", 401),
        (address, "chosen", None, "/v1/policy", 404),
        (other, made.expose(), None, "/metrics", 200),
        (other, "", None, "/metrics", 401),
    ] {
        let mut request = client.get(format!("http://{address}{path}"));
        if !key.is_empty() {
            request = request.bearer_auth(key);
        }
        if let Some(origin) = origin {
            request = request.header("origin", origin);
        }
        let status = request.send().await.unwrap().status();
        assert_eq!(status, expected, "{path} {key} {origin:?}");
    }
    let posted = client.post(format!("http://{address}/metrics"));
    assert_eq!(
        posted.bearer_auth("chosen").send().await.unwrap().status(),
        405
    );
}

#[tokio::test]
async fn the_status_says_what_is_served() {
    let (a, judge) = (Peer::start("a").await, Peer::start("judge").await);
    let mut options = options_for(&[&a]);
    options.endpoints[0].max_in_flight = Some(9);
    options.version = PolicyVersion(4);
    let fleet = Fleet::start(options).await;
    let policy = UpstreamPolicy::new(UpstreamOptions::new(&*judge.url, "judge-model")).unwrap();
    fleet.gateway.register("judge", Arc::new(policy)).unwrap();
    let status = fleet.command("/v1/policy", None).await;
    assert_eq!(
        status["policy"],
        json!({
            "model": "real-model", "version": 4, "paused": false,
            "in_flight": 0, "held": 0, "queued": 0,
            "endpoints": [{
                "url": a.url, "health": "closed", "in_flight": 0, "limit": 9, "last_error": null,
                "failed_tries": 0, "rate_limited": 0, "rests_ms": null,
            }],
        })
    );
    assert_eq!(status["named"]["judge"]["model"], "judge-model");
}

#[tokio::test]
async fn bad_control_requests_are_refused_with_the_reason_and_change_nothing() {
    let a = Peer::start("a").await;
    let mut options = options_for(&[&a]);
    options.version = PolicyVersion(4);
    let fleet = Fleet::start(options).await;
    let before = fleet.status();
    let key = fleet.gateway.control_key().expose();
    #[rustfmt::skip]
    let cases = [
        ("/v1/policy", "[]", 400, "not a JSON object"),
        ("/v1/policy", "{", 400, "not JSON"),
        ("/v1/policy", r#"{"versio": 5}"#, 400, "unknown field `versio`"),
        ("/v1/policy", r#"{"version": -1}"#, 400, "invalid value"),
        ("/v1/policy", r#"{"version": 3}"#, 409, "version 3 is lower than version 4"),
        ("/v1/policy", r#"{"model": ""}"#, 400, "`model` is empty"),
        ("/v1/policy", r#"{"endpoints": []}"#, 400, "no upstream url"),
        ("/v1/policy", r#"{"endpoints": [7]}"#, 400, "`endpoints[0]` is neither"),
        ("/v1/policy", r#"{"endpoints": ["ftp://u:hunter2@h/v1"]}"#, 400, "is not an http or https URL"),
        ("/v1/policy", r#"{"endpoints": [{"api_key": "x"}]}"#, 400, "`endpoints[0]`: missing field `url`"),
        ("/v1/policy", r#"{"endpoints": [{"url": "http://h/v1", "max_in_flight": 0}]}"#, 400, "pause the policy"),
        ("/v1/policy", r#"{"endpoints": [{"url": "http://h/v1", "api_key": "a\nb"}]}"#, 400, "line break"),
        ("/v1/policy", r#"{"name": "judge"}"#, 404, "no policy is registered as `judge`"),
        ("/v1/policy/pause", r#"{"name": "judge"}"#, 404, "no policy is registered"),
        ("/v1/policy/pause", r#"{"wait": "yes"}"#, 400, "invalid type"),
        ("/v1/policy/pause", r#"{"timeout_s": -1}"#, 400, "`timeout_s`"),
        ("/v1/policy/resume", r#"{"wait": true}"#, 400, "unknown field `wait`"),
    ];
    for (path, body, status, words) in cases {
        let answer = Answer::of(fleet.control(path, Some(body), key).send().await.unwrap()).await;
        assert_eq!(answer.status, status, "{body} {}", answer.text);
        let message = answer.error_message();
        assert!(message.contains(words), "{body} {message}");
        assert!(!message.contains("hunter2"));
    }
    let get = fleet.control("/v1/policy/pause", None, key);
    assert_eq!(get.send().await.unwrap().status(), 405);
    assert_eq!(fleet.status(), before);
}

#[tokio::test]
async fn a_paused_policy_holds_calls_and_lets_those_under_way_finish() {
    let a = Peer::start("a").await;
    let fleet = Fleet::start(options_for(&[&a])).await;
    a.set(Mode::Held);
    let (first, second) = (fleet.session(0), fleet.session(1));
    let operator = async {
        a.wait_for_arrivals(1).await;
        let paused = fleet.command("/v1/policy/pause", Some("")).await;
        assert_eq!(
            (&paused["in_flight"], &paused["drained"]),
            (&json!(1), &json!(false))
        );
        let held = fleet.ask(&second);
        let update = async {
            fleet.until(|status| status.held == 1).await;
            let soon = r#"{"wait": true, "timeout_s": 0.01}"#;
            let paused = fleet.command("/v1/policy/pause", Some(soon)).await;
            assert_eq!(paused["drained"], false);
            let drained = fleet.command("/v1/policy/pause", Some(r#"{"wait": true}"#));
            let release = async {
                tokio::task::yield_now().await;
                a.set(Mode::Answers);
            };
            assert_eq!(tokio::join!(drained, release).0["drained"], true);
            assert_eq!(fleet.store.calls().len(), 1, "drained means recorded");
            // Now the weights are exchanged.
            let updated = fleet.command("/v1/policy", Some(r#"{"version": 5}"#)).await;
            assert_eq!(
                (&updated["version"], &updated["held"]),
                (&json!(5), &json!(1))
            );
            assert_eq!(a.arrivals(), 1);
            fleet.command("/v1/policy/resume", Some("{}")).await;
        };
        tokio::join!(held, update).0
    };
    let (one, two) = tokio::join!(fleet.ask(&first), operator);
    assert_eq!((one.status, two.status), (200, 200));
    let versions: Vec<u64> = fleet
        .store
        .calls()
        .iter()
        .map(|c| c.policy_version.0)
        .collect();
    assert_eq!(versions, [0, 5]);
    let status = fleet.status();
    assert_eq!(
        (status.paused, status.held, status.in_flight),
        (false, 0, 0)
    );
}

#[tokio::test]
async fn a_call_is_held_no_longer_than_its_limit_and_so_are_their_number() {
    let a = Peer::start("a").await;
    let options = GatewayOptions {
        hold: HoldLimits {
            wait: Duration::from_millis(40),
            calls: 1,
        },
        ..GatewayOptions::default()
    };
    let fleet = Fleet::start_with(options_for(&[&a]), options).await;
    fleet.gateway.pause(None).unwrap();
    let (first, second) = (fleet.session(0), fleet.session(1));
    let too_many = async {
        fleet.until(|status| status.held == 1).await;
        fleet.ask(&second).await
    };
    let (held, refused) = tokio::join!(fleet.ask(&first), too_many);
    assert_eq!(
        (held.status, &held.headers["retry-after"]),
        (503, &"5".parse().unwrap())
    );
    assert!(held.error_message().contains("not resumed within 40ms"));
    assert_eq!(refused.status, 429);
    assert_eq!(a.arrivals(), 0);
    assert_eq!(fleet.status().held, 0);
    assert_eq!(
        first.close().await.last_fault.unwrap().kind,
        FaultKind::Paused
    );
    fleet.gateway.resume(None).unwrap();
    assert_eq!(fleet.who_answers(&second).await, "a");
}

#[tokio::test]
async fn a_held_call_ends_with_its_caller_and_with_its_rollout() {
    let a = Peer::start("a").await;
    let fleet = Fleet::start(options_for(&[&a])).await;
    fleet.gateway.pause(None).unwrap();
    let (first, second) = (fleet.session(0), fleet.session(1));
    let mut gone = Box::pin(fleet.ask(&first));
    tokio::select! {
        _ = &mut gone => panic!("it was answered"),
        () = fleet.until(|status| status.held == 1) => drop(gone),
    }
    fleet.until(|status| status.held == 0).await;
    let request = fleet.post(&second, &user("hi"));
    let ended = async {
        fleet.until(|status| status.held == 1).await;
        second.close().await
    };
    let (answer, _) = tokio::join!(
        async { Answer::of(request.send().await.unwrap()).await },
        ended
    );
    assert_eq!(answer.status, 410);
    let calls = fleet.store.wait_for(2).await;
    let errors: Vec<&str> = calls
        .iter()
        .filter_map(|call| call.error.as_deref())
        .collect();
    assert!(errors[0].starts_with("caller_hung_up: "), "{errors:?}");
    assert!(errors[1].starts_with("rollout_ended: "), "{errors:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_carries_the_version_that_answered_it_while_policies_are_switched() {
    let peers = [
        Peer::start("v0").await,
        Peer::start("v1").await,
        Peer::start("v2").await,
        Peer::start("v3").await,
    ];
    let fleet = Fleet::start(options_for(&[&peers[0]])).await;
    let sessions: Vec<_> = (0..16).map(|row| fleet.session(row)).collect();
    let calls = join_all(sessions.iter().map(|session| async {
        for _ in 0..25 {
            fleet.who_answers(session).await;
        }
    }));
    let switching = async {
        for (at, peer) in peers.iter().enumerate().skip(1) {
            peers[at - 1].wait_for_arrivals(40).await;
            let body = json!({"endpoints": [peer.url], "model": format!("model-{at}")});
            let status = fleet.command("/v1/policy", Some(&body.to_string())).await;
            assert_eq!(status["version"], at);
        }
    };
    tokio::join!(calls, switching);
    let records = fleet.store.calls();
    assert_eq!(records.len(), 16 * 25);
    for call in &records {
        let body: Value = serde_json::from_slice(&call.response.joined()).unwrap();
        let version = call.policy_version.0;
        let who = &body["choices"][0]["message"]["content"];
        assert_eq!(*who, format!("v{version}"));
        assert_eq!(call.upstream, peers[usize::try_from(version).unwrap()].url);
        let model = if version == 0 {
            "real-model".to_owned()
        } else {
            format!("model-{version}")
        };
        assert_eq!(
            body["model"], model,
            "the model's name changes with the rest"
        );
    }
    for version in 0..4 {
        assert!(records.iter().any(|call| call.policy_version.0 == version));
    }
}

#[tokio::test]
async fn a_call_under_way_finishes_with_what_it_began_with() {
    let (a, b) = (Peer::start("a").await, Peer::start("b").await);
    let fleet = Fleet::start(options_for(&[&a])).await;
    a.set(Mode::Held);
    let (first, second) = (fleet.session(0), fleet.session(1));
    let switch = async {
        a.wait_for_arrivals(1).await;
        let endpoints = Some(vec![osmosis_gateway::EndpointOptions::new(&*b.url)]);
        let update = PolicyUpdate {
            endpoints,
            ..PolicyUpdate::default()
        };
        let version = fleet.gateway.update_policy(None, update).unwrap();
        assert_eq!(version, PolicyVersion(1));
        assert_eq!(fleet.who_answers(&second).await, "b");
        a.set(Mode::Answers);
    };
    let (who, ()) = tokio::join!(fleet.who_answers(&first), switch);
    assert_eq!(who, "a");
    let calls = fleet.store.calls();
    let versions: Vec<u64> = calls.iter().map(|call| call.policy_version.0).collect();
    assert_eq!(versions, [1, 0]);
}

#[tokio::test]
async fn a_policy_in_this_process_keeps_its_own_version() {
    let house = House::scripted("[[reply]]\ntext = 'hi'\n").await;
    let refused = house.gateway.update_policy(None, PolicyUpdate::default());
    assert_eq!(refused.unwrap_err().kind(), GatewayErrorKind::Conflict);
    assert!(house.gateway.policy(None).unwrap().endpoints.is_empty());
    // It can be held all the same, and replaced by who holds the gateway.
    house.gateway.pause(None).unwrap();
    assert!(house.gateway.drained(None).await.unwrap());
    let other = crate::fixture::script_policy("[[reply]]\ntext = 'other'\n");
    house.gateway.replace_policy(None, Arc::new(other)).unwrap();
    house.gateway.resume(None).unwrap();
    assert!(house.send(&user("hi")).await.text.contains("other"));
}

#[tokio::test]
async fn a_registered_name_goes_to_its_own_policy_and_all_others_to_the_runs() {
    let (a, judge) = (Peer::start("a").await, Peer::start("judge").await);
    let options = GatewayOptions {
        sampling: Sampling {
            temperature: Some(0.5),
            top_p: None,
            overrides: true,
        },
        ..GatewayOptions::default()
    };
    let fleet = Fleet::start_with(options_for(&[&a]), options).await;
    let policy = UpstreamPolicy::new(UpstreamOptions::new(&*judge.url, "org/judge-7b")).unwrap();
    let policy = Arc::new(policy);
    for taken in [
        "",
        "osmosis-rollout",
        "openai/osmosis-rollout",
        "two\nlines",
    ] {
        assert!(
            fleet.gateway.register(taken, policy.clone()).is_err(),
            "{taken}"
        );
    }
    fleet.gateway.register("judge", policy).unwrap();
    let session = fleet.session(0);
    for (model, who) in [
        ("judge", "judge"),
        ("openai/judge", "judge"),
        ("openai/osmosis-rollout", "a"),
        ("gpt-4o", "a"),
        ("", "a"),
    ] {
        let body = json!({"model": model, "messages": []});
        let answer = Answer::of(fleet.post(&session, &body).send().await.unwrap()).await;
        assert_eq!(
            answer.json()["choices"][0]["message"]["content"],
            who,
            "{model}"
        );
    }
    let asked = &judge.bodies()[0];
    assert_eq!(asked["model"], "org/judge-7b");
    assert_eq!(
        asked.get("temperature"),
        None,
        "`[sampling]` is the run's policy's"
    );
    assert_eq!(a.bodies()[0]["temperature"], 0.5);
    let models = fleet.client.get(format!("{}/models", fleet.gateway.url()));
    let models = Answer::of(models.bearer_auth(session.key()).send().await.unwrap()).await;
    let ids: Vec<Value> = models.json()["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| m["id"].clone())
        .collect();
    assert_eq!(ids, ["real-model", "judge"]);
    // Pausing one leaves the other alone.
    fleet
        .command("/v1/policy/pause", Some(r#"{"name": "judge"}"#))
        .await;
    assert_eq!(fleet.who_answers(&session).await, "a");
    let status = fleet.command("/v1/policy", None).await;
    assert_eq!(status["named"]["judge"]["paused"], true);
}

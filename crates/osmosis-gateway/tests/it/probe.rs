//! The tiny call before a run, at real servers.

use std::sync::Arc;

use osmosis_gateway::{
    EndpointOptions, Finding, OutputLimit, Policy, ProbeErrorKind, Secret, UpstreamOptions,
    UpstreamPolicy,
};
use osmosis_testkit::model_server::{Behaviour, ModelServer};
use serde_json::json;

const KEY: &str = "sk-not-to-be-seen";

fn policy(url: &str) -> Arc<dyn Policy> {
    let endpoint = EndpointOptions {
        api_key: Some(Secret::new(KEY)),
        ..EndpointOptions::new(url)
    };
    let options = UpstreamOptions::of(vec![endpoint], "real-model");
    Arc::new(UpstreamPolicy::new(options).unwrap())
}

async fn found(url: &str) -> Finding {
    let mut probed = policy(url).probe().await;
    assert_eq!(probed.len(), 1);
    probed.remove(0).finding
}

#[tokio::test]
async fn what_is_wrong_is_told_without_the_key_after_one_call() {
    for (behaviour, kind, calls) in [
        (Behaviour::Refuses { status: 401 }, ProbeErrorKind::Key, 1),
        (Behaviour::Refuses { status: 403 }, ProbeErrorKind::Key, 1),
        (
            Behaviour::Refuses { status: 404 },
            ProbeErrorKind::Address,
            1,
        ),
        (
            Behaviour::Refuses { status: 307 },
            ProbeErrorKind::Address,
            1,
        ),
        (Behaviour::Down, ProbeErrorKind::Address, 0),
        (Behaviour::Garbage("<html>"), ProbeErrorKind::Address, 1),
    ] {
        let server = ModelServer::start(behaviour.clone()).await.unwrap();
        let Finding::Broken(error) = found(server.url()).await else {
            panic!("{behaviour:?}");
        };
        assert_eq!(error.kind(), kind, "{behaviour:?}: {error}");
        let told = format!("{error} {}", error.hint());
        assert!(!told.contains(KEY), "{told}");
        assert_eq!(server.requests().len(), calls, "{behaviour:?}");
    }
}

#[tokio::test]
async fn a_base_url_without_its_version_is_told_where_it_usually_is() {
    let server = ModelServer::start(Behaviour::Answers).await.unwrap();
    let short = server.url().trim_end_matches("/v1");
    let Finding::Broken(error) = found(short).await else {
        panic!("it was found");
    };
    let hint = format!("try `{}`", server.url());
    assert!(error.hint().contains(&hint), "{error}: {}", error.hint());
}

#[tokio::test]
async fn a_host_that_nobody_knows_is_the_address() {
    let Finding::Broken(error) = found("http://no-such-host.invalid/v1").await else {
        panic!("it was found");
    };
    assert_eq!(error.kind(), ProbeErrorKind::Address, "{error}");
}

#[tokio::test]
async fn what_passes_is_only_doubtful_and_nothing_is_tried_again() {
    for status in [429, 500, 503] {
        let server = ModelServer::start(Behaviour::Refuses { status })
            .await
            .unwrap();
        let finding = found(server.url()).await;
        assert!(matches!(finding, Finding::Doubtful { .. }), "{finding:?}");
        assert_eq!(server.requests().len(), 1);
    }
}

#[tokio::test]
async fn the_call_asks_for_one_token_and_learns_the_name_of_the_limit() {
    let server = ModelServer::start(Behaviour::Reasons).await.unwrap();
    let policy = policy(server.url());
    assert_eq!(policy.output_limit(), OutputLimit::MaxTokens);
    assert_eq!(policy.probe().await[0].finding, Finding::Works);
    assert_eq!(policy.output_limit(), OutputLimit::MaxCompletionTokens);
    let requests = server.requests();
    assert_eq!(requests.len(), 2);
    assert_eq!(requests[0].body["model"], "real-model");
    assert_eq!(requests[0].body["max_tokens"], json!(1));
    assert_eq!(requests[1].body["max_completion_tokens"], json!(1));
    assert_eq!(
        requests[1].headers["authorization"],
        format!("Bearer {KEY}")
    );
}

//! Who may ask: names, pages, bodies, addresses.

use std::time::Instant;

use osmosis_gateway::AddressRules;
use reqwest::Url;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::serving::{LONG, Serving, Setting};

/// Sends bytes as they are, and returns the status of the answer.
async fn raw(serving: &Serving, head: &str, body: &str) -> String {
    let address = serving.url.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(body.as_bytes()).await.unwrap();
    let mut answer = [0; 12];
    let reading = stream.read_exact(&mut answer);
    tokio::time::timeout(LONG, reading).await.unwrap().unwrap();
    String::from_utf8(answer[9..].to_vec()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_web_page_drives_a_server_and_no_foreign_name_leads_to_it() {
    let serving = Serving::start().await;
    let body = serving.request("page", "answer").to_string();
    let length = body.len();
    let send = async |more: &str| {
        let head = format!("POST /rollout HTTP/1.1\r\ncontent-length: {length}\r\n{more}\r\n");
        raw(&serving, &head, &body).await
    };
    let json = "content-type: application/json\r\n";
    let host = "host: localhost\r\n";
    assert_eq!(
        send(&format!("{host}content-type: text/plain\r\n")).await,
        "415"
    );
    assert_eq!(send(host).await, "415");
    let foreign = format!("{host}{json}origin: https://evil.example\r\n");
    assert_eq!(send(&foreign).await, "403");
    assert_eq!(send(&format!("{json}host: evil.example\r\n")).await, "421");
    assert_eq!(serving.status("page").await, "unknown");
    assert_eq!(
        send(&format!("{host}{json}origin: http://localhost\r\n")).await,
        "202"
    );
    let health = "GET /health HTTP/1.1\r\nhost: evil.example\r\n\r\n";
    assert_eq!(raw(&serving, health, "").await, "421");
    serving.told("page").await;
    serving.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_declared_too_large_is_refused_at_once() {
    let serving = Serving::start().await;
    let began = Instant::now();
    let head = "POST /rollout HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
                content-length: 104857601\r\n\r\n";
    // Nothing of it is sent.
    assert_eq!(raw(&serving, head, "").await, "413");
    let asks = head.replace("\r\n\r\n", "\r\nexpect: 100-continue\r\n\r\n");
    assert_eq!(raw(&serving, &asks, "").await, "413");
    assert!(began.elapsed().as_secs() < 20, "{:?}", began.elapsed());
    serving.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_others_reach_asks_nothing_of_its_own_machine() {
    let mut setting = Setting {
        listen: ([0, 0, 0, 0], 0).into(),
        ..Setting::default()
    };
    setting.server.address_rules = AddressRules::elsewhere_only(vec![]);
    let serving = setting.start().await;
    let refused = serving
        .post("/rollout", &serving.request("own", "answer"))
        .await;
    assert_eq!(refused.status, 422);
    let text = refused.body.to_string();
    assert!(
        text.contains("--allow-url") && text.contains("chat_completions_url"),
        "{text}"
    );
    let mut request = serving.request("own", "answer");
    request["chat_completions_url"] = json!("http://models.example/v1");
    for url in [
        "http://127.0.0.1:1/x",
        "http://localhost:1/x",
        "http://2130706433/x",
        "http://0.0.0.0:1/x",
        "http://[::ffff:127.0.0.1]:1/x",
        "http://169.254.169.254/latest",
    ] {
        for field in ["completion_callback_url", "grader_callback_url"] {
            let mut request = request.clone();
            request["completion_callback_url"] = json!("http://callbacks.example/x");
            request["grader_callback_url"] = json!("http://callbacks.example/x");
            request[field] = json!(url);
            let refused = serving.post("/rollout", &request).await;
            assert_eq!(refused.status, 422, "{field} {url}");
            assert_eq!(refused.body["detail"][0]["loc"][1], field, "{url}");
        }
    }
    assert_eq!(serving.status("own").await, "unknown");
    serving.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_allowed_by_its_prefix_is_asked() {
    let model = osmosis_testkit::model_server::ModelServer::start(
        osmosis_testkit::model_server::Behaviour::Answers,
    )
    .await
    .unwrap();
    let receiver = crate::receiver::Receiver::start().await;
    let allowed = [model.url().to_owned(), receiver.url("/")];
    let allowed = allowed.map(|url| Url::parse(&url).unwrap()).to_vec();
    let mut setting = Setting {
        listen: ([0, 0, 0, 0], 0).into(),
        ..Setting::default()
    };
    setting.server.address_rules = AddressRules::elsewhere_only(allowed);
    let mut serving = setting.start().await;
    serving.model = model;
    serving.receiver = receiver;
    serving.accept("allowed", "answer").await;
    assert_eq!(serving.told("allowed").await.1["sample"]["reward"], 1.0);
    serving.drain().await;
}

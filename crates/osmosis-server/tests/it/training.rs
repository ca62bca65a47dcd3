//! Batches for trainers in other processes, over HTTP.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use camino::Utf8Path;
use osmosis_core::staleness::GroupId;
use osmosis_core::{PolicyVersion, RolloutId, SampleId};
use osmosis_gateway::{Gateway, GatewayOptions, ScriptedPolicy};
use osmosis_server::BatchService;
use osmosis_train::TrainError;
use osmosis_train::delivery::{
    Acknowledged, BatchSource, DeliveredBatch, DeliveredRow, NextBatch, WaitingFor,
};
use parking_lot::Mutex;
use reqwest::{Method, Response};
use serde_json::{Value, json};

use crate::serving::client;

const ARROW: &str = "application/vnd.apache.arrow.stream";

/// Gives out what it was given.
#[derive(Debug, Default)]
struct ScriptedBatches {
    handed: Mutex<Vec<NextBatch>>,
    asked: Mutex<Vec<(Option<u64>, Duration)>>,
    /// Somebody acknowledges it while it is written.
    acknowledged_meanwhile: Option<u64>,
}

impl ScriptedBatches {
    fn with(handed: impl IntoIterator<Item = NextBatch>) -> Arc<Self> {
        let mut handed: Vec<_> = handed.into_iter().collect();
        handed.reverse();
        Arc::new(Self {
            handed: Mutex::new(handed),
            asked: Mutex::default(),
            acknowledged_meanwhile: None,
        })
    }
}

#[async_trait]
impl BatchSource for ScriptedBatches {
    async fn next(&self, after: Option<u64>, wait: Duration) -> Result<NextBatch, TrainError> {
        self.asked.lock().push((after, wait));
        let handed = self.handed.lock().pop();
        handed.ok_or_else(|| TrainError::Internal("nothing is left".to_owned()))
    }

    fn is_outstanding(&self, number: u64) -> bool {
        self.acknowledged_meanwhile != Some(number)
    }

    async fn acknowledge(&self, number: u64) -> Result<Acknowledged, TrainError> {
        Ok(match number {
            1 => Acknowledged::Now,
            2 => Acknowledged::Before,
            3 => Acknowledged::NotHandedOut,
            5 => Acknowledged::Stopping,
            _ => Acknowledged::Unknown,
        })
    }
}

fn batch(number: u64) -> DeliveredBatch {
    DeliveredBatch {
        number,
        version: PolicyVersion(4),
        rows: vec![DeliveredRow {
            group: GroupId(3),
            row_index: 3,
            rollout_id: RolloutId::of(3, 0),
            sample_id: SampleId::main(),
            row: "main/0".to_owned(),
            ids: vec![1, 2],
            loss_mask: vec![0, 1],
            logprobs: vec![0.0, -0.5],
            versions: vec![-1, 4],
            temperatures: vec![1.0, 1.0],
            reward: 1.0,
            advantage: 0.5,
        }],
    }
}

struct Served {
    gateway: Gateway,
    client: reqwest::Client,
}

impl Served {
    async fn start(batches: Arc<ScriptedBatches>) -> Self {
        let script = "[[reply]]\ntext = 'hi'\n";
        let policy = ScriptedPolicy::parse(Utf8Path::new("hi.toml"), script).unwrap();
        let service = Arc::new(BatchService::default());
        let options = GatewayOptions {
            services: vec![(BatchService::PATH.to_owned(), Arc::clone(&service) as _)],
            ..GatewayOptions::default()
        };
        let gateway = Gateway::start_unrecorded(options, Arc::new(policy))
            .await
            .unwrap();
        let client = client(gateway.url());
        let served = Self { gateway, client };
        // Who comes too early is told to come again.
        let early = served.get("/batches").await;
        assert_eq!(early.status(), 503);
        assert_eq!(early.headers()["retry-after"], "1");
        service.open(batches);
        served
    }

    async fn ask(&self, method: Method, path: &str, accept: &str) -> Response {
        let asked = self
            .client
            .request(method, format!("{}/training{path}", self.gateway.url()))
            .bearer_auth(self.gateway.control_key().expose())
            .header("accept", accept);
        asked.send().await.unwrap()
    }

    async fn get(&self, path: &str) -> Response {
        self.ask(Method::GET, path, "*/*").await
    }
}

async fn message(response: Response) -> String {
    let body: Value = serde_json::from_str(&response.text().await.unwrap()).unwrap();
    body["error"]["message"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_batch_comes_as_json_or_as_arrow_and_names_itself() {
    let given = Arc::new(batch(7));
    let batches = ScriptedBatches::with([
        NextBatch::Batch(Arc::clone(&given)),
        NextBatch::Batch(given),
    ]);
    let served = Served::start(Arc::clone(&batches)).await;

    let plain = served.get("/batches").await;
    assert_eq!(plain.status(), 200);
    assert_eq!(plain.headers()["content-type"], "application/json");
    assert_eq!(plain.headers()["osmosis-batch"], "7");
    assert_eq!(plain.headers()["osmosis-version"], "4");
    let read: DeliveredBatch = serde_json::from_str(&plain.text().await.unwrap()).unwrap();
    assert_eq!(read, batch(7));

    let arrow = served
        .ask(Method::GET, "/batches?wait=2&after=6", ARROW)
        .await;
    assert_eq!(arrow.status(), 200);
    assert_eq!(arrow.headers()["content-type"], ARROW);
    let bytes = arrow.bytes().await.unwrap();
    assert_eq!(bytes, osmosis_train::delivery::to_arrow(&batch(7)).unwrap());
    let asked = batches.asked.lock();
    assert_eq!([asked[0].0, asked[1].0], [None, Some(6)]);
    for ((_, wait), most) in asked.iter().zip([30, 2].map(Duration::from_secs)) {
        assert!(*wait <= most && *wait + Duration::from_secs(1) > most);
    }
}

#[tokio::test]
async fn a_batch_that_is_acknowledged_while_it_is_written_is_not_sent() {
    let batches = ScriptedBatches {
        handed: Mutex::new([8, 7].map(|n| NextBatch::Batch(Arc::new(batch(n)))).into()),
        acknowledged_meanwhile: Some(7),
        ..ScriptedBatches::default()
    };
    let served = Served::start(Arc::new(batches)).await;
    let answer = served.get("/batches").await;
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["osmosis-batch"], "8");
}

#[tokio::test]
async fn without_a_batch_the_answer_says_what_is_waited_for() {
    let reasons = [
        WaitingFor::Rollouts,
        WaitingFor::Version,
        WaitingFor::Acknowledgement,
        WaitingFor::End,
    ];
    let served = Served::start(ScriptedBatches::with(reasons.map(NextBatch::Nothing))).await;
    for expected in ["rollouts", "version", "acknowledgement", "end"] {
        let answer = served.get("/batches?wait=0").await;
        assert_eq!(answer.status(), 204);
        assert_eq!(answer.headers()["osmosis-waiting-for"], expected);
    }
}

#[tokio::test]
async fn a_trainer_that_asks_an_engine_which_stops_is_told_to_come_again() {
    let served = Served::start(ScriptedBatches::with([NextBatch::Stopping])).await;
    let answer = served.get("/batches").await;
    assert_eq!(answer.status(), 503);
    assert_eq!(answer.headers()["retry-after"], "1");
    // And what fails within is told as that.
    assert_eq!(served.get("/batches").await.status(), 500);
}

#[tokio::test]
async fn an_acknowledgement_says_whether_it_was_the_first() {
    let served = Served::start(ScriptedBatches::with([])).await;
    for (number, status, again) in [(1, 200, json!(false)), (2, 200, json!(true))] {
        let path = format!("/batches/{number}/ack");
        let answer = served.ask(Method::POST, &path, "*/*").await;
        assert_eq!(answer.status(), status);
        let body: Value = serde_json::from_str(&answer.text().await.unwrap()).unwrap();
        assert_eq!(
            body,
            json!({"number": number, "acknowledged": true, "again": again})
        );
    }
    for (number, status, words) in [
        (3, 409, "ask for it first"),
        (4, 404, "there is no batch 4"),
        (5, 503, "stopping"),
    ] {
        let path = format!("/batches/{number}/ack");
        let answer = served.ask(Method::POST, &path, "*/*").await;
        assert_eq!(answer.status(), status);
        assert!(message(answer).await.contains(words));
    }
}

#[tokio::test]
async fn what_is_asked_wrongly_is_refused_in_the_shape_of_the_control_api() {
    let batches = ScriptedBatches::with([]);
    let served = Served::start(Arc::clone(&batches)).await;
    for (method, path, accept, status) in [
        (Method::GET, "/batches?wait=1000", "*/*", 400),
        (Method::GET, "/batches?after=last", "*/*", 400),
        (Method::GET, "/batches", "text/csv", 406),
        (Method::GET, "/batches/1", "*/*", 404),
        (Method::GET, "/", "*/*", 404),
        (Method::POST, "/batches", "*/*", 405),
        (Method::GET, "/batches/1/ack", "*/*", 405),
    ] {
        let answer = served.ask(method, path, accept).await;
        assert_eq!(answer.status(), status, "{path}");
        message(answer).await;
    }
    let url = format!("{}/training/batches", served.gateway.url());
    let keyless = served.client.get(url).send().await.unwrap();
    assert_eq!(keyless.status(), 401);
    assert!(batches.asked.lock().is_empty());
}

//! `osmosis train serve`: an acknowledged batch never comes again, whoever asks, and however often the
//! engine is killed. `KILLS` and `KILL_SEED` in the environment make it longer or repeat one.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use osmosis_testkit::{python_environment, waiting};
use rand::RngExt;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::kills::{kill, seeded};
use crate::outside_trainer::{Engine, KEY, served_workspace};
use crate::training::metrics;
use crate::workspace::{Ran, Workspace};

const BATCHES: u64 = 12;
/// Longer than an engine takes to start again on a busy machine.
const LONG: Duration = Duration::from_mins(2);

/// An answer that came to its end.
struct Answer {
    status: u16,
    body: Vec<u8>,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// A client without any memory: each request has a connection of its own.
#[derive(Debug, Clone)]
struct RawClient {
    address: String,
}

impl RawClient {
    fn ask(&self, method: &str, path: &str, body: &str) -> io::Result<Answer> {
        let request = format!(
            "{method} /v1/{path} HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {KEY}\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        );
        let mut stream = TcpStream::connect(&self.address)?;
        stream.write_all(request.as_bytes())?;
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes)?;
        whole(&bytes).ok_or_else(|| io::Error::other("the answer broke off"))
    }

    /// The number and the body of the oldest batch that is not acknowledged.
    fn batch(&self, wait: u32) -> io::Result<Option<(u64, Vec<u8>)>> {
        let answer = self.ask("GET", &format!("training/batches?wait={wait}"), "")?;
        Ok((answer.status == 200).then(|| {
            let number = answer.json()["number"].as_u64().unwrap();
            (number, answer.body)
        }))
    }

    fn announce(&self, workspace: &Workspace, version: u64) -> io::Result<bool> {
        let weights = workspace.training_folder("t").join("checkpoints/step_0");
        let body = json!({"weights": weights, "version": version}).to_string();
        Ok(self.ask("POST", "policy", &body)?.status == 200)
    }

    fn acknowledge(&self, number: u64) -> io::Result<bool> {
        let path = format!("training/batches/{number}/ack");
        Ok(self.ask("POST", &path, "")?.status == 200)
    }
}

/// `None` when less came than was announced.
fn whole(bytes: &[u8]) -> Option<Answer> {
    let end = bytes.windows(4).position(|at| at == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&bytes[..end]).ok()?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.eq_ignore_ascii_case("content-length")).then(|| value.trim().parse().ok())?
    });
    let body = bytes[end + 4..].to_vec();
    (body.len() == length.unwrap_or(0)).then_some(Answer { status, body })
}

fn workspace_with_batches() -> Workspace {
    let workspace = served_workspace();
    let training = format!("steps = {BATCHES}\nmax_staleness = 1\ntotal_epochs = 19\n");
    workspace.training("builtin/tiny", &training, "");
    workspace
}

/// Asks on and on. Whatever was acknowledged before a request is sent must not be in its answer.
fn ask_on(client: &RawClient, acknowledged: &AtomicU64, over: &AtomicBool) -> u64 {
    let mut asked = 0;
    while !over.load(Ordering::SeqCst) {
        let before = acknowledged.load(Ordering::SeqCst);
        // While the engine is away there is nothing to see.
        if let Ok(Some((number, _))) = client.batch(0) {
            asked += 1;
            assert!(
                number > before,
                "batch {number} came after {before} was acknowledged"
            );
        }
    }
    asked
}

/// Tells the others that it is over, also when the test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn steps(workspace: &Workspace) -> Vec<u64> {
    let lines = metrics(workspace);
    lines.iter().map(|l| l["step"].as_u64().unwrap()).collect()
}

/// The whole life of a trainer that asks again and again until it succeeds, beside others who only ask.
struct Training<'a> {
    workspace: &'a Workspace,
    client: RawClient,
    acknowledged: AtomicU64,
    /// What each batch was, the first time.
    seen: BTreeMap<u64, Vec<u8>>,
}

impl Training<'_> {
    fn insist<T>(&self, mut attempt: impl FnMut(&RawClient) -> io::Result<Option<T>>) -> T {
        let mut answer = None;
        waiting::wait_until("the engine answers", LONG, || {
            answer = attempt(&self.client).ok().flatten();
            answer.is_some()
        });
        answer.unwrap()
    }

    /// The next batch, trained on and announced.
    fn deliver(&mut self) -> u64 {
        let (number, body) = self.insist(|client| client.batch(5));
        let done = self.acknowledged.load(Ordering::SeqCst);
        assert_eq!(number, done + 1, "after {done}");
        let first = self.seen.entry(number).or_insert_with(|| body.clone());
        assert!(*first == body, "batch {number} changed");
        let workspace = self.workspace;
        self.insist(|client| Ok(client.announce(workspace, number)?.then_some(())));
        number
    }

    fn acknowledge(&self, number: u64) {
        self.insist(|client| Ok(client.acknowledge(number)?.then_some(())));
        self.acknowledged.store(number, Ordering::SeqCst);
    }

    /// Acknowledges while the engine is killed and others ask it; returns how often these were answered.
    fn acknowledge_in_a_kill(&self, number: u64, engine: &Engine, moment: Duration) -> u64 {
        let over = AtomicBool::new(false);
        let begin = Barrier::new(2);
        std::thread::scope(|scope| {
            let _over = Over(&over);
            let asking = scope.spawn(|| ask_on(&self.client, &self.acknowledged, &over));
            let killer = scope.spawn(|| {
                begin.wait();
                waiting::pass(moment);
                kill(engine.pid());
            });
            begin.wait();
            if matches!(self.client.acknowledge(number), Ok(true)) {
                self.acknowledged.store(number, Ordering::SeqCst);
            }
            killer.join().unwrap();
            over.store(true, Ordering::SeqCst);
            asking.join().unwrap()
        })
    }

    fn done(&self) -> u64 {
        self.acknowledged.load(Ordering::SeqCst)
    }
}

#[test]
fn no_client_gets_a_batch_that_was_acknowledged_before_it_asked() {
    let workspace = workspace_with_batches();
    let engine = Engine::start(&workspace, "127.0.0.1:0");
    let client = RawClient {
        address: engine.address().to_owned(),
    };
    let mut training = Training {
        workspace: &workspace,
        client: client.clone(),
        acknowledged: AtomicU64::new(0),
        seen: BTreeMap::new(),
    };
    let over = AtomicBool::new(false);
    for number in 1..BATCHES {
        let found = training.deliver();
        assert_eq!(found, number);
        // Others ask all the while, and somebody right after the answer.
        std::thread::scope(|scope| {
            let _over = Over(&over);
            over.store(false, Ordering::SeqCst);
            let asking = scope.spawn(|| ask_on(&client, &training.acknowledged, &over));
            training.acknowledge(number);
            if let Some((next, _)) = client.batch(0).unwrap() {
                assert_eq!(next, number + 1);
            }
            over.store(true, Ordering::SeqCst);
            asking.join().unwrap();
        });
    }
    // Whoever asks after the last one ends the engine.
    let last = training.deliver();
    training.acknowledge(last);
    let expected: Vec<u64> = (1..=BATCHES).collect();
    assert_eq!(
        client.ask("GET", "training/batches", "").unwrap().status,
        204
    );
    engine.ended().expect(0);
    assert_eq!(steps(&workspace), expected);
}

#[test]
fn an_engine_killed_around_acknowledgements_repeats_none_and_skips_none() {
    let mut random = seeded();
    let workspace = workspace_with_batches();
    let mut engine = Engine::start(&workspace, "127.0.0.1:0");
    let client = RawClient {
        address: engine.address().to_owned(),
    };
    let mut training = Training {
        workspace: &workspace,
        client: client.clone(),
        acknowledged: AtomicU64::new(0),
        seen: BTreeMap::new(),
    };
    let mut asked = 0;
    while training.done() < BATCHES {
        let number = training.deliver();
        // After the last one, whoever asks ends the engine.
        if number.is_multiple_of(2) && number < BATCHES {
            // From before the acknowledgement arrives to after its answer, when the next batch is formed.
            let moment = Duration::from_micros(random.random_range(0..20_000));
            asked += training.acknowledge_in_a_kill(number, &engine, moment);
            let address = engine.address().to_owned();
            engine.ended();
            engine = Engine::start(&workspace, &address);
            let recorded = engine.resource["acknowledged"].as_u64().unwrap();
            let answered = training.done();
            assert!(
                recorded >= answered,
                "{answered} answered, {recorded} there"
            );
            if recorded < number {
                // It comes once more, the same.
                assert_eq!(training.deliver(), number);
            } else {
                assert_eq!(recorded, number, "only its answer may be lost");
            }
        }
        // May be said twice.
        training.acknowledge(number);
    }
    assert!(asked > 0, "nobody asked while the engine was killed");
    assert_eq!(
        client.ask("GET", "training/batches", "").unwrap().status,
        204
    );
    engine.ended().expect(0);
    // An acknowledgement whose line was not written before the kill has one all the same.
    assert_eq!(steps(&workspace), (1..=BATCHES).collect::<Vec<u64>>());
}

#[test]
fn the_python_client_that_asks_for_the_next_batch_gets_each_once() {
    let workspace = workspace_with_batches();
    let engine = Engine::start(&workspace, "127.0.0.1:0");
    let repository = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let script = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/it/next_batch_trainer.py"
    );
    let weights = workspace.training_folder("t").join("checkpoints/step_0");
    let output = Command::new(python_environment::python())
        .args([script, weights.as_str(), &BATCHES.to_string()])
        .env("PYTHONPATH", format!("{repository}/python"))
        .env("OSMOSIS_TRAINER_URL", engine.url())
        .env("OSMOSIS_CONTROL_KEY", KEY)
        .output()
        .unwrap();
    let trained = Ran::of(&output).expect(0).stdout;
    let expected: Vec<String> = (1..=BATCHES).map(|number| number.to_string()).collect();
    let found: Vec<&str> = trained.lines().collect();
    assert_eq!(found, expected);
    engine.ended().expect(0);
}

#[test]
fn a_signal_between_delivery_and_acknowledgement_leaves_the_batch_as_it_was() {
    let workspace = workspace_with_batches();
    let engine = Engine::start(&workspace, "127.0.0.1:0");
    let client = RawClient {
        address: engine.address().to_owned(),
    };
    let (number, first) = loop {
        if let Some(found) = client.batch(5).unwrap() {
            break found;
        }
    };
    let address = engine.address().to_owned();
    engine.signal(Signal::KILL);
    engine.ended();
    let engine = Engine::start(&workspace, &address);
    // Nobody asked this engine for it; it was given out by the one before.
    assert!(client.acknowledge(number + 1).is_ok_and(|done| !done));
    let (again, second) = client.batch(5).unwrap().unwrap();
    assert_eq!(again, number);
    assert!(first == second, "the same bytes");
    assert!(client.acknowledge(number).unwrap());
    engine.signal(Signal::KILL);
    engine.ended();
    let engine = Engine::start(&workspace, &address);
    assert_eq!(engine.resource["acknowledged"], number);
    assert!(client.acknowledge(number).unwrap(), "may be said twice");
    engine.signal(Signal::TERM);
    engine.ended().expect(130);
}

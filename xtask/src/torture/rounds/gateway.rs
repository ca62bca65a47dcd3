//! `osmosis gateway --durable answer`: a call that was answered is recorded.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use camino::Utf8Path;
use osmosis_store::KeyFolder;
use osmosis_store_sqlite::SqliteStore;
use rand::RngExt as _;
use serde_json::{Value, json};

use super::{LIMIT, Round};
use crate::torture::faults::{Blow, Struck, Victim};
use crate::torture::http::Client;
use crate::torture::invariants::Invariant;

impl Round<'_> {
    pub(in crate::torture) fn gateway(&mut self) -> Result<()> {
        let next = AtomicU64::new(0);
        let mut answered = BTreeSet::new();
        for _ in 0..self.random.random_range(2..=4) {
            let mut command = self.workspace.gateway("127.0.0.1:0");
            let mut engine = self.start(&mut command, Victim::Gateway)?;
            let resource = engine.serving(LIMIT)?;
            let text = |name: &str| resource[name].as_str().unwrap_or_default().to_owned();
            let client = Client::new(&text("url"), &text("api_key"));
            let blows = self.random.random_range(0..2);
            answered.extend(ask_for(&client, &next, Duration::ZERO, || {
                self.disturb(&mut engine, blows, Duration::from_secs(1));
            }));
        }
        self.check_gateway(&answered)
    }

    /// A gateway that nobody disturbs puts everything in order, and ends as asked; then all is there.
    pub(super) fn check_gateway(&mut self, answered: &BTreeSet<u64>) -> Result<()> {
        let mut command = self.workspace.gateway("127.0.0.1:0");
        let mut engine = self.start(&mut command, Victim::Gateway)?;
        engine.serving(LIMIT)?;
        if let Struck::Ends(blow) = self.blow(Blow::Terminate, &engine) {
            self.see_it_end(&mut engine, blow);
        }
        let run = self.workspace.run_folder("serve");
        let recorded = self.recorded(&run)?;
        let missing: Vec<&u64> = answered.difference(&recorded).collect();
        self.check(Invariant::AnsweredIsRecorded, missing.is_empty(), || {
            format!(
                "{} of {} are not: {missing:?}",
                missing.len(),
                answered.len()
            )
        });
        Ok(())
    }

    /// The numbers of the calls that the store has.
    fn recorded(&self, run: &Utf8Path) -> Result<BTreeSet<u64>> {
        let store = SqliteStore::open_read_only(run, &KeyFolder::of_user())?;
        let runtime = &self.machine.runtime;
        let mut recorded = BTreeSet::new();
        for call in 1.. {
            let Some(body) = runtime.block_on(store.call_body(call))? else {
                break;
            };
            let request: Value = serde_json::from_slice(&body.request)?;
            let text = request["messages"][0]["content"]
                .as_str()
                .unwrap_or_default();
            recorded.extend(
                text.strip_prefix("call ")
                    .and_then(|n| n.parse::<u64>().ok()),
            );
        }
        Ok(recorded)
    }
}

/// Asks on four connections, and goes on while something happens after a moment; returns the calls that
/// were answered.
pub(super) fn ask_for(
    client: &Client,
    next: &AtomicU64,
    moment: Duration,
    meanwhile: impl FnOnce(),
) -> BTreeSet<u64> {
    let answered = Mutex::new(BTreeSet::new());
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !over.load(Ordering::SeqCst) {
                    let number = next.fetch_add(1, Ordering::SeqCst);
                    if ask(client, number) {
                        let answered = answered.lock();
                        let mut answered = answered.unwrap_or_else(PoisonError::into_inner);
                        answered.insert(number);
                    }
                }
            });
        }
        std::thread::park_timeout(moment);
        meanwhile();
        over.store(true, Ordering::SeqCst);
    });
    answered
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner)
}

/// Whether the whole answer came.
fn ask(client: &Client, number: u64) -> bool {
    let body = json!({
        "model": "m",
        "stream": number.is_multiple_of(2),
        "messages": [{"role": "user", "content": format!("call {number}")}],
    });
    let answer = client.ask("POST", "/v1/chat/completions", &body.to_string());
    answer.is_ok_and(|answer| answer.status == 200)
}

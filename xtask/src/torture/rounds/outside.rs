//! `train serve` and a trainer that goes on through kills.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use rand::RngExt as _;
use serde_json::json;

use super::training::lines;
use super::{LIMIT, Round};
use crate::torture::faults::{Blow, Struck, Victim};
use crate::torture::http::Client;
use crate::torture::invariants::Invariant;
use crate::torture::process::{Engine, LOOK, told};

const BATCHES: u64 = 6;

/// How far the trainer is.
#[derive(Debug, Default)]
struct Progress {
    acknowledged: u64,
    /// Its acknowledgement was sent, and a kill came before the answer: it may be on the disk or not.
    unanswered: Option<u64>,
    /// Each batch as it came first.
    seen: BTreeMap<u64, Vec<u8>>,
}

impl Round<'_> {
    pub(in crate::torture) fn outside(&mut self) -> Result<()> {
        let training = format!("steps = {BATCHES}\ntotal_epochs = 19\nmax_staleness = 1");
        self.workspace
            .training_config(&training, "checkpoint_save_freq = 2")?;
        let key = self.workspace.canaries.control.clone();
        let mut engine = self.serve_batches("127.0.0.1:0")?;
        let url = engine.serving(LIMIT)?["url"].clone();
        let client = Client::new(url.as_str().unwrap_or_default(), &key);
        let mut progress = Progress::default();
        let until = Instant::now() + LIMIT;
        while progress.acknowledged < BATCHES {
            if Instant::now() > until {
                bail!(
                    "{} of {BATCHES} batches after {LIMIT:?}",
                    progress.acknowledged
                );
            }
            // A blow at any moment: while it is waited for, announced, acknowledged, or right after.
            let moment = self.random.random_range(0..6);
            let ended = self.maybe_strike(&mut engine, moment == 0)
                || !self.receive(&client, &mut progress)
                || self.maybe_strike(&mut engine, moment == 1)
                || !self.acknowledge(&client, &mut engine, &mut progress, moment == 2)
                || self.maybe_strike(&mut engine, moment == 3);
            if ended && !engine.is_running() {
                drop(engine);
                engine = self.serve_batches(&client.address)?;
                engine.serving(LIMIT)?;
            }
        }
        // Whoever asks after the last batch ends the engine. One that was struck is started once more.
        if !engine.is_running() {
            engine = self.serve_batches(&client.address)?;
            engine.serving(LIMIT)?;
        }
        let answer = client.ask("GET", "/v1/training/batches?wait=20", "")?;
        self.check(Invariant::AcknowledgedOnce, answer.status == 204, || {
            format!("batch {} after all of them", answer.json()["number"])
        });
        let ended = engine.wait(LIMIT);
        let complete = ended.is_some_and(|status| status.success());
        self.check(Invariant::ResumeCompletes, complete, || {
            format!("{}: {}", told(ended), engine.errors())
        });
        let run = self.workspace.run_folder("training");
        let steps: Vec<u64> = lines(&run)?
            .iter()
            .filter_map(|l| l["step"].as_u64())
            .collect();
        let expected: Vec<u64> = (1..=BATCHES).collect();
        self.check(Invariant::NothingSkipped, steps == expected, || {
            format!("metrics of {steps:?}")
        });
        Ok(())
    }

    fn serve_batches(&mut self, address: &str) -> Result<Engine> {
        let mut command = self.workspace.train_serve(address);
        self.start(&mut command, Victim::TrainServe)
    }

    /// `true` when the engine is gone, or about to be.
    fn maybe_strike(&mut self, engine: &mut Engine, now: bool) -> bool {
        if !now {
            return false;
        }
        self.wait_up_to(Duration::from_millis(300));
        if let Struck::Ends(blow) = self.strike(engine) {
            self.see_it_end(engine, blow);
        }
        !engine.is_running()
    }

    /// Gets the next batch and announces a version for it; `false` when the engine is away.
    fn receive(&mut self, client: &Client, progress: &mut Progress) -> bool {
        let done = progress.acknowledged;
        let Ok(answer) = client.ask("GET", "/v1/training/batches?wait=5", "") else {
            return false;
        };
        if answer.status != 200 {
            return true;
        }
        let number = answer.json()["number"].as_u64().unwrap_or_default();
        self.check(Invariant::AcknowledgedOnce, number > done, || {
            format!("batch {number} came after {done} was acknowledged")
        });
        if progress.unanswered == Some(done + 1) && number == done + 2 {
            progress.acknowledged = done + 1;
        }
        let done = progress.acknowledged;
        self.check(Invariant::NothingSkipped, number <= done + 1, || {
            format!("batch {number} came after {done}")
        });
        let first = progress
            .seen
            .entry(number)
            .or_insert_with(|| answer.body.clone());
        let same = *first == answer.body;
        self.check(Invariant::BatchStays, same, || {
            format!("batch {number} came with other rows")
        });
        let weights = self
            .workspace
            .run_folder("training")
            .join("checkpoints/step_0");
        let body = json!({"weights": weights, "version": number}).to_string();
        client.ask("POST", "/v1/policy", &body).is_ok()
    }

    /// Acknowledges what came, with a kill around it when asked; `false` when the engine is away.
    fn acknowledge(
        &mut self,
        client: &Client,
        engine: &mut Engine,
        progress: &mut Progress,
        kill: bool,
    ) -> bool {
        let number = progress.acknowledged + 1;
        // Nobody could tell a lost answer to the last one from a run that is complete.
        let kill = kill && number < BATCHES;
        if !progress.seen.contains_key(&number) {
            return true;
        }
        let path = format!("/v1/training/batches/{number}/ack");
        let moment = Duration::from_micros(self.random.random_range(0..15_000));
        let answered = std::thread::scope(|scope| {
            let asking = scope.spawn(|| client.ask("POST", &path, ""));
            if kill {
                std::thread::park_timeout(moment);
                self.blow(Blow::Kill, engine);
            }
            let failed = |_| Err(io::Error::other("the thread is gone"));
            asking.join().unwrap_or_else(failed)
        });
        if kill {
            self.see_it_end(engine, Blow::Kill);
        }
        let Ok(answer) = answered else {
            progress.unanswered = Some(number);
            return false;
        };
        if answer.status == 200 {
            progress.acknowledged = number;
            // The very next request, at once. (After the last batch it would end the engine.)
            if number < BATCHES
                && let Ok(next) = client.ask("GET", "/v1/training/batches?wait=0", "")
                && next.status == 200
            {
                let next = next.json()["number"].as_u64().unwrap_or_default();
                self.check(Invariant::AcknowledgedOnce, next > number, || {
                    format!("batch {next} right after {number} was acknowledged")
                });
            }
        } else {
            std::thread::park_timeout(LOOK);
        }
        !kill
    }
}

//! The power fails: what was not synced is gone, torn or there in part, and what was acknowledged is not.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use rand::RngExt as _;
use rustix::process::Signal;
use serde_json::json;

use super::{LIMIT, Round};
use crate::torture::faults::{Blow, Fault, Struck, Victim};
use crate::torture::http::Client;
use crate::torture::invariants::Invariant;
use crate::torture::process::{self, Engine, LOOK};
use crate::torture::writes::Disk;

/// Processes start and answer more slowly under a tracer.
const BATCHES: u64 = 8;

impl Round<'_> {
    pub(in crate::torture) fn power_cut(&mut self) -> Result<()> {
        if !self.machine.strace {
            let why = "`strace` is not installed, or may not trace";
            self.table.skip("power cuts", why.to_owned());
            return Ok(());
        }
        match self.random.random_range(0..3) {
            0 => self.cut_in_gateway(),
            1 => self.cut_in_train_serve(),
            _ => self.cut_in_eval(),
        }
    }

    /// From here on every write is traced.
    fn traced(&mut self) -> Result<Disk> {
        self.workspace.trace = Some(self.folder.join("trace"));
        Disk::of(&self.workspace.runs())
    }

    /// Kills everything at once and has the disk forget what was not synced.
    fn cut(&mut self, mut engine: Engine, mut disk: Disk) -> Result<()> {
        let victim = engine.victim;
        let tracer = engine.pid();
        let until = Instant::now() + LIMIT;
        // The tracer writes down what is left and ends, when all that it traces has ended, daemons too.
        while engine.is_running() && Instant::now() < until {
            for process in process::left_behind() {
                if process.pid != tracer {
                    process::signal(process.pid, Signal::KILL);
                }
            }
            std::thread::park_timeout(LOOK);
        }
        engine.end();
        if let Some(log) = self.workspace.trace.take() {
            disk.read(&log)?;
            std::fs::remove_file(&log)?;
        }
        disk.cut(&mut self.random)?;
        self.table.injected(Fault::PowerCut(victim));
        Ok(())
    }

    fn cut_in_gateway(&mut self) -> Result<()> {
        let next = AtomicU64::new(0);
        let mut answered = BTreeSet::new();
        for _ in 0..2 {
            let disk = self.traced()?;
            let mut command = self.workspace.gateway("127.0.0.1:0");
            let mut engine = self.start(&mut command, Victim::Gateway)?;
            let resource = engine.serving(LIMIT)?;
            let text = |name: &str| resource[name].as_str().unwrap_or_default().to_owned();
            let client = Client::new(&text("url"), &text("api_key"));
            let moment = Duration::from_millis(self.random.random_range(100..1500));
            answered.extend(super::gateway::ask_for(&client, &next, moment, || {
                for process in process::below(engine.pid()) {
                    process::signal(process.pid, Signal::KILL);
                }
            }));
            self.cut(engine, disk)?;
        }
        self.check_gateway(&answered)
    }

    fn cut_in_eval(&mut self) -> Result<()> {
        self.rows_to_say()?;
        self.workspace
            .eval_config("script:policies/p.toml", "n = 2")?;
        let run = self.workspace.run_folder("evals");
        for _ in 0..2 {
            let disk = self.traced()?;
            let engine = self.start(&mut self.workspace.eval(&[]), Victim::Eval)?;
            std::thread::park_timeout(Duration::from_millis(self.random.random_range(500..5000)));
            self.cut(engine, disk)?;
        }
        let before = self.accepted(&run)?;
        self.complete_and_check(&before)
    }

    fn cut_in_train_serve(&mut self) -> Result<()> {
        let training = format!("steps = {BATCHES}\ntotal_epochs = 19\nmax_staleness = 1");
        self.workspace
            .training_config(&training, "checkpoint_save_freq = 2")?;
        let key = self.workspace.canaries.control.clone();
        let mut acknowledged = 0;
        for _ in 0..2 {
            let disk = self.traced()?;
            let mut command = self.workspace.train_serve("127.0.0.1:0");
            let mut engine = self.start(&mut command, Victim::TrainServe)?;
            let resource = engine.serving(LIMIT)?;
            self.check_acknowledged(&resource, acknowledged);
            let client = Client::new(resource["url"].as_str().unwrap_or_default(), &key);
            for _ in 0..self.random.random_range(1..3) {
                acknowledged = self.train_on_one(&client, acknowledged)?;
            }
            self.cut(engine, disk)?;
        }
        let mut command = self.workspace.train_serve("127.0.0.1:0");
        let mut engine = self.start(&mut command, Victim::TrainServe)?;
        let resource = engine.serving(LIMIT)?;
        self.check_acknowledged(&resource, acknowledged);
        let client = Client::new(resource["url"].as_str().unwrap_or_default(), &key);
        self.train_on_one(&client, acknowledged)?;
        if let Struck::Ends(blow) = self.blow(Blow::Terminate, &engine) {
            self.see_it_end(&mut engine, blow);
        }
        Ok(())
    }

    fn check_acknowledged(&mut self, resource: &serde_json::Value, acknowledged: u64) {
        let found = resource["acknowledged"].as_u64();
        self.check(
            Invariant::AcknowledgedOnce,
            found == Some(acknowledged),
            || format!("{acknowledged} were acknowledged, {found:?} are after the cut"),
        );
    }

    /// Gets a batch, announces a version, acknowledges; returns its number.
    fn train_on_one(&mut self, client: &Client, done: u64) -> Result<u64> {
        let until = Instant::now() + LIMIT;
        let number = loop {
            let answer = client.ask("GET", "/v1/training/batches?wait=5", "")?;
            if answer.status == 200 {
                break answer.json()["number"].as_u64().unwrap_or_default();
            }
            if Instant::now() > until {
                bail!("no batch after {LIMIT:?}");
            }
        };
        self.check(Invariant::AcknowledgedOnce, number > done, || {
            format!("batch {number} came after {done} was acknowledged")
        });
        self.check(Invariant::NothingSkipped, number <= done + 1, || {
            format!("batch {number} came after {done}")
        });
        let weights = self
            .workspace
            .run_folder("training")
            .join("checkpoints/step_0");
        let body = json!({"weights": weights, "version": number}).to_string();
        client.ask("POST", "/v1/policy", &body)?;
        let answer = client.ask("POST", &format!("/v1/training/batches/{number}/ack"), "")?;
        if answer.status != 200 {
            bail!("batch {number}: {} {}", answer.status, answer.json());
        }
        Ok(number)
    }
}

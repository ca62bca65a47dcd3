//! `osmosis serve`: what was accepted runs and is called back, over restarts.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use osmosis_testkit::model_server::{Behaviour, ModelServer};
use rand::RngExt as _;
use serde_json::json;

use super::{LIMIT, Round};
use crate::torture::faults::{Blow, Fault, Struck, Victim};
use crate::torture::http::{Client, Receiver};
use crate::torture::invariants::Invariant;
use crate::torture::process::{Engine, LOOK};

const ROLLOUTS: u32 = 16;
/// After a restart, what waits is to be run and called back in this time.
const TIME: Duration = Duration::from_mins(1);

impl Round<'_> {
    pub(in crate::torture) fn serving(&mut self) -> Result<()> {
        let behaviour = Behaviour::SlowFirstByte(Duration::from_millis(150));
        let model = self
            .machine
            .runtime
            .block_on(ModelServer::start(behaviour))?;
        let receiver = Receiver::start(self.random.random_range(3..9))?;
        let key = self.workspace.canaries.serve.clone();
        let mut engine = self.serve("127.0.0.1:0")?;
        let url = engine.serving(LIMIT)?["url"].clone();
        let client = Client::new(url.as_str().unwrap_or_default(), &key);

        let mut accepted = BTreeSet::new();
        let mut unknown: Vec<u32> = vec![];
        for number in 0..ROLLOUTS {
            let request = self.request(number, model.url(), &receiver);
            match client.ask("POST", "/rollout", &request) {
                Ok(answer) if answer.status == 202 => {
                    accepted.insert(number);
                }
                // It ends, because its workers were killed too often: not accepted, so it is sent again.
                Ok(answer) if answer.status == 503 => unknown.push(number),
                Ok(answer) => bail!("{}: {}", answer.status, answer.json()),
                // Nobody knows whether it arrived; it is sent again.
                Err(_) => unknown.push(number),
            }
            let kill = self.random.random_range(0..5) == 0;
            if kill {
                self.wait_up_to(Duration::from_millis(400));
                if let Struck::Ends(blow) = self.strike(&mut engine) {
                    self.see_it_end(&mut engine, blow);
                }
            }
            if !engine.is_running() {
                drop(engine);
                engine = self.serve(&client.address)?;
                engine.serving(LIMIT)?;
                // Whoever got no answer sends the same once more, and some of the others do too.
                let again = accepted.iter().filter(|n| **n % 3 == 0);
                for number in unknown.drain(..).chain(again.copied()).collect::<Vec<_>>() {
                    let request = self.request(number, model.url(), &receiver);
                    let Ok(answer) = client.ask("POST", "/rollout", &request) else {
                        unknown.push(number);
                        continue;
                    };
                    self.check(Invariant::ResendIsIdempotent, answer.status == 202, || {
                        format!("t-{number}: {} {}", answer.status, answer.json())
                    });
                    accepted.insert(number);
                }
            }
        }
        if self.random.random_bool(0.7) {
            self.wait_up_to(Duration::from_millis(300));
            if let Struck::Ends(blow) = self.blow(Blow::Kill, &engine) {
                self.see_it_end(&mut engine, blow);
            }
            drop(engine);
            engine = self.serve(&client.address)?;
            engine.serving(LIMIT)?;
        }
        self.check_callbacks(&accepted, &receiver);
        for _ in 0..receiver.refused() {
            self.table.injected(Fault::ReceiverRefused);
        }
        if let Struck::Ends(blow) = self.blow(Blow::Terminate, &engine) {
            self.see_it_end(&mut engine, blow);
        }
        Ok(())
    }

    fn serve(&mut self, address: &str) -> Result<Engine> {
        let mut command = self.workspace.serve(address);
        self.start(&mut command, Victim::Serve)
    }

    fn request(&self, number: u32, model: &str, receiver: &Receiver) -> String {
        let id = format!("t-{number}");
        let key = &self.workspace.canaries.serve;
        json!({
            "rollout_id": id,
            "initial_messages": [{"role": "user", "content": "say What is 6 times 7?"}],
            "label": "42",
            "chat_completions_url": model,
            "controller_api_key": format!("{key}-controller"),
            "llm_api_key": format!("{key}-llm"),
            "completion_callback_url": format!("{}/completion/{id}", receiver.url),
            "grader_callback_url": format!("{}/grader/{id}", receiver.url),
        })
        .to_string()
    }

    fn check_callbacks(&mut self, accepted: &BTreeSet<u32>, receiver: &Receiver) {
        let until = Instant::now() + TIME;
        for number in accepted {
            let id = format!("t-{number}");
            let both = |told: &[String]| {
                ["completion", "grader"]
                    .iter()
                    .all(|kind| told.iter().any(|t| t == kind))
            };
            let mut told = receiver.told(&id);
            while !both(&told) && Instant::now() < until {
                std::thread::park_timeout(LOOK);
                told = receiver.told(&id);
            }
            self.check(Invariant::CalledBack, both(&told), || {
                format!("{id} was told {told:?}")
            });
        }
    }
}

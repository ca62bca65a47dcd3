//! `eval submit`, killed and paused in the middle of its work, and with upstreams that misbehave.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use osmosis_testkit::model_server::{Behaviour, ModelServer};
use rand::RngExt as _;

use super::{Round, row_of};
use crate::torture::faults::{Deed, Fault, Victim};
use crate::torture::invariants::{Accepted, Invariant};

const ROWS: u32 = 24;
const RUNS: u32 = 2;
const ROLLOUTS: usize = (ROWS * RUNS) as usize;

/// A behaviour of an upstream, with what it is called.
type Trouble = (&'static str, fn() -> Behaviour);

const TROUBLE: [Trouble; 7] = [
    ("resets the connection", || Behaviour::Resets),
    ("breaks off in the middle", || Behaviour::CutsShort),
    ("sends garbage", || Behaviour::Garbage("<html>oops</html>")),
    ("answers 500", || Behaviour::Refuses { status: 500 }),
    ("answers 429", || Behaviour::Refuses { status: 429 }),
    ("answers 401, with the key", || Behaviour::Refuses {
        status: 401,
    }),
    ("takes 400 ms", || {
        Behaviour::SlowFirstByte(Duration::from_millis(400))
    }),
];

impl Round<'_> {
    /// Rows that say a number; even ones have it as their label. Some agents leave processes behind.
    pub(super) fn rows_to_say(&mut self) -> Result<()> {
        let left = [Deed::Child, Deed::Daemon, Deed::Orphan];
        let mut rows = vec![];
        for number in 0..ROWS {
            let deed = match self.random.random_range(0..12) {
                0 => Some(left[self.random.random_range(0..left.len())]),
                _ => None,
            };
            self.deeds.extend(deed.map(|deed| (number, deed)));
            let word = deed.map_or("say", Deed::word);
            let label = if number % 2 == 0 { number } else { 9999 };
            rows.push((format!("{word} {number}"), label.to_string()));
        }
        self.workspace.rows(rows)
    }

    pub(in crate::torture) fn evaluation(&mut self) -> Result<()> {
        self.rows_to_say()?;
        let evaluation = format!("n = {RUNS}");
        self.workspace
            .eval_config("script:policies/p.toml", &evaluation)?;
        let before = self.disturbed_lives(4)?;
        self.complete_and_check(&before)
    }

    /// Some processes that do not live long; returns what they had accepted.
    pub(super) fn disturbed_lives(&mut self, most: u32) -> Result<BTreeMap<String, Accepted>> {
        let mut accepted = BTreeMap::new();
        for _ in 0..self.random.random_range(2..=most) {
            let mut engine = self.start(&mut self.workspace.eval(&[]), Victim::Eval)?;
            let blows = self.random.random_range(0..4);
            self.disturb(&mut engine, blows, Duration::from_millis(500));
            drop(engine);
            accepted.extend(self.accepted(&self.workspace.run_folder("evals"))?);
        }
        Ok(accepted)
    }

    /// Every rollout ends scored, as if nothing had happened.
    pub(super) fn complete_and_check(&mut self, before: &BTreeMap<String, Accepted>) -> Result<()> {
        self.complete(&mut self.workspace.eval(&[]), Victim::Eval)?;
        let run = self.workspace.run_folder("evals");
        self.count_deeds(&run)?;
        let accepted = self.check_results(&run, ROLLOUTS, before)?;
        let wrong: Vec<String> = accepted
            .iter()
            .filter(|(id, accepted)| {
                let even = row_of(id).is_some_and(|row| row % 2 == 0);
                let reward = if even { 1.0 } else { 0.0 };
                accepted.outcome != "scored" || accepted.reward != Some(reward)
            })
            .map(|(id, accepted)| format!("{id}: {accepted:?}"))
            .collect();
        self.check(Invariant::SameResults, wrong.is_empty(), || {
            wrong.join("; ")
        });
        Ok(())
    }

    pub(in crate::torture) fn upstream(&mut self) -> Result<()> {
        // A while of trouble, then none: a run that is submitted again must come to its end.
        let mut behaviours = vec![];
        let mut names = vec![];
        for _ in 0..self.random.random_range(20..60) {
            if self.random.random_bool(0.5) {
                let (name, behaviour) = TROUBLE[self.random.random_range(0..TROUBLE.len())];
                names.push(Some(name));
                behaviours.push(behaviour());
            } else {
                names.push(None);
                behaviours.push(Behaviour::Answers);
            }
        }
        behaviours.resize(100_000, Behaviour::Answers);
        let server = self
            .machine
            .runtime
            .block_on(ModelServer::start(Behaviour::InTurn(behaviours)))?;
        self.workspace.variable("OPENAI_BASE_URL", server.url());
        let key = self.workspace.canaries.model.clone();
        self.workspace.variable("OPENAI_API_KEY", &key);
        self.workspace.rows((0..ROWS).map(|n| {
            let (a, b) = (n + 3, 2 * n + 5);
            let label = if n % 2 == 0 { a * b } else { 0 };
            (format!("say What is {a} times {b}?"), label.to_string())
        }))?;
        self.workspace
            .eval_config("some-model", &format!("n = {RUNS}"))?;

        let mut before = BTreeMap::new();
        // What the infrastructure did to a rollout is no result: it runs again.
        for _ in 0..6 {
            let mut engine = self.start(&mut self.workspace.eval(&[]), Victim::Eval)?;
            if self.random.random_bool(0.5) {
                self.disturb(&mut engine, 2, Duration::from_millis(600));
            } else {
                engine.wait(super::LIMIT);
            }
            drop(engine);
            before.extend(self.accepted(&self.workspace.run_folder("evals"))?);
            if server.requests().len() > names.len() {
                break;
            }
        }
        let met = names.iter().take(server.requests().len()).flatten();
        for name in met {
            self.table.injected(Fault::Upstream(name));
        }
        before.retain(|_, accepted| accepted.outcome != "infrastructure_failed");
        self.complete_and_check(&before)
    }
}

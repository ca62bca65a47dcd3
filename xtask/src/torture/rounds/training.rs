//! `train submit`: synchronous training ends with the same bits, asynchronous with the same batches.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use camino::Utf8Path;
use rand::RngExt as _;
use serde_json::Value;

use super::{LIMIT, Round};
use crate::torture::faults::Victim;
use crate::torture::invariants::Invariant;
use crate::torture::process::told;

const STEPS: u64 = 4;

/// What a run without any disturbance comes to.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::torture) struct Undisturbed {
    numbers: Vec<Vec<Value>>,
    weights: Vec<u8>,
}

impl Undisturbed {
    fn of(run: &Utf8Path) -> Result<Self> {
        let kept = ["step", "reward/mean", "loss", "entropy", "gradient_norm"];
        let lines = lines(run)?;
        let weights = run.join(format!("checkpoints/step_{STEPS}/model.safetensors"));
        Ok(Self {
            numbers: lines
                .iter()
                .map(|line| kept.iter().map(|name| line[*name].clone()).collect())
                .collect(),
            weights: std::fs::read(&weights).with_context(|| weights.to_string())?,
        })
    }
}

/// The lines of `metrics.jsonl`.
pub(super) fn lines(run: &Utf8Path) -> Result<Vec<Value>> {
    let path = run.join("metrics.jsonl");
    let text = std::fs::read_to_string(&path).with_context(|| path.to_string())?;
    let lines = text.lines().map(serde_json::from_str);
    Ok(lines.collect::<Result<_, _>>()?)
}

impl Round<'_> {
    pub(in crate::torture) fn training(&mut self) -> Result<()> {
        let training = format!("steps = {STEPS}\ntotal_epochs = 9");
        self.workspace
            .training_config(&training, "checkpoint_save_freq = 2")?;
        let expected = self.undisturbed()?;
        for _ in 0..self.random.random_range(1..=3) {
            let mut engine = self.start(&mut self.workspace.train(), Victim::Train)?;
            let blows = self.random.random_range(0..3);
            self.disturb(&mut engine, blows, Duration::from_millis(1500));
        }
        self.complete(&mut self.workspace.train(), Victim::Train)?;
        let found = Undisturbed::of(&self.workspace.run_folder("training"))?;
        self.check(Invariant::SameResults, found == expected, || {
            let weights = found.weights == expected.weights;
            format!(
                "equal weights: {weights}; {:?} instead of {:?}",
                found.numbers, expected.numbers
            )
        });
        Ok(())
    }

    /// The results of the same run in another folder, made once in a campaign.
    fn undisturbed(&mut self) -> Result<Undisturbed> {
        if let Some(known) = self.machine.undisturbed.get() {
            return Ok(known.clone());
        }
        let mut engine = self.start(&mut self.workspace.train(), Victim::Train)?;
        let ended = engine.wait(LIMIT);
        if !ended.is_some_and(|status| status.success()) {
            bail!("undisturbed training: {}: {}", told(ended), engine.errors());
        }
        let run = self.workspace.run_folder("training");
        let found = Undisturbed::of(&run)?;
        std::fs::remove_dir_all(&run)?;
        Ok(self.machine.undisturbed.get_or_init(|| found).clone())
    }

    pub(in crate::torture) fn asynchronous(&mut self) -> Result<()> {
        let training = format!("steps = {STEPS}\ntotal_epochs = 9\nmax_staleness = 1");
        self.workspace
            .training_config(&training, "checkpoint_save_freq = 3")?;
        let run = self.workspace.run_folder("training");
        let mut recorded = vec![];
        for _ in 0..self.random.random_range(2..=4) {
            let mut engine = self.start(&mut self.workspace.train(), Victim::Train)?;
            let blows = self.random.random_range(0..3);
            self.disturb(&mut engine, blows, Duration::from_millis(1500));
            drop(engine);
            let now = self.batches(&run)?;
            self.check_batches(&recorded, &now);
            recorded = now;
        }
        self.complete(&mut self.workspace.train(), Victim::Train)?;
        let now = self.batches(&run)?;
        self.check_batches(&recorded, &now);
        let steps: Vec<u64> = lines(&run)?
            .iter()
            .filter_map(|l| l["step"].as_u64())
            .collect();
        let expected: Vec<u64> = (1..=STEPS).collect();
        self.check(Invariant::NothingSkipped, steps == expected, || {
            format!("steps {steps:?}")
        });
        Ok(())
    }

    fn check_batches(&mut self, before: &[(i64, String)], now: &[(i64, String)]) {
        self.check(Invariant::BatchStays, now.starts_with(before), || {
            format!("{before:?} became {now:?}")
        });
    }
}

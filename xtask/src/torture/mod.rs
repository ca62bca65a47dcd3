//! `cargo xtask torture`: faults of every kind, and what must hold after them.
//!
//! A campaign is a series of rounds, each with a seed of its own that follows from the campaign's. A round
//! disturbs one kind of run, lets it end, and checks. What is in the table happened: a fault is counted where
//! it took effect, a check where it was made, and what this machine can't do is listed as skipped.

mod faults;
mod http;
mod invariants;
mod machine;
mod process;
mod rounds;
mod table;
mod workspace;
mod writes;

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use camino::Utf8PathBuf;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};

use self::machine::Machine;
use self::rounds::{Kind, Round};
use self::table::Table;

/// Inflict faults on runs of every kind and check that nothing is lost, doubled or left behind
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  cargo xtask torture --minutes 60 --seed 7\n  cargo xtask torture --repeat train-serve:1234\n\nPrints the seed, a line for each round, and a table of the faults injected and the invariants checked.\nExit code 1 when an invariant was violated: the round's seed and its folder are printed, and the folder is\nkept. Mounts a small tmpfs where it may (full disk), uses strace (power cuts) and libfaketime (clock jumps)\nwhere they are installed; what is not there is listed as skipped."
)]
pub(crate) struct Options {
    /// How long; every kind of round is run at least once
    #[arg(long, default_value_t = 1.0)]
    pub(crate) minutes: f64,
    /// Random seed of the campaign [default: a new one, which is printed]
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Only rounds of this kind, like `eval` or `train-serve`; may be repeated
    #[arg(long, value_name = "KIND", value_parser = kind)]
    only: Vec<Kind>,
    /// One round again, as it was printed
    #[arg(long, value_name = "KIND:SEED", conflicts_with_all = ["seed", "only"], value_parser = kind_and_seed)]
    repeat: Option<(Kind, u64)>,
    /// The program to torture [default: a debug build of this workspace]
    #[arg(long, value_name = "FILE")]
    binary: Option<Utf8PathBuf>,
}

impl Options {
    /// What `cargo xtask ci` runs: every kind once, always the same.
    pub(crate) fn short() -> Self {
        Self {
            minutes: 0.0,
            seed: Some(18),
            only: vec![],
            repeat: None,
            // As the step before built it: alone it would be built again, with other features.
            binary: machine::debug_binary().ok().filter(|path| path.exists()),
        }
    }
}

fn kind(text: &str) -> Result<Kind, String> {
    let found = Kind::ALL.into_iter().find(|kind| kind.name() == text);
    found.ok_or_else(|| {
        let names: Vec<&str> = Kind::ALL.iter().map(|kind| kind.name()).collect();
        format!("there are: {}", names.join(", "))
    })
}

fn kind_and_seed(text: &str) -> Result<(Kind, u64), String> {
    let (name, seed) = text.split_once(':').ok_or("it is KIND:SEED")?;
    let seed = seed.parse().map_err(|_| "the seed is not a number")?;
    Ok((kind(name)?, seed))
}

#[expect(
    clippy::print_stdout,
    reason = "a command line program reports to the terminal"
)]
pub(crate) fn run(options: &Options) -> Result<()> {
    let machine = Machine::prepare(options.binary.as_deref())?;
    let began = Instant::now();
    let mut table = Table::default();
    let mut failed = vec![];
    let plan = Plan::of(options);
    let campaign = plan.seed.clone();
    println!("torture: seed {campaign}, {}", machine.binary);
    for (number, (kind, seed)) in (1..).zip(plan) {
        let start = Instant::now();
        let mut round = Round::new(&machine, number, seed)?;
        round.run(kind);
        table.add(&round.table);
        println!(
            "round {number:>3}  {:<28}  {:>3} faults  {:>3} checks  {:>5.1} s{}",
            format!("{kind}:{seed}"),
            round.table.faults(),
            round.table.checks(),
            start.elapsed().as_secs_f64(),
            if round.violations.is_empty() {
                ""
            } else {
                "  VIOLATED"
            }
        );
        if round.violations.is_empty() {
            std::fs::remove_dir_all(&round.folder)?;
        } else {
            for violation in &round.violations {
                println!("  {violation}");
            }
            println!("  kept: {}", round.folder);
            println!("  again: cargo xtask torture --repeat {kind}:{seed}");
            failed.push(format!("{kind}:{seed}"));
        }
    }
    let minutes = began.elapsed().as_secs_f64() / 60.0;
    println!("\nseed {campaign}, {minutes:.1} minutes\n\n{table}");
    if failed.is_empty() {
        std::fs::remove_dir_all(&machine.folder)?;
        return Ok(());
    }
    bail!(
        "{} violations, in {}",
        table.violations(),
        failed.join(", ")
    )
}

/// Which rounds there are: all kinds in random order, again and again until time is up.
#[derive(Debug)]
struct Plan {
    seed: String,
    random: StdRng,
    kinds: Vec<Kind>,
    until: Instant,
    /// Of this pass, the last one first.
    left: Vec<Kind>,
    first_pass: bool,
    only: Option<(Kind, u64)>,
    repeated: bool,
}

impl Plan {
    fn of(options: &Options) -> Self {
        let seed = options
            .seed
            .unwrap_or_else(|| u64::from(rand::random::<u32>()));
        let kinds = if options.only.is_empty() {
            Kind::ALL.to_vec()
        } else {
            options.only.clone()
        };
        let seconds = Duration::try_from_secs_f64(options.minutes * 60.0).unwrap_or_default();
        Self {
            seed: options.repeat.map_or_else(
                || seed.to_string(),
                |(kind, seed)| format!("{seed} of one {kind} round"),
            ),
            random: StdRng::seed_from_u64(seed),
            left: kinds.iter().rev().copied().collect(),
            kinds,
            until: Instant::now() + seconds,
            first_pass: true,
            only: options.repeat,
            repeated: false,
        }
    }
}

impl Iterator for Plan {
    type Item = (Kind, u64);

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(only) = self.only {
            return (!std::mem::replace(&mut self.repeated, true)).then_some(only);
        }
        if self.left.is_empty() {
            self.first_pass = false;
            self.left.clone_from(&self.kinds);
            self.left.shuffle(&mut self.random);
        }
        if !self.first_pass && Instant::now() >= self.until {
            return None;
        }
        let kind = self.left.pop()?;
        Some((kind, u64::from(self.random.random::<u32>())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_campaign_without_time_runs_every_kind_once_and_the_same_each_time() {
        let options = Options::short();
        let rounds: Vec<_> = Plan::of(&options).collect();
        assert_eq!(rounds.len(), Kind::ALL.len());
        assert_eq!(rounds, Plan::of(&options).collect::<Vec<_>>());
        assert_eq!(rounds[0].0, Kind::ALL[0]);
    }

    #[test]
    fn a_round_is_named_by_kind_and_seed() {
        assert_eq!(kind_and_seed("train-serve:12"), Ok((Kind::Outside, 12)));
        assert!(kind_and_seed("train-serve").is_err());
        assert!(kind_and_seed("nothing:1").is_err());
        let repeated = Options {
            repeat: Some((Kind::Gateway, 5)),
            ..Options::short()
        };
        assert_eq!(
            Plan::of(&repeated).collect::<Vec<_>>(),
            [(Kind::Gateway, 5)]
        );
    }
}

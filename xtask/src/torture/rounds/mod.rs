//! Rounds: each has a workspace of its own, disturbs one kind of run, lets it end, and looks at what is left.

mod evaluation;
mod gateway;
mod hostile;
mod outside;
mod power_cut;
mod resources;
mod serving;
pub(super) mod training;

use std::collections::BTreeMap;
use std::fmt;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Result;
use camino::Utf8PathBuf;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::faults::{Blow, Deed, Struck, Victim};
use super::invariants::Invariant;
use super::machine::Machine;
use super::process::{self, Engine, LOOK, told};
use super::table::Table;
use super::workspace::Workspace;

/// Nothing that goes well takes longer, on a busy machine and unoptimised.
pub(super) const LIMIT: Duration = Duration::from_mins(3);
/// How long a process may take to end when it is asked to: what runs is finished first.
const DRAIN: Duration = Duration::from_mins(1);

/// A guard, a template and at least two workers, each behind a guard of its own.
const WORKERS: usize = 6;

/// What is disturbed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Evaluation,
    Upstream,
    Training,
    Asynchronous,
    Outside,
    Serving,
    Gateway,
    Hostile,
    Limits,
    Disk,
    Clock,
    PowerCut,
}

impl Kind {
    pub(super) const ALL: [Self; 12] = [
        Self::Outside,
        Self::Evaluation,
        Self::Asynchronous,
        Self::Serving,
        Self::Gateway,
        Self::Hostile,
        Self::PowerCut,
        Self::Limits,
        Self::Disk,
        Self::Upstream,
        Self::Training,
        Self::Clock,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Evaluation => "eval",
            Self::Upstream => "upstream",
            Self::Training => "train",
            Self::Asynchronous => "train-async",
            Self::Outside => "train-serve",
            Self::Serving => "serve",
            Self::Gateway => "gateway",
            Self::Hostile => "hostile",
            Self::Limits => "limits",
            Self::Disk => "disk",
            Self::Clock => "clock",
            Self::PowerCut => "power-cut",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A round under way.
#[derive(Debug)]
pub(super) struct Round<'m> {
    pub(super) machine: &'m Machine,
    pub(super) random: StdRng,
    pub(super) folder: Utf8PathBuf,
    pub(super) workspace: Workspace,
    pub(super) table: Table,
    pub(super) violations: Vec<String>,
    /// What the agents of a row do.
    pub(super) deeds: BTreeMap<u32, Deed>,
    /// Processes that were started.
    lives: u32,
}

impl<'m> Round<'m> {
    pub(super) fn new(machine: &'m Machine, number: u32, seed: u64) -> Result<Self> {
        let folder = machine.folder.join(format!("r{number}"));
        let workspace = Workspace::new(&folder, machine, seed)?;
        Ok(Self {
            machine,
            random: StdRng::seed_from_u64(seed),
            folder,
            workspace,
            table: Table::default(),
            violations: vec![],
            deeds: BTreeMap::new(),
            lives: 0,
        })
    }

    /// An error is a violation too: nothing here fails when the program does what it says.
    pub(super) fn run(&mut self, kind: Kind) {
        let done = match kind {
            Kind::Evaluation => self.evaluation(),
            Kind::Upstream => self.upstream(),
            Kind::Training => self.training(),
            Kind::Asynchronous => self.asynchronous(),
            Kind::Outside => self.outside(),
            Kind::Serving => self.serving(),
            Kind::Gateway => self.gateway(),
            Kind::Hostile => self.hostile(),
            Kind::Limits => self.limits(),
            Kind::Disk => self.disk(),
            Kind::Clock => self.clock(),
            Kind::PowerCut => self.power_cut(),
        };
        // Looked at in any case: what is left behind must not disturb the next round.
        for done in [done, self.check_the_end()] {
            if let Err(error) = done {
                self.check(Invariant::ResumeCompletes, false, || format!("{error:#}"));
            }
        }
    }

    /// Counts a check, and notes what was found when it does not hold.
    pub(super) fn check(
        &mut self,
        invariant: Invariant,
        holds: bool,
        found: impl FnOnce() -> String,
    ) {
        self.table.checked(invariant, holds);
        if !holds {
            let mut found = found();
            if found.len() > 2000 {
                let end = (0..=2000).rev().find(|at| found.is_char_boundary(*at));
                found.truncate(end.unwrap_or(0));
                found.push('…');
            }
            self.violations
                .push(format!("not so: {invariant}: {found}"));
        }
    }

    /// Agents leave processes behind that only the next start finds.
    pub(super) fn leaves_orphans(&self) -> bool {
        self.deeds.values().any(|deed| *deed == Deed::Orphan)
    }

    pub(super) fn start(&mut self, command: &mut Command, victim: Victim) -> Result<Engine> {
        self.lives += 1;
        Engine::start(command, victim, &self.workspace.outputs, self.lives)
    }

    pub(super) fn wait_up_to(&mut self, longest: Duration) {
        let longest = u64::try_from(longest.as_micros()).unwrap_or(u64::MAX);
        let micros = self.random.random_range(0..longest.max(1));
        std::thread::park_timeout(Duration::from_micros(micros));
    }

    /// Random blows at random moments, of which the last one ends it. Mostly when there is work to disturb.
    pub(super) fn disturb(&mut self, engine: &mut Engine, blows: u32, apart: Duration) {
        if engine.victim.has_workers() && self.random.random_bool(0.75) {
            wait_for_workers(engine);
        }
        for _ in 0..blows {
            self.wait_up_to(apart);
            if !engine.is_running() {
                return;
            }
            if let Struck::Ends(blow) = self.strike(engine) {
                return self.see_it_end(engine, blow);
            }
        }
        self.wait_up_to(apart);
        while engine.is_running() {
            if let Struck::Ends(blow) = self.strike_engine(engine) {
                return self.see_it_end(engine, blow);
            }
        }
    }

    /// After a blow that is to end it.
    pub(super) fn see_it_end(&mut self, engine: &mut Engine, blow: Blow) {
        match blow {
            Blow::Kill => {
                engine.wait(DRAIN);
                self.check_after_kill();
            }
            Blow::Terminate | Blow::Interrupt => {
                let ended = engine.wait(DRAIN);
                self.check(Invariant::EndsWhenAsked, ended.is_some(), || {
                    format!("{blow} of {} {DRAIN:?} ago", engine.victim)
                });
                engine.end();
            }
            Blow::Pause => {}
        }
    }

    /// The last life, which nobody disturbs.
    pub(super) fn complete(&mut self, command: &mut Command, victim: Victim) -> Result<()> {
        let mut engine = self.start(command, victim)?;
        let ended = engine.wait(LIMIT);
        let complete = ended.is_some_and(|status| status.success());
        self.check(Invariant::ResumeCompletes, complete, || {
            format!("{}: {}", told(ended), engine.errors())
        });
        engine.end();
        Ok(())
    }
}

/// The row in `rROW-RUN`.
pub(super) fn row_of(id: &str) -> Option<u32> {
    let (row, _) = id.strip_prefix('r')?.split_once('-')?;
    row.parse().ok()
}

/// Waits until there are workers at work, or the engine has ended.
fn wait_for_workers(engine: &mut Engine) {
    let until = Instant::now() + LIMIT;
    while engine.is_running()
        && process::below(engine.pid()).len() < WORKERS
        && Instant::now() < until
    {
        std::thread::park_timeout(LOOK);
    }
}

//! When nodes of the run may sample.

use std::sync::{Arc, Mutex};

use osmosis_engine::RunEvent;
use osmosis_train::{NodeGate, TrainEvent};

use crate::run::{Fate, Run};

/// What happened, in order.
#[derive(Debug, Default)]
struct Journal(Mutex<Vec<String>>);

impl NodeGate for Journal {
    fn set_open(&self, open: bool) {
        self.note(if open { "open" } else { "closed" });
    }

    fn interrupt(&self) {
        self.note("interrupted");
    }
}

impl Journal {
    fn note(&self, what: impl Into<String>) {
        self.0.lock().unwrap().push(what.into());
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

fn with_gate(mut run: Run, journal: &Arc<Journal>) -> Run {
    run.nodes = Some(Arc::clone(journal) as Arc<dyn NodeGate>);
    run
}

fn noted(event: &TrainEvent, journal: &Journal) {
    if let TrainEvent::Updating { step } = event {
        journal.note(format!("updating {step}"));
    }
}

fn position(journal: &[String], what: &str) -> usize {
    let found = journal.iter().position(|noted| noted == what);
    found.unwrap_or_else(|| panic!("never {what}: {journal:?}"))
}

#[test]
fn nodes_sample_while_the_rollouts_of_a_step_run_and_at_no_other_time() {
    let journal = Arc::new(Journal::default());
    let run = with_gate(Run::new("climb"), &journal);
    // It is killed among the rollouts of step 3; the last checkpoint is none.
    let mut step = 0;
    run.live(|event| {
        noted(event, &journal);
        match event {
            TrainEvent::StepBegan { step: begun, .. } => step = *begun,
            TrainEvent::Rollout(RunEvent::Finished { .. }) if step == 3 => return Fate::Die,
            _ => {}
        }
        Fate::GoOn
    });
    let first = journal.take();
    assert_eq!(
        first[0], "interrupted",
        "what nodes sampled ends before the weights change"
    );
    assert!(position(&first, "open") < position(&first, "updating 1"));

    run.live(|event| {
        noted(event, &journal);
        Fate::GoOn
    })
    .complete();
    let second = journal.take();
    let opened = position(&second, "open");
    assert!(
        opened > position(&second, "updating 2"),
        "what nodes still hold is of weights that are not there yet: {second:?}"
    );
    assert!(opened < position(&second, "updating 3"));
    for journal in [first, second] {
        let mut open = false;
        for noted in &journal {
            match noted.as_str() {
                "open" => open = true,
                "closed" => open = false,
                _ => assert!(!open, "{noted}: {journal:?}"),
            }
        }
    }
}

#[test]
fn nodes_sample_all_the_time_in_asynchronous_training() {
    let journal = Arc::new(Journal::default());
    let run = Run::new("climb").training(|training| training.max_staleness = 1);
    let run = with_gate(run, &journal);
    run.live_to_the_end().complete();
    // Before the weights of the start are swapped in.
    assert_eq!(journal.take(), ["interrupted", "open", "closed"]);
}

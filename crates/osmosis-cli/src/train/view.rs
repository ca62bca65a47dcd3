//! Training as it goes: a block that moves on a terminal, a line for each step elsewhere.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use osmosis_engine::RunEvent;
use osmosis_run::RunError;
use osmosis_run::reports::{Curve, HeldOutPoint, HeldOutScore, StepNumbers};
use osmosis_store::Store;
use osmosis_train::TrainEvent;

use super::failures_so_far::FailuresSoFar;
use super::sparkline::sparkline;
use super::wording::{
    held_out_line, no_update_text, policy_text, reward_text, speed_text, waiting_text,
};
use crate::events::Observer;
use crate::figures::{duration_text, number, percent};
use crate::output::Output;
use crate::run_log::RunLog;
use crate::terminal::neutral;

/// Steps that the sparkline shows.
const SPARK_WIDTH: usize = 40;

#[derive(Debug)]
pub(crate) struct TrainView {
    output: Output,
    bar: Option<ProgressBar>,
    state: State,
}

/// What the block says.
#[derive(Debug, Default)]
struct State {
    step: u64,
    steps: u64,
    phase: Phase,
    /// Rollouts of this phase with a result.
    done: u64,
    /// Rollouts that were begun and have none yet; a phase may begin with some.
    under_way: u64,
    /// By step.
    rewards: Vec<(u64, f64)>,
    last: StepNumbers,
    before: Option<HeldOutPoint>,
    now: Option<HeldOutPoint>,
    /// Of this process.
    failures: FailuresSoFar,
    /// When training began in this process, and after which step.
    began: Option<(Instant, u64)>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Phase {
    #[default]
    Rollouts,
    Update,
    Evaluation,
}

impl TrainView {
    /// Goes on from what earlier processes did.
    pub(crate) fn new(output: Output, so_far: &Curve) -> Self {
        let mut state = State::default();
        for step in &so_far.steps {
            state.stepped(step.clone());
        }
        Self {
            output,
            bar: None,
            state,
        }
    }

    fn say(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(neutral(text)),
            None => self.output.note(text),
        }
    }

    fn show_bar(&mut self) {
        if self.bar.is_some() || !self.output.moves() {
            return;
        }
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr_with_hz(8));
        if let Ok(style) = ProgressStyle::with_template("{spinner} {bar:24} {msg}") {
            bar.set_style(style.progress_chars("━╸ "));
        }
        bar.enable_steady_tick(Duration::from_millis(120));
        self.bar = Some(bar);
    }

    fn show(&self) {
        if let Some(bar) = &self.bar {
            bar.set_length(self.state.steps);
            bar.set_position(self.state.last.step);
            bar.set_message(neutral(&self.state.block()).into_owned());
        }
    }

    fn rollout(&mut self, event: &RunEvent) {
        match event {
            RunEvent::Claimed { .. } => self.state.under_way += 1,
            RunEvent::Finished { outcome, .. } => {
                self.state.failures.note(outcome);
                self.state.done += 1;
                self.state.under_way = self.state.under_way.saturating_sub(1);
            }
            RunEvent::Retrying { .. } => {
                self.state.under_way = self.state.under_way.saturating_sub(1);
            }
            RunEvent::Began { .. }
            | RunEvent::PhaseBegan { .. }
            | RunEvent::GradingAgain { .. } => {}
            RunEvent::Draining { in_flight } => self.say(&format!(
                "stopping: waiting for {in_flight} rollouts under way; Ctrl-C again stops at once"
            )),
        }
    }

    /// Failures of a kind that was not told of yet, where nothing moves; the block shows them all the time.
    fn tell_new_failures(&mut self) {
        if self.bar.is_none() {
            for line in self.state.failures.new_lines() {
                self.output.note(format_args!("  {line}"));
            }
        }
    }

    fn phase(&mut self, phase: Phase) {
        self.state.phase = phase;
        self.state.done = 0;
    }
}

#[async_trait]
impl Observer<TrainEvent> for TrainView {
    async fn opened(&mut self, store: &Arc<dyn Store>) -> Result<(), RunError> {
        *self = Self::new(self.output, &Curve::of(&**store).await?);
        Ok(())
    }

    fn event(&mut self, event: &TrainEvent) {
        match event {
            TrainEvent::StepBegan { step, steps } => {
                self.show_bar();
                self.phase(Phase::Rollouts);
                self.state.step = *step;
                self.state.steps = *steps;
                if *step > 0 && self.state.began.is_none() {
                    self.state.began = Some((Instant::now(), step - 1));
                    self.state.last.step = step - 1;
                }
            }
            TrainEvent::Rollout(event) => self.rollout(event),
            TrainEvent::Updating { .. } => self.phase(Phase::Update),
            TrainEvent::Evaluating { .. } => self.phase(Phase::Evaluation),
            TrainEvent::Stepped(report) => {
                self.state.stepped(StepNumbers::of_step(report));
                if self.bar.is_none() {
                    self.output.note(self.state.line());
                }
                self.tell_new_failures();
            }
            TrainEvent::Evaluated { step, report } => {
                let point = HeldOutPoint::of(*step, report);
                if self.bar.is_none() {
                    self.output.note(held_out_line(&point));
                }
                self.tell_new_failures();
                self.state.evaluated(point);
            }
            TrainEvent::Saved { step, .. } => {
                tracing::info!(step, "checkpoint saved");
            }
            TrainEvent::Warning { message } => match &self.bar {
                Some(bar) => bar.println(neutral(&format!("warning: {message}"))),
                None => self.output.warn(message),
            },
        }
        self.show();
    }

    fn log(&self, event: &TrainEvent, log: &mut RunLog) {
        match event {
            TrainEvent::StepBegan { step: 0, .. } => log.run("evaluation before training"),
            TrainEvent::StepBegan { step, steps } => log.run(&format!("step {step} of {steps}")),
            TrainEvent::Rollout(RunEvent::Began { .. })
            | TrainEvent::Updating { .. }
            | TrainEvent::Evaluating { .. } => {}
            TrainEvent::Rollout(event) => log.run_event(event),
            TrainEvent::Stepped(report) => {
                let numbers = StepNumbers::of_step(report);
                let reward = numbers.reward.map_or_else(|| "none".to_owned(), number);
                log.run(&format!(
                    "step {} is durable: reward {reward}",
                    numbers.step
                ));
            }
            TrainEvent::Evaluated { step, report } => {
                log.run(&held_out_line(&HeldOutPoint::of(*step, report)));
            }
            TrainEvent::Saved { step, folder } => {
                log.run(&format!("checkpoint of step {step} is at {folder}"));
            }
            TrainEvent::Warning { message } => log.run(&format!("warning: {message}")),
        }
    }

    fn tick(&mut self) {
        self.show();
    }

    fn finish(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl State {
    fn stepped(&mut self, numbers: StepNumbers) {
        // A resume repeats the steps after the last checkpoint.
        self.rewards.retain(|(step, _)| *step < numbers.step);
        self.rewards
            .extend(numbers.reward.map(|reward| (numbers.step, reward)));
        if let Some(point) = numbers.held_out() {
            self.evaluated(point);
        }
        self.last = numbers;
    }

    fn evaluated(&mut self, point: HeldOutPoint) {
        self.before.get_or_insert_with(|| point.clone());
        self.now = Some(point);
    }

    /// One line for each step, where nothing moves.
    fn line(&self) -> String {
        let step = &self.last;
        let mut line = format!("step {}/{}", step.step, self.steps);
        let _ = write!(line, "  reward {}", reward_text(step));
        if let Some(why) = &step.skipped {
            let _ = write!(line, "  no update: {}", no_update_text(why));
        }
        let _ = write!(line, "  {}  {}", policy_text(step), speed_text(step));
        if let Some(waiting) = waiting_text(step) {
            let _ = write!(line, "  {waiting}");
        }
        line
    }

    /// What moves on a terminal.
    fn block(&self) -> String {
        let mut text = match (self.step, self.phase) {
            (0, _) => "before training: held-out rows".to_owned(),
            (step, Phase::Evaluation) => format!("step {step}/{}  held-out rows", self.steps),
            (step, Phase::Rollouts) => format!("step {step}/{}  rollouts", self.steps),
            (step, Phase::Update) => format!("step {step}/{}  updating", self.steps),
        };
        if self.phase == Phase::Update && self.under_way > 0 {
            let _ = write!(text, ", {} rollouts under way", self.under_way);
        } else if self.done + self.under_way > 0 {
            let (done, under_way) = (self.done, self.under_way);
            let _ = write!(text, ": {done} done, {under_way} under way");
        }
        if let Some(left) = self.time_left() {
            let _ = write!(text, "  ETA {}", duration_text(left));
        }
        if !self.rewards.is_empty() {
            let rewards: Vec<f64> = self.rewards.iter().map(|(_, reward)| *reward).collect();
            let spark = sparkline(&rewards, SPARK_WIDTH);
            let _ = write!(text, "\n  reward    {}  {spark}", reward_text(&self.last));
        }
        if let (Some(before), Some(now)) = (&self.before, &self.now) {
            let _ = write!(text, "\n  held out  {}", held_out_text(before, now));
        }
        for (place, line) in self.failures.lines().iter().enumerate() {
            let label = if place == 0 { "failed" } else { "" };
            let _ = write!(text, "\n  {label:<9} {line}");
        }
        if self.last.step > 0 && !self.rewards.is_empty() {
            let _ = write!(text, "\n  policy    {}", policy_text(&self.last));
            let _ = write!(text, "\n  speed     {}", speed_text(&self.last));
            if let Some(waiting) = waiting_text(&self.last) {
                let _ = write!(text, "\n  waiting   {waiting}");
            }
        }
        text
    }

    fn time_left(&self) -> Option<f64> {
        let (began, before) = self.began?;
        let here = self
            .last
            .step
            .checked_sub(before)
            .filter(|steps| *steps > 0)?;
        let left = self
            .steps
            .checked_sub(self.last.step)
            .filter(|steps| *steps > 0)?;
        Some(began.elapsed().as_secs_f64() / here as f64 * left as f64)
    }
}

/// `pass 8.0% → 23.0%, greedy 0.0% → 30.0% after step 3`.
fn held_out_text(before: &HeldOutPoint, now: &HeldOutPoint) -> String {
    let pass = |score: &HeldOutScore| {
        let rate = score.pass_rate;
        rate.map_or_else(|| "none".to_owned(), percent)
    };
    let moved = before.step != now.step;
    let mut text = format!("pass {}", pass(&before.sampled));
    if moved {
        let _ = write!(text, " → {}", pass(&now.sampled));
    }
    if let Some(greedy) = &now.greedy {
        let first = before.greedy.as_ref().filter(|_| moved);
        let first = first.map_or_else(String::new, |first| format!("{} → ", pass(first)));
        let _ = write!(text, ", greedy {first}{}", pass(greedy));
    }
    if moved {
        let _ = write!(text, " after step {}", now.step);
    }
    text
}

#[cfg(test)]
mod tests {
    use osmosis_core::{ErrorCategory, Failure, Outcome};

    use super::super::held_out_point::tests::point;
    use super::*;

    fn step(number: u64) -> StepNumbers {
        StepNumbers {
            step: number,
            reward: Some(number as f64 / 10.0),
            pass_rate: Some(0.25),
            entropy: Some(0.4),
            clip_fraction: Some(0.012),
            kl: Some(0.0005),
            mismatch: Some(1.2e-6),
            tokens_per_second: Some(4210.4),
            rollout_seconds: 2.1,
            grade_seconds: 0.1,
            update_seconds: 1.3,
            swap_seconds: 0.002,
            ..StepNumbers::default()
        }
    }

    #[test]
    fn a_step_is_one_line_where_nothing_moves() {
        let mut state = State {
            steps: 9,
            ..State::default()
        };
        state.stepped(step(3));
        assert_eq!(
            state.line(),
            "step 3/9  reward 0.300  pass 25.0%  entropy 0.400  clip 1.2%  kl 0.0005  mismatch 1e-6  \
             4,210 tokens/s  rollout 2.1 s  grade 100 ms  update 1.3 s  swap 2 ms"
        );
    }

    #[test]
    fn the_block_shows_curve_held_out_policy_and_speed() {
        let mut state = State {
            step: 4,
            steps: 9,
            under_way: 7,
            done: 5,
            ..State::default()
        };
        state.evaluated(point(0, 0.1, Some(0.05)));
        for number in 1..=3 {
            state.stepped(step(number));
        }
        state.evaluated(point(3, 0.25, Some(0.3)));
        insta::assert_snapshot!(state.block());
    }

    #[test]
    fn a_step_without_waiting_tells_how_old_its_tokens_were_and_who_waited() {
        let mut state = State {
            step: 4,
            steps: 9,
            phase: Phase::Update,
            under_way: 12,
            ..State::default()
        };
        state.stepped(StepNumbers {
            staleness_mean: Some(0.4),
            staleness_max: Some(1),
            wait_rollouts_seconds: Some(0.25),
            wait_update_seconds: Some(0.0),
            ..step(3)
        });
        let waiting = "staleness 0.40 (at most 1)  waited 250 ms for rollouts, <1 ms for updates";
        assert!(state.line().ends_with(waiting), "{}", state.line());
        let block = state.block();
        assert!(
            block.starts_with("step 4/9  updating, 12 rollouts under way\n"),
            "{block}"
        );
        assert!(
            block.contains(&format!("\n  waiting   {waiting}")),
            "{block}"
        );
    }

    #[test]
    fn failures_are_in_the_block_and_a_step_says_why_it_made_no_update() {
        let mut state = State {
            step: 2,
            steps: 9,
            done: 3,
            ..State::default()
        };
        for message in ["no tool", "no tool", "no luck"] {
            let failure = Failure::new(ErrorCategory::AgentError, "ValueError", message);
            state.failures.note(&Outcome::AgentFailed { failure });
        }
        insta::assert_snapshot!(state.block(), @r"
        step 2/9  rollouts: 3 done, 0 under way
          failed    2 × agent failed: ValueError: no tool
                    1 × agent failed: ValueError: no luck
        ");
        state.stepped(StepNumbers {
            skipped: Some("no variance".to_owned()),
            ..step(1)
        });
        let why = "no update: all attempts at each row got the same reward";
        assert!(state.line().contains(why), "{}", state.line());
    }

    #[test]
    fn a_resume_repeats_steps_without_drawing_them_twice() {
        let so_far = Curve {
            steps: (1..=3).map(step).collect(),
        };
        let output = Output::new(
            crate::arguments::OutputArguments {
                json: true,
                plain: false,
            },
            0,
            "test",
        );
        let mut view = TrainView::new(output, &so_far);
        view.state.stepped(step(3));
        let steps: Vec<u64> = view.state.rewards.iter().map(|(step, _)| *step).collect();
        assert_eq!(steps, [1, 2, 3]);
    }

    #[test]
    fn an_evaluation_is_told_with_its_interval() {
        assert_eq!(
            held_out_line(&point(0, 0.1, Some(0.2))),
            "held out before training: sampled pass 8.0% · reward 0.1 [0.05, 0.15] · 2 of 100 failed; \
             greedy pass 18.0% · reward 0.2 [0.15, 0.25] · 2 of 100 failed"
        );
    }
}

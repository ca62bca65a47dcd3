//! `osmosis node`: works on a run that another process controls.

use std::time::{Duration, Instant};

use osmosis_engine::RunEvent;
use osmosis_run::node::joining::NodeRequest;
use osmosis_run::node::life::{NodeFrontEnd, live_as_node};
use osmosis_run::node::token::JoinToken;
use osmosis_run::reports::{NodeEndWord, NodeReport};
use osmosis_run::stop_signals::OnTerminate;
use osmosis_run::{RunError, RunErrorKind};

use crate::arguments::{JOIN_VARIABLE, NodeArguments, metrics_options};
use crate::error::Exit;
use crate::events::Observer;
use crate::output::Output;
use crate::run_log::RunLog;
use crate::stop_signals::StopSignals;

/// How often a line says how far this node is.
const SAY_EVERY: Duration = Duration::from_secs(10);

pub(crate) async fn run(arguments: NodeArguments, output: &Output) -> Result<Exit, RunError> {
    let request = request(arguments)?;
    let stop = StopSignals::listen(OnTerminate::Drain)?.told_as("asked to leave before it began");
    let front = NodeFrontEnd {
        stop: &stop,
        notices: output.notices(),
        observer: Box::new(NodeProgress::new(*output)),
    };
    let report = Box::pin(live_as_node(&request, front)).await?;
    output.line(summary(&report));
    output.operation(report.end.as_str(), &report);
    Ok(Exit::Ok)
}

fn request(arguments: NodeArguments) -> Result<NodeRequest, RunError> {
    let secrets_file = arguments.secrets_file();
    let store = arguments.store.ok_or_else(|| {
        RunError::usage(
            RunErrorKind::Usage,
            "where is the run? `--store` names its database",
        )
        .hint("copy the whole command that `osmosis eval submit --store …` printed")
    })?;
    // Empty is as good as unset: that is how people switch a variable off.
    let variable = std::env::var(JOIN_VARIABLE).ok();
    let token = arguments.join.or(variable.filter(|text| !text.is_empty()));
    Ok(NodeRequest {
        store,
        run: arguments.run,
        token: token.map(|text| text.parse::<JoinToken>()).transpose()?,
        throughput: arguments.throughput.into(),
        secrets_file,
        metrics: arguments.metrics_listen.map(metrics_options),
    })
}

fn summary(report: &NodeReport) -> String {
    let NodeReport {
        run_name, finished, ..
    } = report;
    let why = match report.end {
        NodeEndWord::Completed => format!("Nothing is left to run of `{run_name}`"),
        NodeEndWord::RunOver => format!("Run `{run_name}` is over"),
        NodeEndWord::Drained => format!("Left `{run_name}`"),
    };
    format!("{why}. This node finished {finished} rollouts.")
}

/// Says now and then how far this node is.
#[derive(Debug)]
struct NodeProgress {
    output: Output,
    begun: bool,
    under_way: i64,
    finished: u64,
    said_at: Instant,
    said: String,
}

impl NodeProgress {
    fn new(output: Output) -> Self {
        Self {
            output,
            begun: false,
            under_way: 0,
            finished: 0,
            said_at: Instant::now(),
            said: String::new(),
        }
    }
}

impl Observer<RunEvent> for NodeProgress {
    fn event(&mut self, event: &RunEvent) {
        match event {
            RunEvent::Began { total, done } => {
                self.begun = true;
                self.output.note(format_args!(
                    "Joined: {done} of {total} rollouts have a result"
                ));
            }
            RunEvent::Claimed { .. } => self.under_way += 1,
            RunEvent::Finished { .. } => {
                self.under_way -= 1;
                self.finished += 1;
            }
            RunEvent::Retrying { .. } => self.under_way -= 1,
            RunEvent::Draining { in_flight } => self.output.note(format_args!(
                "Leaving; {in_flight} rollouts are finished first"
            )),
            RunEvent::PhaseBegan { .. } | RunEvent::GradingAgain { .. } => {}
        }
    }

    fn log(&self, event: &RunEvent, log: &mut RunLog) {
        log.run_event(event);
    }

    fn tick(&mut self) {
        if !self.begun || self.said_at.elapsed() < SAY_EVERY {
            return;
        }
        self.said_at = Instant::now();
        let (finished, under_way) = (self.finished, self.under_way.max(0));
        let text = format!("{finished} rollouts finished here, {under_way} under way");
        // What has not changed need not be said again.
        if text != self.said {
            self.output.note(&text);
            self.said = text;
        }
    }

    fn finish(&mut self) {}
}

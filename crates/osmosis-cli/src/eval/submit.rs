//! `osmosis eval submit` and `eval resume`: from arguments to a run, and from its report to an exit code.

use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_engine::RunEnd;
use osmosis_run::eval::check::CheckedSide;
use osmosis_run::eval::evaluation::{EvalEnd, Evaluation};
use osmosis_run::eval::plan::{EvalPlan, EvalRequest};
use osmosis_run::eval::rollout_server::RolloutServer;
use osmosis_run::life::{FrontEnd, Lived, Work as _, live};
use osmosis_run::reports::RunReport;
use osmosis_run::stop_signals::OnTerminate;
use osmosis_run::{RunError, RunErrorKind};
use osmosis_server::ChosenServer;
use osmosis_store::RunKind;
use serde_json::{Value, json};

use super::budget::Budget;
use super::gates::{self, NOT_JUDGED};
use super::junit::JunitReport;
use super::prices::dollars_text;
use super::progress::Progress;
use super::regrade;
use super::report;
use crate::arguments::{GateArguments, ResumeArguments, SubmitArguments, WatchArguments};
use crate::command_line;
use crate::error::Exit;
use crate::output::Output;
use crate::run_folder::RunFolder;
use crate::runs::{Pinned, ReadRun, given_name, record_of};
use crate::stop_signals::StopSignals;
use crate::view::ViewBeside;
use crate::workspace::{Workspace, absolute, read_config};

pub(crate) async fn submit(
    arguments: SubmitArguments,
    workspace: Option<&Utf8Path>,
    output: &Output,
) -> Result<Exit, RunError> {
    let (config_path, config_text) = read_config(&arguments.config)?;
    let name = given_name(arguments.name.as_deref())?;
    let request = EvalRequest {
        config_path,
        config_text,
        rows: arguments.rows,
        limit: arguments.limit,
        secrets_file: arguments.secrets.secrets_file,
        seed: arguments.seed,
        server: shared(ChosenServer::of(arguments.server, arguments.reach.into())?),
    };
    let plan = EvalPlan::check(request, workspace)?;
    let evaluation = Evaluation {
        retry_failed: arguments.retry_failed,
        throughput: arguments.throughput.into(),
        prices: arguments.cost.prices.prices(),
        max_cost: arguments.cost.max_cost,
        probes: !arguments.watch.no_probe,
        trackers: arguments.log.into(),
        ..Evaluation::new(plan, name)?
    };
    let command = EvalCommand {
        evaluation,
        gates: arguments.gates,
        watch: arguments.watch,
        copy_to: arguments.output,
        view: arguments.view,
        output: *output,
    };
    command.check_gates()?;
    let evaluation = &command.evaluation;
    let is_new = !evaluation.folder.exists();
    if is_new {
        Budget::of(evaluation.max_cost, evaluation.prices)?;
    }
    if arguments.dry_run {
        return command.dry_run().await;
    }
    if evaluation.plan.goes_out() && !arguments.yes && is_new && output.can_ask() {
        confirm(&evaluation.plan, output)?;
    }
    if arguments.fresh {
        archive(&evaluation.folder, &evaluation.plan.workspace, output)?;
    }
    command.run().await
}

pub(crate) async fn resume(
    arguments: ResumeArguments,
    workspace: Option<&Utf8Path>,
    output: &Output,
) -> Result<Exit, RunError> {
    let workspace = Workspace::find(workspace, None)?;
    let folder = RunFolder::existing(&workspace, RunKind::Evaluation, &arguments.run)?;
    let record = record_of(&folder, &arguments.run).await?;
    let pinned = Pinned::read(&record.pinned)?;
    if let Some(from) = &pinned.regraded_from {
        return Box::pin(regrade::resume(arguments, workspace, &record, from, output)).await;
    }
    let request = EvalRequest {
        // Where the config was; only messages name it, the text is the run's own.
        config_path: workspace.root.join("configs").join("eval").join("run.toml"),
        config_text: record.config_toml.clone(),
        rows: pinned.rows.clone(),
        limit: pinned.limit(),
        secrets_file: arguments.secrets.secrets_file,
        seed: pinned.model_seed().unwrap_or(0),
        server: shared(ChosenServer::of_run(&pinned, arguments.reach.into())?),
    };
    let plan = EvalPlan::check(request, Some(&workspace.root))?;
    let command = EvalCommand {
        evaluation: Evaluation {
            retry_failed: arguments.retry_failed,
            throughput: arguments.throughput.into(),
            prices: arguments.cost.prices.prices(),
            max_cost: arguments.cost.max_cost,
            probes: !arguments.watch.no_probe,
            trackers: arguments.log.into(),
            ..Evaluation::new(plan, Some(record.name))?
        },
        gates: arguments.gates,
        watch: arguments.watch,
        copy_to: arguments.output,
        view: false,
        output: *output,
    };
    command.check_gates()?;
    command.evaluation.money(&pinned)?;
    command.run().await
}

fn shared(server: Option<ChosenServer>) -> Option<Arc<dyn RolloutServer>> {
    server.map(|server| Arc::new(server) as _)
}

/// An evaluation, and what the command line wants of it.
struct EvalCommand {
    evaluation: Evaluation,
    gates: GateArguments,
    watch: WatchArguments,
    copy_to: Option<Utf8PathBuf>,
    /// Serve the run's page meanwhile.
    view: bool,
    output: Output,
}

impl EvalCommand {
    async fn dry_run(&self) -> Result<Exit, RunError> {
        let stop = StopSignals::listen(OnTerminate::StopNow)?;
        self.progress()?;
        let checked = self.evaluation.check(&stop, &self.output.notices()).await?;
        let found = match checked.side {
            CheckedSide::Here {
                manifest,
                program,
                withheld,
            } => json!({
                "workflow": manifest.workflow,
                "grader": manifest.grader,
                "warnings": manifest.warnings,
                "program": program,
                "withheld_variables": withheld.0,
            }),
            CheckedSide::AtServer { url, health } => {
                self.output.line(format_args!("{url} says: {health}"));
                json!({ "server": url, "health": health })
            }
        };
        let plan = &self.evaluation.plan;
        self.output.line(format_args!(
            "Everything is in order: {} rows × {} = {} rollouts. Nothing was run.",
            plan.rows,
            plan.config.evaluation.n,
            plan.rollouts()
        ));
        let mut resource = json!({
            "rows": plan.rows,
            "rollouts": plan.rollouts(),
            "model_server": checked.model_server.as_str(),
        });
        if let (Some(resource), Value::Object(found)) = (resource.as_object_mut(), found) {
            resource.extend(found);
        }
        self.output.operation("valid", &resource);
        Ok(Exit::Ok)
    }

    async fn run(self) -> Result<Exit, RunError> {
        let stop = StopSignals::listen(OnTerminate::StopNow)?;
        let observer = Box::new(self.progress()?);
        let workspace = &self.evaluation.plan.workspace;
        let name = self.evaluation.name.as_str();
        let beside = ViewBeside::start(self.view, name, workspace, &self.output).await?;
        let front = FrontEnd {
            stop: &stop,
            notices: self.output.notices(),
            observer,
            resume: Some(self.resume_command()),
        };
        let lived = live(&self.evaluation, front).await;
        ViewBeside::end(beside).await;
        let Lived { end, report } = lived?;
        self.write_junit().await?;
        if let Some(target) = &self.copy_to {
            self.evaluation.folder.copy_results(&absolute(target)?)?;
        }
        let workspace = &self.evaluation.plan.workspace;
        self.output.line(report::render(&report, workspace));
        if self.evaluation.max_cost.is_some() && report.total_cost().is_none() {
            self.output.warn(
                "--max-cost could not be kept: the model server does not tell how many tokens it took",
            );
        }
        Ok(self.conclude(end, report))
    }

    fn conclude(&self, EvalEnd { end, over_budget }: EvalEnd, report: RunReport) -> Exit {
        match end {
            RunEnd::Stopped { left } if over_budget => {
                self.output.operation("over_budget", &report);
                let cost = report.total_cost().map_or_else(String::new, dollars_text);
                self.output.note(format_args!(
                    "The run has cost {cost}, and --max-cost is reached: {left} rollouts are left. Go on with:\n  {} --max-cost USD",
                    self.resume_command()
                ));
                self.tell_unjudged();
                Exit::Incomplete
            }
            RunEnd::Stopped { left } => {
                self.output.operation("interrupted", &report);
                self.output.note(format_args!(
                    "Stopped with {left} rollouts left. Resume with:\n  {}",
                    self.resume_command()
                ));
                Exit::Interrupted
            }
            RunEnd::Complete if report.infrastructure_failed() > 0 => {
                self.output.operation("incomplete", &report);
                self.output.note(format_args!(
                    "{} rollouts failed for reasons outside the agent. Run them again with:\n  {}",
                    report.infrastructure_failed(),
                    self.resume_command()
                ));
                self.tell_unjudged();
                Exit::Incomplete
            }
            RunEnd::Complete => {
                let report = report.judged_by(&self.gates.fail_under);
                gates::conclude(&report, "completed", &self.output)
            }
        }
    }

    /// From the run as it was left.
    async fn write_junit(&self) -> Result<(), RunError> {
        let Some(file) = &self.gates.junit else {
            return Ok(());
        };
        let store = ReadRun::open(self.evaluation.folder.clone())?.store;
        let workspace = &self.evaluation.plan.workspace;
        JunitReport::of(&*store, workspace, self.evaluation.redactor())
            .await?
            .write(&*store, &absolute(file)?)
            .await
    }

    fn tell_unjudged(&self) {
        if !self.gates.fail_under.is_empty() {
            self.output.note(NOT_JUDGED);
        }
    }

    fn progress(&self) -> Result<Progress, RunError> {
        Progress::new(
            self.output,
            &self.watch.progress,
            self.evaluation.live.clone(),
            self.evaluation.redactor(),
        )
    }

    fn check_gates(&self) -> Result<(), RunError> {
        let n = self.evaluation.plan.config.evaluation.n;
        self.gates
            .fail_under
            .iter()
            .try_for_each(|gate| gate.check_for(n))
    }

    fn resume_command(&self) -> String {
        command_line::suggest(
            &["eval", "resume", self.evaluation.name.as_str()],
            &self.evaluation.plan.workspace,
        )
    }
}

/// Archives a run that is there, and says where it is.
pub(crate) fn archive(
    folder: &RunFolder,
    workspace: &Workspace,
    output: &Output,
) -> Result<(), RunError> {
    if let Some(target) = folder.archive(workspace)? {
        let name = folder.name();
        output.note(format_args!("The earlier run `{name}` is now at {target}"));
    }
    Ok(())
}

/// Asks before calls leave this machine.
fn confirm(plan: &EvalPlan, output: &Output) -> Result<(), RunError> {
    output.question(format_args!(
        "{} rollouts will call `{}` at {}. Continue? [Y/n] ",
        plan.rollouts(),
        plan.config.experiment.model_path,
        plan.ready.policy.describe().endpoint,
    ));
    if let Some((model, judge)) = plan.config.judge_model.as_ref().zip(plan.judge.as_ref()) {
        let endpoint = judge.endpoint();
        output.question(format_args!("(The grader asks `{model}` at {endpoint}.) "));
    }
    let mut answer = String::new();
    std::io::stdin()
        .read_line(&mut answer)
        .map_err(|error| RunError::failed(RunErrorKind::Io, format!("no answer: {error}")))?;
    match answer.trim().to_ascii_lowercase().as_str() {
        "" | "y" | "yes" => Ok(()),
        _ => Err(RunError::failed(RunErrorKind::Declined, "not started")
            .hint("`--yes` skips the question")),
    }
}

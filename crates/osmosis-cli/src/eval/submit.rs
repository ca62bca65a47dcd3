//! `osmosis eval submit` and `eval resume`: from arguments to a run, and from its report to an exit code.

use std::sync::Arc;

use camino::Utf8PathBuf;
use osmosis_core::RunName;
use osmosis_core::config::ConfigSource;
use osmosis_engine::RunEnd;
use osmosis_run::eval::evaluation::{EvalEnd, Evaluation};
use osmosis_run::eval::plan::{EvalPlan, EvalRequest, UserSide};
use osmosis_run::eval::rollout_server::RolloutServer;
use osmosis_run::life::{FrontEnd, Lived, Work as _, live};
use osmosis_run::notices::{Notice, Notices};
use osmosis_run::reports::{CheckedServer, CheckedUserSide, EvalDryRun, RunReport};
use osmosis_run::stop_signals::OnTerminate;
use osmosis_run::{RunError, RunErrorKind};
use osmosis_server::ChosenServer;
use osmosis_store::RunKind;

use super::budget::Budget;
use super::gates::{self, NOT_JUDGED};
use super::junit::JunitReport;
use super::prices::dollars_text;
use super::progress::Progress;
use super::regrade;
use super::report;
use super::several_models;
use crate::arguments::{GateArguments, ResumeArguments, SubmitArguments, WatchArguments};
use crate::command_line;
use crate::error::Exit;
use crate::output::Output;
use crate::run_folder::RunFolder;
use crate::runs::{Pinned, ReadRun, given_name, record_of};
use crate::stop_signals::StopSignals;
use crate::view::ViewBeside;
use crate::workspace::{Workspace, WorkspaceChoice, absolute};

pub(crate) async fn submit(
    arguments: SubmitArguments,
    workspace: &WorkspaceChoice,
    output: &Output,
) -> Result<Exit, RunError> {
    let notices = output.notices();
    notices.step(format_args!("Checking {}", arguments.config.place()));
    let name = given_name(arguments.name.as_deref())?;
    if arguments.models.len() > 1 {
        return several_models::submit(&arguments, name, workspace, output, &notices).await;
    }
    let model = arguments.models.first().map(String::as_str);
    let command = EvalCommand::of(&arguments, model, name, workspace, output, &notices).await?;
    if arguments.dry_run {
        let resource = command.dry_run().await?;
        output.operation("valid", &resource);
        return Ok(Exit::Ok);
    }
    command.confirm(arguments.yes).await?;
    command.run().await
}

pub(crate) async fn resume(
    arguments: ResumeArguments,
    workspace: &WorkspaceChoice,
    output: &Output,
) -> Result<Exit, RunError> {
    let workspace = workspace.find(None)?;
    let folder = RunFolder::existing(&workspace, RunKind::Evaluation, &arguments.run).await?;
    let record = record_of(&folder, &arguments.run).await?;
    let pinned = Pinned::read(&record.pinned)?;
    if let Some(from) = &pinned.regraded_from {
        return Box::pin(regrade::resume(arguments, workspace, &record, from, output)).await;
    }
    let notices = output.notices();
    notices.step(format_args!("Checking {}", arguments.run));
    // Where the config was; only messages name it, the text is the run's own.
    let config_path = workspace.root.join("configs").join("eval").join("run.toml");
    let request = EvalRequest {
        config: ConfigSource::of_file(config_path, record.config_toml.clone()),
        rows: pinned.rows.clone(),
        limit: pinned.limit(),
        secrets_file: arguments.secrets.secrets_file,
        seed: pinned.model_seed().unwrap_or(0),
        server: shared(ChosenServer::of_run(&pinned, arguments.reach.into())?),
    };
    let plan = EvalPlan::check(request, &workspace.chosen(), &*notices).await?;
    let again = run_again(&pinned, record.name.as_str(), &workspace);
    let command = EvalCommand {
        evaluation: Evaluation {
            retry_failed: arguments.retry_failed,
            throughput: arguments.throughput.into(),
            prices: arguments.cost.prices.prices(),
            max_cost: arguments.cost.max_cost,
            probes: !arguments.watch.no_probe,
            trackers: arguments.log.into(),
            nodes: arguments.sharing.into(),
            ..Evaluation::new(plan, Some(record.name))?
        },
        gates: arguments.gates,
        watch: arguments.watch,
        copy_to: arguments.output,
        view: false,
        output: *output,
        notices,
        fresh: false,
        again,
    };
    command.check_gates()?;
    command.check_sharing()?;
    command.evaluation.money(&pinned)?;
    command.run().await
}

fn shared(server: Option<ChosenServer>) -> Option<Arc<dyn RolloutServer>> {
    server.map(|server| Arc::new(server) as _)
}

/// How a complete run is run again: `--fresh`, in the same command or in the one that began it.
fn run_again(pinned: &Pinned, name: &str, workspace: &Workspace) -> String {
    match pinned.remembered.config.as_deref() {
        Some(config) if pinned.remembered.overrides.is_empty() => {
            let arguments = ["eval", "submit", config, "--name", name, "--fresh"];
            format!("`{}`", command_line::suggest(&arguments, workspace))
        }
        // With its settings, it is too long to be typed.
        Some(_) | None => format!("The `eval submit` that began it, with `--name {name} --fresh`,"),
    }
}

/// An evaluation, and what the command line wants of it.
pub(super) struct EvalCommand {
    pub(super) evaluation: Evaluation,
    gates: GateArguments,
    watch: WatchArguments,
    copy_to: Option<Utf8PathBuf>,
    /// Serve the run's page meanwhile.
    view: bool,
    output: Output,
    notices: Arc<dyn Notices>,
    /// An existing run of that name is archived.
    fresh: bool,
    /// What runs it again once it is complete.
    again: String,
}

impl EvalCommand {
    /// Checks everything that can be without starting anything.
    pub(super) async fn of(
        arguments: &SubmitArguments,
        model: Option<&str>,
        name: Option<RunName>,
        workspace: &WorkspaceChoice,
        output: &Output,
        notices: &Arc<dyn Notices>,
    ) -> Result<Self, RunError> {
        let config = arguments.source(model)?;
        let by_flags = config.file.is_none();
        let request = EvalRequest {
            config,
            rows: arguments.rows.clone(),
            limit: None,
            secrets_file: arguments.secrets.secrets_file.clone(),
            seed: arguments.seed,
            server: shared(ChosenServer::of(
                arguments.server.clone(),
                arguments.reach.clone().into(),
            )?),
        };
        let checked = EvalPlan::check(request, workspace, &**notices).await;
        let plan = checked.map_err(|error| {
            if by_flags && error.kind() == RunErrorKind::ConfigInvalid {
                return error.into_usage();
            }
            error
        })?;
        let evaluation = Evaluation {
            retry_failed: arguments.retry_failed,
            throughput: arguments.throughput.clone().into(),
            prices: arguments.cost.prices.prices(),
            max_cost: arguments.cost.max_cost,
            probes: !arguments.watch.no_probe,
            trackers: arguments.log.clone().into(),
            nodes: arguments.sharing.clone().into(),
            ..Evaluation::new(plan, name)?
        };
        let command = Self {
            evaluation,
            gates: arguments.gates.clone(),
            watch: arguments.watch.clone(),
            copy_to: arguments.output.clone(),
            output: *output,
            notices: Arc::clone(notices),
            fresh: arguments.fresh,
            view: arguments.view,
            again: "`--fresh`".to_owned(),
        };
        command.check_gates()?;
        command.check_sharing()?;
        if command.is_new().await? {
            let evaluation = &command.evaluation;
            Budget::of(evaluation.max_cost, evaluation.prices)?;
        }
        Ok(command)
    }

    async fn is_new(&self) -> Result<bool, RunError> {
        Ok(self.fresh || !self.evaluation.folder.holds_run().await?)
    }

    /// Asks before calls leave this machine, unless that is wanted anyway.
    pub(super) async fn confirm(&self, yes: bool) -> Result<(), RunError> {
        let plan = &self.evaluation.plan;
        if plan.goes_out() && !yes && self.output.can_ask() && self.is_new().await? {
            self.notices.notice(Notice::StepsDone);
            confirm(plan, &self.output)?;
        }
        Ok(())
    }

    /// Tries everything out, and says what was found.
    pub(super) async fn dry_run(&self) -> Result<EvalDryRun, RunError> {
        let stop = StopSignals::listen(OnTerminate::StopNow)?;
        self.progress()?;
        let checked = self.evaluation.check(&stop, &self.notices).await?;
        let plan = &self.evaluation.plan;
        let report = EvalDryRun::of(checked, plan);
        if let CheckedUserSide::AtServer(CheckedServer { server, health }) = &report.user_side {
            self.output.line(format_args!("{server} says: {health}"));
        }
        self.output.line(format_args!(
            "Everything is in order: {} rows × {} = {} rollouts. Nothing was run.",
            report.rows, plan.config.evaluation.n, report.rollouts
        ));
        Ok(report)
    }

    async fn run(self) -> Result<Exit, RunError> {
        let Lived { end, report, .. } = self.live().await?;
        let workspace = &self.evaluation.plan.workspace;
        self.output
            .line(report::render(&report, workspace, &self.output));
        self.tell_cost(&report);
        Ok(self.conclude(end, report))
    }

    /// Runs it from where it stands to its end, and writes the files that were asked for.
    pub(super) async fn live(&self) -> Result<Lived<Evaluation>, RunError> {
        let stop = StopSignals::listen(OnTerminate::StopNow)?;
        let observer = Box::new(self.progress()?);
        let workspace = &self.evaluation.plan.workspace;
        let name = self.evaluation.name.as_str();
        let beside = ViewBeside::start(self.view, name, workspace, &self.output).await?;
        let front = FrontEnd {
            stop: &stop,
            notices: Arc::clone(&self.notices),
            observer,
            resume: Some(self.resume_command()),
            fresh: self.fresh,
        };
        let lived = live(&self.evaluation, front).await;
        ViewBeside::end(beside).await;
        let lived = lived?;
        self.write_junit().await?;
        if let Some(target) = &self.copy_to {
            self.evaluation.folder.copy_results(&absolute(target)?)?;
        }
        if lived.already_complete {
            self.output.line(format_args!(
                "`{}` is already complete: nothing was run. {} runs it again.",
                self.evaluation.name, self.again
            ));
        }
        Ok(lived)
    }

    /// Says when a budget could not be kept.
    pub(super) fn tell_cost(&self, report: &RunReport) {
        if self.evaluation.max_cost.is_some() && report.total_cost().is_none() {
            self.output.warn(
                "--max-cost could not be kept: the model server does not tell how many tokens it took",
            );
        }
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
        let store = ReadRun::open(self.evaluation.folder.clone()).await?.store;
        let workspace = &self.evaluation.plan.workspace;
        JunitReport::of(&*store, workspace, self.evaluation.redactor())
            .await?
            .write(&*store, &absolute(file)?)
            .await
    }

    pub(super) fn set_copy_to(&mut self, target: Utf8PathBuf) {
        self.copy_to = Some(target);
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

    /// Nodes work on runs in a database, with user code of the workspace.
    fn check_sharing(&self) -> Result<(), RunError> {
        let (nodes, plan) = (&self.evaluation.nodes, &self.evaluation.plan);
        if let (UserSide::AtServer(_), Some(option)) = (&plan.side, nodes.given()) {
            return Err(RunError::usage(
                RunErrorKind::Usage,
                format!("{option}: the rollout server runs the rollouts, and not nodes"),
            ));
        }
        nodes.check_for(&plan.workspace)
    }

    fn resume_command(&self) -> String {
        command_line::suggest(
            &["eval", "resume", self.evaluation.name.as_str()],
            &self.evaluation.plan.workspace,
        )
    }
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

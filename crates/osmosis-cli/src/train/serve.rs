//! `osmosis train serve`: rollouts for a trainer in another process.

use camino::Utf8PathBuf;
use osmosis_core::RunName;
use osmosis_core::config::ConfigSource;
use osmosis_gateway::Secret;
use osmosis_run::RunError;
use osmosis_run::life::{FrontEnd, Lived, live};
use osmosis_run::reports::{Curve, ServedBatches, TrainingReport};
use osmosis_run::stop_signals::OnTerminate;
use osmosis_run::train::outside_model::OutsideModel;
use osmosis_run::train::plan::{Plan, Request};
use osmosis_run::train::training::Training;
use osmosis_server::{ServedTraining, TrainerAddress};
use osmosis_train::{EndCause, TrainEnd};

use super::view::TrainView;
use crate::arguments::TrainServeArguments;
use crate::command_line;
use crate::error::Exit;
use crate::gateway::CONTROL_KEY_VARIABLE;
use crate::output::Output;
use crate::policy::variable;
use crate::runs::given_name;
use crate::stop_signals::StopSignals;
use crate::workspace::{WorkspaceChoice, read_config};

/// What the trainer's client looks for.
const URL_VARIABLE: &str = "OSMOSIS_TRAINER_URL";

pub(crate) async fn serve(
    arguments: TrainServeArguments,
    workspace: &WorkspaceChoice,
    output: &Output,
) -> Result<Exit, RunError> {
    let notices = output.notices();
    notices.step(format_args!("Checking {}", arguments.config));
    let (config_path, config_text) = read_config(&arguments.config)?;
    let name = given_name(arguments.name.as_deref())?;
    let request = Request {
        config: ConfigSource::of_file(config_path.clone(), config_text),
        secrets_file: arguments.secrets.secrets_file,
        rows_not_compared: false,
    };
    let plan: Plan<OutsideModel> = Plan::check(request, workspace, &*notices).await?;
    let mut training = Training::new(plan, name)?;
    training.throughput = arguments.throughput.into();
    let again = command_line::suggest(
        &[
            "train",
            "serve",
            config_path.as_str(),
            "--name",
            training.name.as_str(),
        ],
        &training.plan.workspace,
    );
    let announced = Announced {
        name: training.name.clone(),
        model: training.plan.config.experiment.model_path.to_string(),
        folder: training.folder.path.clone(),
        output: *output,
    };
    let work = ServedTraining {
        training,
        listen: arguments.listen,
        control_key: variable(CONTROL_KEY_VARIABLE).map(Secret::new),
        serving: Box::new(move |address| announced.tell(address)),
    };
    let stop = StopSignals::listen(OnTerminate::StopNow)?;
    let front = FrontEnd {
        stop: &stop,
        notices,
        observer: Box::new(TrainView::new(*output, &Curve::default())),
        resume: Some(again.clone()),
        fresh: arguments.fresh,
    };
    let Lived { end, report, .. } = Box::pin(live(&work, front)).await?;
    Ok(conclude(&end, &report, &again, output))
}

fn conclude(end: &TrainEnd, report: &TrainingReport, again: &str, output: &Output) -> Exit {
    let batches = end.steps();
    match end.cause() {
        EndCause::Complete => {
            output.operation_line("completed", report);
            output.note(format_args!(
                "All {batches} batches are acknowledged, and the trainer knows."
            ));
            Exit::Ok
        }
        EndCause::NoVariance { .. }
        | EndCause::FailedAlike { .. }
        | EndCause::Stopped
        | EndCause::Failed { .. } => {
            output.operation_line("interrupted", report);
            output.note(format_args!(
                "Stopped with {batches} batches acknowledged. Go on with:\n  {again}"
            ));
            Exit::Interrupted
        }
    }
}

/// What is told of a run when trainers can come.
struct Announced {
    name: RunName,
    model: String,
    folder: Utf8PathBuf,
    output: Output,
}

impl Announced {
    /// Says where it is, and with which key.
    fn tell(&self, address: &TrainerAddress<'_>) {
        let (output, url) = (&self.output, address.url);
        let key = address.control_key.expose();
        output.line(format_args!("{URL_VARIABLE}={url}"));
        output.line(format_args!("{CONTROL_KEY_VARIABLE}={key}"));
        let (done, all) = (address.acknowledged, address.batches);
        let next = if done < all {
            format!("Batch {} of {all} is next", done + 1)
        } else {
            format!("All {all} batches are acknowledged; this waits for a trainer, to tell it so")
        };
        let folder = &self.folder;
        output.note(format_args!(
            "{next}; the run is in {folder}. Ctrl-C stops."
        ));
        output.operation_line(
            "serving",
            &ServedBatches {
                run_name: self.name.clone(),
                url: url.to_owned(),
                control_key: key.to_owned(),
                model: self.model.clone(),
                version: address.version,
                acknowledged: done,
                batches: all,
                output_path: folder.clone(),
            },
        );
    }
}

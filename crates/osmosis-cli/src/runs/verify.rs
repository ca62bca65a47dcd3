//! `osmosis run verify`.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use osmosis_run::RunError;
use osmosis_run::reports::VerifiedRun;
use osmosis_run::runs::verify::{Verified, verify};
use osmosis_store::{Authenticity, Damage, VerifyProgress};

use crate::command_line;
use crate::error::Exit;
use crate::output::Output;
use crate::workspace::Workspace;

/// Findings that are shown to people; JSON has more.
const SHOWN: usize = 20;

pub(crate) async fn run(
    workspace: &Workspace,
    run: &str,
    output: &Output,
) -> Result<Exit, RunError> {
    let bar = progress_bar(output);
    let shown = bar.clone();
    let progress = Box::new(move |progress: VerifyProgress| {
        shown.set_length(progress.total);
        shown.set_position(progress.done);
    });
    let verified = verify(workspace, run, progress).await?;
    bar.finish_and_clear();
    tell(&verified, workspace, output);
    let report = VerifiedRun::of(&verified);
    let (status, exit) = if report.whole {
        ("whole", Exit::Ok)
    } else if report.altered > 0 {
        ("altered", Exit::Failed)
    } else {
        ("damaged", Exit::Failed)
    };
    output.operation(status, &report);
    Ok(exit)
}

fn tell(verified: &Verified, workspace: &Workspace, output: &Output) {
    let Verified {
        run: found,
        report,
        checkpoints,
        checkpoints_without_checksum,
    } = verified;
    let checked = &report.checked;
    let mut counts = vec![
        format!("{} rows", checked.rows),
        format!("{} rollouts", checked.rollouts),
        format!("{} samples", checked.samples),
        format!(
            "{} model calls ({} bytes)",
            checked.calls, checked.body_bytes
        ),
    ];
    if checked.steps + checked.batches + checkpoints > 0 {
        counts.push(format!("{} steps", checked.steps));
        counts.push(format!("{} batches", checked.batches));
        counts.push(format!("{checkpoints} checkpoints"));
    }
    let counts = counts.join(", ");
    if report.is_whole() {
        output.line(format_args!("Run `{found}` is whole: {counts}."));
    } else {
        output.line(format_args!(
            "Run `{found}` is {}: {} in {counts}.",
            if report.altered > 0 {
                "altered"
            } else {
                "damaged"
            },
            match report.findings {
                1 => "1 finding".to_owned(),
                findings => format!("{findings} findings"),
            }
        ));
        for Damage { place, message } in report.damage.iter().take(SHOWN) {
            output.line(format_args!("  {place}: {message}"));
        }
        let more = report.findings.saturating_sub(SHOWN as u64);
        if more > 0 {
            output.line(format_args!("  and {more} more; `--json` lists them"));
        }
        let salvage = command_line::suggest(&["run", "salvage", &found.to_string()], workspace);
        output.line(format_args!(
            "Make a new run of what is whole with:\n  {salvage}"
        ));
    }
    if let Some(why) = report.authenticity.and_then(Authenticity::missing) {
        output.note(format_args!(
            "The run is unauthenticated: {why}. Whether something else than osmosis changed it can't be said."
        ));
    } else if report.is_whole() {
        output.line(format_args!(
            "It is authenticated: osmosis wrote each record, and none is missing."
        ));
    }
    if report.without_checksum > 0 {
        output.note(format_args!(
            "{} rows were written by an older version and carry no checksum: only their form was checked.",
            report.without_checksum
        ));
    }
    if *checkpoints_without_checksum > 0 {
        output.note(format_args!(
            "{checkpoints_without_checksum} checkpoints are models of a trainer outside, without checksums: they were not checked."
        ));
    }
    if let Some(holder) = &report.holder {
        output.note(format_args!(
            "The run is under way ({holder}); what it writes now was not checked."
        ));
    }
}

fn progress_bar(output: &Output) -> ProgressBar {
    if !output.moves() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(8));
    let template = "{bar:24} {bytes}/{total_bytes} checked {eta}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("━╸ "));
    }
    bar
}

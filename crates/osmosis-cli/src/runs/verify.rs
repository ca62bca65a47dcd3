//! `osmosis run verify`.

use camino::{Utf8Path, Utf8PathBuf};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use osmosis_run::RunError;
use osmosis_run::reports::{CheckedCounts, DamageReport, VerifiedRun};
use osmosis_store::{Damage, RunKind, SqliteStore, VerifyReport};
use osmosis_train::checkpoints;

use super::FoundRun;
use crate::command_line;
use crate::error::Exit;
use crate::output::Output;
use crate::workspace::Workspace;

/// Findings that are shown to people; JSON has more.
const SHOWN: usize = 20;

pub(crate) fn run(workspace: &Workspace, run: &str, output: &Output) -> Result<Exit, RunError> {
    let found = FoundRun::of_any_kind(workspace, run)?;
    let bar = progress_bar(output);
    let mut report = SqliteStore::verify(&found.folder.path, |progress| {
        bar.set_length(progress.total);
        bar.set_position(progress.done);
    })?;
    bar.finish_and_clear();
    let mut checkpoints = Checkpoints::default();
    if found.kind == RunKind::Training {
        checkpoints = Checkpoints::check(&found.folder.path);
        for damage in std::mem::take(&mut checkpoints.damaged) {
            report.findings += 1;
            report.damage.push(damage);
        }
    }
    tell(&found, &report, &checkpoints, workspace, output);
    let status = if report.is_whole() {
        "whole"
    } else {
        "damaged"
    };
    let checked = &report.checked;
    let damage = report.damage.iter().map(|damage| DamageReport {
        place: damage.place.clone(),
        message: damage.message.clone(),
    });
    output.operation(
        status,
        &VerifiedRun {
            run_name: found.name.to_string(),
            run: found.to_string(),
            output_path: found.folder.path.clone(),
            whole: report.is_whole(),
            findings: report.findings,
            damage: damage.collect(),
            checked: CheckedCounts {
                rows: checked.rows,
                rollouts: checked.rollouts,
                samples: checked.samples,
                calls: checked.calls,
                body_bytes: checked.body_bytes,
                steps: checked.steps,
                batches: checked.batches,
                checkpoints: checkpoints.count,
            },
            checkpoints_without_checksum: checkpoints.without_checksum,
            without_checksum: report.without_checksum,
            schema_version: report.schema_version,
            running: report.holder.is_some(),
        },
    );
    Ok(if report.is_whole() {
        Exit::Ok
    } else {
        Exit::Failed
    })
}

#[derive(Default)]
struct Checkpoints {
    count: u64,
    /// Models of trainers outside.
    without_checksum: u64,
    /// Their files are not as they were saved.
    damaged: Vec<Damage>,
}

impl Checkpoints {
    fn check(folder: &Utf8Path) -> Self {
        let mut found = Self::default();
        for checkpoint in checkpoints::list(folder).unwrap_or_default() {
            found.count += 1;
            if checkpoint.is_model_alone() {
                found.without_checksum += 1;
                continue;
            }
            if let Err(error) = checkpoint.verify() {
                let name: Utf8PathBuf = checkpoint
                    .folder
                    .strip_prefix(folder)
                    .map_or_else(|_| checkpoint.folder.clone(), Utf8Path::to_owned);
                found.damaged.push(Damage {
                    place: name.into_string(),
                    message: error.to_string(),
                });
            }
        }
        found
    }
}

fn tell(
    found: &FoundRun,
    report: &VerifyReport,
    checkpoints: &Checkpoints,
    workspace: &Workspace,
    output: &Output,
) {
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
    if checked.steps + checked.batches + checkpoints.count > 0 {
        counts.push(format!("{} steps", checked.steps));
        counts.push(format!("{} batches", checked.batches));
        counts.push(format!("{} checkpoints", checkpoints.count));
    }
    let counts = counts.join(", ");
    if report.is_whole() {
        output.line(format_args!("Run `{found}` is whole: {counts}."));
    } else {
        output.line(format_args!(
            "Run `{found}` is damaged: {} in {counts}.",
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
    if report.without_checksum > 0 {
        output.note(format_args!(
            "{} rows were written by an older version and carry no checksum: only their form was checked.",
            report.without_checksum
        ));
    }
    if checkpoints.without_checksum > 0 {
        output.note(format_args!(
            "{} checkpoints are models of a trainer outside, without checksums: they were not checked.",
            checkpoints.without_checksum
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

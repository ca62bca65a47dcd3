//! `osmosis run du`.

use std::fmt::Write as _;

use osmosis_run::RunError;
use osmosis_run::figures::bytes_text;
use osmosis_run::reports::RunSizeReport;
use osmosis_run::runs::kept;

use crate::error::Exit;
use crate::output::Output;
use crate::workspace::Workspace;

/// Parts of a run that are named, the largest first.
const MOST_PARTS: usize = 3;

pub(super) async fn run(
    workspace: &Workspace,
    runs: &[String],
    output: &Output,
) -> Result<Exit, RunError> {
    let sizes = kept::sizes(workspace, runs).await?;
    let sizes: Vec<RunSizeReport> = sizes.into_iter().map(RunSizeReport::of).collect();
    if sizes.is_empty() {
        output.line("No runs.");
    } else {
        for size in &sizes {
            output.line(line(size));
        }
        let all = sizes.iter().map(|size| size.bytes).sum();
        let runs = match sizes.len() {
            1 => "1 run".to_owned(),
            count => format!("{count} runs"),
        };
        output.line(format_args!("{:>10}  {runs} in all", bytes_text(all)));
    }
    output.list(&sizes);
    Ok(Exit::Ok)
}

/// `  12.3 MB  train/calculator  checkpoints 10.1 MB, calls 2.0 MB`.
fn line(size: &RunSizeReport) -> String {
    let mut text = format!("{:>10}  {}", bytes_text(size.bytes), size.run);
    if let Some(id) = &size.archive_id {
        let _ = write!(text, "  (archived as {id})");
    }
    if !size.tags.is_empty() {
        let tags: Vec<&str> = size.tags.iter().map(osmosis_core::RunTag::as_str).collect();
        let _ = write!(text, "  [{}]", tags.join(", "));
    }
    let mut parts: Vec<(&String, &u64)> = size.parts.iter().filter(|part| *part.1 > 0).collect();
    parts.sort_by_key(|(name, bytes)| (std::cmp::Reverse(**bytes), (*name).clone()));
    let parts: Vec<String> = parts
        .into_iter()
        .take(MOST_PARTS)
        .map(|(name, bytes)| format!("{name} {}", bytes_text(*bytes)))
        .collect();
    let _ = write!(text, "  {}", parts.join(", "));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_names_the_largest_parts_and_where_an_archived_run_is() {
        let part = |name: &str, bytes| (name.to_owned(), bytes);
        let mut size = RunSizeReport {
            run: "train/t".to_owned(),
            run_name: "t".to_owned(),
            archive_id: None,
            bytes: 12_345_678,
            parts: [
                part("checkpoints", 10_000_000),
                part("calls", 2_345_000),
                part("database", 600),
                part("other", 78),
            ]
            .into(),
            tags: vec![osmosis_core::RunTag::new("best").unwrap()],
        };
        insta::assert_snapshot!(line(&size), @"   12.3 MB  train/t  [best]  checkpoints 10.0 MB, calls 2.3 MB, database 600 B");
        size.archive_id = Some("t.20260101-120000.1".to_owned());
        size.tags.clear();
        insta::assert_snapshot!(line(&size), @"   12.3 MB  train/t  (archived as t.20260101-120000.1)  checkpoints 10.0 MB, calls 2.3 MB, database 600 B");
    }
}

//! `osmosis dataset …`.

use std::fmt::Write as _;

use osmosis_core::config::{DatasetColumns, DatasetRef};
use osmosis_data::{Dataset, Taking};
use osmosis_run::reports::{DatasetPreview, PreviewColumn, PreviewRow};
use osmosis_run::{RunError, RunErrorKind};
use owo_colors::Style;

use crate::arguments::{DatasetArguments, DatasetCommand};
use crate::checked_dataset::{checked, data_error};
use crate::error::Exit;
use crate::output::{Output, paint};
use crate::workspace::{WorkspaceChoice, absolute};

/// Characters of a value that are shown.
const SHOWN: usize = 1000;

pub(crate) fn run(
    command: DatasetCommand,
    workspace: &WorkspaceChoice,
    output: &Output,
) -> Result<Exit, RunError> {
    match command {
        DatasetCommand::Preview { dataset, rows } => {
            let dataset = open(&dataset, workspace)?;
            preview(&dataset, rows, output)
        }
        DatasetCommand::Validate {
            dataset,
            any_columns,
        } => {
            let dataset = open(&dataset, workspace)?;
            let taking = if any_columns {
                Taking::WholeRows
            } else {
                Taking::Columns
            };
            validate(dataset.with(taking), output)
        }
    }
}

fn open(arguments: &DatasetArguments, workspace: &WorkspaceChoice) -> Result<Dataset, RunError> {
    let file = arguments.file.as_path();
    let columns = columns(&arguments.columns)?;
    // What is there is meant; otherwise a name of the workspace's.
    let opened = Dataset::open(absolute(file)?);
    let dataset = if opened.is_ok() || absolute(file)?.is_file() {
        opened
    } else {
        let reference: DatasetRef = file
            .as_str()
            .parse()
            .map_err(|error| RunError::usage(RunErrorKind::Usage, format!("{error}")))?;
        match workspace.find(None) {
            Ok(found) => osmosis_data::resolve(&reference, &found.root).and_then(Dataset::open),
            Err(_) if absolute(file)?.exists() => opened,
            Err(_) => {
                return Err(RunError::usage(
                    RunErrorKind::FileNotFound,
                    format!("`{file}` is not there"),
                ));
            }
        }
    };
    let dataset = dataset.map_err(|error| data_error(&error))?;
    Ok(dataset.with_columns(columns))
}

/// `NAME=COLUMN`, as `[dataset.columns]` has them.
fn columns(given: &[String]) -> Result<DatasetColumns, RunError> {
    let mut columns = DatasetColumns::default();
    for text in given {
        let usage = |message: String| RunError::usage(RunErrorKind::Usage, message);
        let Some((ours, theirs)) = text.split_once('=') else {
            return Err(usage(format!("`--column {text}` has no `=`"))
                .hint("write `--column user_prompt=COLUMN`"));
        };
        columns.set(ours, theirs).map_err(|error| {
            usage(format!("`--column {text}`: {error}")).maybe_hint(error.hint())
        })?;
    }
    Ok(columns)
}

fn validate(dataset: Dataset, output: &Output) -> Result<Exit, RunError> {
    let taking = dataset.taking();
    let path = dataset.path().to_owned();
    let report = checked(&dataset).map_err(|error| {
        let whole = dataset.with(Taking::WholeRows);
        if taking == Taking::Columns && checked(&whole).is_ok() {
            let hint = error.hint_text().map(|hint| format!("{hint}; "));
            let hint = hint.unwrap_or_default();
            error.hint(format!(
                "{hint}a workflow of AReaL's shape takes rows with any columns: these would do, see \
                 `--any-columns`"
            ))
        } else {
            error
        }
    })?;
    output.line(format_args!("{path}: {} rows, all good", report.rows));
    output.operation("valid", &report);
    Ok(Exit::Ok)
}

fn preview(dataset: &Dataset, rows: usize, output: &Output) -> Result<Exit, RunError> {
    let preview = DatasetPreview::of(dataset, rows)?;
    output.line(render(&preview).trim_end());
    output.details(&preview);
    Ok(Exit::Ok)
}

fn render(preview: &DatasetPreview) -> String {
    let mut text = String::new();
    // Writing to a string can't fail.
    let compression = preview.compression.as_ref();
    let compression = compression.map_or_else(String::new, |name| format!(", {name}"));
    let files = match preview.files.len() {
        0 => String::new(),
        1 => " in one file".to_owned(),
        count => format!(" in {count} files"),
    };
    let _ = writeln!(
        text,
        "{}: {} rows{files} ({}{compression})",
        preview.path, preview.rows, preview.format
    );
    if preview.unreadable_rows > 0 {
        let _ = writeln!(
            text,
            "{} of them can't be read; `osmosis dataset validate` lists them",
            preview.unreadable_rows
        );
    }
    text.push('\n');
    render_columns(&preview.columns, preview.rows, &mut text);
    if let Some(problem) = &preview.problem {
        let label = paint("not usable yet:", Style::new().yellow().bold());
        let _ = writeln!(text, "\n{label} {problem}");
        if let Some(hint) = &preview.hint {
            let _ = writeln!(
                text,
                "{} {hint}",
                paint("hint:", Style::new().cyan().bold())
            );
        }
    }
    for row in &preview.items {
        text.push('\n');
        render_row(row, preview.problem.is_some(), &mut text);
    }
    text
}

fn render_columns(columns: &[PreviewColumn], rows: u64, text: &mut String) {
    let types = |column: &PreviewColumn| match column.types.as_slice() {
        [] => "null".to_owned(),
        types => types.join(" or "),
    };
    let width = |longest: Option<usize>, title: &str| longest.unwrap_or(0).max(title.len());
    let longest = |of: &dyn Fn(&PreviewColumn) -> usize| columns.iter().map(of).max();
    let name = width(longest(&|column| column.name.chars().count()), "column");
    let kind = width(longest(&|column| types(column).len()), "type");
    let count = width(Some(rows.to_string().len()), "rows");
    let _ = writeln!(
        text,
        "  {:name$}  {:kind$}  {:>count$}  read as",
        "column", "type", "rows"
    );
    for column in columns {
        let _ = writeln!(
            text,
            "  {:name$}  {:kind$}  {:>count$}  {}",
            column.name,
            types(column),
            column.rows,
            column.read_as.as_deref().unwrap_or("-")
        );
    }
}

fn render_row(row: &PreviewRow, whole: bool, text: &mut String) {
    let heading = format!("Row {} (line {})", row.row_index, row.line);
    let _ = writeln!(text, "{}", paint(&heading, Style::new().bold()));
    if let Some(error) = &row.error {
        field(text, "error", error);
    }
    if (whole || row.error.is_some())
        && let Some(body) = &row.row
    {
        field(text, "row", body.as_str());
        return;
    }
    for message in &row.prompt {
        let of = |key: &str| message.get(key).and_then(serde_json::Value::as_str);
        field(
            text,
            of("role").unwrap_or("user"),
            of("content").unwrap_or(""),
        );
    }
    if let Some(label) = &row.label {
        field(text, "ground truth", label);
    }
    if let Some(metadata) = &row.metadata {
        field(text, "metadata", metadata.as_str());
    }
}

fn field(text: &mut String, name: &str, value: &str) {
    let count = value.chars().count();
    let mut shown: String = value.chars().take(SHOWN).collect();
    if count > SHOWN {
        let _ = write!(shown, "… ({} characters more)", count - SHOWN);
    }
    // Below each other, so that it is seen where a value ends.
    let shown = shown.replace('\n', "\n                ");
    let _ = writeln!(text, "  {name:12}  {shown}");
}

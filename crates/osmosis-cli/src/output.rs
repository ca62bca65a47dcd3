//! What goes to the screen: text for people, one envelope for programs.

use std::io::IsTerminal;
use std::process::ExitCode;

use osmosis_run::RunError;
use owo_colors::{Stream, Style};
use serde::Serialize;
use serde_json::{Value, json};

use crate::arguments::OutputArguments;
use crate::error::Exit;

use crate::terminal::{self, write_err, write_json_err, write_json_out, write_out};
use crate::unknown_flags;

/// The version of every JSON envelope.
const SCHEMA_VERSION: u32 = 1;

/// How a command speaks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    mode: Mode,
    is_verbose: bool,
    command: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Colours and a moving progress display, where the stream is a terminal.
    Rich,
    Plain,
    Json,
}

impl Output {
    pub(crate) fn new(arguments: OutputArguments, verbose: u8, command: &'static str) -> Self {
        let mode = if arguments.json {
            Mode::Json
        } else if arguments.plain {
            Mode::Plain
        } else {
            Mode::Rich
        };
        if mode != Mode::Rich || std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty()) {
            owo_colors::set_override(false);
        }
        Self {
            mode,
            is_verbose: verbose > 0,
            command,
        }
    }

    pub(crate) fn is_json(&self) -> bool {
        self.mode == Mode::Json
    }

    /// Whether people want the numbers explained.
    pub(crate) fn is_verbose(&self) -> bool {
        self.is_verbose
    }

    /// Whether a moving display makes sense on standard error.
    pub(crate) fn moves(&self) -> bool {
        self.mode == Mode::Rich && std::io::stderr().is_terminal()
    }

    /// Whether a person is there to answer a question.
    pub(crate) fn can_ask(&self) -> bool {
        self.mode != Mode::Json && std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
    }

    /// A line for people on standard output; nothing in JSON mode.
    pub(crate) fn line(&self, text: impl std::fmt::Display) {
        if !self.is_json() {
            write_out(&format!("{text}\n"));
        }
    }

    /// A remark on standard error; nothing in JSON mode.
    pub(crate) fn note(&self, text: impl std::fmt::Display) {
        if !self.is_json() {
            write_err(&format!("{text}\n"));
        }
    }

    /// Where something is served meanwhile, on standard error: standard output has the result.
    pub(crate) fn served_meanwhile(&self, text: impl std::fmt::Display, resource: &impl Serialize) {
        self.tell_meanwhile(("serving", "view"), text, resource);
    }

    /// What programs want to know before there is a result, on standard error.
    pub(crate) fn meanwhile(
        &self,
        status: &str,
        text: impl std::fmt::Display,
        resource: &impl Serialize,
    ) {
        self.tell_meanwhile((status, self.command), text, resource);
    }

    fn tell_meanwhile(
        &self,
        (status, operation): (&str, &str),
        text: impl std::fmt::Display,
        resource: &impl Serialize,
    ) {
        if self.is_json() {
            let envelope = json!({
                "schema_version": SCHEMA_VERSION,
                "status": status,
                "operation": operation,
                "resource": resource,
            });
            write_json_err(&format!("{envelope}\n"));
        } else {
            write_err(&format!("{text}\n"));
        }
    }

    /// The beginning of a line on standard error, for a person who is to answer on the same line.
    pub(crate) fn question(&self, text: impl std::fmt::Display) {
        if !self.is_json() {
            write_err(&text.to_string());
        }
    }

    pub(crate) fn warn(&self, text: impl std::fmt::Display) {
        if !self.is_json() {
            let label = paint_err("warning:", Style::new().yellow().bold());
            write_err(&format!("{label} {text}\n"));
        }
    }

    /// The result of an operation, in JSON mode.
    pub(crate) fn operation(&self, status: &str, resource: &impl Serialize) {
        if self.is_json() {
            print_envelope(&json!({
                "schema_version": SCHEMA_VERSION,
                "status": status,
                "operation": self.command,
                "resource": resource,
            }));
        }
    }

    /// Like `operation`, on one line: for whoever started us and reads what we print as we go on.
    pub(crate) fn operation_line(&self, status: &str, resource: &impl Serialize) {
        if self.is_json() {
            let envelope = json!({
                "schema_version": SCHEMA_VERSION,
                "status": status,
                "operation": self.command,
                "resource": resource,
            });
            write_json_out(&format!("{envelope}\n"));
        }
    }

    /// A list, in JSON mode.
    pub(crate) fn list(&self, items: &[impl Serialize]) {
        if self.is_json() {
            print_envelope(&json!({
                "schema_version": SCHEMA_VERSION,
                "items": items,
                "total_count": items.len(),
            }));
        }
    }

    /// A line of a log that is followed, as one JSON document per line, in JSON mode.
    pub(crate) fn log_line(&self, line: &str) {
        if self.is_json() {
            let envelope = json!({ "schema_version": SCHEMA_VERSION, "data": { "line": line } });
            write_json_out(&format!("{envelope}\n"));
        }
    }

    /// A page of a list, in JSON mode: how many items there are on all pages, and where the next one starts.
    pub(crate) fn page(
        &self,
        items: &[impl Serialize],
        total_count: u64,
        next: Option<&impl Serialize>,
    ) {
        if self.is_json() {
            print_envelope(&json!({
                "schema_version": SCHEMA_VERSION,
                "items": items,
                "total_count": total_count,
                "next": next,
            }));
        }
    }

    /// The details of one thing, in JSON mode.
    pub(crate) fn details(&self, data: &impl Serialize) {
        if self.is_json() {
            print_envelope(&json!({ "schema_version": SCHEMA_VERSION, "data": data }));
        }
    }

    /// Tells the error and gives the exit code.
    pub(crate) fn fail(&self, error: &RunError) -> ExitCode {
        if self.is_json() {
            let mut details = error.detail_values();
            if let (Some(hint), Some(map)) = (error.hint_text(), details.as_object_mut()) {
                map.insert("hint".to_owned(), json!(hint));
            }
            let envelope = json!({
                "schema_version": SCHEMA_VERSION,
                "command": self.command,
                "error": {"code": error.kind().code(), "message": error.message(), "details": details},
            });
            write_json_err(&format!("{envelope:#}\n"));
        } else {
            let label = paint_err("error:", Style::new().red().bold());
            write_err(&format!("{label} {error}\n"));
            if let Some(hint) = error.hint_text() {
                let label = paint_err("hint:", Style::new().cyan().bold());
                write_err(&format!("{label} {hint}\n"));
            }
        }
        Exit::from(error).into()
    }
}

/// A count that grows on one line of standard error, where a person looks on.
#[derive(Debug)]
pub(crate) struct Counter {
    bar: indicatif::ProgressBar,
}

impl Counter {
    pub(crate) fn new(output: &Output, what: &'static str) -> Self {
        let target = if output.moves() {
            indicatif::ProgressDrawTarget::stderr()
        } else {
            indicatif::ProgressDrawTarget::hidden()
        };
        let bar = indicatif::ProgressBar::with_draw_target(None, target);
        if let Ok(style) = indicatif::ProgressStyle::with_template("{pos}/{len} {msg}") {
            bar.set_style(style);
        }
        bar.set_message(what);
        Self { bar }
    }

    pub(crate) fn show(&self, done: u64, total: u64) {
        self.bar.set_length(total);
        self.bar.set_position(done);
    }

    pub(crate) fn finish(self) {
        self.bar.finish_and_clear();
    }
}

/// A wrong command line: clap's own text, or our envelope when `--json` is among the arguments.
pub(crate) fn usage_error(error: clap::Error) -> ExitCode {
    use clap::error::ErrorKind;
    let typed: Vec<String> = std::env::args_os()
        .map(|argument| argument.to_string_lossy().into_owned())
        .collect();
    let error = unknown_flags::with_tip(error, &typed);
    let wants_json = std::env::args_os().any(|argument| argument == "--json");
    let is_help = matches!(
        error.kind(),
        ErrorKind::DisplayHelp
            | ErrorKind::DisplayVersion
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    );
    if wants_json && !is_help {
        let envelope = json!({
            "schema_version": SCHEMA_VERSION,
            "command": "osmosis",
            "error": {
                "code": "usage",
                "message": error.to_string().trim_end(),
                "details": {},
            },
        });
        write_json_err(&format!("{envelope:#}\n"));
        return Exit::Usage.into();
    }
    let hostile = |argument: std::ffi::OsString| {
        let text = argument.to_string_lossy();
        terminal::neutral(&text) != text
    };
    if std::env::args_os().any(hostile) {
        write_err(&error.render().to_string());
    } else {
        // A closed pipe is no reason to fail in another way.
        let _ = error.print();
    }
    let exit = match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Exit::Ok,
        _ => Exit::Usage,
    };
    exit.into()
}

/// Text in a style, where standard output shows colours.
pub(crate) fn paint(text: &str, style: Style) -> String {
    terminal::paint(text, style, Stream::Stdout)
}

fn paint_err(text: &str, style: Style) -> String {
    terminal::paint(text, style, Stream::Stderr)
}

fn print_envelope(value: &Value) {
    write_json_out(&format!("{value:#}\n"));
}

//! `--junit FILE`: the run as CI systems read test results, one test case for each dataset row.
//!
//! A row passes when all of its rollouts passed. It is an *error* when one failed for reasons outside
//! the agent, *skipped* when one has no result, a *failure* otherwise. The shape is that of the Ant and
//! Jenkins schemas, which leave out nothing.
//!
//! Written by hand, row by row. `quick-junit` 0.8 holds every test case in memory, writes times with an offset
//! and counts on `<testsuites>`, which the Ant schema does not allow, leaves out the empty `<properties/>` that
//! it asks for, and drops control characters instead of showing them.

use std::fs::File;
use std::io::{self, BufWriter, Write};

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::{Outcome, OutcomeKind, Redactor, RunName};
use osmosis_run::{RunError, RunErrorKind, io_error};
use osmosis_store::{RolloutPages, RolloutQuery, RolloutRecord, Store};

use crate::command_line;
use crate::figures::number;
use crate::private_files;
use crate::workspace::Workspace;

/// The message of a test case is cut here.
const MESSAGE_CHARS: usize = 500;
/// Of the rollouts of a row that did not pass, as many are told about.
const MOST_TOLD: usize = 5;

const TAIL: &[u8] = b"    <system-out/>\n    <system-err/>\n  </testsuite>\n</testsuites>\n";

/// Where and of what the report is.
#[derive(Debug)]
pub(crate) struct JunitReport<'a> {
    run: RunName,
    begun_at_ms: i64,
    workspace: &'a Workspace,
    redactor: Redactor,
}

#[derive(Debug, Default)]
struct Counts {
    tests: u64,
    failures: u64,
    errors: u64,
    skipped: u64,
    seconds: f64,
}

/// The rollouts of one row, together.
#[derive(Debug, Default)]
struct Row {
    index: u64,
    rollouts: u64,
    passed: u64,
    unfinished: u64,
    infrastructure: bool,
    rewards: (u64, f64),
    seconds: f64,
    /// The first that did not pass.
    first: Option<String>,
    kind: Option<OutcomeKind>,
    details: Vec<String>,
}

/// What a row comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Passed,
    Failed,
    Error,
    Skipped,
}

impl Row {
    fn new(index: u64) -> Self {
        Self {
            index,
            ..Self::default()
        }
    }

    fn add(&mut self, rollout: &RolloutRecord) {
        self.rollouts += 1;
        let durations = rollout.durations;
        self.seconds += (durations.agent + durations.grade) / 1000.0;
        let Some(outcome) = &rollout.outcome else {
            self.unfinished += 1;
            return;
        };
        if let Some(reward) = outcome.reward() {
            self.rewards.0 += 1;
            self.rewards.1 += reward.get();
        }
        if outcome.passed() {
            self.passed += 1;
            return;
        }
        if outcome.kind() == OutcomeKind::Cancelled {
            self.unfinished += 1;
            return;
        }
        self.infrastructure |= outcome.kind() == OutcomeKind::InfrastructureFailed;
        let name = format!("{}.{}", rollout.row_index, rollout.run_index);
        self.kind.get_or_insert(outcome.kind());
        if self.details.len() < MOST_TOLD {
            self.details.push(format!("{name} {}", told(outcome)));
        }
        self.first.get_or_insert(name);
    }

    fn verdict(&self) -> Verdict {
        if self.infrastructure {
            Verdict::Error
        } else if self.first.is_some() {
            Verdict::Failed
        } else if self.unfinished > 0 {
            Verdict::Skipped
        } else {
            Verdict::Passed
        }
    }

    fn message(&self) -> String {
        let reward = match self.rewards {
            (0, _) => "no reward".to_owned(),
            (count, sum) => format!("reward {}", number(sum / count as f64)),
        };
        let first = self.details.first().map_or("", |detail| detail.as_str());
        format!(
            "{} of {} rollouts passed, {reward}; {first}",
            self.passed, self.rollouts
        )
    }
}

/// An outcome with all that is known of it.
fn told(outcome: &Outcome) -> String {
    let kind = outcome.kind().as_str().replace('_', " ");
    match outcome {
        Outcome::Scored { reward, .. } => {
            format!("{kind}: reward {}, did not pass", number(reward.get()))
        }
        Outcome::AgentFailed { failure }
        | Outcome::Ungraded { failure }
        | Outcome::InfrastructureFailed { failure } => match &failure.traceback {
            Some(traceback) => format!("{kind}: {}\n{traceback}", failure.message),
            None => format!("{kind}: {}", failure.message),
        },
        Outcome::TimedOut { .. } | Outcome::Rejected { .. } | Outcome::Cancelled => {
            match outcome.explanation() {
                Some(why) => format!("{kind}: {why}"),
                None => kind,
            }
        }
    }
}

impl<'a> JunitReport<'a> {
    pub(crate) async fn of(
        store: &dyn Store,
        workspace: &'a Workspace,
        redactor: Redactor,
    ) -> Result<Self, RunError> {
        let record = store.run().await?;
        let record = record
            .ok_or_else(|| RunError::failed(RunErrorKind::RunDamaged, "the run was never begun"))?;
        Ok(Self {
            run: record.name,
            begun_at_ms: record.created_at_ms,
            workspace,
            redactor,
        })
    }

    /// Writes the file whole or not at all. The rollouts are read twice, because their counts stand
    /// at the beginning.
    pub(crate) async fn write(&self, store: &dyn Store, path: &Utf8Path) -> Result<(), RunError> {
        if let Some(parent) = path.parent() {
            private_files::create_shared_folder(parent)
                .map_err(|error| io_error(parent, &error))?;
        }
        let mut counts = Counts::default();
        each_row(store, |row| {
            counts.tests += 1;
            counts.seconds += row.seconds;
            match row.verdict() {
                Verdict::Passed => {}
                Verdict::Failed => counts.failures += 1,
                Verdict::Error => counts.errors += 1,
                Verdict::Skipped => counts.skipped += 1,
            }
            Ok(())
        })
        .await?;
        let temporary = Utf8PathBuf::from(format!("{path}.tmp"));
        let failed = |error: io::Error| io_error(path, &error);
        let mut file = BufWriter::new(File::create(&temporary).map_err(failed)?);
        self.head(&mut file, &counts).map_err(failed)?;
        each_row(store, |row| self.test_case(&mut file, row)).await?;
        file.write_all(TAIL)
            .and_then(|()| file.flush())
            .and_then(|()| private_files::share(&temporary))
            .and_then(|()| std::fs::rename(&temporary, path))
            .map_err(failed)
    }

    fn head(&self, out: &mut impl Write, counts: &Counts) -> io::Result<()> {
        let run = self.clean(self.run.as_str());
        let timestamp = jiff::Timestamp::from_millisecond(self.begun_at_ms).map_or_else(
            |_| "1970-01-01T00:00:00".to_owned(),
            |time| time.strftime("%Y-%m-%dT%H:%M:%S").to_string(),
        );
        let Counts {
            tests,
            failures,
            errors,
            skipped,
            seconds,
        } = counts;
        writeln!(out, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>")?;
        writeln!(out, "<testsuites>")?;
        writeln!(
            out,
            "  <testsuite id=\"0\" name=\"{run}\" package=\"osmosis\" hostname=\"localhost\" timestamp=\"{timestamp}\" tests=\"{tests}\" failures=\"{failures}\" errors=\"{errors}\" skipped=\"{skipped}\" time=\"{seconds:.3}\">"
        )?;
        writeln!(out, "    <properties/>")
    }

    fn test_case(&self, out: &mut impl Write, row: &Row) -> io::Result<()> {
        let class = self.clean(self.run.as_str());
        write!(
            out,
            "    <testcase classname=\"{class}\" name=\"row {}\" time=\"{:.3}\"",
            row.index, row.seconds
        )?;
        let element = match row.verdict() {
            Verdict::Passed => return writeln!(out, "/>"),
            Verdict::Skipped => {
                let message = format!(
                    "{} of {} rollouts have no result",
                    row.unfinished, row.rollouts
                );
                return writeln!(
                    out,
                    ">\n      <skipped message=\"{message}\"/>\n    </testcase>"
                );
            }
            Verdict::Failed => "failure",
            Verdict::Error => "error",
        };
        let first_line = row.message();
        let first_line = first_line.lines().next().unwrap_or_default();
        let message: String = self
            .redactor
            .clean(first_line)
            .chars()
            .take(MESSAGE_CHARS)
            .collect();
        let kind = row.kind.map_or("none", OutcomeKind::as_str);
        let mut text = row.details.join("\n");
        if let Some(first) = &row.first {
            let command =
                command_line::suggest(&["eval", "show", self.run.as_str(), first], self.workspace);
            text = format!("{text}\n\n{command}");
        }
        writeln!(
            out,
            ">\n      <{element} message=\"{}\" type=\"{kind}\">{}</{element}>\n    </testcase>",
            escaped(&message),
            self.clean(&text)
        )
    }

    fn clean(&self, text: &str) -> String {
        escaped(&self.redactor.clean(text))
    }
}

/// Goes through the rows in order, a page of rollouts at a time.
async fn each_row(
    store: &dyn Store,
    mut take: impl FnMut(&Row) -> io::Result<()>,
) -> Result<(), RunError> {
    let failed = |error: io::Error| RunError::failed(RunErrorKind::Io, error.to_string());
    let mut pages = RolloutPages::new(store, RolloutQuery::default());
    let mut row: Option<Row> = None;
    while let Some(page) = pages.next().await? {
        for rollout in &page {
            if row
                .as_ref()
                .is_some_and(|row| row.index != rollout.row_index)
                && let Some(done) = row.take()
            {
                take(&done).map_err(failed)?;
            }
            row.get_or_insert_with(|| Row::new(rollout.row_index))
                .add(rollout);
        }
    }
    match row {
        Some(last) => take(&last).map_err(failed),
        None => Ok(()),
    }
}

/// Text as XML 1.0 can hold it: characters that it can't are shown as `\u{1b}`.
fn escaped(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => clean.push_str("&amp;"),
            '<' => clean.push_str("&lt;"),
            '>' => clean.push_str("&gt;"),
            '"' => clean.push_str("&quot;"),
            '\n' | '\t' => clean.push(c),
            '\u{fffe}' | '\u{ffff}' => clean.extend(c.escape_unicode()),
            c if c.is_control() => clean.extend(c.escape_unicode()),
            c => clean.push(c),
        }
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_xml_cannot_hold_is_shown_and_not_dropped() {
        assert_eq!(
            escaped("a<b>&\"c\"\u{1b}[31m\r\u{0}é😀\u{ffff}\tx\n"),
            "a&lt;b&gt;&amp;&quot;c&quot;\\u{1b}[31m\\u{d}\\u{0}é😀\\u{ffff}\tx\n"
        );
    }
}

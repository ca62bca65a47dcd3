//! Tables that fit the terminal.
//!
//! Where a table is too wide, long texts are cut first. Then columns that a reader can do without are left out. Where
//! even the others do not fit, each row becomes a short paragraph, with everything in it.

use std::io::IsTerminal as _;

use console::{Term, measure_text_width, truncate_str};
use owo_colors::Style;

use crate::output::paint;
use crate::terminal;

/// Spaces between columns.
const GAP: &str = "  ";
/// Before the later lines of a paragraph.
const INDENT: &str = "    ";

/// A column, and what becomes of it where there is little room.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Column {
    title: &'static str,
    is_number: bool,
    /// It may be cut to this many characters.
    least: Option<usize>,
    /// It may be left out.
    optional: bool,
}

impl Column {
    pub(crate) const fn text(title: &'static str) -> Self {
        Self {
            title,
            is_number: false,
            least: None,
            optional: false,
        }
    }

    pub(crate) const fn number(title: &'static str) -> Self {
        Self {
            is_number: true,
            ..Self::text(title)
        }
    }

    /// May be cut to this many characters.
    pub(crate) const fn cut_to(self, least: usize) -> Self {
        Self {
            least: Some(least),
            ..self
        }
    }

    /// May be left out.
    pub(crate) const fn optional(self) -> Self {
        Self {
            optional: true,
            ..self
        }
    }
}

/// Rows of cells under titles.
#[derive(Debug)]
pub(crate) struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

/// How wide standard output is; `None` for a file or a pipe, which has room for everything.
pub(crate) fn screen_width() -> Option<usize> {
    // Also for a pipe whose reader asks for it.
    let asked = std::env::var("COLUMNS").ok();
    if let Some(columns) = asked.and_then(|columns| columns.parse().ok()) {
        return Some(columns).filter(|columns| *columns > 0);
    }
    if !std::io::stdout().is_terminal() {
        return None;
    }
    let (_, columns) = Term::stdout().size_checked()?;
    Some(usize::from(columns))
}

impl Table {
    pub(crate) fn new(columns: impl Into<Vec<Column>>) -> Self {
        Self {
            columns: columns.into(),
            rows: vec![],
        }
    }

    /// Adds a row with a cell for each column.
    pub(crate) fn row(&mut self, cells: impl Into<Vec<String>>) {
        let cells: Vec<String> = cells.into();
        self.rows
            .push(cells.iter().map(|cell| one_line(cell)).collect());
    }

    /// The lines of the table, in this many columns of a terminal.
    pub(crate) fn render(&self, width: Option<usize>) -> String {
        // A column in which nothing stands is noise.
        let used: Vec<usize> = (0..self.columns.len())
            .filter(|place| self.rows.iter().any(|row| !row[*place].is_empty()))
            .collect();
        let Some(width) = width else {
            let widths: Vec<usize> = used.iter().map(|place| self.natural(*place)).collect();
            return self.lines(&used, &widths);
        };
        let mut shown = used.clone();
        loop {
            if let Some(widths) = self.fit(&shown, width) {
                return self.lines(&shown, &widths);
            }
            // The last one matters least.
            let Some(place) = shown
                .iter()
                .rposition(|column| self.columns[*column].optional)
            else {
                return self.paragraphs(&used, width);
            };
            shown.remove(place);
        }
    }

    fn natural(&self, column: usize) -> usize {
        let cells = self.rows.iter().map(|row| measure_text_width(&row[column]));
        let title = measure_text_width(self.columns[column].title);
        cells.max().unwrap_or(0).max(title)
    }

    /// The widths of these columns, when they fit.
    fn fit(&self, shown: &[usize], width: usize) -> Option<Vec<usize>> {
        let natural: Vec<usize> = shown.iter().map(|column| self.natural(*column)).collect();
        let least: Vec<usize> = shown
            .iter()
            .zip(&natural)
            .map(|(column, natural)| {
                let least = self.columns[*column].least;
                least.map_or(*natural, |least| least.min(*natural))
            })
            .collect();
        let gaps = GAP.len() * shown.len().saturating_sub(1);
        let mut spare = width.checked_sub(least.iter().sum::<usize>() + gaps)?;
        let mut widths = least;
        // What is left goes to those that were cut, a character at a time.
        while spare > 0 {
            let before = spare;
            for (width, natural) in widths.iter_mut().zip(&natural) {
                if *width < *natural && spare > 0 {
                    *width += 1;
                    spare -= 1;
                }
            }
            if spare == before {
                break;
            }
        }
        Some(widths)
    }

    fn lines(&self, shown: &[usize], widths: &[usize]) -> String {
        let line = |cell: &dyn Fn(usize) -> String| {
            let cells = shown.iter().zip(widths).map(|(column, width)| {
                let text = cell(*column);
                let text = truncate_str(&text, *width, "…");
                let room = " ".repeat(width.saturating_sub(measure_text_width(&text)));
                if self.columns[*column].is_number {
                    format!("{room}{text}")
                } else {
                    format!("{text}{room}")
                }
            });
            let line = cells.collect::<Vec<_>>().join(GAP);
            line.trim_end().to_owned()
        };
        let title = line(&|column| self.columns[column].title.to_owned());
        let mut lines = vec![paint(&title, Style::new().dimmed())];
        let rows = self.rows.iter();
        lines.extend(rows.map(|row| line(&|column| row[column].clone())));
        lines.join("\n")
    }

    /// The first cell of each row on a line, and the others below it.
    fn paragraphs(&self, used: &[usize], width: usize) -> String {
        let mut lines = vec![];
        for row in &self.rows {
            let cells: Vec<(&'static str, String)> = used
                .iter()
                .map(|column| (self.columns[*column].title, row[*column].clone()))
                .filter(|(_, cell)| !cell.is_empty())
                .collect();
            let mut cells = cells.into_iter();
            lines.extend(cells.next().map(|(_, first)| first));
            let parts: Vec<String> = cells
                .map(|(title, cell)| format!("{title} {cell}"))
                .collect();
            lines.extend(wrapped(&parts, width));
        }
        lines.join("\n")
    }
}

/// Parts with dots between them, on as many lines as they need. A part that is longer than a line is cut.
fn wrapped(parts: &[String], width: usize) -> Vec<String> {
    let mut lines: Vec<String> = vec![];
    for part in parts {
        let room = width.saturating_sub(INDENT.len()).max(8);
        let part = truncate_str(part, room, "…");
        match lines.last_mut() {
            Some(line) if measure_text_width(line) + 3 + measure_text_width(&part) <= width => {
                line.push_str(" · ");
                line.push_str(&part);
            }
            Some(_) | None => lines.push(format!("{INDENT}{part}")),
        }
    }
    lines
}

/// Text of others may have line ends, which would break a table, and what a terminal obeys, which has no width.
fn one_line(text: &str) -> String {
    let text = terminal::neutral(text);
    if !text.contains(['\n', '\t']) {
        return text.into_owned();
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new([
            Column::text("run"),
            Column::text("status"),
            Column::number("pass rate"),
            Column::text("model").cut_to(8),
            Column::number("cost").optional(),
            Column::text("nothing"),
        ]);
        for (run, model) in [
            ("sql-20260101-120000", "openai/gpt-5-mini"),
            ("multiply-20260101-120000", "hosted_vllm/Qwen/Qwen3-4B"),
        ] {
            table.row([run, "finished", "12.5%", model, "$0.12", ""].map(str::to_owned));
        }
        table
    }

    #[test]
    fn a_wide_screen_shows_everything() {
        insta::assert_snapshot!(table().render(Some(120)), @r"
        run                       status    pass rate  model                       cost
        sql-20260101-120000       finished      12.5%  openai/gpt-5-mini          $0.12
        multiply-20260101-120000  finished      12.5%  hosted_vllm/Qwen/Qwen3-4B  $0.12
        ");
        assert_eq!(table().render(None), table().render(Some(1000)));
    }

    #[test]
    fn texts_are_cut_before_columns_are_left_out() {
        insta::assert_snapshot!(table().render(Some(72)), @r"
        run                       status    pass rate  model                cost
        sql-20260101-120000       finished      12.5%  openai/gpt-5-mini   $0.12
        multiply-20260101-120000  finished      12.5%  hosted_vllm/Qwen/…  $0.12
        ");
        insta::assert_snapshot!(table().render(Some(60)), @r"
        run                       status    pass rate  model
        sql-20260101-120000       finished      12.5%  openai/gpt-5…
        multiply-20260101-120000  finished      12.5%  hosted_vllm/…
        ");
    }

    #[test]
    fn a_narrow_screen_has_paragraphs_with_everything_in_them() {
        insta::assert_snapshot!(table().render(Some(50)), @r"
        sql-20260101-120000
            status finished · pass rate 12.5%
            model openai/gpt-5-mini · cost $0.12
        multiply-20260101-120000
            status finished · pass rate 12.5%
            model hosted_vllm/Qwen/Qwen3-4B · cost $0.12
        ");
        insta::assert_snapshot!(table().render(Some(24)), @r"
        sql-20260101-120000
            status finished
            pass rate 12.5%
            model openai/gpt-5-…
            cost $0.12
        multiply-20260101-120000
            status finished
            pass rate 12.5%
            model hosted_vllm/Q…
            cost $0.12
        ");
    }

    #[test]
    fn no_line_is_wider_than_the_screen() {
        for width in 24..140 {
            for line in table().render(Some(width)).lines() {
                assert!(measure_text_width(line) <= width, "{width}: {line}");
            }
        }
    }
}

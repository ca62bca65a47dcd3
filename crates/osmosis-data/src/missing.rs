//! What to do about columns that a file doesn't have.

use crate::error::listed;

/// How many of a file's columns an error names.
const MAX_NAMED: usize = 12;

/// What other people call our columns, the most usual first.
const USER_PROMPT: &[&str] = &[
    "question",
    "prompt",
    "problem",
    "query",
    "instruction",
    "input",
    "task",
    "text",
];
const GROUND_TRUTH: &[&str] = &[
    "answer",
    "solution",
    "expected",
    "expected_answer",
    "target",
    "output",
    "response",
    "completion",
    "gold",
    "reference",
];

/// How alike two names must be for one to be taken for the other.
const ALIKE: f64 = 0.85;

/// A column that is missing: ours, and what the config says the file calls it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MissingColumn<'a> {
    pub(crate) column: &'static str,
    pub(crate) named: Option<&'a str>,
}

/// What to write into the config, or into the file, with all columns that the file has.
pub(crate) fn hint(missing: &[MissingColumn<'_>], there: &[String]) -> String {
    if let [one] = there
        && one.contains([';', '\t'])
    {
        return "separate cells with commas".to_owned();
    }
    let mut taken: Vec<&str> = Vec::new();
    let mut mapped = Vec::new();
    for column in missing {
        let nearest = nearest(*column, there, &taken);
        taken.extend(nearest);
        mapped.push(format!(
            "`{} = \"{}\"`",
            column.column,
            nearest.unwrap_or("COLUMN")
        ));
    }
    let advice = format!(
        "name {} in the config: `[dataset.columns]` with {}",
        if missing.len() == 1 {
            "the column"
        } else {
            "the columns"
        },
        mapped.join(" and ")
    );
    let names = listed(there.iter().take(MAX_NAMED).map(String::as_str));
    let found = match there.len() {
        0 => return "add it; it is optional only in rows with `metadata`".to_owned(),
        count if count > MAX_NAMED => format!("the file has {names} and more"),
        _ => format!("the file has {names}"),
    };
    let optional = if missing.iter().any(|column| column.named.is_none()) {
        "; both prompt and label are optional only in rows with `metadata`"
    } else {
        ""
    };
    format!("{found}; {advice}{optional}")
}

/// The column that was most likely meant, and is no other's already.
fn nearest<'t>(column: MissingColumn<'_>, there: &'t [String], taken: &[&str]) -> Option<&'t str> {
    let free = || {
        there
            .iter()
            .map(String::as_str)
            .filter(|name| !taken.contains(name))
    };
    let wanted = column.named.unwrap_or(column.column);
    let usual = match (column.named, column.column) {
        (None, "user_prompt") => USER_PROMPT,
        (None, "ground_truth") => GROUND_TRUTH,
        _ => &[],
    };
    let alike = || {
        free()
            .map(|name| {
                let lower = name.to_lowercase();
                (strsim::jaro_winkler(&lower, &wanted.to_lowercase()), name)
            })
            .filter(|(alike, _)| *alike >= ALIKE)
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .map(|(_, name)| name)
    };
    alike().or_else(|| {
        usual
            .iter()
            .find_map(|usual| free().find(|name| name.eq_ignore_ascii_case(usual)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(column: &'static str, named: Option<&str>, there: &[&str], expected: Option<&str>) {
        let there: Vec<String> = there.iter().map(|&name| name.to_owned()).collect();
        let found = nearest(MissingColumn { column, named }, &there, &[]);
        assert_eq!(found, expected);
    }

    #[test]
    fn the_nearest_column_is_one_of_a_like_or_a_usual_name() {
        check("user_prompt", None, &["id", "question"], Some("question"));
        check(
            "user_prompt",
            None,
            &["prompt", "userPrompt"],
            Some("userPrompt"),
        );
        check("ground_truth", None, &["Answer", "id"], Some("Answer"));
        check("ground_truth", None, &["id", "zebra"], None);
        check(
            "user_prompt",
            Some("questin"),
            &["question"],
            Some("question"),
        );
        check("user_prompt", Some("zebra"), &["question"], None);
    }
}

use serde::Serialize;
use toml_edit::TableLike;

use super::ConfigProblem;
use super::reader::Reader;
use super::section::type_of;

/// `[training.lora]`: adapters are trained, and the model below them stays as it is.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Lora {
    pub rank: u32,
    pub alpha: f64,
    /// Names of the modules that get adapters; all linear ones without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_modules: Option<Vec<String>>,
    pub dropout: f64,
}

const KEYS: [&str; 4] = ["rank", "alpha", "target_modules", "dropout"];
const MOST_RANK: i64 = 1024;

pub(super) fn read(reader: &mut Reader<'_>) -> Option<Lora> {
    let section = reader.section("training");
    let entry = section.entry("lora")?;
    let Some(table) = entry.item.as_table_like() else {
        let problem = section.wrong_type("lora", "a table", entry.item);
        reader.report(entry.offset, problem);
        return None;
    };
    match parse(table) {
        Ok(lora) => Some(lora),
        Err((key, message)) => {
            let problem = ConfigProblem::Unusable {
                section: "training",
                key: format!("lora.{key}"),
                message,
                suggestion: Some(
                    "`[training.lora]` has `rank`, `alpha`, `target_modules` and `dropout`"
                        .to_owned(),
                ),
            };
            reader.report(entry.key_offset, problem);
            None
        }
    }
}

fn parse(table: &dyn TableLike) -> Result<Lora, (String, String)> {
    if let Some((key, _)) = table.iter().find(|(key, _)| !KEYS.contains(key)) {
        return Err((key.to_owned(), "is unknown".to_owned()));
    }
    let number = |key: &str| -> Result<Option<f64>, (String, String)> {
        let Some(item) = table.get(key) else {
            return Ok(None);
        };
        let found = item.as_float().or(item.as_integer().map(|n| n as f64));
        let wrong = || {
            (
                key.to_owned(),
                format!("must be a number, not {}", type_of(item)),
            )
        };
        found.filter(|n| n.is_finite()).map(Some).ok_or_else(wrong)
    };
    let rank = table
        .get("rank")
        .map_or(Some(16), toml_edit::Item::as_integer);
    let rank = rank
        .filter(|rank| (1..=MOST_RANK).contains(rank))
        .and_then(|rank| u32::try_from(rank).ok())
        .ok_or_else(|| {
            let message = format!("must be a whole number from 1 to {MOST_RANK}");
            ("rank".to_owned(), message)
        })?;
    let alpha = number("alpha")?.unwrap_or(f64::from(2 * rank));
    if alpha <= 0.0 {
        return Err(("alpha".to_owned(), "must be more than 0".to_owned()));
    }
    let dropout = number("dropout")?.unwrap_or(0.0);
    if !(0.0..1.0).contains(&dropout) {
        return Err((
            "dropout".to_owned(),
            "must be at least 0 and less than 1".to_owned(),
        ));
    }
    let target_modules = match table.get("target_modules") {
        None => None,
        Some(item) => {
            let wrong = || {
                let message = format!("must be an array of strings, not {}", type_of(item));
                ("target_modules".to_owned(), message)
            };
            let names = item.as_array().ok_or_else(wrong)?.iter();
            let names = names.map(|name| name.as_str().map(str::to_owned));
            Some(names.collect::<Option<Vec<_>>>().ok_or_else(wrong)?)
        }
    };
    Ok(Lora {
        rank,
        alpha,
        target_modules,
        dropout,
    })
}

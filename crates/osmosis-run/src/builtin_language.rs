//! What a built-in model can't be expected to understand.

use osmosis_core::config::ModelPath;
use osmosis_tokens::ChatFormat;
use serde_json::Value;

use crate::checked_dataset::CheckedDataset;

/// Rows that are looked at.
const ROWS: usize = 32;

/// A note for a run of a built-in model on rows whose words it was not trained on; `None` for other models, and
/// for rows like those of `osmosis demo`.
pub fn note(model: &ModelPath, chat: &ChatFormat, dataset: &CheckedDataset) -> Option<String> {
    if !matches!(model, ModelPath::Builtin(_)) {
        return None;
    }
    let rows = dataset.read().take(ROWS).filter_map(Result::ok);
    let texts: Vec<String> = rows
        .flat_map(|row| texts_of(row.body.read().ok()))
        .collect();
    is_foreign(chat, texts.iter().map(String::as_str)).then(|| {
        format!(
            "`{model}` knows the language of `osmosis demo` only (short sums of two numbers): expect no right \
             answers on `{}`; set `model_path` to a model of your own (docs/policy.md)",
            dataset.path()
        )
    })
}

/// Whether most of the words are in pieces for the tokenizer, which was made of the model's whole language.
fn is_foreign<'t>(chat: &ChatFormat, texts: impl Iterator<Item = &'t str>) -> bool {
    let (mut known, mut all) = (0_usize, 0_usize);
    for text in texts {
        let words = text.split(|c: char| !c.is_alphabetic());
        for word in words.filter(|word| !word.is_empty()) {
            all += 1;
            let whole = |text: &str| chat.encode(text).is_ok_and(|ids| ids.len() == 1);
            known += usize::from(whole(word) || whole(&format!(" {word}")));
        }
    }
    known * 2 < all
}

/// Every text in a row; the names of its columns are not the model's to read.
fn texts_of(row: Option<Value>) -> Vec<String> {
    match row {
        Some(Value::String(text)) => vec![text],
        Some(Value::Array(items)) => items.into_iter().flat_map(|v| texts_of(Some(v))).collect(),
        Some(Value::Object(fields)) => fields
            .into_iter()
            .flat_map(|(_, value)| texts_of(Some(value)))
            .collect(),
        Some(_) | None => vec![],
    }
}

#[cfg(test)]
mod tests {
    use osmosis_policy::EmbeddedModel;

    use super::*;

    #[test]
    fn a_built_in_model_knows_the_words_it_was_made_of_and_no_others() {
        let chat = EmbeddedModel::builtin("tiny").unwrap().chat;
        for (text, foreign) in [
            ("What is 12 plus 30?", false),
            (
                "How much is 7 subtracted from 9? Use the tool, then answer with the number alone.",
                false,
            ),
            (
                "Which customers bought more than three items in the last quarter?",
                true,
            ),
            ("SELECT name FROM customers WHERE total > 3", true),
            ("12", false),
        ] {
            assert_eq!(is_foreign(&chat, [text].into_iter()), foreign, "{text}");
        }
    }
}

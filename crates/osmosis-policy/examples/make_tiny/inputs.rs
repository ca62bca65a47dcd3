//! What the weights of `builtin/tiny` follow from, and its digest. Reformatting the program changes
//! neither; another setting, phrasing, template, tool, row or conversation changes both.

use std::error::Error;

use osmosis_policy::ModelConfig;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::conversation::{CHAT_TEMPLATE, INSTRUCTIONS, tools};
use super::dataset::{self, Dataset};
use super::drawn::{Conversations, Purpose, random_numbers};
use super::model;
use super::questions::{EXPRESSIONS, FRAMES, Phrasing};
use super::settings::Settings;
use super::tokenizer;

/// Keys in the metadata of the model's file.
pub(crate) const MADE_FROM: &str = "made_from";
pub(crate) const MADE_FROM_SHA256: &str = "made_from_sha256";
pub(crate) const MADE_ON: &str = "made_on";

/// Conversations whose digest is part of the inputs.
const CONVERSATIONS: usize = 4096;
/// Values of each initial tensor, and learning rates, that are.
const VALUES: usize = 4;

/// Everything as one object with sorted keys. `config` is that of the finished model: its vocabulary
/// follows from the tokenizer's texts.
pub(crate) fn made_from(
    settings: &Settings,
    dataset: &Dataset,
    config: &ModelConfig,
) -> Result<Value, Box<dyn Error + Send + Sync>> {
    let kept_out = dataset.kept_out();
    let mut conversations = Conversations::new(settings, &kept_out, Purpose::Conversations);
    let mut drawn = Sha256::new();
    for _ in 0..CONVERSATIONS {
        drawn.update(Value::from(conversations.draw().messages).to_string());
        drawn.update("\n");
    }
    let phrasings: Vec<String> = Phrasing::all()
        .map(|phrasing| {
            format!(
                "{} {:?}",
                FRAMES[phrasing.frame].replace("{}", phrasing.expression().words),
                phrasing.reserved()
            )
        })
        .collect();
    let expressions: Vec<Value> = EXPRESSIONS
        .iter()
        .map(|one| json!([one.words, one.operation.name(), one.decoy.name()]))
        .collect();
    let rows: Map<String, Value> = dataset
        .files()
        .into_iter()
        .map(|(name, lines)| (name.to_owned(), Value::from(sha256(&lines))))
        .collect();
    let rates: Vec<String> = (0..VALUES)
        .map(|quarter| settings.learning_rate(quarter * settings.updates / VALUES))
        .map(|rate| format!("{rate:.4e}"))
        .collect();
    Ok(sorted(json!({
        "settings": serde_json::to_value(settings)?,
        "learning_rates": rates,
        "dataset_seed": dataset::SEED,
        "rows_sha256": rows,
        "expressions": expressions,
        "phrasings": phrasings,
        "instructions": INSTRUCTIONS,
        "chat_template_sha256": sha256(CHAT_TEMPLATE),
        // As texts: the order of the keys is an input too.
        "tools": Value::from(tools()).to_string(),
        "config": config.source.to_string(),
        "special_tokens": tokenizer::SPECIAL,
        "token_pieces": tokenizer::PIECES,
        "initial_weights": initial_weights(settings, config),
        "conversations_sha256": hex(&drawn.finalize()),
    })))
}

/// The digest of what [`made_from`] returns.
pub(crate) fn digest(made_from: &Value) -> String {
    sha256(&made_from.to_string())
}

/// Rounded, since libraries of mathematics differ in the last bit.
fn initial_weights(settings: &Settings, config: &ModelConfig) -> String {
    let mut rng = random_numbers(settings.seed, Purpose::InitialWeights);
    let weights = model::initial_weights(config, &mut rng);
    let values: Vec<String> = weights
        .tensors
        .values()
        .flat_map(|tensor| tensor.values.iter().take(VALUES))
        .map(|value| format!("{value:.3}"))
        .collect();
    sha256(&values.join(" "))
}

fn sorted(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<(String, Value)> = fields.into_iter().collect();
            fields.sort_by(|(one, _), (other, _)| one.cmp(other));
            fields
                .into_iter()
                .map(|(key, value)| (key, sorted(value)))
                .collect()
        }
        Value::Array(values) => values.into_iter().map(sorted).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value,
    }
}

fn sha256(text: &str) -> String {
    hex(&Sha256::digest(text))
}

fn hex(bytes: &[u8]) -> String {
    let digits: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    digits.concat()
}

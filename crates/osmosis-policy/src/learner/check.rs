//! What can be wrong with settings and rows, found before anything is computed.

use osmosis_core::learner::Surrogate;

use super::{LearnerOptions, LossFunction, LossRow};
use crate::{ModelConfig, PolicyError};

pub(super) fn options(options: &LearnerOptions) -> Result<(), PolicyError> {
    let check = |setting, ok: bool, rule: &str, value: f64| {
        if ok {
            return Ok(());
        }
        Err(PolicyError::LearnerSetting {
            setting,
            message: format!("must be {rule}, is `{value}`"),
        })
    };
    let LearnerOptions {
        lr,
        beta1,
        beta2,
        epsilon,
        weight_decay,
        max_gradient_norm,
        ..
    } = *options;
    let not_negative = |value: f64| value.is_finite() && value >= 0.0;
    check("lr", not_negative(lr), "a number of 0 or more", lr)?;
    check(
        "beta1",
        (0.0..1.0).contains(&beta1),
        "at least 0 and below 1",
        beta1,
    )?;
    check(
        "beta2",
        (0.0..1.0).contains(&beta2),
        "at least 0 and below 1",
        beta2,
    )?;
    check(
        "epsilon",
        epsilon.is_finite() && epsilon > 0.0,
        "a number above 0",
        epsilon,
    )?;
    check(
        "weight_decay",
        not_negative(weight_decay),
        "a number of 0 or more",
        weight_decay,
    )?;
    check(
        "max_gradient_norm",
        max_gradient_norm > 0.0,
        "above 0",
        max_gradient_norm,
    )?;
    check(
        "tokens_per_piece",
        options.tokens_per_piece > 0,
        "above 0",
        0.0,
    )
}

pub(super) fn objective(objective: LossFunction) -> Result<(), PolicyError> {
    let LossFunction::PolicyGradient(gradient) = objective else {
        return Ok(());
    };
    let (cap, dual_clip) = match gradient.surrogate {
        Surrogate::Clipped { dual_clip } => (None, dual_clip),
        Surrogate::Decoupled {
            behaviour_weight_cap,
            dual_clip,
        } => (Some(behaviour_weight_cap), dual_clip),
        Surrogate::Sequence | Surrogate::ConstantWeight => (None, None),
    };
    for (setting, value) in [("behaviour_weight_cap", cap), ("dual_clip", dual_clip)] {
        if let Some(value) = value
            && !(value.is_finite() && value > 1.0)
        {
            let message = format!("must be a number above 1, is `{value}`");
            return Err(PolicyError::LearnerSetting { setting, message });
        }
    }
    for (setting, value) in [
        ("clip_low", gradient.clip_low),
        ("clip_high", gradient.clip_high),
        ("kl_coef", gradient.kl_coef),
        ("entropy_coef", gradient.entropy_coef),
    ] {
        if !(value.is_finite() && value >= 0.0) {
            let message = format!("must be a number of 0 or more, is `{value}`");
            return Err(PolicyError::LearnerSetting { setting, message });
        }
    }
    Ok(())
}

/// Ids and temperatures, which every use of a row needs.
pub(super) fn rows(config: &ModelConfig, rows: &[LossRow]) -> Result<(), PolicyError> {
    for (index, row) in rows.iter().enumerate() {
        let length = row.ids.len();
        if length > config.context {
            let context = config.context;
            return Err(wrong(
                index,
                &format!("has {length} tokens, the model's context is {context}"),
            ));
        }
        if let Some(id) = row.ids.iter().find(|id| **id as usize >= config.vocabulary) {
            let vocabulary = config.vocabulary;
            return Err(wrong(
                index,
                &format!("has token `{id}`, the vocabulary has {vocabulary}"),
            ));
        }
        same_length(index, "temperatures", row.temperatures.len(), length)?;
        let mut free_from = 1;
        for tokens in &row.constrained {
            let end = tokens.first + tokens.allowed.len();
            if tokens.first < free_from || end > length {
                return Err(wrong(
                    index,
                    "has constrained tokens that overlap, or are outside of it",
                ));
            }
            free_from = end;
        }
        let bad = |t: &&f32| !(t.is_finite() && **t > 0.0);
        if let Some(temperature) = row.temperatures.iter().skip(1).find(bad) {
            return Err(wrong(
                index,
                &format!("has temperature `{temperature}`, it must be above 0"),
            ));
        }
    }
    Ok(())
}

/// What an update needs beyond [`rows`].
pub(super) fn losses(rows: &[LossRow], objective: LossFunction) -> Result<(), PolicyError> {
    for (index, row) in rows.iter().enumerate() {
        let length = row.ids.len();
        let columns = [
            ("weights", &row.weights),
            ("advantages", &row.advantages),
            ("sampled_logprobs", &row.sampled_logprobs),
        ];
        let optional = [
            ("proximal_logprobs", &row.proximal_logprobs),
            ("reference_logprobs", &row.reference_logprobs),
        ]
        .into_iter()
        .filter_map(|(name, column)| Some((name, column.as_ref()?)));
        for (name, column) in columns.into_iter().chain(optional) {
            same_length(index, name, column.len(), length)?;
            if let Some(place) = column.iter().position(|value| !value.is_finite()) {
                let value = column[place];
                return Err(wrong(
                    index,
                    &format!("has `{value}` in `{name}` at token {place}"),
                ));
            }
        }
        if row.weights.first().is_some_and(|weight| *weight != 0.0) {
            let message = "has a weight at its first token, which nothing comes before";
            return Err(wrong(index, message));
        }
        let (needs_reference, needs_proximal) = objective.needs();
        if needs_proximal && row.proximal_logprobs.is_none() {
            let message = "has no `proximal_logprobs`, which the decoupled objective needs";
            return Err(wrong(index, message));
        }
        if needs_reference && row.reference_logprobs.is_none() {
            let message = "has no `reference_logprobs`, which `kl_coef` needs";
            return Err(wrong(index, message));
        }
    }
    if rows
        .iter()
        .all(|row| row.weights.iter().all(|weight| *weight == 0.0))
    {
        let message = match rows.len() {
            0 => "there are none".to_owned(),
            count => format!("no token of {count} rows has a weight"),
        };
        return Err(PolicyError::Rows(message));
    }
    Ok(())
}

fn same_length(row: usize, name: &str, found: usize, length: usize) -> Result<(), PolicyError> {
    if found == length {
        return Ok(());
    }
    Err(wrong(
        row,
        &format!("has {length} ids and {found} `{name}`"),
    ))
}

fn wrong(row: usize, message: &str) -> PolicyError {
    PolicyError::Rows(format!("row {row} {message}"))
}

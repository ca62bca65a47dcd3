//! What this process and the trainer say to each other: one JSON object per line, both ways. The other side is
//! `osmosis_ai/trainer/torch`.

use camino::Utf8PathBuf;
use osmosis_core::config::Lora;
use osmosis_core::learner::{
    LearnerError, LearnerErrorKind, LossFunction, LossRow, Surrogate, UpdateReport,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The number that grows when old trainers can't be talked to any more.
pub(super) const PROTOCOL: u64 = 1;

/// The model and how it is trained: the first request of a connection.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Open {
    pub(super) model: Utf8PathBuf,
    pub(super) lr: f64,
    pub(super) seed: u64,
    pub(super) dtype: &'static str,
    pub(super) lora: Option<Lora>,
}

/// One request.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "call", rename_all = "snake_case")]
pub(super) enum Request<'a> {
    Open(&'a Open),
    Update {
        rows: Value,
        loss: Value,
        /// Where the state after the update goes.
        state: &'a str,
    },
    Logprobs {
        rows: Value,
        of_start: bool,
    },
    Save {
        model: &'a str,
        optimizer: &'a str,
    },
    Restore {
        model: &'a str,
        optimizer: &'a str,
        updates: u64,
    },
}

/// One line of the trainer's.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Reply {
    Hello(Hello),
    /// It works.
    Progress(Progress),
    /// Before an update: to be accepted or not.
    Logprobs(Vec<Vec<f32>>),
    Ok(Value),
    Error(Refusal),
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Hello {
    pub(super) protocol: u64,
    #[serde(default)]
    pub(super) versions: std::collections::BTreeMap<String, String>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
pub(super) struct Progress {
    pub(super) done: u64,
    pub(super) of: u64,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Refusal {
    kind: String,
    message: String,
    hint: Option<String>,
}

/// What it has opened.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct Opened {
    pub(super) parameters: u64,
    pub(super) trained: u64,
    pub(super) device: String,
    pub(super) processes: u64,
}

impl From<Refusal> for LearnerError {
    fn from(refusal: Refusal) -> Self {
        let kind = match refusal.kind.as_str() {
            "unreadable" => LearnerErrorKind::Unreadable,
            "invalid" => LearnerErrorKind::Invalid,
            "not_finite" => LearnerErrorKind::NotFinite,
            "disk_full" => LearnerErrorKind::DiskFull,
            "unwritable" => LearnerErrorKind::Unwritable,
            _ => LearnerErrorKind::Fault,
        };
        Self {
            kind,
            message: format!("the torch trainer: {}", refusal.message),
            hint: refusal.hint,
        }
    }
}

/// Rows as the trainer reads them. A number that is not finite becomes `null`, and is refused there.
pub(super) fn rows(rows: &[LossRow]) -> Value {
    rows.iter()
        .map(|row| {
            json!({
                "ids": row.ids,
                "temperatures": row.temperatures,
                "weights": row.weights,
                "advantages": row.advantages,
                "sampled_logprobs": row.sampled_logprobs,
                "proximal_logprobs": row.proximal_logprobs,
                "reference_logprobs": row.reference_logprobs,
            })
        })
        .collect()
}

/// The loss as the trainer reads it.
pub(super) fn loss(loss: LossFunction) -> Value {
    let LossFunction::PolicyGradient(gradient) = loss else {
        return json!({"objective": "likelihood"});
    };
    let mut sent = json!({
        "clip_low": gradient.clip_low,
        "clip_high": gradient.clip_high,
        "kl_coef": gradient.kl_coef,
        "kl_estimator": gradient.kl_estimator,
        "entropy_coef": gradient.entropy_coef,
    });
    let (objective, dual_clip) = match gradient.surrogate {
        Surrogate::Clipped { dual_clip } => ("clipped", dual_clip),
        Surrogate::Decoupled {
            behaviour_weight_cap,
            dual_clip,
        } => {
            sent["behaviour_weight_cap"] = json!(behaviour_weight_cap);
            ("decoupled", dual_clip)
        }
        Surrogate::Sequence => ("gspo", None),
        Surrogate::ConstantWeight => ("cispo", None),
    };
    sent["objective"] = json!(objective);
    sent["dual_clip"] = json!(dual_clip);
    sent
}

/// The report of an update; `None` when it was not accepted.
pub(super) fn report(ok: Value) -> Result<Option<UpdateReport>, LearnerError> {
    #[derive(Deserialize)]
    struct Report {
        loss: f64,
        entropy: f64,
        clip_fraction: f64,
        kl_to_sampled: f64,
        kl_to_reference: f64,
        mismatch_mean: f64,
        mismatch_max: f64,
        behaviour_weight: Option<f64>,
        capped_fraction: Option<f64>,
        gradient_norm: f64,
        tokens: u64,
    }
    let report: Option<Report> = read(ok)?;
    Ok(report.map(|report| UpdateReport {
        loss: report.loss,
        entropy: report.entropy,
        clip_fraction: report.clip_fraction,
        kl_to_sampled: report.kl_to_sampled,
        kl_to_reference: report.kl_to_reference,
        mismatch_mean: report.mismatch_mean,
        mismatch_max: report.mismatch_max,
        behaviour_weight: report.behaviour_weight,
        capped_fraction: report.capped_fraction,
        gradient_norm: report.gradient_norm,
        tokens: report.tokens,
    }))
}

/// The logprobs that were asked for.
pub(super) fn logprobs(ok: Value) -> Result<Vec<Vec<f32>>, LearnerError> {
    #[derive(Deserialize)]
    struct Answer {
        logprobs: Vec<Vec<f32>>,
    }
    read::<Answer>(ok).map(|answer| answer.logprobs)
}

pub(super) fn read<T: serde::de::DeserializeOwned>(ok: Value) -> Result<T, LearnerError> {
    serde_json::from_value(ok).map_err(|error| LearnerError {
        kind: LearnerErrorKind::Fault,
        message: format!("the torch trainer answered with something else: {error}"),
        hint: None,
    })
}

#[cfg(test)]
mod tests {
    use osmosis_core::config::TrainConfig;

    use super::*;

    #[test]
    fn the_trainer_is_sent_what_the_config_says() {
        #[derive(Deserialize)]
        struct Cases {
            losses: Vec<Case>,
        }
        #[derive(Deserialize)]
        struct Case {
            name: String,
            config: String,
            loss: Value,
        }
        let text = include_str!("../../../../osmosis-core/fixtures/objectives.json");
        let cases: Cases = serde_json::from_str(text).unwrap();
        for case in cases.losses {
            let text = format!(
                "[experiment]\nrollout = 'multiply'\nentrypoint = 'main.py'\nmodel_path = './models/one'\n\
                 dataset = 'multiply'\n[training]\n{}\n[trainer]\nkind = 'torch'\n",
                case.config
            );
            let config = TrainConfig::parse("train.toml".into(), &text).unwrap();
            let sent = loss(osmosis_train::loss_function(&config.training));
            assert_eq!(sent, case.loss, "{}", case.name);
        }
    }
}

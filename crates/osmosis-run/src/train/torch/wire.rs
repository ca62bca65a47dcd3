//! What this process and the trainer say to each other: one JSON object per line, both ways. The other side is
//! `osmosis_ai/trainer/torch`.

use camino::Utf8PathBuf;
use osmosis_core::config::Lora;
use osmosis_core::learner::{
    KlEstimator, LearnerError, LearnerErrorKind, LossFunction, LossRow, PolicyGradient, Surrogate,
    UpdateReport,
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

/// The loss as the trainer reads it. Of what [`refused`] names nothing arrives here.
pub(super) fn loss(loss: LossFunction) -> Result<Value, LearnerError> {
    let LossFunction::PolicyGradient(gradient) = loss else {
        return Ok(json!({"objective": "likelihood"}));
    };
    if let Some(part) = refused(&gradient) {
        return Err(LearnerError {
            kind: LearnerErrorKind::Invalid,
            message: format!("the torch trainer has no {part}"),
            hint: None,
        });
    }
    let mut sent = json!({
        "objective": "clipped",
        "clip_low": gradient.clip_low,
        "clip_high": gradient.clip_high,
        "kl_coef": gradient.kl_coef,
    });
    if let Surrogate::Decoupled {
        behaviour_weight_cap,
        ..
    } = gradient.surrogate
    {
        sent["objective"] = json!("decoupled");
        sent["behaviour_weight_cap"] = json!(behaviour_weight_cap);
    }
    Ok(sent)
}

/// What of a loss the trainer does not compute.
pub(super) fn refused(gradient: &PolicyGradient) -> Option<&'static str> {
    match gradient.surrogate {
        Surrogate::Sequence => return Some("`objective = \"gspo\"`"),
        Surrogate::ConstantWeight => return Some("`objective = \"cispo\"`"),
        Surrogate::Clipped { dual_clip } | Surrogate::Decoupled { dual_clip, .. } => {
            if dual_clip.is_some() {
                return Some("`dual_clip`");
            }
        }
    }
    if gradient.entropy_coef != 0.0 {
        return Some("`entropy_coef`");
    }
    (gradient.kl_coef != 0.0 && gradient.kl_estimator != KlEstimator::K3)
        .then_some("`kl_estimator` but `k3`")
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

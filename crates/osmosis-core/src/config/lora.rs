//! `[training.lora]` and `[sft.lora]`: train adapters beside frozen weights.

use serde::Serialize;
use toml_edit::Item;

use super::range::NumberRange;
use super::reader::Reader;
use super::section::Section;
use super::{ConfigProblem, error::listed};

/// Low-rank adapters: a frozen matrix `W` becomes `W + alpha / rank · B · A`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Lora {
    pub rank: u32,
    pub alpha: f64,
    /// In the order of a layer; at least one.
    pub target_modules: Vec<LoraModule>,
    /// For the torch trainer only.
    #[serde(skip_serializing_if = "is_zero")]
    pub dropout: f64,
    /// How the frozen weights are held in memory.
    pub base: LoraBase,
}

/// A matrix of each layer that can have an adapter, by its name in PEFT's `target_modules`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LoraModule {
    QProj,
    KProj,
    VProj,
    OProj,
    GateProj,
    UpProj,
    DownProj,
}

/// The type of frozen weights.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LoraBase {
    #[default]
    F32,
    Bf16,
    /// Blocks of 32 numbers of 8 bits with one scale, as GGUF's.
    #[serde(rename = "q8_0")]
    Q8,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(number: &f64) -> bool {
    *number == 0.0
}

impl LoraModule {
    pub const ALL: [Self; 7] = [
        Self::QProj,
        Self::KProj,
        Self::VProj,
        Self::OProj,
        Self::GateProj,
        Self::UpProj,
        Self::DownProj,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::QProj => "q_proj",
            Self::KProj => "k_proj",
            Self::VProj => "v_proj",
            Self::OProj => "o_proj",
            Self::GateProj => "gate_proj",
            Self::UpProj => "up_proj",
            Self::DownProj => "down_proj",
        }
    }

    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|module| module.name() == name)
    }
}

impl LoraBase {
    pub const ALL: [Self; 3] = [Self::F32, Self::Bf16, Self::Q8];

    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Q8 => "q8_0",
        }
    }

    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|base| base.name() == name)
    }
}

impl Default for Lora {
    fn default() -> Self {
        Self {
            rank: 16,
            alpha: 32.0,
            target_modules: LoraModule::ALL.to_vec(),
            dropout: 0.0,
            base: LoraBase::F32,
        }
    }
}

impl Lora {
    /// What the product of the two matrices of an adapter is multiplied with.
    pub fn scale(&self) -> f64 {
        self.alpha / f64::from(self.rank.max(1))
    }
}

/// The section of this name, when there is one.
pub(super) fn read(reader: &mut Reader<'_>, name: &'static str) -> Option<Lora> {
    let section = reader.section(name);
    if !section.present {
        return None;
    }
    let default = Lora::default();
    let base = reader.parsed(
        section,
        "base",
        |text| {
            LoraBase::of_name(text)
                .ok_or_else(|| format!("unknown value `{}`", text.escape_debug()))
        },
        |_| {
            let names = LoraBase::ALL.iter().map(|base| base.name());
            Some(format!("write {}", listed(names, "or")))
        },
    );
    Some(Lora {
        rank: reader
            .integer(section, "rank", 1..=4096)
            .and_then(|rank| u32::try_from(rank).ok())
            .unwrap_or(default.rank),
        alpha: reader
            .number(section, "alpha", NumberRange::POSITIVE)
            .unwrap_or(default.alpha),
        target_modules: read_modules(reader, section).unwrap_or(default.target_modules),
        dropout: reader
            .number(section, "dropout", NumberRange::FROM_0_TO_1)
            .unwrap_or(default.dropout),
        base: base.unwrap_or(default.base),
    })
}

/// Reports a dropout above 0, where only the embedded learner trains: it has none.
pub(super) fn refuse_dropout(reader: &mut Reader<'_>, name: &'static str, lora: Option<&Lora>) {
    let section = reader.section(name);
    if let (Some(lora), Some(entry)) = (lora, section.entry("dropout"))
        && lora.dropout > 0.0
    {
        let problem = ConfigProblem::Unusable {
            section: section.name,
            key: "dropout".to_owned(),
            message: "embedded models are trained without dropout".to_owned(),
            suggestion: Some("write `dropout = 0`, or remove the key".to_owned()),
        };
        reader.report(entry.offset, problem);
    }
}

fn read_modules<'d>(reader: &mut Reader<'d>, section: Section<'d>) -> Option<Vec<LoraModule>> {
    const KEY: &str = "target_modules";
    let entry = section.entry(KEY)?;
    let Some(items) = entry.item.as_array() else {
        let problem = section.wrong_type(KEY, "an array of strings", entry.item);
        reader.report(entry.offset, problem);
        return None;
    };
    let unusable = |message: String| ConfigProblem::Unusable {
        section: section.name,
        key: KEY.to_owned(),
        message,
        suggestion: Some(format!(
            "choose from {}",
            listed(LoraModule::ALL.iter().map(|module| module.name()), "and")
        )),
    };
    let mut modules = Vec::new();
    for item in items {
        let offset = item.span().map_or(entry.offset, |span| span.start);
        let Some(name) = item.as_str() else {
            let found = Item::Value(item.clone());
            let problem = section.wrong_type(KEY, "an array of strings", &found);
            reader.report(offset, problem);
            continue;
        };
        if let Some(module) = LoraModule::of_name(name) {
            modules.push(module);
        } else {
            let problem = unusable(format!("there is no module `{}`", name.escape_debug()));
            reader.report(offset, problem);
        }
    }
    if items.is_empty() {
        reader.report(entry.offset, unusable("it names no module".to_owned()));
    }
    modules.sort_unstable();
    modules.dedup();
    Some(modules)
}

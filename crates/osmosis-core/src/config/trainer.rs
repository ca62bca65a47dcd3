use camino::Utf8PathBuf;
use serde::Serialize;

use super::ConfigProblem;
use super::reader::Reader;
use super::section::{Entry, Section};

/// `[trainer]`: what updates the weights, and what samples with them.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct TrainerSection {
    pub kind: TrainerKind,
    /// The settings of a torch trainer; their defaults with an embedded one.
    #[serde(flatten)]
    pub torch: TorchSettings,
}

/// `kind`
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TrainerKind {
    /// The model is sampled and trained in this process.
    #[default]
    Embedded,
    /// An inference server samples, a torch process trains.
    Torch,
}

/// What a torch trainer and its inference server are started with.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TorchSettings {
    /// The interpreter that has torch, transformers, peft and accelerate. Where it is, is no part of what a run is.
    #[serde(skip)]
    pub python: Option<Utf8PathBuf>,
    /// The inference server, with its arguments; `{model}`, `{port}` and `{python}` are filled in.
    #[serde(skip)]
    pub server_command: Option<Vec<String>>,
    pub dtype: TorchDtype,
    /// One trainer process for each: `auto`, `cpu`, `cuda:0`.
    #[serde(skip)]
    pub devices: Vec<String>,
}

impl Default for TorchSettings {
    fn default() -> Self {
        Self {
            python: None,
            server_command: None,
            dtype: TorchDtype::default(),
            devices: vec!["auto".to_owned()],
        }
    }
}

/// `dtype`
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TorchDtype {
    #[default]
    Float32,
    Bfloat16,
}

impl TorchDtype {
    /// The word that torch, vLLM and the config use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Float32 => "float32",
            Self::Bfloat16 => "bfloat16",
        }
    }
}

impl TrainerSection {
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// The keys that an embedded trainer has no use for.
const TORCH_KEYS: [&str; 4] = ["python", "server_command", "dtype", "devices"];

pub(super) fn read(reader: &mut Reader<'_>) -> TrainerSection {
    let section = reader.section("trainer");
    let default = TorchSettings::default();
    let kind = word(
        reader,
        "kind",
        &[
            ("embedded", TrainerKind::Embedded),
            ("torch", TrainerKind::Torch),
        ],
    );
    let python = reader.optional(section, "python", |entry| {
        section.string("python", entry).map(Utf8PathBuf::from)
    });
    let server_command = words(reader, section, "server_command");
    let dtype = word(
        reader,
        "dtype",
        &[
            ("float32", TorchDtype::Float32),
            ("bfloat16", TorchDtype::Bfloat16),
        ],
    );
    let devices = read_devices(reader, section);
    if kind == Some(TrainerKind::Embedded) || section.entry("kind").is_none() {
        refuse_torch_keys(reader, section);
    }
    TrainerSection {
        kind: kind.unwrap_or_default(),
        torch: TorchSettings {
            python,
            server_command,
            dtype: dtype.unwrap_or(default.dtype),
            devices: devices.unwrap_or(default.devices),
        },
    }
}

fn refuse_torch_keys<'d>(reader: &mut Reader<'d>, section: Section<'d>) {
    for key in TORCH_KEYS {
        if let Some(entry) = section.entry(key) {
            let problem = ConfigProblem::Unusable {
                section: section.name,
                key: key.to_owned(),
                message: "only the torch trainer has it".to_owned(),
                suggestion: Some("write `kind = \"torch\"` too, or leave it out".to_owned()),
            };
            reader.report(entry.key_offset, problem);
        }
    }
}

fn read_devices<'d>(reader: &mut Reader<'d>, section: Section<'d>) -> Option<Vec<String>> {
    let devices = words(reader, section, "devices")?;
    let known = |device: &String| {
        let number = device.strip_prefix("cuda:");
        device == "auto" || device == "cpu" || number.is_some_and(|n| n.parse::<u32>().is_ok())
    };
    if let Some(device) = devices.iter().find(|device| !known(device))
        && let Some(entry) = section.entry("devices")
    {
        let problem = ConfigProblem::Unusable {
            section: section.name,
            key: "devices".to_owned(),
            message: format!("unknown device `{}`", device.escape_debug()),
            suggestion: Some("write `auto`, `cpu` or `cuda:N`".to_owned()),
        };
        reader.report(entry.offset, problem);
        return None;
    }
    Some(devices)
}

/// An array of strings, none of them empty.
fn words<'d>(
    reader: &mut Reader<'d>,
    section: Section<'d>,
    key: &'static str,
) -> Option<Vec<String>> {
    reader.optional(section, key, |entry: &Entry<'d>| {
        let wrong = || section.wrong_type(key, "an array of strings", entry.item);
        let array = entry.item.as_array().ok_or_else(wrong)?;
        let words = array.iter().map(|value| value.as_str().map(str::to_owned));
        let words = words.collect::<Option<Vec<_>>>().ok_or_else(wrong)?;
        if words.is_empty() || words.iter().any(|word| word.trim().is_empty()) {
            return Err(ConfigProblem::Unusable {
                section: section.name,
                key: key.to_owned(),
                message: "must not be empty".to_owned(),
                suggestion: None,
            });
        }
        Ok(words)
    })
}

/// One of a few words.
fn word<T: Copy>(
    reader: &mut Reader<'_>,
    key: &'static str,
    choices: &[(&'static str, T)],
) -> Option<T> {
    let section = reader.section("trainer");
    reader.parsed(
        section,
        key,
        |text| {
            let found = choices.iter().find(|(word, _)| *word == text);
            let unknown = || format!("unknown value `{}`", text.escape_debug());
            found.map(|(_, value)| *value).ok_or_else(unknown)
        },
        |_| {
            let known: Vec<String> = choices
                .iter()
                .map(|(word, _)| format!("`{word}`"))
                .collect();
            Some(format!("write {}", known.join(" or ")))
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TrainConfig;

    fn config(trainer: &str) -> Result<TrainerSection, String> {
        let text = format!(
            "[experiment]\nrollout = \"a\"\nentrypoint = \"main.py\"\nmodel_path = \"./m\"\ndataset = \"d\"\n\
             [training]\n{trainer}"
        );
        let config = TrainConfig::parse("t.toml".into(), &text);
        config.map(|config| config.trainer).map_err(|e| e.render())
    }

    #[test]
    fn without_a_table_the_model_is_trained_here() {
        let trainer = config("").unwrap();
        assert_eq!(trainer, TrainerSection::default());
        assert_eq!(trainer.kind, TrainerKind::Embedded);
    }

    #[test]
    fn a_torch_trainer_has_its_settings() {
        let trainer = config(
            "[trainer]\nkind = \"torch\"\npython = \"~/venv/bin/python\"\ndtype = \"bfloat16\"\n\
             devices = [\"cuda:0\", \"cuda:1\"]\nserver_command = [\"vllm\", \"serve\"]",
        );
        let trainer = trainer.unwrap();
        assert_eq!(trainer.kind, TrainerKind::Torch);
        assert_eq!(trainer.torch.dtype.as_str(), "bfloat16");
        assert_eq!(trainer.torch.devices, ["cuda:0", "cuda:1"]);
        assert_eq!(trainer.torch.server_command.unwrap(), ["vllm", "serve"]);
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_what_to_write() {
        for (text, part) in [
            ("[trainer]\nkind = \"jax\"", "write `embedded` or `torch`"),
            (
                "[trainer]\ndtype = \"float32\"",
                "`dtype` in `[trainer]`: only the torch trainer has it",
            ),
            (
                "[trainer]\nkind = \"torch\"\ndevices = [\"gpu\"]",
                "unknown device `gpu`",
            ),
            (
                "[trainer]\nkind = \"torch\"\nserver_command = \"vllm serve\"",
                "an array of strings",
            ),
            (
                "[trainer]\nkind = \"torch\"\nserver_command = []",
                "must not be empty",
            ),
        ] {
            let error = config(text).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}

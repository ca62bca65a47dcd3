use std::fmt;
use std::str::FromStr;

use camino::Utf8PathBuf;
use serde::{Serialize, Serializer};

use crate::RunName;
use crate::id::is_path_segment;

/// Which model plays the policy. The forms are tried in the order they stand here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelPath {
    /// `builtin/NAME`: a model this program carries.
    Builtin(String),
    /// `script:PATH`: a scripted policy, from the workspace.
    Script(Utf8PathBuf),
    /// `run:NAME[@STEP]`: a checkpoint of a training run.
    Run { name: RunName, step: CheckpointStep },
    /// A leading `./`, `../`, `/` or `~`: a checkpoint folder or GGUF file.
    Local(Utf8PathBuf),
    /// `provider/model` of a provider we know; the prefix is not part of the model's name.
    Provider {
        provider: &'static Provider,
        model: String,
    },
    /// Anything else: a model behind `OPENAI_BASE_URL`, by its whole name.
    Endpoint(String),
}

/// Which checkpoint of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CheckpointStep {
    #[default]
    Latest,
    Best,
    Step(u64),
}

/// A service that speaks the Chat Completions API.
#[derive(Debug, PartialEq, Eq)]
pub struct Provider {
    /// The prefix of its models.
    pub name: &'static str,
    /// The variable that holds the URL clients append `/chat/completions` to.
    pub base_url_variable: &'static str,
    pub api_key_variable: &'static str,
    /// Where it is when the variable is not set; `None` when only the user can know.
    pub default_base_url: Option<&'static str>,
    /// Whether it turns away calls without a key.
    pub needs_key: bool,
}

macro_rules! providers {
    ($($name:literal $variables:literal $url:expr, $needs_key:literal;)*) => {
        &[$(Provider {
            name: $name,
            base_url_variable: concat!($variables, "_BASE_URL"),
            api_key_variable: concat!($variables, "_API_KEY"),
            default_base_url: $url,
            needs_key: $needs_key,
        },)*]
    };
}

/// The providers we know.
pub const PROVIDERS: &[Provider] = providers! {
    "openai" "OPENAI" Some("https://api.openai.com/v1"), true;
    "anthropic" "ANTHROPIC" Some("https://api.anthropic.com/v1"), true;
    "hosted_vllm" "HOSTED_VLLM" None, false;
    "ollama" "OLLAMA" Some("http://localhost:11434/v1"), false;
    "lm_studio" "LM_STUDIO" Some("http://localhost:1234/v1"), false;
    "openrouter" "OPENROUTER" Some("https://openrouter.ai/api/v1"), true;
    "together_ai" "TOGETHER" Some("https://api.together.xyz/v1"), true;
    "groq" "GROQ" Some("https://api.groq.com/openai/v1"), true;
    "mistral" "MISTRAL" Some("https://api.mistral.ai/v1"), true;
    "deepseek" "DEEPSEEK" Some("https://api.deepseek.com/v1"), true;
    "gemini" "GEMINI" Some("https://generativelanguage.googleapis.com/v1beta/openai"), true;
    "xai" "XAI" Some("https://api.x.ai/v1"), true;
    "fireworks_ai" "FIREWORKS" Some("https://api.fireworks.ai/inference/v1"), true;
    "cerebras" "CEREBRAS" Some("https://api.cerebras.ai/v1"), true;
};

impl Provider {
    pub fn named(name: &str) -> Option<&'static Self> {
        PROVIDERS.iter().find(|provider| provider.name == name)
    }
}

/// Why a text names no model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModelPathError {
    #[error("`{0}` contains spaces or control characters")]
    Spaces(String),
    #[error("`{0}` is not the name of a builtin model")]
    Builtin(String),
    #[error("`script:` names no file")]
    Script,
    #[error("`{0}` is not the name of a run")]
    Run(String),
    #[error("`{0}` is not a checkpoint")]
    Step(String),
    #[error("`{0}/` names no model")]
    NoModel(&'static str),
}

impl ModelPathError {
    pub fn hint(&self) -> String {
        match self {
            Self::Spaces(_) => "a model's name has none".to_owned(),
            Self::Builtin(_) => "write `builtin/NAME`".to_owned(),
            Self::Script => "write `script:PATH`, with PATH from the workspace".to_owned(),
            Self::Run(_) => "write `run:NAME`, as `osmosis train list` shows it".to_owned(),
            Self::Step(_) => "write `@latest`, `@best` or a step such as `@120`".to_owned(),
            Self::NoModel(provider) => format!("write `{provider}/MODEL`"),
        }
    }
}

impl ModelPath {
    /// Whether it is loaded into the process that asks it.
    pub fn runs_here(&self) -> bool {
        match self {
            Self::Builtin(_) | Self::Run { .. } | Self::Local(_) => true,
            Self::Script(_) | Self::Provider { .. } | Self::Endpoint(_) => false,
        }
    }
}

impl FromStr for ModelPath {
    type Err = ModelPathError;

    fn from_str(text: &str) -> Result<Self, ModelPathError> {
        if text.chars().any(char::is_control) {
            return Err(ModelPathError::Spaces(text.escape_debug().to_string()));
        }
        if let Some(name) = text.strip_prefix("builtin/") {
            return if is_path_segment(name) {
                Ok(Self::Builtin(name.to_owned()))
            } else {
                Err(ModelPathError::Builtin(name.to_owned()))
            };
        }
        if let Some(path) = text.strip_prefix("script:") {
            return if path.trim().is_empty() {
                Err(ModelPathError::Script)
            } else {
                Ok(Self::Script(path.into()))
            };
        }
        if let Some(rest) = text.strip_prefix("run:") {
            let (name, step) = match rest.split_once('@') {
                Some((name, step)) => (name, step.parse()?),
                None => (rest, CheckpointStep::Latest),
            };
            let name = RunName::new(name).map_err(|_| ModelPathError::Run(name.to_owned()))?;
            return Ok(Self::Run { name, step });
        }
        if ["./", "../", "/", "~"]
            .iter()
            .any(|lead| text.starts_with(lead))
        {
            return Ok(Self::Local(text.into()));
        }
        if text.chars().any(char::is_whitespace) {
            return Err(ModelPathError::Spaces(text.to_owned()));
        }
        if let Some((prefix, model)) = text.split_once('/')
            && let Some(provider) = Provider::named(prefix)
        {
            return if model.is_empty() {
                Err(ModelPathError::NoModel(provider.name))
            } else {
                Ok(Self::Provider {
                    provider,
                    model: model.to_owned(),
                })
            };
        }
        Ok(Self::Endpoint(text.to_owned()))
    }
}

impl FromStr for CheckpointStep {
    type Err = ModelPathError;

    fn from_str(text: &str) -> Result<Self, ModelPathError> {
        match text {
            "latest" => Ok(Self::Latest),
            "best" => Ok(Self::Best),
            // `step_120` is what the checkpoint's folder is called.
            number => number
                .strip_prefix("step_")
                .unwrap_or(number)
                .parse()
                .map(Self::Step)
                .map_err(|_| ModelPathError::Step(format!("@{text}"))),
        }
    }
}

impl fmt::Display for ModelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Builtin(name) => write!(f, "builtin/{name}"),
            Self::Script(path) => write!(f, "script:{path}"),
            Self::Run { name, step } => write!(f, "run:{name}@{step}"),
            Self::Local(path) => path.fmt(f),
            Self::Provider { provider, model } => write!(f, "{}/{model}", provider.name),
            Self::Endpoint(model) => model.fmt(f),
        }
    }
}

impl fmt::Display for CheckpointStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Latest => f.write_str("latest"),
            Self::Best => f.write_str("best"),
            Self::Step(step) => step.fmt(f),
        }
    }
}

impl Serialize for ModelPath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &ModelPath) {
        let parsed: ModelPath = text.parse().unwrap();
        assert_eq!(&parsed, expected, "{text}");
        assert_eq!(parsed.to_string().parse::<ModelPath>().unwrap(), parsed);
    }

    fn run(step: CheckpointStep) -> ModelPath {
        ModelPath::Run {
            name: RunName::new("calc-1").unwrap(),
            step,
        }
    }

    #[test]
    fn the_first_form_that_fits_wins() {
        check("builtin/tiny", &ModelPath::Builtin("tiny".to_owned()));
        check("script:a b/x.toml", &ModelPath::Script("a b/x.toml".into()));
        check("run:calc-1", &run(CheckpointStep::Latest));
        check("run:calc-1@best", &run(CheckpointStep::Best));
        check("run:calc-1@120", &run(CheckpointStep::Step(120)));
        check("run:calc-1@step_120", &run(CheckpointStep::Step(120)));
        for local in ["./openai/x", "../m", "/models/m.gguf", "~/m", "~"] {
            check(local, &ModelPath::Local(local.into()));
        }
        let vllm = Provider::named("hosted_vllm").unwrap();
        let served = ModelPath::Provider {
            provider: vllm,
            model: "Qwen/Qwen3-8B".to_owned(),
        };
        check("hosted_vllm/Qwen/Qwen3-8B", &served);
        for whole in ["Qwen/Qwen3-8B", "gpt-5", "openai-community/gpt2"] {
            check(whole, &ModelPath::Endpoint(whole.to_owned()));
        }
    }

    #[test]
    fn a_half_written_form_is_an_error_and_not_an_endpoint() {
        for text in [
            "builtin/",
            "builtin/a/b",
            "script:",
            "run:",
            "run:a/b",
            "run:a@",
            "run:a@worst",
            "openai/",
            "gpt 5",
        ] {
            assert!(text.parse::<ModelPath>().is_err(), "{text}");
        }
    }

    #[test]
    fn every_provider_has_variables_of_its_own() {
        for (index, provider) in PROVIDERS.iter().enumerate() {
            for other in &PROVIDERS[..index] {
                assert_ne!(provider.name, other.name);
                assert_ne!(provider.base_url_variable, other.base_url_variable);
            }
            assert!(
                !provider
                    .default_base_url
                    .is_some_and(|url| url.ends_with('/'))
            );
        }
        let openai = Provider::named("openai").unwrap();
        assert_eq!(openai.base_url_variable, "OPENAI_BASE_URL");
        assert_eq!(openai.api_key_variable, "OPENAI_API_KEY");
    }
}

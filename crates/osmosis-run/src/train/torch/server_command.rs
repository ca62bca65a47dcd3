//! The command line of an inference server.

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::config::TorchDtype;
use osmosis_gateway::{RELOADING_CLASS, ServerLogprobs};

/// What the server calls the model without adapters.
pub(super) const SERVED_NAME: &str = "policy";
/// Adapters at once: those of the newest version, and of answers that began before it.
const ADAPTERS: &str = "2";

/// What a command line is made of.
#[derive(Debug, Clone)]
pub(super) struct CommandParts<'a> {
    /// The config's; vLLM of `python` without one.
    pub(super) command: Option<&'a [String]>,
    pub(super) python: &'a Utf8Path,
    pub(super) model: &'a Utf8Path,
    pub(super) port: u16,
    pub(super) dtype: TorchDtype,
    pub(super) max_context: usize,
    pub(super) lora_rank: Option<u32>,
    pub(super) logprobs: ServerLogprobs,
}

impl CommandParts<'_> {
    /// The program and its arguments. An option that the config's command has is left as it is there; the others that
    /// are needed are added.
    pub(super) fn build(&self) -> (Utf8PathBuf, Vec<String>) {
        let default = [
            "{python}",
            "-m",
            "vllm.entrypoints.openai.api_server",
            "--model",
            "{model}",
        ];
        let words: Vec<String> = match self.command {
            Some(command) => command.to_vec(),
            None => default.map(str::to_owned).to_vec(),
        };
        let port = self.port.to_string();
        let fill = |word: &String| {
            word.replace("{model}", self.model.as_str())
                .replace("{port}", &port)
                .replace("{python}", self.python.as_str())
        };
        let mut filled: Vec<String> = words.iter().map(fill).collect();
        let has = |option: &str| {
            let mut words = words.iter();
            words.any(|word| word == option || word.starts_with(&format!("{option}=")))
        };
        let names_model = words.iter().any(|word| word.contains("{model}"));
        if !names_model && !has("--model") {
            // `vllm serve MODEL`
            filled.push(self.model.to_string());
        }
        for (option, value) in self.options(&port) {
            let is_given =
                has(option) || (option == "--port" && words.iter().any(|w| w.contains("{port}")));
            if !is_given {
                filled.push(option.to_owned());
                filled.extend(value);
            }
        }
        let mut words = filled.into_iter();
        let program = words.next().unwrap_or_default();
        (Utf8PathBuf::from(program), words.collect())
    }

    fn options(&self, port: &str) -> Vec<(&'static str, Option<String>)> {
        let text = |value: &str| Some(value.to_owned());
        let mut options = vec![
            ("--host", text("127.0.0.1")),
            ("--port", text(port)),
            ("--served-model-name", text(SERVED_NAME)),
            ("--dtype", text(self.dtype.as_str())),
            ("--max-model-len", Some(self.max_context.to_string())),
            (
                "--logprobs-mode",
                text(match self.logprobs {
                    ServerLogprobs::Raw | ServerLogprobs::Tempered => "raw_logprobs",
                    ServerLogprobs::Processed => "processed_logprobs",
                }),
            ),
        ];
        if let Some(rank) = self.lora_rank {
            options.push(("--enable-lora", None));
            options.push(("--max-lora-rank", Some(served_rank(rank).to_string())));
            options.push(("--max-loras", text(ADAPTERS)));
        } else {
            options.push(("--worker-extension-cls", text(RELOADING_CLASS)));
        }
        options
    }
}

/// vLLM takes these, and loads adapters of lower ranks too.
fn served_rank(rank: u32) -> u32 {
    const RANKS: [u32; 8] = [8, 16, 32, 64, 128, 256, 320, 512];
    let fits = RANKS.into_iter().find(|most| *most >= rank);
    fits.unwrap_or(rank)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(command: Option<&[&str]>, lora_rank: Option<u32>) -> String {
        let command: Option<Vec<String>> =
            command.map(|words| words.iter().map(|word| (*word).to_owned()).collect());
        let (program, arguments) = CommandParts {
            command: command.as_deref(),
            python: "/venv/bin/python".into(),
            model: "/models/m".into(),
            port: 81,
            dtype: TorchDtype::Float32,
            max_context: 768,
            lora_rank,
            logprobs: ServerLogprobs::Raw,
        }
        .build();
        format!("{program} {}", arguments.join(" "))
    }

    #[test]
    fn the_server_is_vllm_of_the_same_interpreter() {
        assert_eq!(
            line(None, Some(12)),
            "/venv/bin/python -m vllm.entrypoints.openai.api_server --model /models/m --host 127.0.0.1 --port 81 \
             --served-model-name policy --dtype float32 --max-model-len 768 --logprobs-mode raw_logprobs \
             --enable-lora --max-lora-rank 16 --max-loras 2"
        );
    }

    #[test]
    fn what_a_command_says_is_left_as_it_is() {
        assert_eq!(
            line(
                Some(&[
                    "vllm",
                    "serve",
                    "--dtype=bfloat16",
                    "--max-model-len",
                    "9",
                    "--host",
                    "0.0.0.0"
                ]),
                None
            ),
            "vllm serve --dtype=bfloat16 --max-model-len 9 --host 0.0.0.0 /models/m --port 81 \
             --served-model-name policy --logprobs-mode raw_logprobs \
             --worker-extension-cls osmosis_ai.vllm_worker.WeightReloading"
        );
        let placed = line(Some(&["run.sh", "{model}", "{port}"]), None);
        assert!(
            placed.starts_with("run.sh /models/m 81 --host 127.0.0.1 --served-model-name"),
            "{placed}"
        );
    }
}

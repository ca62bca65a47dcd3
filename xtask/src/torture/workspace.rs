//! The workspace of a round: agents, data, configs, and commands that run in it.

use std::process::Command;

use anyhow::Result;
use camino::{Utf8Path, Utf8PathBuf};
use serde_json::json;

use super::machine::Machine;

/// In the arguments of every process that an agent leaves behind.
pub(super) const CHILD_MARK: &str = "86397";

const AGENT: &str = include_str!("agent.py");
const LEARNER: &str = include_str!("learner.py");

/// Answers with the last number of the prompt, after a moment in which much can happen.
const SCRIPT: &str = "[[reply]]\nwhen.last_user = '(?<word>\\d+)$'\ntext = \"{word}\"\ndelay_ms = 60\n\n\
                      [[reply]]\ntext = \"no\"\n";

/// Values that must never be found in a file of a run.
#[derive(Debug, Clone)]
pub(super) struct Canaries {
    /// `[secrets]`
    pub(super) search: String,
    /// `OPENAI_API_KEY`, the upstream's
    pub(super) model: String,
    /// `OSMOSIS_CONTROL_KEY`
    pub(super) control: String,
    /// The key of `osmosis serve`, and those of its callers.
    pub(super) serve: String,
}

impl Canaries {
    fn new(seed: u64) -> Self {
        let canary = |what: &str| format!("canary-{what}-{seed:016x}");
        Self {
            search: canary("search"),
            model: canary("model"),
            control: canary("control"),
            serve: canary("serve"),
        }
    }

    pub(super) fn all(&self) -> [&str; 4] {
        [&self.search, &self.model, &self.control, &self.serve]
    }
}

#[derive(Debug)]
pub(super) struct Workspace {
    pub(super) root: Utf8PathBuf,
    /// `TMPDIR`, empty when everything is tidy.
    pub(super) temporary: Utf8PathBuf,
    /// What commands printed.
    pub(super) outputs: Utf8PathBuf,
    pub(super) canaries: Canaries,
    home: Utf8PathBuf,
    variables: Vec<(String, String)>,
    /// Commands are traced to this file.
    pub(super) trace: Option<Utf8PathBuf>,
    python: Utf8PathBuf,
    binary: Utf8PathBuf,
    cache: Utf8PathBuf,
}

impl Workspace {
    pub(super) fn new(folder: &Utf8Path, machine: &Machine, seed: u64) -> Result<Self> {
        let workspace = Self {
            root: folder.join("w"),
            temporary: folder.join("t"),
            outputs: folder.join("outputs"),
            home: folder.join("home"),
            canaries: Canaries::new(seed),
            variables: vec![],
            trace: None,
            python: machine.python.clone(),
            binary: machine.binary.clone(),
            cache: machine.cache.clone(),
        };
        for place in [&workspace.temporary, &workspace.outputs, &workspace.home] {
            std::fs::create_dir_all(place)?;
        }
        workspace.write("rollouts/r/main.py", AGENT)?;
        workspace.write("rollouts/l/main.py", LEARNER)?;
        workspace.write("policies/p.toml", SCRIPT)?;
        let secrets = format!("SEARCH_KEY={}\n", workspace.canaries.search);
        std::fs::write(workspace.secrets(), secrets)?;
        Ok(workspace)
    }

    fn secrets(&self) -> Utf8PathBuf {
        self.home.join("secrets.env")
    }

    pub(super) fn write(&self, path: &str, text: &str) -> Result<()> {
        let path = self.root.join(path);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        Ok(std::fs::write(path, text)?)
    }

    pub(super) fn variable(&mut self, name: &str, value: &str) {
        self.variables.push((name.to_owned(), value.to_owned()));
    }

    /// A dataset of prompts with their labels.
    pub(super) fn rows(&self, rows: impl IntoIterator<Item = (String, String)>) -> Result<()> {
        let mut lines = String::new();
        for (prompt, label) in rows {
            lines += &json!({"user_prompt": prompt, "ground_truth": label}).to_string();
            lines.push('\n');
        }
        self.write("data/d.jsonl", &lines)
    }

    pub(super) fn eval_config(&self, model: &str, evaluation: &str) -> Result<()> {
        self.write(
            "configs/eval/c.toml",
            &format!(
                "[experiment]\nrollout = \"r\"\nentrypoint = \"main.py\"\ndataset = \"d\"\n\
                 model_path = \"{model}\"\n[evaluation]\n{evaluation}\n\
                 [secrets]\nrequired = [\"SEARCH_KEY\"]\n"
            ),
        )
    }

    /// Another run, of one row and an agent that does nothing wrong.
    pub(super) fn another_eval(&self) -> Result<Command> {
        self.write(
            "configs/eval/another.toml",
            "[experiment]\nrollout = \"r\"\nentrypoint = \"main.py\"\ndataset = \"another\"\n\
             model_path = \"script:policies/p.toml\"\n",
        )?;
        let row = json!({"user_prompt": "say 1", "ground_truth": "1"});
        self.write("data/another.jsonl", &format!("{row}\n"))?;
        let mut arguments = vec!["eval", "submit", "configs/eval/another.toml"];
        arguments.extend(["--name", "another", "--python", self.python.as_str()]);
        Ok(self.command(&arguments))
    }

    pub(super) fn training_config(&self, training: &str, checkpoints: &str) -> Result<()> {
        self.rows((0..8).map(|n| (format!("say {n}"), n.to_string())))?;
        self.write(
            "configs/training/c.toml",
            &format!(
                "[experiment]\nrollout = \"l\"\nentrypoint = \"main.py\"\ndataset = \"d\"\n\
                 model_path = \"builtin/tiny\"\n\
                 [training]\nrollout_batch_size = 2\nn_samples_per_prompt = 4\nlr = 1e-3\n\
                 seed = 5\n{training}\n[checkpoints]\n{checkpoints}\n"
            ),
        )
    }

    /// The binary with these arguments.
    pub(super) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = match &self.trace {
            None => Command::new(&self.binary),
            Some(log) => {
                let mut command = Command::new("strace");
                command
                    .args(super::writes::STRACE)
                    .arg(log)
                    .arg(&self.binary);
                command
            }
        };
        command.args(arguments);
        self.surround(&mut command);
        command
    }

    /// The same on a terminal, whose output comes to our side; `None` where there is no `script`.
    pub(super) fn on_a_terminal(&self, arguments: &[&str]) -> Option<Command> {
        let there = Utf8Path::new("/usr/bin/script").exists();
        let line = [&[self.binary.as_str()], arguments].concat().join(" ");
        let mut command = Command::new("script");
        command.args(["-qefc", &line, "/dev/null"]);
        self.surround(&mut command);
        command.env("TERM", "xterm").env("NO_COLOR", "1");
        there.then_some(command)
    }

    /// Has a command run in the workspace, with its variables and nobody else's.
    fn surround(&self, command: &mut Command) {
        command
            .current_dir(&self.root)
            .env_clear()
            .env("PATH", std::env::var("PATH").unwrap_or_default())
            .env("HOME", &self.home)
            .env("LANG", "C.UTF-8")
            .env("OSMOSIS_CACHE_DIR", &self.cache)
            .env("TMPDIR", &self.temporary)
            .envs(self.variables.iter().cloned());
    }

    pub(super) fn eval_arguments(&self, more: &[&str]) -> Vec<String> {
        let secrets = self.secrets();
        let mut arguments = vec!["eval", "submit", "configs/eval/c.toml", "--name", "t"];
        arguments.extend(["--python", self.python.as_str(), "--no-probe"]);
        arguments.extend(["--secrets-file", secrets.as_str()]);
        arguments.extend(["--max-in-flight", "8"]);
        arguments.extend(more);
        arguments.into_iter().map(str::to_owned).collect()
    }

    pub(super) fn eval(&self, more: &[&str]) -> Command {
        let arguments = self.eval_arguments(more);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        self.command(&arguments)
    }

    pub(super) fn train(&self) -> Command {
        let mut arguments = vec!["train", "submit", "configs/training/c.toml", "--name", "t"];
        arguments.extend(["--python", self.python.as_str()]);
        self.command(&arguments)
    }

    pub(super) fn train_serve(&self, address: &str) -> Command {
        let mut arguments = vec!["train", "serve", "configs/training/c.toml", "--name", "t"];
        arguments.extend(["--python", self.python.as_str(), "--json"]);
        arguments.extend(["--listen", address]);
        let mut command = self.command(&arguments);
        command.env("OSMOSIS_CONTROL_KEY", &self.canaries.control);
        command
    }

    pub(super) fn serve(&self, address: &str) -> Command {
        let mut arguments = vec!["serve", "r", "--name", "t", "--workers", "2", "--json"];
        arguments.extend(["--python", self.python.as_str(), "--listen", address]);
        arguments.extend(["--api-key-env", "TORTURE_SERVE_KEY"]);
        let mut command = self.command(&arguments);
        command.env("TORTURE_SERVE_KEY", &self.canaries.serve);
        command
    }

    pub(super) fn gateway(&self, address: &str) -> Command {
        let mut arguments = vec!["gateway", "--model", "script:policies/p.toml", "--json"];
        arguments.extend(["--name", "t", "--durable", "answer", "--listen", address]);
        let mut command = self.command(&arguments);
        command.env("OSMOSIS_CONTROL_KEY", &self.canaries.control);
        command
    }

    pub(super) fn runs(&self) -> Utf8PathBuf {
        self.root.join(".osmosis")
    }

    /// The folder of run `t`.
    pub(super) fn run_folder(&self, kind: &str) -> Utf8PathBuf {
        self.runs().join(kind).join("t")
    }
}

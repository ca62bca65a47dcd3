//! Which sections and keys there are. The readers check against this table in debug builds, so it
//! can't fall behind them.

use super::ConfigKind;

/// A section and what it may hold.
#[derive(Debug)]
pub(super) struct Section {
    pub(super) name: &'static str,
    pub(super) kinds: &'static [ConfigKind],
    pub(super) keys: Keys,
}

#[derive(Debug)]
pub(super) enum Keys {
    These(&'static [&'static str]),
    /// The user's own.
    Any,
    /// The user's own, beside these.
    AnyBeside(&'static [&'static str]),
}

const BOTH: &[ConfigKind] = &[ConfigKind::Evaluation, ConfigKind::Training];
const ALL: &[ConfigKind] = &[
    ConfigKind::Evaluation,
    ConfigKind::Training,
    ConfigKind::Supervised,
];
/// Those that make checkpoints.
const LEARNING: &[ConfigKind] = &[ConfigKind::Training, ConfigKind::Supervised];

const LORA: Keys = Keys::These(&["rank", "alpha", "target_modules", "dropout", "base"]);

pub(super) const SECTIONS: &[Section] = &[
    Section {
        name: "experiment",
        kinds: ALL,
        keys: Keys::These(&[
            "rollout",
            "entrypoint",
            "model_path",
            "dataset",
            "branch",
            "commit_sha",
            "chat_template",
            "tool_format",
        ]),
    },
    Section {
        name: "dataset.columns",
        kinds: BOTH,
        keys: Keys::These(&super::dataset_columns::COLUMNS),
    },
    Section {
        name: "evaluation",
        kinds: &[ConfigKind::Evaluation],
        keys: Keys::These(&[
            "limit",
            "n",
            "batch_size",
            "pass_threshold",
            "reward_range",
            "agent_workflow_timeout_s",
            "grader_timeout_s",
            "model_errors",
        ]),
    },
    Section {
        name: "training",
        kinds: &[ConfigKind::Training],
        keys: Keys::These(&[
            "lr",
            "total_epochs",
            "n_samples_per_prompt",
            "rollout_batch_size",
            "max_prompt_length",
            "max_response_length",
            "agent_workflow_timeout_s",
            "grader_timeout_s",
            "algorithm",
            "max_staleness",
            "clip_ratio",
            "kl_coef",
            "updates_per_batch",
            "seed",
            "steps",
            "eval_dataset",
            "eval_fraction",
            "allow_overlap",
            "incomplete_groups",
            "turn_discount",
            "export_style",
            "stale_rows",
            "stragglers",
            "straggler_factor",
            "flat_groups",
            "objective",
            "behaviour_weight_cap",
            "reward_range",
            "model_errors",
            "clip_ratio_high",
            "dual_clip",
            "kl_estimator",
            "entropy_coef",
            "loss_normalization",
            "overlong_buffer",
            "overlong_penalty",
            "max_extra_rows",
            "recipe",
        ]),
    },
    Section {
        name: "training.rows",
        kinds: &[ConfigKind::Training],
        keys: Keys::These(&["strategy"]),
    },
    Section {
        name: "sft",
        kinds: &[ConfigKind::Supervised],
        keys: Keys::These(&[
            "lr",
            "total_epochs",
            "steps",
            "batch_size",
            "seed",
            "eval_dataset",
            "eval_fraction",
        ]),
    },
    Section {
        name: "training.lora",
        kinds: &[ConfigKind::Training],
        keys: LORA,
    },
    Section {
        name: "sft.lora",
        kinds: &[ConfigKind::Supervised],
        keys: LORA,
    },
    Section {
        name: "sampling",
        kinds: BOTH,
        keys: Keys::These(&["rollout_temperature", "rollout_top_p"]),
    },
    Section {
        name: "checkpoints",
        kinds: LEARNING,
        keys: Keys::These(&[
            "eval_interval",
            "checkpoint_save_freq",
            "keep_last",
            "keep_best",
        ]),
    },
    Section {
        name: "trainer",
        kinds: &[ConfigKind::Training],
        keys: Keys::These(&["kind", "python", "server_command", "dtype", "devices"]),
    },
    Section {
        name: "workflow",
        kinds: BOTH,
        keys: Keys::Any,
    },
    Section {
        name: "grader",
        kinds: BOTH,
        keys: Keys::AnyBeside(&["judge_model"]),
    },
    Section {
        name: "env",
        kinds: BOTH,
        keys: Keys::Any,
    },
    Section {
        name: "secrets",
        kinds: BOTH,
        keys: Keys::These(&["required", "optional"]),
    },
    Section {
        name: "logs",
        kinds: ALL,
        keys: Keys::These(&["max_bytes_per_rollout", "max_bytes_per_run"]),
    },
    Section {
        name: "workers",
        kinds: BOTH,
        keys: Keys::These(&["isolation", "user"]),
    },
    Section {
        name: "advanced",
        kinds: BOTH,
        keys: Keys::Any,
    },
];

impl Section {
    pub(super) fn is_of(&self, kind: ConfigKind) -> bool {
        self.kinds.contains(&kind)
    }

    /// The keys that are ours.
    pub(super) fn keys(&self) -> &'static [&'static str] {
        match self.keys {
            Keys::These(keys) | Keys::AnyBeside(keys) => keys,
            Keys::Any => &[],
        }
    }
}

pub(super) fn section(name: &str) -> Option<&'static Section> {
    SECTIONS.iter().find(|section| section.name == name)
}

/// Whether a table of this name holds sections.
pub(super) fn holds_sections(name: &str) -> bool {
    SECTIONS.iter().any(|section| {
        section
            .name
            .split_once('.')
            .is_some_and(|(outer, _)| outer == name)
    })
}

/// The section of this kind of config that has a key.
pub fn section_of_key(kind: ConfigKind, key: &str) -> Option<&'static str> {
    let mut ours = SECTIONS.iter().filter(|section| section.is_of(kind));
    ours.find(|section| section.keys().contains(&key))
        .map(|section| section.name)
}

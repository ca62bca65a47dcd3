//! Imports between the modules of `python/osmosis_ai` point one way, as ARCHITECTURE.md says.

use std::process::Command;

use anyhow::{Context, Result, bail};
use osmosis_testkit::python_environment;

const READER: &str = include_str!("python_imports.py");
const PACKAGE: &str = "osmosis_ai";

/// A part of the package: all modules that begin with its name, unless a longer name fits too.
struct Part {
    name: &'static str,
    /// Which other parts its modules may import.
    parts: &'static [&'static str],
    /// Which packages beside the standard library.
    packages: &'static [&'static str],
}

const PARTS: [Part; 17] = [
    // The entry points for users: both load what they name only when it is asked for.
    Part {
        name: "osmosis_ai.__init__",
        parts: &["osmosis_ai.eval"],
        packages: &[],
    },
    Part {
        name: "osmosis_ai.rollout.__init__",
        parts: &[
            "osmosis_ai.rollout",
            "osmosis_ai.rollout.integrations",
            "osmosis_ai.rollout.server",
        ],
        packages: &[],
    },
    // Where modules of a project are read from, in every process that imports them.
    Part {
        name: "osmosis_ai.project_snapshot",
        parts: &[],
        packages: &[],
    },
    // The core: it builds on nothing else of ours, and names no workflow kind but its own.
    Part {
        name: "osmosis_ai.rollout",
        parts: &["osmosis_ai.project_snapshot"],
        packages: &["pydantic", "typing_extensions"],
    },
    Part {
        name: "osmosis_ai.rollout.integrations",
        parts: &["osmosis_ai.rollout"],
        packages: &["agents", "aiohttp", "openai", "pydantic", "strands"],
    },
    Part {
        name: "osmosis_ai.eval",
        parts: &["osmosis_ai.rollout"],
        packages: &[],
    },
    Part {
        name: "osmosis_ai.trainer",
        parts: &[],
        packages: &["numpy"],
    },
    // The only part that imports torch.
    Part {
        name: "osmosis_ai.trainer.torch",
        parts: &[],
        packages: &["accelerate", "peft", "safetensors", "torch", "transformers"],
    },
    // In the environment of the inference server.
    Part {
        name: "osmosis_ai.vllm_worker",
        parts: &[],
        packages: &["vllm"],
    },
    // The worker: the protocol around the core.
    Part {
        name: "osmosis_ai.worker.process",
        parts: &[],
        packages: &[],
    },
    Part {
        name: "osmosis_ai.worker",
        parts: &[
            "osmosis_ai.__init__",
            "osmosis_ai.project_snapshot",
            "osmosis_ai.rollout",
            "osmosis_ai.worker.process",
        ],
        packages: &["msgpack", "typing_extensions"],
    },
    Part {
        name: "osmosis_ai.rollout.server",
        parts: &[
            "osmosis_ai.__init__",
            "osmosis_ai.rollout",
            "osmosis_ai.worker",
        ],
        packages: &["typing_extensions"],
    },
    // Nodes on a Ray cluster. What is sent to its machines imports nothing else of ours.
    Part {
        name: "osmosis_ai.ray",
        parts: &["osmosis_ai.__init__", "osmosis_ai.ray.node"],
        packages: &["ray"],
    },
    Part {
        name: "osmosis_ai.ray.node",
        parts: &[],
        packages: &["ray"],
    },
    // Workflow kinds: they register themselves, and only the program of a worker imports them.
    Part {
        name: "osmosis_ai.areal",
        parts: &[
            "osmosis_ai.project_snapshot",
            "osmosis_ai.rollout",
            "osmosis_ai.worker.process",
        ],
        packages: &["aiohttp", "httpx", "typing_extensions"],
    },
    Part {
        name: "osmosis_ai.shipped_kinds",
        parts: &["osmosis_ai.areal"],
        packages: &[],
    },
    Part {
        name: "osmosis_ai.worker.__main__",
        parts: &["osmosis_ai.shipped_kinds", "osmosis_ai.worker"],
        packages: &[],
    },
];

pub(crate) fn check() -> Result<()> {
    let output = Command::new(python_environment::python())
        .current_dir(crate::ci::root()?)
        .args(["-c", READER, "python", PACKAGE])
        .output()
        .context("python could not be started")?;
    if !output.status.success() {
        bail!(
            "the imports of `{PACKAGE}` can't be read: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let text = String::from_utf8(output.stdout)?;
    if !text.contains(&format!("{PACKAGE}.worker.main ")) {
        bail!("no imports of `{PACKAGE}.worker.main` were found");
    }
    let mut wrong: Vec<_> = text.lines().filter_map(problem).collect();
    wrong.sort();
    if wrong.is_empty() {
        return Ok(());
    }
    bail!(
        "{}\nsee the table in xtask/src/python_direction.rs",
        wrong.join("\n")
    )
}

/// What is wrong with one line of the reader: module, imported module, line number.
fn problem(line: &str) -> Option<String> {
    let [module, imported, number] = line.split(' ').collect::<Vec<_>>()[..] else {
        return Some(format!("`{line}` is no line of the reader"));
    };
    let Some(from) = part(module) else {
        return Some(format!("`{module}` has no place in the table"));
    };
    let root = imported.split('.').next().unwrap_or(imported);
    let allowed = if root == PACKAGE {
        let to = part(imported);
        to.is_some_and(|to| to.name == from.name || from.parts.contains(&to.name))
    } else {
        from.packages.contains(&root)
    };
    (!allowed).then(|| format!("`{module}` (line {number}) must not import `{imported}`"))
}

fn part(module: &str) -> Option<&'static Part> {
    PARTS
        .iter()
        .filter(|part| {
            module
                .strip_prefix(part.name)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        })
        .max_by_key(|part| part.name.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_name_decides() {
        let name = |module| part(module).map(|part| part.name);
        assert_eq!(
            name("osmosis_ai.rollout.server.app"),
            Some("osmosis_ai.rollout.server")
        );
        assert_eq!(name("osmosis_ai.rollouts"), None);
        assert_eq!(
            name("osmosis_ai.worker.process"),
            Some("osmosis_ai.worker.process")
        );
    }

    #[test]
    fn the_core_may_import_no_workflow_kind_and_no_framework() {
        for (line, is_wrong) in [
            (
                "osmosis_ai.rollout.discovery osmosis_ai.areal.finding 3",
                true,
            ),
            ("osmosis_ai.worker.main osmosis_ai.areal.alias 3", true),
            ("osmosis_ai.worker.main osmosis_ai.shipped_kinds 3", true),
            ("osmosis_ai.rollout.context openai 3", true),
            ("osmosis_ai.other.thing osmosis_ai.rollout.types 3", true),
            (
                "osmosis_ai.worker.__main__ osmosis_ai.shipped_kinds 3",
                false,
            ),
            (
                "osmosis_ai.areal.finding osmosis_ai.rollout.grader 3",
                false,
            ),
            ("osmosis_ai.rollout.types pydantic 3", false),
        ] {
            assert_eq!(problem(line).is_some(), is_wrong, "{line}");
        }
    }
}

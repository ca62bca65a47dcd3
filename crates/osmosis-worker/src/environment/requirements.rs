//! What a rollout asks for, with the SDK's own needs in place of the SDK: it is never installed.

use camino::Utf8Path;
use pep508_rs::{Requirement, VerbatimUrl};

use super::project::Project;

/// The distributions that bring `osmosis_ai`: ours, and the public reference's.
pub(super) const OURS: &str = "osmosis-rs";
pub(super) const REFERENCE: &str = "osmosis-ai";

/// Extras that only the reference has, as those of ours that stand for them. An empty list: the
/// program itself does that work.
const STAND_INS: [(&str, &[&str]); 5] = [
    ("platform", &[]),
    ("parquet", &[]),
    ("eval", &["server"]),
    ("dev", &["server"]),
    ("full", &["server", "openai-agents", "strands"]),
];

/// Extras of ours, each with the module whose import asks for it.
const INTEGRATIONS: [(&str, &str); 2] = [
    ("openai-agents", "integrations.agents.openai_agents"),
    ("strands", "integrations.agents.strands"),
];

/// The line that a rollout without a `pyproject.toml` needs in one: our package, with the extras of the
/// integrations that its files import.
pub(super) fn sdk_dependency(rollout_dir: &Utf8Path) -> String {
    let files = rollout_dir.read_dir_utf8().into_iter().flatten().flatten();
    let texts: Vec<String> = files
        .filter(|entry| entry.path().extension() == Some("py"))
        .filter_map(|entry| std::fs::read_to_string(entry.path()).ok())
        .collect();
    let extras: Vec<&str> = INTEGRATIONS
        .iter()
        .filter(|(_, module)| texts.iter().any(|text| text.contains(module)))
        .map(|(extra, _)| *extra)
        .collect();
    if extras.is_empty() {
        OURS.to_owned()
    } else {
        format!("{OURS}[{}]", extras.join(","))
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Requirements {
    pub(super) packages: Vec<String>,
    /// What a person should know about it.
    pub(super) notes: Vec<String>,
}

impl Requirements {
    /// Replaces the SDK (or the reference's) in a list of requirements that parse.
    pub(super) fn of(dependencies: &[String], sdk: &Project) -> Self {
        let mut found = Self {
            packages: sdk.dependencies.clone(),
            notes: Vec::new(),
        };
        for dependency in dependencies {
            let Ok(requirement) = dependency.parse::<Requirement<VerbatimUrl>>() else {
                continue;
            };
            let name = requirement.name.to_string();
            if name != OURS && name != REFERENCE {
                found.need(dependency);
                continue;
            }
            if requirement.version_or_url.is_some() {
                found.note(format!(
                    "`{dependency}` is replaced by the SDK of this program, whatever its version"
                ));
            }
            for extra in &requirement.extras {
                found.need_extra(&name, extra.as_ref(), sdk);
            }
        }
        found
    }

    fn need_extra(&mut self, name: &str, extra: &str, sdk: &Project) {
        if let Some(packages) = sdk.extra(extra) {
            for package in packages {
                self.need(package);
            }
            return;
        }
        let stand_ins = STAND_INS.iter().find(|(known, _)| *known == extra);
        match stand_ins {
            Some((_, [])) => self.note(format!(
                "the extra `{extra}` of `{name}` needs no packages here: this program does its work"
            )),
            Some((_, ours)) => {
                self.note(format!(
                    "the extra `{extra}` of `{name}` is taken as `{OURS}[{}]`",
                    ours.join(",")
                ));
                for package in ours.iter().filter_map(|extra| sdk.extra(extra)).flatten() {
                    self.need(package);
                }
            }
            None => self.note(format!(
                "the extra `{extra}` of `{name}` is not known here and was left out; name the packages you need"
            )),
        }
    }

    fn need(&mut self, package: &str) {
        if !self.packages.iter().any(|known| known == package) {
            self.packages.push(package.to_owned());
        }
    }

    fn note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is needed in place of these dependencies, beyond what the SDK itself does, and what a
    /// person is told.
    fn replaced(dependencies: &[&str]) -> (Vec<String>, Vec<String>) {
        let sdk = super::super::sdk::description().unwrap();
        let dependencies: Vec<String> = dependencies.iter().map(ToString::to_string).collect();
        let found = Requirements::of(&dependencies, &sdk);
        let (own, more) = found.packages.split_at(sdk.dependencies.len());
        assert_eq!(own, sdk.dependencies);
        (
            more.iter().map(|package| bare(package)).collect(),
            found.notes,
        )
    }

    fn bare(package: &str) -> String {
        let requirement: Requirement<VerbatimUrl> = package.parse().unwrap();
        requirement.name.to_string()
    }

    #[track_caller]
    fn check(dependency: &str, packages: &[&str], note: Option<&str>) {
        let (found, notes) = replaced(&[dependency]);
        assert_eq!(found, packages, "{dependency}");
        match note {
            None => assert_eq!(notes, [""; 0], "{dependency}"),
            Some(part) => assert!(notes[0].contains(part), "{dependency}: {notes:?}"),
        }
    }

    #[test]
    fn the_sdk_gives_way_to_what_its_extras_need() {
        check("osmosis-rs", &[], None);
        check(
            "osmosis-rs[openai-agents]",
            &["openai-agents", "aiohttp"],
            None,
        );
        check("osmosis-rs[strands]", &["strands-agents", "aiohttp"], None);
        check("osmosis-rs[server]", &["uvicorn"], None);
    }

    #[test]
    fn the_reference_is_replaced_too_with_its_extras_mapped() {
        check("osmosis-ai", &[], None);
        check("osmosis-ai[server]", &["uvicorn"], None);
        check("osmosis-ai[strands]", &["strands-agents", "aiohttp"], None);
        check(
            "osmosis-ai[openai-agents]",
            &["openai-agents", "aiohttp"],
            None,
        );
        check("osmosis-ai[parquet]", &[], Some("needs no packages here"));
        check(
            "osmosis-ai[eval]",
            &["uvicorn"],
            Some("taken as `osmosis-rs[server]`"),
        );
        check(
            "osmosis-ai[full]",
            &["uvicorn", "openai-agents", "aiohttp", "strands-agents"],
            Some("taken as `osmosis-rs[server,openai-agents,strands]`"),
        );
    }

    #[test]
    fn an_extra_without_a_counterpart_is_mentioned_and_left_out() {
        check(
            "osmosis-ai[rubric]",
            &[],
            Some("`rubric` of `osmosis-ai` is not known"),
        );
        check(
            "osmosis-ai[harbor]",
            &[],
            Some("`harbor` of `osmosis-ai` is not known"),
        );
    }

    #[test]
    fn neither_spelling_nor_version_nor_source_matters() {
        for dependency in [
            "Osmosis_AI[Server]==0.3.8",
            "osmosis-ai[server]>=0.3",
            "osmosis.ai[server] >=0.3, <0.4 ; python_version >= '3.12'",
            "osmosis-ai[server] @ https://example.com/osmosis_ai.whl",
        ] {
            check(dependency, &["uvicorn"], Some("whatever its version"));
        }
    }

    #[test]
    fn both_distributions_in_one_list_are_one_sdk() {
        let (packages, notes) = replaced(&[
            "osmosis-ai[server]>=0.3",
            "numpy<3",
            "osmosis-rs[server,openai-agents]",
            "numpy<3",
        ]);
        assert_eq!(packages, ["uvicorn", "numpy", "openai-agents", "aiohttp"]);
        assert_eq!(notes.len(), 1, "{notes:?}");
    }

    #[test]
    fn a_rollout_that_does_not_name_the_sdk_gets_what_it_needs_all_the_same() {
        assert_eq!(replaced(&["numpy"]).0, ["numpy"]);
    }
}

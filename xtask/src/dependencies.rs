//! No dependency is known to be unmaintained, and none is there twice without a reason. Works offline, on
//! `Cargo.lock`.
//!
//! This is no look into RustSec's database of advisories, which needs the network: `cargo audit` and
//! `cargo deny check advisories` do that, where there is one. The names below are those that projects like this
//! one most often still pull in.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail};
use cargo_metadata::{Metadata, MetadataCommand};

/// Crates that nobody maintains any more, with what took their place.
const REFUSED: [(&str, &str); 31] = [
    ("adler", "adler2"),
    ("ansi_term", "owo-colors"),
    ("async-std", "tokio"),
    ("atty", "std::io::IsTerminal"),
    ("backoff", "a loop with a sleep"),
    ("bincode", "rmp-serde"),
    ("cpuid-bool", "cpufeatures"),
    ("daemonize", "a service manager"),
    ("derivative", "a derive of your own"),
    ("dotenv", "dotenvy"),
    ("encoding", "encoding_rs"),
    ("failure", "thiserror"),
    ("fxhash", "rustc-hash"),
    ("gcc", "cc"),
    ("instant", "std::time::Instant"),
    ("mach", "mach2"),
    ("mopa", "std::any"),
    ("net2", "socket2"),
    ("number_prefix", "unit-prefix"),
    ("paste", "pastey"),
    ("proc-macro-error", "proc-macro-error2 or syn::Error"),
    ("rustls-pemfile", "rustls-pki-types"),
    ("safemem", "the standard library"),
    ("serde_cbor", "ciborium"),
    ("serde_yaml", "toml_edit"),
    ("stdweb", "web-sys"),
    ("structopt", "clap"),
    ("tempdir", "tempfile"),
    ("term_size", "console"),
    ("wee_alloc", "the default allocator"),
    ("yaml-rust", "yaml-rust2"),
];

/// Refused crates that are there all the same: who pulls them in, and why they stay for now.
const TOLERATED: [(&str, &[&str], &str); 1] = [(
    "paste",
    &["gemm", "pulp", "tokenizers"],
    "unmaintained (RUSTSEC-2024-0436), a macro that runs at build time only. The newest gemm and pulp (below \
     candle-core) use it; tokenizers drops it in 1.0, which has no release yet.",
)];

/// Crates that are there in several versions, with who holds on to the older ones. Each costs build time and
/// size, and doubles what has to be watched.
const DOUBLED: [(&[&str], &str); 14] = [
    (
        &["base64"],
        "spm_precompiled (tokenizers), async-openai, rig-core",
    ),
    (&["bit-set", "bit-vec"], "fancy-regex (tokenizers)"),
    (&["bitflags"], "defmt, behind features that are off"),
    (&["core-foundation"], "system-configuration, on macOS"),
    (
        &["fallible-iterator"],
        "tokio-postgres is at 0.2, rusqlite at 0.3",
    ),
    (&["getrandom", "r-efi"], "ring, ahash and tokenizers"),
    (&["hashbrown"], "safetensors"),
    (&["itertools"], "pep508_rs"),
    (
        &["rand", "rand_chacha", "rand_core"],
        "candle-core, tokenizers and async-openai are at rand 0.9",
    ),
    (&["supports-color"], "owo-colors asks for both"),
    (&["syn"], "derives that have not moved to syn 3"),
    (&["thiserror", "thiserror-impl"], "pep508_rs"),
    (&["wasi"], "whoami (tokio-postgres), on WebAssembly"),
    (&["windows-sys"], "ring, on Windows"),
];

pub(crate) fn check() -> Result<()> {
    let metadata = MetadataCommand::new().exec()?;
    let packages = Packages::of(&metadata);
    let mut wrong = refused(&packages);
    wrong.extend(doubled(&packages));
    if wrong.is_empty() {
        return Ok(());
    }
    bail!("dependencies that need a decision:\n{}", wrong.join("\n"))
}

/// Versions by name, and who names whom.
#[derive(Default)]
struct Packages {
    versions: BTreeMap<String, BTreeSet<String>>,
    users: BTreeMap<String, BTreeSet<String>>,
}

impl Packages {
    fn of(metadata: &Metadata) -> Self {
        let mut packages = Self::default();
        for package in &metadata.packages {
            let name = package.name.to_string();
            let versions = packages.versions.entry(name).or_default();
            versions.insert(package.version.to_string());
        }
        let nodes = metadata.resolve.iter().flat_map(|resolve| &resolve.nodes);
        for node in nodes {
            let user = metadata[&node.id].name.to_string();
            for dependency in &node.deps {
                let name = metadata[&dependency.pkg].name.to_string();
                let users = packages.users.entry(name).or_default();
                users.insert(user.clone());
            }
        }
        packages
    }
}

fn refused(packages: &Packages) -> Vec<String> {
    let mut wrong = vec![];
    for (name, instead) in REFUSED {
        let tolerated = TOLERATED.iter().find(|(known, _, _)| *known == name);
        if !packages.versions.contains_key(name) {
            if tolerated.is_some() {
                wrong.push(format!("{name}: is gone; take it out of TOLERATED"));
            }
            continue;
        }
        let users = packages.users.get(name).cloned().unwrap_or_default();
        let expected = |user: &String| {
            // `gemm` stands for its parts, `gemm-f32` and the like.
            tolerated.is_some_and(|(_, by, _)| {
                by.iter().any(|known| {
                    user == known
                        || user
                            .strip_prefix(known)
                            .is_some_and(|rest| rest.starts_with('-'))
                })
            })
        };
        for user in users.iter().filter(|user| !expected(user)) {
            wrong.push(format!(
                "{name}: unmaintained, and {user} uses it; use {instead} in its place"
            ));
        }
    }
    wrong
}

fn doubled(packages: &Packages) -> Vec<String> {
    let known: BTreeSet<&str> = DOUBLED
        .iter()
        .flat_map(|(names, _)| names.iter().copied())
        .collect();
    let mut wrong = vec![];
    for (name, versions) in packages.versions.iter().filter(|(_, all)| all.len() > 1) {
        if !known.contains(name.as_str()) {
            let versions: Vec<&str> = versions.iter().map(String::as_str).collect();
            wrong.push(format!(
                "{name}: is there as {}; use one, or say in DOUBLED who needs both",
                versions.join(" and ")
            ));
        }
    }
    for name in known {
        if packages.versions.get(name).is_none_or(|all| all.len() < 2) {
            wrong.push(format!(
                "{name}: has one version now; take it out of DOUBLED"
            ));
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packages(list: &[(&str, &[&str], &[&str])]) -> Packages {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        let mut packages = Packages::default();
        for (name, versions, users) in list {
            packages
                .versions
                .insert((*name).to_owned(), owned(versions));
            packages.users.insert((*name).to_owned(), owned(users));
        }
        packages
    }

    #[test]
    fn an_unmaintained_crate_is_refused_and_a_tolerated_one_only_for_those_who_are_known() {
        let all = packages(&[
            ("atty", &["0.2.14"], &["clap"]),
            ("paste", &["1.0.15"], &["gemm-f32", "pulp", "another"]),
        ]);
        assert_eq!(
            refused(&all),
            [
                "atty: unmaintained, and clap uses it; use std::io::IsTerminal in its place",
                "paste: unmaintained, and another uses it; use pastey in its place",
            ]
        );
        assert_eq!(
            refused(&packages(&[])),
            ["paste: is gone; take it out of TOLERATED"]
        );
    }

    #[test]
    fn a_second_version_needs_a_reason_and_a_reason_a_second_version() {
        let wrong = doubled(&packages(&[("time", &["0.1.45", "0.3.41"], &[])]));
        assert_eq!(
            wrong[0],
            "time: is there as 0.1.45 and 0.3.41; use one, or say in DOUBLED who needs both"
        );
        assert!(
            wrong[1..].contains(&"syn: has one version now; take it out of DOUBLED".to_owned())
        );
    }

    #[test]
    fn the_workspace_passes() {
        check().unwrap();
    }
}

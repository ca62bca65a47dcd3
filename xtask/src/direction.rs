//! Dependencies between our crates point one way, as ARCHITECTURE.md says.

use anyhow::{Result, bail};
use cargo_metadata::{DependencyKind, MetadataCommand};

/// Which of our crates each of our crates may build on.
const ALLOWED: &[(&str, &[&str])] = &[
    ("osmosis-core", &[]),
    ("osmosis-data", &["osmosis-core"]),
    ("osmosis-dialect", &[]),
    ("osmosis-sdk", &["osmosis-core"]),
    ("osmosis-store", &["osmosis-core"]),
    ("osmosis-store-postgres", &["osmosis-core", "osmosis-store"]),
    ("osmosis-store-sqlite", &["osmosis-core", "osmosis-store"]),
    ("osmosis-tokens", &["osmosis-core"]),
    ("osmosis-policy", &["osmosis-core", "osmosis-tokens"]),
    (
        "osmosis-gateway",
        &[
            "osmosis-core",
            "osmosis-dialect",
            "osmosis-store",
            "osmosis-tokens",
        ],
    ),
    (
        "osmosis-engine",
        &[
            "osmosis-core",
            "osmosis-data",
            "osmosis-store",
            "osmosis-tokens",
        ],
    ),
    ("osmosis-worker", &["osmosis-core", "osmosis-engine"]),
    (
        "osmosis-train",
        &[
            "osmosis-core",
            "osmosis-engine",
            "osmosis-gateway",
            "osmosis-store",
            "osmosis-tokens",
        ],
    ),
    (
        "osmosis-run",
        &[
            "osmosis-core",
            "osmosis-data",
            "osmosis-engine",
            "osmosis-gateway",
            "osmosis-policy",
            "osmosis-store",
            "osmosis-store-postgres",
            "osmosis-store-sqlite",
            "osmosis-tokens",
            "osmosis-train",
            "osmosis-worker",
        ],
    ),
    (
        "osmosis-server",
        &[
            "osmosis-core",
            "osmosis-data",
            "osmosis-engine",
            "osmosis-gateway",
            "osmosis-run",
            "osmosis-store",
            "osmosis-train",
            "osmosis-worker",
        ],
    ),
    (
        "osmosis-view",
        &[
            "osmosis-core",
            "osmosis-data",
            "osmosis-run",
            "osmosis-store",
        ],
    ),
    (
        "osmosis-cli",
        &[
            "osmosis-core",
            "osmosis-data",
            "osmosis-engine",
            "osmosis-gateway",
            "osmosis-policy",
            "osmosis-run",
            "osmosis-server",
            "osmosis-store",
            "osmosis-tokens",
            "osmosis-train",
            "osmosis-view",
            "osmosis-worker",
        ],
    ),
    ("osmosis-testkit", &["osmosis-core", "osmosis-store"]),
    (
        "xtask",
        &["osmosis-store", "osmosis-store-sqlite", "osmosis-testkit"],
    ),
];

pub(crate) fn check() -> Result<()> {
    let metadata = MetadataCommand::new().no_deps().exec()?;
    let mut wrong = vec![];
    for package in &metadata.packages {
        let Some((_, allowed)) = ALLOWED
            .iter()
            .find(|(name, _)| *name == package.name.as_str())
        else {
            wrong.push(format!("`{}` has no place in the table", package.name));
            continue;
        };
        for dependency in &package.dependencies {
            let ours = metadata
                .packages
                .iter()
                .any(|p| p.name.as_str() == dependency.name);
            let shipped = dependency.kind != DependencyKind::Development;
            if ours && shipped && !allowed.contains(&dependency.name.as_str()) {
                wrong.push(format!(
                    "`{}` must not build on `{}`",
                    package.name, dependency.name
                ));
            }
        }
    }
    if wrong.is_empty() {
        return Ok(());
    }
    bail!("{}\nsee the arrows in ARCHITECTURE.md", wrong.join("\n"))
}

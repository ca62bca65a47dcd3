//! What the program is made of, as a CycloneDX document: every crate that is compiled into it or compiles it, with
//! licence, checksum and what it depends on. Tests' dependencies are not in it, because they are not in the program.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context, Result};
use camino::Utf8Path;
use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package, PackageId};
use serde::Serialize;

const PROGRAM: &str = "osmosis-cli";

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Bill {
    bom_format: &'static str,
    spec_version: &'static str,
    version: u32,
    metadata: BillMetadata,
    components: Vec<Component>,
    dependencies: Vec<Dependencies>,
}

#[derive(Debug, Serialize)]
struct BillMetadata {
    component: Component,
}

#[derive(Debug, Serialize)]
struct Component {
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(rename = "bom-ref")]
    reference: String,
    name: String,
    version: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    hashes: Vec<Hash>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    licenses: Vec<Licence>,
    #[serde(skip_serializing_if = "Option::is_none")]
    purl: Option<String>,
}

#[derive(Debug, Serialize)]
struct Hash {
    alg: &'static str,
    content: String,
}

#[derive(Debug, Serialize)]
struct Licence {
    expression: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Dependencies {
    #[serde(rename = "ref")]
    reference: String,
    depends_on: Vec<String>,
}

/// The bill of the `osmosis` program for the platform this runs on.
pub(super) fn of_program(root: &Utf8Path) -> Result<Bill> {
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let metadata = MetadataCommand::new()
        .current_dir(root)
        .other_options([
            "--locked".to_owned(),
            "--filter-platform".to_owned(),
            platform,
        ])
        .exec()?;
    let lock = root.join("Cargo.lock");
    let lock = fs::read_to_string(&lock).with_context(|| format!("reading {lock}"))?;
    of(&metadata, &checksums(&lock))
}

fn of(metadata: &Metadata, checksums: &BTreeMap<(String, String), String>) -> Result<Bill> {
    let program = metadata
        .workspace_packages()
        .into_iter()
        .find(|package| package.name == PROGRAM)
        .with_context(|| format!("no `{PROGRAM}` in the workspace"))?;
    let graph = used(metadata, &program.id)?;
    let mut components = vec![];
    let mut dependencies = vec![];
    for (id, uses) in &graph {
        let package = &metadata[id];
        if *id != program.id {
            components.push(component(package, "library", checksums));
        }
        dependencies.push(Dependencies {
            reference: reference(package),
            depends_on: uses.iter().map(|id| reference(&metadata[id])).collect(),
        });
    }
    components.sort_by(|a, b| a.reference.cmp(&b.reference));
    dependencies.sort_by(|a, b| a.reference.cmp(&b.reference));
    Ok(Bill {
        bom_format: "CycloneDX",
        spec_version: "1.5",
        version: 1,
        metadata: BillMetadata {
            component: component(program, "application", checksums),
        },
        components,
        dependencies,
    })
}

/// What is needed to build the package, and what each of that needs in turn.
fn used(
    metadata: &Metadata,
    program: &PackageId,
) -> Result<BTreeMap<PackageId, BTreeSet<PackageId>>> {
    let resolved = metadata.resolve.as_ref().context("no dependency graph")?;
    let nodes: BTreeMap<&PackageId, _> =
        resolved.nodes.iter().map(|node| (&node.id, node)).collect();
    let mut found = BTreeMap::new();
    let mut open = vec![program.clone()];
    while let Some(id) = open.pop() {
        if found.contains_key(&id) {
            continue;
        }
        let node = nodes
            .get(&id)
            .context("a package that is not in the graph")?;
        let uses = node.deps.iter().filter(|dependency| {
            let mut kinds = dependency.dep_kinds.iter();
            kinds.any(|kind| kind.kind != DependencyKind::Development)
        });
        let uses: BTreeSet<PackageId> = uses.map(|dependency| dependency.pkg.clone()).collect();
        open.extend(uses.iter().cloned());
        found.insert(id, uses);
    }
    Ok(found)
}

fn component(
    package: &Package,
    kind: &'static str,
    checksums: &BTreeMap<(String, String), String>,
) -> Component {
    let (name, version) = (package.name.to_string(), package.version.to_string());
    let checksum = checksums.get(&(name.clone(), version.clone()));
    let licence = package.license.iter().map(|text| Licence {
        // How crates of long ago wrote `OR`.
        expression: text.replace('/', " OR "),
    });
    Component {
        kind,
        reference: reference(package),
        purl: package
            .source
            .as_ref()
            .map(|_| format!("pkg:cargo/{name}@{version}")),
        hashes: checksum
            .map(|content| Hash {
                alg: "SHA-256",
                content: content.clone(),
            })
            .into_iter()
            .collect(),
        licenses: licence.collect(),
        name,
        version,
    }
}

fn reference(package: &Package) -> String {
    format!("{}@{}", package.name, package.version)
}

/// The checksums in a `Cargo.lock`, by name and version.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let value = |package: &str, key: &str| {
        package.lines().find_map(|line| {
            let value = line.strip_prefix(key)?.strip_prefix(" = \"")?;
            value.strip_suffix('"').map(str::to_owned)
        })
    };
    lock.split("[[package]]")
        .filter_map(|package| {
            let place = (value(package, "name")?, value(package, "version")?);
            Some((place, value(package, "checksum")?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bill_names_what_is_in_the_program_and_nothing_of_the_tests() {
        let bill = of_program(&crate::ci::root().unwrap()).unwrap();
        assert_eq!(bill.metadata.component.name, PROGRAM);
        let names: BTreeSet<&str> = bill
            .components
            .iter()
            .map(|component| component.name.as_str())
            .collect();
        for inside in ["osmosis-core", "tokio", "libsqlite3-sys", "serde_derive"] {
            assert!(names.contains(inside), "no {inside} in {names:?}");
        }
        for outside in ["osmosis-testkit", "insta", "proptest", "xtask", PROGRAM] {
            assert!(!names.contains(outside), "{outside} is in {names:?}");
        }
        for component in &bill.components {
            assert!(!component.licenses.is_empty(), "{component:?}");
            let ours = component.name.starts_with("osmosis-");
            assert_eq!(component.hashes.is_empty(), ours, "{component:?}");
            assert_eq!(component.purl.is_none(), ours, "{component:?}");
        }
        let known: BTreeSet<&str> = bill
            .dependencies
            .iter()
            .map(|dependency| dependency.reference.as_str())
            .collect();
        assert_eq!(known.len(), bill.components.len() + 1);
        let used = bill.dependencies.iter().flat_map(|all| &all.depends_on);
        for reference in used {
            assert!(known.contains(reference.as_str()), "{reference}");
        }
    }
}

//! Every dependency has a licence we accept and comes from the registry. Works offline.

use anyhow::{Context, Result, bail};
use cargo_metadata::MetadataCommand;
use spdx::{Expression, LicenseItem};

/// Licences that ask for little more than attribution.
const ACCEPTED: [&str; 12] = [
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    // Copyleft by file; we use such crates unchanged.
    "MPL-2.0",
    "Unicode-3.0",
    "Zlib",
];

pub(crate) fn check() -> Result<()> {
    let metadata = MetadataCommand::new().exec()?;
    let mut wrong = vec![];
    for package in &metadata.packages {
        let name = format!("{} {}", package.name, package.version);
        match &package.license {
            None => wrong.push(format!("{name}: no licence named")),
            Some(text) => {
                let expression = Expression::parse_mode(text, spdx::ParseMode::LAX)
                    .with_context(|| format!("{name}: licence `{text}`"))?;
                let accepted = expression.evaluate(|requirement| match &requirement.license {
                    LicenseItem::Spdx { id, .. } => ACCEPTED.contains(&id.name),
                    LicenseItem::Other { .. } => false,
                });
                if !accepted {
                    wrong.push(format!("{name}: licence `{text}`"));
                }
            }
        }
        if let Some(source) = &package.source
            && !source.is_crates_io()
        {
            wrong.push(format!(
                "{name}: comes from {source}, not from the registry"
            ));
        }
    }
    if wrong.is_empty() {
        return Ok(());
    }
    bail!("dependencies that need a decision:\n{}", wrong.join("\n"))
}

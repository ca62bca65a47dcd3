//! Programs of the system that tests need. Where one is missing and this is root on Debian, it is installed.

use std::process::Command;

use anyhow::{Result, bail};
use camino::Utf8Path;

use super::site::Site;

/// Shells whose completion is tested.
const SHELLS: [&str; 2] = ["zsh", "fish"];

/// The shells that completion is tested in.
pub(super) fn shells(site: &Site) -> Result<()> {
    let missing = || -> Vec<&str> {
        let shells = SHELLS.into_iter();
        shells.filter(|shell| !is_on_path(shell)).collect()
    };
    if missing().is_empty() {
        return Ok(());
    }
    let installed = install(site, &missing());
    match (missing(), installed) {
        (missing, _) if missing.is_empty() => Ok(()),
        (missing, Err(error)) => Err(error.context(format!(
            "{} missing, and could not be installed: the tests of completion need them",
            missing.join(" and ")
        ))),
        (missing, Ok(())) => bail!("{} missing", missing.join(" and ")),
    }
}

/// `ip`, for machines made of network namespaces. Where it can't be had, tests do with loopback addresses.
pub(super) fn network_tools(site: &Site) {
    if !is_on_path("ip")
        && let Err(error) = install(site, &["iproute2"])
    {
        site.say(&format!("no network namespaces: {error:#}"));
    }
}

/// Installs packages of Debian.
pub(super) fn install(site: &Site, packages: &[&str]) -> Result<()> {
    let quiet = ["install", "-y", "--no-install-recommends"];
    site.run(Command::new("apt-get").arg("update"), &site.root)?;
    site.run(
        Command::new("apt-get").args(quiet).args(packages),
        &site.root,
    )
}

fn is_on_path(program: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':')
        .any(|folder| Utf8Path::new(folder).join(program).is_file())
}

//! PostgreSQL for the tests of the store: each starts a server of its own, so only the programs must be there.
//!
//! Where they are missing and this is root on Debian, the package is installed, without the server that it would start.

use std::process::Command;

use anyhow::{Result, bail};
use camino::{Utf8Path, Utf8PathBuf};

use super::site::Site;

/// Says that installing the package makes no cluster, which would be started.
const CLUSTERS: &str = "/etc/postgresql-common/createcluster.conf";

pub(super) fn install(site: &Site) -> Result<()> {
    if is_there() {
        return Ok(());
    }
    if !Utf8Path::new(CLUSTERS).exists() {
        let folder = Utf8Path::new(CLUSTERS)
            .parent()
            .unwrap_or(Utf8Path::new("/"));
        std::fs::create_dir_all(folder)?;
        std::fs::write(CLUSTERS, "create_main_cluster = false\n")?;
    }
    let package = [
        "install",
        "-y",
        "--no-install-recommends",
        "-o",
        "Dpkg::Options::=--force-confold",
        "postgresql",
    ];
    let installed = site
        .run(Command::new("apt-get").arg("update"), &site.root)
        .and_then(|()| site.run(Command::new("apt-get").args(package), &site.root));
    match (is_there(), installed) {
        (true, _) => Ok(()),
        (false, Err(error)) => {
            Err(error.context("PostgreSQL is missing and could not be installed"))
        }
        (false, Ok(())) => bail!("PostgreSQL is missing"),
    }
}

/// In a folder of the path, or where Debian has it.
fn is_there() -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    let debian = Utf8Path::new("/usr/lib/postgresql")
        .read_dir_utf8()
        .into_iter()
        .flatten()
        .flatten()
        .map(|version| version.path().join("bin"));
    path.split(':')
        .map(Utf8PathBuf::from)
        .chain(debian)
        .any(|folder| folder.join("postgres").exists() && folder.join("initdb").exists())
}

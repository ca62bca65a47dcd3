//! A run on a Ray cluster of two machines, one of which dies.
//!
//! Ray comes from PyPI, into an environment of its own below the target folder (300 MB, half a minute the first time).

use std::process::Command;

use anyhow::Result;
use osmosis_testkit::python_environment;

use super::site::Site;
use super::system_packages;

/// Needs PostgreSQL and the program.
pub(super) fn cluster(site: &Site) -> Result<()> {
    system_packages::network_tools(site);
    // Of the whole workspace: cargo would build other crates again for the features of one package alone.
    site.cargo(&["build", "--workspace", "--locked", "--bins"])?;
    let folder = site.root.join("python");
    site.run(
        Command::new(python_environment::ray_python())
            .arg("tests/ray_cluster.py")
            .arg("--osmosis")
            .arg(super::viewer::target(site).join("debug/osmosis")),
        &folder,
    )
}

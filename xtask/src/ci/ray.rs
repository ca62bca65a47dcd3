//! A run on a Ray cluster of two machines, one of which dies.
//!
//! Ray comes from PyPI, into an environment of its own below the target folder (300 MB, half a minute the first time).

use std::process::Command;

use anyhow::Result;
use osmosis_testkit::python_environment;

use super::site::Site;
use super::steps::BUILT;
use super::system_packages;

/// Needs PostgreSQL and the program.
pub(super) fn cluster(site: &Site) -> Result<()> {
    system_packages::network_tools(site);
    // As the tests were built: cargo would build most crates again for the features of programs alone.
    site.cargo(&[&["build", "--workspace", "--locked"], &BUILT[..]].concat())?;
    let folder = site.root.join("python");
    site.run(
        Command::new(python_environment::ray_python())
            .arg("tests/ray_cluster.py")
            .arg("--osmosis")
            .arg(super::viewer::target(site).join("debug/osmosis")),
        &folder,
    )
}

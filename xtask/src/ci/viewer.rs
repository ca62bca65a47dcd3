//! The viewer's page: types, lints, format, and tests in a real browser.
//!
//! Users need none of this. Packages go into the target folder, and Chromium comes from the system; where it is
//! missing and this is root on Debian, it is installed.

use std::process::Command;

use anyhow::{Context, Result, bail};
use camino::{Utf8Path, Utf8PathBuf};
use osmosis_testkit::python_environment;

use super::site::Site;
use super::steps::BUILT;
use super::system_packages;

/// What is installed, and nothing newer: a release of another's must not fail our checks.
const PACKAGES: [&str; 5] = [
    "axe-core@4.14.0",
    "eslint@10.15.0",
    "playwright-core@1.65.1",
    "prettier@3.10.1",
    "typescript@7.0.2",
];

/// Where Chromium is, in the order in which it is looked for.
const CHROMIUM: [&str; 3] = [
    "/usr/bin/chromium",
    "/usr/bin/chromium-browser",
    "/usr/bin/google-chrome",
];

/// Types, lints and format of the page and its tests.
pub(super) fn page(site: &Site) -> Result<()> {
    let packages = packages(site)?;
    let folder = site.root.join("crates/osmosis-view");
    let tool = |name: &str, arguments: &[&str]| {
        let program = packages.join("node_modules/.bin").join(name);
        site.run(Command::new(program).args(arguments), &folder)
    };
    tool("tsc", &["-p", "web/jsconfig.json"])?;
    tool("eslint", &["-c", "eslint.config.mjs", "web", "tests"])?;
    tool("prettier", &["--check", "--log-level", "warn", "."])
}

/// Every page in Chromium.
pub(super) fn browser(site: &Site) -> Result<()> {
    let packages = packages(site)?;
    let chromium = chromium(site)?;
    // As the tests were built: cargo would build most crates again for the features of programs alone.
    site.cargo(&[&["build", "--workspace", "--locked"], &BUILT[..]].concat())?;
    let example = ["build", "--workspace", "--locked", "--example", "make_runs"];
    site.cargo(&example)?;
    let built = target(site).join("debug");
    let folder = site.root.join("crates/osmosis-view/tests/browser");
    // One file after the other: a browser takes a processor for itself.
    let arguments = ["--test", "--test-concurrency=1", "--test-timeout=300000"];
    site.run(
        Command::new("node")
            .args(arguments)
            .args(tests(&folder)?)
            .env("OSMOSIS", built.join("osmosis"))
            .env("MAKE_RUNS", built.join("examples/make_runs"))
            .env("PYTHON", python_environment::python())
            .env("VIEWER_PACKAGES", &packages)
            .env("CHROMIUM", chromium),
        &folder,
    )
}

fn tests(folder: &Utf8Path) -> Result<Vec<Utf8PathBuf>> {
    let mut found = vec![];
    for entry in folder.read_dir_utf8()? {
        let path = entry?.into_path();
        if path.as_str().ends_with(".test.mjs") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

pub(super) fn target(site: &Site) -> Utf8PathBuf {
    std::env::var("CARGO_TARGET_DIR").map_or_else(|_| site.root.join("target"), Utf8PathBuf::from)
}

/// The folder with the packages, installed once.
fn packages(site: &Site) -> Result<Utf8PathBuf> {
    let folder = target(site).join("viewer-packages");
    let installed = folder.join("installed");
    let wanted = PACKAGES.join("\n");
    if std::fs::read_to_string(&installed).is_ok_and(|there| there == wanted) {
        return Ok(folder);
    }
    std::fs::create_dir_all(&folder)?;
    std::fs::write(folder.join("package.json"), "{\"private\": true}\n")?;
    let quiet = [
        "install",
        "--no-audit",
        "--no-fund",
        "--ignore-scripts",
        "--save-exact",
    ];
    site.run(Command::new("npm").args(quiet).args(PACKAGES), &folder)
        .context("the viewer's checks need `npm`")?;
    std::fs::write(installed, wanted)?;
    Ok(folder)
}

fn chromium(site: &Site) -> Result<Utf8PathBuf> {
    let there = || {
        CHROMIUM
            .iter()
            .map(Utf8PathBuf::from)
            .find(|path| path.exists())
    };
    if let Some(path) = there() {
        return Ok(path);
    }
    let installed = system_packages::install(site, &["chromium", "fonts-dejavu-core"]);
    match (there(), installed) {
        (Some(path), _) => Ok(path),
        (None, Err(error)) => Err(error.context("Chromium is missing and could not be installed")),
        (None, Ok(())) => bail!("Chromium is missing"),
    }
}

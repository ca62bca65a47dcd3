//! The steps, in the order in which they run.

use std::process::Command;

use anyhow::Result;
use osmosis_testkit::python_environment;

use super::site::Site;

/// One check.
pub(super) struct Step {
    pub(super) name: &'static str,
    pub(super) order: Order,
    pub(super) check: fn(&Site) -> Result<()>,
}

/// When a step runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// Before all others: it takes seconds.
    First,
    /// It keeps the processors busy.
    Compiling,
    /// In a thread of its own, while others compile.
    Beside,
    /// After all of these, with nothing beside it.
    Last,
}

/// The targets that are built. Examples are linted and never linked: no test starts one.
pub(super) const BUILT: [&str; 3] = ["--lib", "--bins", "--tests"];

/// Python tests that start no worker and no server.
const QUICK_PYTHON_TESTS: [&str; 12] = [
    "tests/test_areal_api.py",
    "tests/test_areal_context.py",
    "tests/test_areal_results.py",
    "tests/test_cleanup.py",
    "tests/test_contract.py",
    "tests/test_discovery.py",
    "tests/test_frames.py",
    "tests/test_ray.py",
    "tests/test_rubric.py",
    "tests/test_sdk.py",
    "tests/test_trainer.py",
    "tests/test_workflow_kinds.py",
];

/// What the other environment, which has no Strands, can't check.
const STRANDS_TESTS: [&str; 4] = [
    "tests/test_contract.py",
    "tests/test_strands.py",
    "tests/test_troubleshooting.py",
    "tests/test_worker_strands.py",
];

pub(super) const STEPS: [Step; 22] = [
    RUST_FORMAT,
    DEPENDENCY_DIRECTION,
    step("dependency licences", Order::First, |_| {
        crate::licences::check()
    }),
    step("dependency upkeep", Order::First, |_| {
        crate::dependencies::check()
    }),
    step("rust lints", Order::Compiling, |site| {
        let workspace = ["clippy", "--workspace", "--all-targets", "--locked"];
        site.cargo(&[&workspace, &["--", "-D", "warnings"][..]].concat())
    }),
    step("rust build", Order::Compiling, |site| {
        site.cargo(&[&["build", "--workspace", "--locked"], &BUILT[..]].concat())
    }),
    step("python environment", Order::Beside, |_| {
        python_environment::python();
        Ok(())
    }),
    // Before the tests that start servers.
    step("postgresql", Order::Beside, super::postgres::install),
    step("ray environment", Order::Beside, |_| {
        python_environment::ray_python();
        Ok(())
    }),
    step("structured environment", Order::Beside, |_| {
        python_environment::structured_python();
        Ok(())
    }),
    PYTHON_DIRECTION,
    PYTHON_FORMAT,
    PYTHON_LINTS,
    PYTHON_TYPES,
    // Not beside a compiler: they start workers, and have deadlines.
    step("python tests", Order::Last, |site| {
        site.python(&["-m", "pytest", "-q"])
    }),
    step("strands tests", Order::Last, |site| {
        let python = python_environment::strands_python();
        site.python_of(&python, &["-m", "mypy"])?;
        site.python_of(
            &python,
            &[&["-m", "pytest", "-q"], &STRANDS_TESTS[..]].concat(),
        )
    }),
    step("rust tests", Order::Last, |site| {
        super::system_packages::shells(site)?;
        let built = [&["--workspace", "--locked"], &BUILT[..]].concat();
        rust_tests(site, &built)
    }),
    step("ray cluster", Order::Last, super::ray::cluster),
    step("viewer page", Order::Beside, super::viewer::page),
    step("viewer in a browser", Order::Last, super::viewer::browser),
    // Of the whole workspace: single packages would have other features, and much would be compiled again.
    step("rust doc tests", Order::Last, |site| {
        site.cargo(&["test", "--doc", "--workspace", "--locked"])
    }),
    step("torture", Order::Last, |_| {
        crate::torture::run(&crate::torture::Options::short())
    }),
];

/// For daily work: under two minutes when little has changed.
pub(super) const QUICK_STEPS: [Step; 9] = [
    RUST_FORMAT,
    DEPENDENCY_DIRECTION,
    step("rust lints", Order::Compiling, |site| {
        let packages = selected(&site.changed.with_dependents);
        if packages.is_empty() {
            return Ok(());
        }
        let crates: Vec<&str> = packages.iter().map(String::as_str).collect();
        let clippy = ["clippy", "--all-targets", "--locked"];
        site.cargo(&[&clippy, &crates[..], &["--", "-D", "warnings"]].concat())
    }),
    step("rust unit tests", Order::Compiling, |site| {
        let packages = selected(&site.changed.crates);
        if packages.is_empty() {
            return Ok(());
        }
        let mut arguments: Vec<&str> = packages.iter().map(String::as_str).collect();
        arguments.extend(["--bins", "--locked"]);
        if site.changed.has_library {
            arguments.push("--lib");
        }
        rust_tests(site, &arguments)
    }),
    PYTHON_DIRECTION,
    PYTHON_FORMAT,
    PYTHON_LINTS,
    PYTHON_TYPES,
    step("python unit tests", Order::Beside, |site| {
        if !site.changed.python {
            return Ok(());
        }
        site.python(&[&["-m", "pytest", "-q"], &QUICK_PYTHON_TESTS[..]].concat())
    }),
];

const RUST_FORMAT: Step = step("rust format", Order::First, |site| {
    site.cargo(&["fmt", "--all", "--check"])
});
const DEPENDENCY_DIRECTION: Step = step("dependency direction", Order::First, |_| {
    crate::direction::check()
});
const PYTHON_DIRECTION: Step = step("python direction", Order::Beside, |_| {
    crate::python_direction::check()
});
const PYTHON_FORMAT: Step = step("python format", Order::Beside, |site| {
    site.python(&["-m", "ruff", "format", "--check", "."])
});
const PYTHON_LINTS: Step = step("python lints", Order::Beside, |site| {
    site.python(&["-m", "ruff", "check", "."])
});
const PYTHON_TYPES: Step = step("python types", Order::Beside, |site| {
    site.python(&["-m", "mypy"])
});

const fn step(name: &'static str, order: Order, check: fn(&Site) -> Result<()>) -> Step {
    Step { name, order, check }
}

/// `--package` for each of them.
fn selected(crates: &[String]) -> Vec<String> {
    let package = |name| format!("--package={name}");
    crates.iter().map(package).collect()
}

/// With nextest when it is installed, which runs each test in a process of its own.
fn rust_tests(site: &Site, arguments: &[&str]) -> Result<()> {
    let nextest = Command::new("cargo")
        .args(["nextest", "--version"])
        .output()
        .is_ok_and(|output| output.status.success());
    if nextest {
        // Many tests wait for deadlines, leases and replies: more of them than processors keep these busy.
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = format!("--test-threads={}", (processors + processors / 2).max(2));
        // A crate may have no tests yet. One run tells of every test that fails.
        let run = [
            "nextest",
            "run",
            "--no-tests=pass",
            "--no-fail-fast",
            &threads,
        ];
        return site.cargo(&[&run, arguments].concat());
    }
    site.say("cargo-nextest is not installed: using cargo test");
    site.cargo(&[&["test"], arguments].concat())
}

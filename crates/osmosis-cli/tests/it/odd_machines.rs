//! Machines that lack something: the right time, descriptors.

use std::process::Command;

use camino::Utf8PathBuf;

use crate::workspace::{ECHO_SCRIPT, PLAIN, Workspace, echo_rows};

/// The clock of a machine without a battery is before 1970 at first. A library that turns the clock of a process back by some seconds.
const SHIFT: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
int clock_gettime(clockid_t clock, struct timespec *now) {
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, now);
    if (clock == CLOCK_REALTIME) now->tv_sec -= 4000000000;
    return result;
}
"#;

fn library(workspace: &Workspace) -> Utf8PathBuf {
    let (source, library) = ("shift.c", workspace.root.join("shift.so"));
    workspace.write(source, SHIFT);
    // What links this program is here.
    let made = Command::new("cc")
        .current_dir(&workspace.root)
        .args(["-shared", "-fPIC", source, "-ldl", "-o", library.as_str()])
        .status();
    assert!(made.unwrap().success());
    library
}

#[test]
#[cfg(target_os = "linux")]
fn a_clock_before_1970_is_an_error_and_no_panic() {
    let mut workspace = Workspace::new(PLAIN, ECHO_SCRIPT, &echo_rows(1));
    let library = library(&workspace);
    workspace.variable("LD_PRELOAD", library.as_str());
    for command in [&["eval", "submit", "configs/eval/c.toml"][..], &["view"]] {
        let ran = workspace.osmosis(command).expect(1);
        assert!(ran.stderr.contains("before 1970"), "{}", ran.stderr);
        assert!(!ran.stderr.contains("panicked"), "{}", ran.stderr);
    }
}

/// An agent in a process that can open nothing any more, wherever that comes to light.
const AT_THE_LIMIT: &str = r"
class Plain(AgentWorkflow):
    async def run(self, ctx):
        import resource
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, most))
        return [*ctx.prompt, await ask(ctx.prompt)]
";

#[test]
fn an_agent_that_gets_no_descriptor_is_no_failed_agent() {
    let (head, rest) = PLAIN.split_once("class Plain(AgentWorkflow):").unwrap();
    let grader = &rest[rest.find("class Exact").unwrap()..];
    let main_py = format!("{head}{AT_THE_LIMIT}\n{grader}");
    let workspace = Workspace::new(&main_py, ECHO_SCRIPT, &echo_rows(1));
    workspace.submit(&[]).expect(3);
    assert_eq!(workspace.outcomes(), ["infrastructure_failed"]);
    let error = workspace.index()[0]["error"].to_string();
    assert!(error.contains("out_of_descriptors"), "{error}");
}

//! A run executes a snapshot of its project: nothing that is written to disk while it is active grades a rollout by
//! other code.

use camino::Utf8PathBuf;
use osmosis_testkit::python_environment;

use crate::workspace::{ECHO_SCRIPT, PLAIN, Ran, Workspace, echo_rows};

const ROWS: usize = 8;

/// Forges rewards where it can: the honest grader gives 0.
const FORGING: &str = r#"
import json, os, pathlib, signal, sys

def parent_of(pid):
    return int(open(f'/proc/{pid}/stat').read().rpartition(')')[2].split()[1])

def forge(path):
    path = pathlib.Path(path)
    text = path.read_text()
    os.chmod(path, 0o644)
    path.write_text(text.replace("HONEST = 0.0", "HONEST = 1.0"))

def start_again():
    # The process that all workers are forked from.
    os.kill(parent_of(os.getppid()), signal.SIGKILL)

def told():
    return json.loads(os.environ["_OSMOSIS_SNAPSHOT"])
"#;

/// The agent of the first row does this once.
fn workspace(attack: &str) -> Workspace {
    let main = PLAIN
        .replace(
            "        return [*ctx",
            &format!(
                "        done = pathlib.Path('../../done')\n        \
                 if ctx.prompt[-1]['content'] == 'say 0' and not done.exists():\n            \
                 done.touch()\n            {}\n        return [*ctx",
                attack.replace('\n', "\n            ")
            ),
        )
        .replace(
            "        ctx.set_reward(1.0 if ctx.label in ctx.sample.messages[-1][\"content\"].split() else 0.0)",
            "        ctx.set_reward(HONEST)",
        );
    let main = format!("{FORGING}\nHONEST = 0.0\n{main}");
    let mut workspace = Workspace::new(&main, ECHO_SCRIPT, &echo_rows(ROWS as u64));
    // What is written there must not reach other tests.
    let cache = workspace.root.join("cache").into_string();
    workspace.variable("OSMOSIS_CACHE_DIR", &cache);
    workspace
}

/// No rollout has a reward that its project's grader does not give.
#[track_caller]
fn assert_no_forged_reward(workspace: &Workspace) {
    for line in workspace.index() {
        assert!(line["reward"].as_f64().is_none_or(|it| it == 0.0), "{line}");
    }
}

fn copies(workspace: &Workspace) -> Vec<Utf8PathBuf> {
    let entries = workspace.root.join("rollouts").read_dir_utf8().unwrap();
    let paths = entries.map(|entry| entry.unwrap().into_path());
    paths
        .filter(|path| path.file_name().unwrap().starts_with('.'))
        .collect()
}

#[test]
fn an_agent_that_rewrites_the_project_and_kills_the_template_changes_no_grade() {
    let workspace = workspace("forge('../../rollouts/r/main.py'); start_again()");
    let ran = workspace.submit(&["--max-in-flight", "2"]).expect(0);
    assert!(workspace.root.join("done").exists());
    assert!(
        workspace
            .read("rollouts/r/main.py")
            .contains("HONEST = 1.0")
    );
    assert_eq!(workspace.outcomes(), ["scored"; ROWS], "{}", ran.stderr);
    assert_no_forged_reward(&workspace);
    // The next run executes what is there then.
    workspace.submit(&["--fresh"]).expect(0);
    assert!(workspace.index().iter().all(|line| line["reward"] == 1.0));
}

#[test]
fn an_edit_while_a_run_is_active_grades_nothing_by_other_code() {
    // A thread that runs after the import: each process imports the code anew.
    let threaded = "import threading, time\n\
                    threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()\n";
    let workspace = workspace("forge('../../rollouts/r/main.py')");
    let main = workspace.read("rollouts/r/main.py");
    workspace.write("rollouts/r/main.py", &format!("{threaded}{main}"));
    workspace.config("[workers]\nisolation = \"process\"\n[evaluation]\nlimit = 3\n");
    workspace.submit(&["--max-in-flight", "1"]).expect(0);
    assert_eq!(workspace.outcomes(), ["scored"; 3]);
    assert_no_forged_reward(&workspace);
}

/// The run ends with an error that names the file, and none of its rewards is forged.
#[track_caller]
fn check_found(workspace: &Workspace, ran: Ran, file: &str) {
    let ran = ran.expect(1);
    let message = "error: the code of the run changed while it was active: ";
    let line = ran.stderr.lines().find(|line| line.starts_with(message));
    assert!(line.is_some_and(|it| it.contains(file)), "{}", ran.stderr);
    assert_no_forged_reward(workspace);
}

#[test]
fn code_that_workers_import_and_that_was_written_to_ends_the_run() {
    for (attack, file) in [
        (
            "forge(told()['snapshot'] + '/main.py')\nstart_again()",
            "/main.py`",
        ),
        ("forge(__file__)\nstart_again()", "/main.py`"),
        // Found at the end, when nothing is started before.
        ("forge(told()['snapshot'] + '/main.py')", "/main.py`"),
        (
            "path = pathlib.Path(sys.modules['osmosis_ai'].__file__).parent / 'rollout/grader.py'\n\
             path.write_text(path.read_text() + '# forged')\nstart_again()",
            "osmosis_ai/rollout/grader.py`",
        ),
        (
            "pathlib.Path(sys.modules['osmosis_ai'].__file__).parent.with_name('json.py').touch()",
            "added `",
        ),
    ] {
        let workspace = workspace(attack);
        let ran = workspace.submit(&["--max-in-flight", "2"]);
        check_found(&workspace, ran, file);
    }
}

#[test]
fn a_package_of_the_environment_that_was_written_to_ends_the_run() {
    let workspace = workspace("import graded\nforge(graded.__file__)\nstart_again()");
    let environment = workspace.root.join("rollouts/r/.venv");
    let python = python_environment::python();
    let packages = |python: &str| {
        let print = "import sysconfig; print(sysconfig.get_path('purelib'))";
        let output = std::process::Command::new(python)
            .args(["-c", print])
            .output();
        Utf8PathBuf::from(String::from_utf8(output.unwrap().stdout).unwrap().trim())
    };
    let made = std::process::Command::new(&python)
        .args(["-m", "venv", "--without-pip", environment.as_str()])
        .status();
    assert!(made.unwrap().success());
    let own = packages(environment.join("bin/python").as_str());
    std::fs::write(own.join("all.pth"), packages(python.as_str()).as_str()).unwrap();
    std::fs::write(own.join("graded.py"), "HONEST = 0.0\n").unwrap();
    let main = workspace.read("rollouts/r/main.py");
    let main = main.replacen("HONEST = 0.0\n", "from graded import HONEST\n", 2);
    workspace.write("rollouts/r/main.py", &main);
    let ran = workspace.osmosis(&["eval", "submit", "configs/eval/c.toml", "--name", "t"]);
    check_found(&workspace, ran, "site-packages/graded.py`");
}

#[test]
fn what_a_project_writes_below_its_own_folder_is_in_a_copy_and_named() {
    let workspace = workspace(
        "pathlib.Path('notes.txt').write_text(open('facts.txt').read())\n\
         here = pathlib.Path(__file__).resolve().parent\n\
         (here / 'cache').mkdir()\n(here / 'cache' / 'a.json').write_text('{}')\n\
         (here / 'kept' / 'b.json').write_text('{}')",
    );
    workspace.write("rollouts/r/facts.txt", "facts");
    workspace.write("rollouts/r/kept/a.json", "{}");
    workspace.write("rollouts/r/.osmosisignore", "kept/\n");
    let ran = workspace.submit(&[]).expect(0);
    assert_eq!(workspace.outcomes(), ["scored"; ROWS], "{}", ran.stderr);
    let notice = "The project wrote below its own folder: `cache/`, `notes.txt`.";
    assert!(ran.stderr.contains(notice), "{}", ran.stderr);
    let project = workspace.root.join("rollouts/r");
    assert!(!project.join("notes.txt").exists() && !project.join("cache").exists());
    // What does not count is the project's own.
    assert!(project.join("kept/b.json").exists());
    let [copy] = &copies(&workspace)[..] else {
        panic!("{:?}", copies(&workspace));
    };
    assert!(ran.stderr.contains(copy.as_str()), "{}", ran.stderr);
    assert_eq!(
        std::fs::read_to_string(copy.join("notes.txt")).unwrap(),
        "facts"
    );
}

#[test]
fn a_project_that_writes_nothing_leaves_nothing_and_its_errors_name_its_own_files() {
    let workspace = workspace("raise KeyError('mine')");
    let ran = workspace.submit(&[]).expect(0);
    assert!(copies(&workspace).is_empty(), "{:?}", copies(&workspace));
    assert!(!ran.stderr.contains("wrote below"), "{}", ran.stderr);
    let shown = workspace
        .osmosis(&["eval", "show", "t", "0"])
        .expect(0)
        .stdout;
    let main = workspace.root.join("rollouts/r/main.py");
    assert!(
        shown.contains(&format!("File \"{main}\", line ")),
        "{shown}"
    );
    assert!(shown.contains("raise KeyError('mine')"), "{shown}");
}

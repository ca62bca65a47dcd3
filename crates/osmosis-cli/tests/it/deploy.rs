//! The examples in `deploy/`: scripts run, with stand-ins for what clusters have, and every `osmosis` command in them is one
//! that the program takes.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use osmosis_testkit::python_environment;

/// Not an option of anything. The program names the first option that it does not know, so it knows all before.
const UNKNOWN: &str = "--no-such-option";

/// Notes its arguments, and leaves the token where a controller would.
const OSMOSIS: &str = r#"#!/bin/sh
{ for argument in "$@"; do printf '%s\n' "$argument"; done; echo; } >> "$SEEN"
case "$1 $2" in "eval submit")
    mkdir -p ".osmosis/evals/$5" && echo osn1_token > ".osmosis/evals/$5/join-token" ;;
"node "*)
    [ -n "$OSMOSIS_STORE" ] && [ "$OSMOSIS_JOIN" = osn1_token ] || exit 9 ;;
esac
"#;
const SRUN: &str =
    "#!/bin/sh\nwhile case \"$1\" in -*) true;; *) false;; esac; do shift; done\nexec \"$@\"\n";
const RAY: &str = "#!/bin/sh\nwhile [ \"$1\" != -- ]; do shift; done; shift\nexec \"$@\"\n";
const SCONTROL: &str = "#!/bin/sh\necho first\necho second\n";

/// What starts a container, and the entrypoint of a RayJob, one per line.
const COMMANDS: &str = "
import json, sys, yaml
def walk(value):
    if isinstance(value, dict):
        for name, inner in value.items():
            if name == 'entrypoint':
                print(json.dumps(['sh', '-c', inner]))
            elif name == 'command':
                print(json.dumps(inner))
            else:
                walk(inner)
    elif isinstance(value, list):
        for inner in value:
            walk(inner)
for document in yaml.safe_load_all(open(sys.argv[1])):
    assert document['apiVersion'] and document['kind'] and document['metadata']['name']
    walk(document)
";

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy")
}

struct StandIns {
    folder: tempfile::TempDir,
}

impl StandIns {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let programs = [
            ("bin/osmosis", OSMOSIS),
            ("bin/srun", SRUN),
            ("bin/ray", RAY),
            ("bin/scontrol", SCONTROL),
            ("osmosis-env/bin/activate", ""),
        ];
        for (name, text) in programs {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        Self { folder }
    }

    /// Runs something to its end, and returns the arguments of each `osmosis` that it started.
    fn run(&self, program: &str, arguments: &[&str]) -> Vec<Vec<String>> {
        let seen = self.folder.path().join("seen");
        let _ = fs::remove_file(&seen);
        let path = std::env::var("PATH").unwrap();
        let bin = self.folder.path().join("bin");
        let output = Command::new(program)
            .args(arguments)
            .current_dir(self.folder.path())
            .env("PATH", format!("{}:{path}", bin.display()))
            .env("HOME", self.folder.path())
            .env("SEEN", &seen)
            .env("OSMOSIS_STORE", "postgres://db.example.org/e")
            .env("OSMOSIS_JOIN", "osn1_token")
            .env("SLURM_JOB_NODELIST", "x[1-2]")
            .env("SLURM_JOB_NUM_NODES", "2")
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} {arguments:?}: {told}");
        let seen = fs::read_to_string(&seen).unwrap();
        let commands = seen.split("\n\n").filter(|text| !text.is_empty());
        commands
            .map(|text| text.lines().map(str::to_owned).collect())
            .collect()
    }
}

#[track_caller]
fn check_known(command: &[String]) {
    let output = Command::new(env!("CARGO_BIN_EXE_osmosis"))
        .args(command)
        .arg(UNKNOWN)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{command:?}: {told}");
    assert!(told.contains(UNKNOWN), "{command:?}: {told}");
}

#[test]
fn what_is_checked_with_an_unknown_option_is_refused_for_an_earlier_one() {
    let told = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_osmosis"))
            .args(arguments)
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let told = told(&["node", "--also-unknown", UNKNOWN]);
    assert!(!told.contains(UNKNOWN), "{told}");
}

#[test]
fn slurm_scripts_start_commands_that_the_program_takes() {
    let stand_ins = StandIns::new();
    for (script, arguments, expected) in [
        (
            "evaluate.sbatch",
            &["c.toml", "hello-1"][..],
            &["eval", "node"][..],
        ),
        ("more-nodes.sbatch", &["hello-1"], &["node"]),
        ("ray.sbatch", &["c.toml", "hello-1"], &["eval"]),
    ] {
        let path = deploy().join("slurm").join(script);
        let path = path.to_str().unwrap();
        let syntax = Command::new("bash").args(["-n", path]).status().unwrap();
        assert!(syntax.success(), "{script}");
        let commands = stand_ins.run("bash", &[&[path], arguments].concat());
        let begun: Vec<&str> = commands.iter().map(|command| command[0].as_str()).collect();
        assert_eq!(begun, expected, "{script}");
        for command in &commands {
            check_known(command);
            let shown = command.join(" ");
            assert!(
                !shown.contains("osn1_"),
                "a token on a command line: {shown}"
            );
        }
    }
}

#[test]
fn kubernetes_manifests_start_commands_that_the_program_takes() {
    let stand_ins = StandIns::new();
    for manifest in ["nodes.yaml", "rayjob.yaml"] {
        let path = deploy().join("kubernetes").join(manifest);
        let output = Command::new(python_environment::python())
            .args(["-c", COMMANDS])
            .arg(&path)
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{manifest}: {told}");
        let found = String::from_utf8(output.stdout).unwrap();
        let commands: Vec<Vec<String>> = found
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(commands.len(), 1, "{manifest}");
        for command in commands {
            let arguments: Vec<&str> = command[1..].iter().map(String::as_str).collect();
            for started in stand_ins.run(&command[0], &arguments) {
                check_known(&started);
            }
        }
    }
}

//! What outsiders write is shown, never obeyed: everything that arrives at a real terminal while a
//! hostile agent, grader and dataset do what they can.

use std::process::Command;

use osmosis_testkit::python_environment;

use crate::workspace::{ECHO_SCRIPT, PLAIN, Ran, Workspace, echo_rows};

/// In Python's and TOML's spelling: a title, a cleared screen, hidden text in C1, an answer that the terminal types
/// itself, a beep, a bare return, turned order, DEL.
const HOSTILE: &str =
    "\\u001b]0;OWNED\\u0007\\u001b[2J\\u009b8mHID\\u001b[6n\\b\\rFAKE\\u202eEVIL\\u007f\\u0085";

/// A row for each way to say something.
fn main_py() -> String {
    PLAIN
        .replace(
            "        return [*ctx.prompt",
            &format!(
                "        import sys\n        \
             h = '{HOSTILE}'\n        \
             print(h)\n        \
             print(h, file=sys.stderr)\n        \
             said = ctx.prompt[-1]['content']\n        \
             (ctx.artifacts_dir / ('f' + h.replace('/', ''))).write_text(h)\n        \
             if said.startswith('say 1'):\n            raise RuntimeError(h)\n        \
             if said.startswith('say 2'):\n            \
             raise type('Bad' + h, (Exception,), {{}})(h)\n        \
             if said.startswith('say 3'):\n            \
             return [*ctx.prompt, {{'role': 'assistant', 'content': h, 'tool_calls': [{{'id': h, \
             'type': 'function', 'function': {{'name': h, 'arguments': h}}}}]}}, \
             {{'role': 'tool', 'tool_call_id': h, 'name': h, 'content': h}}, \
             {{'role': 'assistant', 'content': 'say 3 ' + h}}]\n        \
             if said.startswith('say 4'):\n            \
             await ask([*ctx.prompt, {{'role': h, 'name': h, 'content': h}}])\n        \
             return [*ctx.prompt"
            ),
        )
        .replace(
            "        ctx.set_reward(",
            &format!(
                "        if ctx.label == '0':\n            raise ValueError('{HOSTILE}')\n        \
             ctx.sample.metrics['{HOSTILE}'] = 1.0\n        ctx.set_reward("
            ),
        )
}

fn workspace() -> Workspace {
    let script =
        format!("{ECHO_SCRIPT}\n[[reply]]\nerror = {{ status = 400, message = \"{HOSTILE}\" }}\n");
    let rows = format!(
        "{}{{\"user_prompt\": \"say 5 {HOSTILE}\", \"label\": \"{HOSTILE}\"}}\n",
        echo_rows(5)
    );
    Workspace::new(&main_py(), &script, &rows)
}

/// Runs the binary with a terminal for standard input, output and error; what arrived there.
fn on_terminal(workspace: &Workspace, arguments: &[&str]) -> Ran {
    let plain = workspace.command(arguments);
    let mut command = Command::new(python_environment::python());
    command
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/terminal.py"))
        .arg(env!("CARGO_BIN_EXE_osmosis"))
        .args(arguments)
        .current_dir(&workspace.root)
        .env("TERM", "xterm-256color");
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    Ran::of(&command.env_remove("NO_COLOR").output().unwrap())
}

/// What is left of a text when everything is taken away that this program itself sends: line ends, tabs,
/// colours, and the few commands that its progress displays are drawn with.
fn unexpected(arrived: &str) -> Vec<String> {
    let mut rest = arrived;
    let mut found = vec![];
    while let Some(at) = rest.find(is_control) {
        let from = &rest[at..];
        let own = ["\r\n", "\n", "\t", "\r\x1b[J", "\r"]
            .into_iter()
            .find(|own| from.starts_with(own))
            .map(str::len)
            .or_else(|| command(from));
        if let Some(length) = own {
            rest = &from[length..];
        } else {
            let around: String = from.chars().take(30).collect();
            found.push(format!("{around:?}"));
            rest = &from[from.chars().next().unwrap().len_utf8()..];
        }
    }
    found
}

/// The length of `ESC [ numbers LETTER` with a letter of ours: colours, clearing, moving up and down,
/// hiding and showing the cursor. None of them is what `HOSTILE` has, except clearing, which it has as `2J`.
fn command(text: &str) -> Option<usize> {
    let inside = text.strip_prefix("\x1b[")?;
    let end = inside.find(|c: char| !matches!(c, '0'..='9' | ';' | '?'))?;
    let codes = &inside[..end];
    let ours = match inside[end..].chars().next()? {
        'm' => codes.split(';').all(|code| {
            matches!(
                code,
                "0" | "1" | "2" | "3" | "31" | "32" | "33" | "34" | "35" | "36" | "39" | "22" | ""
            )
        }),
        'J' => matches!(codes, "" | "0"),
        'K' => matches!(codes, "" | "0" | "2"),
        'A' | 'B' | 'G' => codes.parse::<u16>().is_ok(),
        'h' | 'l' => codes == "?25",
        _ => false,
    };
    ours.then_some(2 + end + 1)
}

fn is_control(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[track_caller]
fn check(workspace: &Workspace, arguments: &[&str], codes: &[i32], shows: bool) {
    let ran = on_terminal(workspace, arguments);
    assert!(
        codes.contains(&ran.code),
        "{arguments:?}: {}\n{:?}\n{}",
        ran.code,
        ran.stdout,
        ran.stderr
    );
    let found = unexpected(&ran.stdout);
    assert!(found.is_empty(), "{arguments:?}: {found:#?}");
    // It arrived, made visible: the test looks at the right thing.
    let visible = ran.stdout.contains(r"\x1b]0;OWNED") || ran.stdout.contains(r"\u001b]0;OWNED");
    assert!(visible || !shows, "{arguments:?}: {:?}", ran.stdout);
    assert!(!ran.stdout.contains("\rFAKE"), "{arguments:?}");
}

#[test]
fn no_command_lets_a_hostile_agent_command_the_terminal() {
    let workspace = workspace();
    let python = python_environment::python();
    let python = python.as_str();
    let submit = ["eval", "submit", "configs/eval/c.toml", "--python", python];
    check(
        &workspace,
        &[&submit[..], &["--name", "t"]].concat(),
        &[0],
        true,
    );
    let again = ["--name", "u", "-vv", "--plain", "--progress", "ndjson"];
    check(&workspace, &[&submit[..], &again].concat(), &[0], true);
    for (arguments, shows) in [
        (&["eval", "info", "t"][..], true),
        (&["eval", "info", "t", "--json"], true),
        (&["eval", "info", "t", "--plain", "-v"], true),
        (&["eval", "list"], false),
        (&["eval", "logs", "t"], true),
        (&["eval", "logs", "t", "--json"], true),
        (&["eval", "logs", "t", "--rollout", "r3-0"], true),
        (&["eval", "show", "t", "0"], true),
        (&["eval", "show", "t", "1", "--calls"], true),
        (&["eval", "show", "t", "2", "--json"], true),
        (&["eval", "show", "t", "3"], true),
        (&["eval", "show", "t", "4", "--calls"], true),
        (&["eval", "show", "t", "5", "--json", "--calls"], true),
        (&["eval", "compare", "t", "u"], false),
        (&["eval", "compare", "t", "u", "--json"], false),
        (&["export", "t", "-o", "-"], true),
        (&["export", "t", "-o", "-", "--format", "messages"], true),
        (&["export", "t", "-o", "-", "--format", "atif"], true),
        (&["dataset", "validate", "data/d.jsonl"], false),
        (&["doctor", "--python", python], false),
        (
            &["rollout", "run", "r", "--row", "3", "--python", python],
            true,
        ),
    ] {
        check(&workspace, arguments, &[0, 1], shows);
    }
    // The files are exact.
    let raw = "\x1b]0;OWNED\x07\x1b[2J\u{9b}8mHID\x1b[6n\x08\rFAKE\u{202e}EVIL\x7f\u{85}";
    assert!(workspace.read(".osmosis/evals/t/logs.txt").contains(raw));
    workspace
        .osmosis(&["export", "t", "-o", "t.jsonl"])
        .expect(0);
    assert!(workspace.read("t.jsonl").contains("EVIL\u{7f}\u{85}"));
}

#[test]
fn names_and_files_that_are_refused_are_shown_and_not_obeyed() {
    let workspace = workspace();
    let hostile = "a\x1b]0;OWNED\x07\x1b[2J\u{9b}8m\u{202e}";
    workspace.write(
        "configs/eval/bad.toml",
        &format!("[experiment]\n\"{HOSTILE}\" = \"{HOSTILE}\"\nrollout = \"{HOSTILE}\"\n"),
    );
    workspace.write(
        "data/bad.jsonl",
        &format!("{{\"user_prompt\": 1, \"{HOSTILE}\": 2}}\n{hostile}\n"),
    );
    workspace.write("data/bad.csv", &format!("{hostile},{hostile}\n1,2\n"));
    workspace.write(&format!("data/{hostile}.jsonl"), "nothing\n");
    workspace.write(
        "rollouts/r/main.py",
        &format!("raise ValueError('{HOSTILE}')\n"),
    );
    let file = format!("data/{hostile}.jsonl");
    let python = python_environment::python();
    let submit = [
        "eval",
        "submit",
        "configs/eval/c.toml",
        "--python",
        python.as_str(),
    ];
    for (arguments, shows) in [
        (&submit[..], true),
        (&["eval", "submit", "configs/eval/bad.toml"], true),
        (&["eval", "submit", hostile], true),
        (&["eval", "show", hostile, hostile], true),
        (&["eval", hostile], false),
        (&["eval", "\x1b]0;OWNED\x07\x1b[2J"], false),
        (&["--workspace", hostile, "eval", "list"], true),
        (&["dataset", "validate", "data/bad.jsonl"], false),
        (&["dataset", "validate", "data/bad.csv"], true),
        (&["dataset", "validate", &file], true),
        (&["dataset", "validate", &file, "--json"], true),
    ] {
        check(&workspace, arguments, &[1, 2], shows);
    }
}

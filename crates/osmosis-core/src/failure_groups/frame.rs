/// Folders that hold code which is not the user's: libraries, and Python itself.
const NOT_THE_USERS: &[&str] = &[
    "/site-packages/",
    "/dist-packages/",
    "/lib/python",
    "/rustc/",
    "/.cargo/",
];

/// The innermost frame of the user's code in a traceback, as `r/main.py:12 in run`; for a panic of Rust
/// code the place where it happened. `None` when there is none.
pub fn innermost_user_frame(traceback: &str) -> Option<String> {
    traceback
        .lines()
        .rev()
        .find_map(python_frame)
        .or_else(|| traceback.lines().find_map(panic_place))
}

/// `  File "main.py", line 12, in run`; lines of exception groups begin with a bar.
fn python_frame(line: &str) -> Option<String> {
    let line = line.trim_start_matches(|c: char| c.is_whitespace() || c == '|');
    let (path, rest) = line.strip_prefix("File \"")?.split_once("\", line ")?;
    if path.starts_with('<') || NOT_THE_USERS.iter().any(|folder| path.contains(folder)) {
        return None;
    }
    let (number, function) = match rest.split_once(", in ") {
        Some((number, function)) => (number, Some(function.trim())),
        None => (rest.trim(), None),
    };
    let place = format!("{}:{number}", shortened(path));
    Some(match function {
        Some(function) => format!("{place} in {function}"),
        None => place,
    })
}

/// `panicked at src/main.rs:12:5:`
fn panic_place(line: &str) -> Option<String> {
    let place = line.strip_prefix("panicked at ")?.trim_end_matches(':');
    let (path, rest) = place.split_once(".rs:")?;
    if NOT_THE_USERS.iter().any(|folder| path.contains(folder)) {
        return None;
    }
    let line_number = rest.split(':').next()?;
    Some(format!("{}.rs:{line_number}", shortened(path)))
}

/// A path from the rollout's folder on, or its last two parts: enough to find it, and the same on every
/// machine.
fn shortened(path: &str) -> String {
    if let Some((_, inside)) = path.rsplit_once("/rollouts/") {
        return inside.to_owned();
    }
    let mut parts: Vec<&str> = path.rsplitn(3, '/').take(2).collect();
    parts.reverse();
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::innermost_user_frame;

    fn check(traceback: &str, expected: Option<&str>) {
        assert_eq!(
            innermost_user_frame(traceback).as_deref(),
            expected,
            "{traceback}"
        );
    }

    #[test]
    fn the_innermost_frame_that_is_the_users_is_named() {
        check(
            "Traceback (most recent call last):\n  \
             File \"/home/me/w/rollouts/r/main.py\", line 7, in run\n    await ask()\n  \
             File \"/home/me/w/rollouts/r/tools/ask.py\", line 31, in ask\n    client.post()\n    ^^^^\n  \
             File \"/home/me/w/rollouts/r/.venv/lib/python3.12/site-packages/httpx/_client.py\", line 1, in post\n    \
             raise\nhttpx.ConnectError: no",
            Some("r/tools/ask.py:31 in ask"),
        );
    }

    #[test]
    fn of_chained_exceptions_the_last_one_counts() {
        check(
            "Traceback (most recent call last):\n  File \"/a/b/c/one.py\", line 1, in one\n\
             KeyError: 1\n\nDuring handling of the above exception, another exception occurred:\n\n\
             Traceback (most recent call last):\n  File \"/a/b/c/two.py\", line 2, in two\nValueError",
            Some("c/two.py:2 in two"),
        );
    }

    #[test]
    fn exception_groups_and_syntax_errors_have_frames_too() {
        check(
            "  + Exception Group Traceback (most recent call last):\n  |   File \"main.py\", line 3, in run\n  |     x",
            Some("main.py:3 in run"),
        );
        check(
            "  File \"/w/rollouts/r/main.py\", line 3\n    def\nSyntaxError",
            Some("r/main.py:3"),
        );
    }

    #[test]
    fn panics_say_where_they_were() {
        check(
            "panicked at src/main.rs:12:5:\nindex out of bounds",
            Some("src/main.rs:12"),
        );
        check(
            "panicked at /rustc/abc/library/core/src/option.rs:1:2:\nx",
            None,
        );
    }

    #[test]
    fn without_a_users_frame_there_is_none() {
        check("caused by: connection refused", None);
        check("  File \"<string>\", line 1, in <module>", None);
        check("", None);
    }
}

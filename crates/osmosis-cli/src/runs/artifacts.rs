//! The files that user code left for a rollout, for people.

use osmosis_run::reports::{Artifact, ArtifactKind, Artifacts};

/// A line for each, and one for those that are not listed.
pub(super) fn lines(artifacts: &Artifacts) -> Vec<String> {
    let mut lines: Vec<String> = artifacts.items.iter().map(line).collect();
    let more = artifacts.total_count - artifacts.items.len();
    if artifacts.uncounted {
        lines.push(format!("and more than {more} others"));
    } else if more > 0 {
        lines.push(format!("and {more} others"));
    }
    lines
}

fn line(artifact: &Artifact) -> String {
    let path = for_terminal(&artifact.path);
    match &artifact.kind {
        ArtifactKind::File { bytes } => format!("{path}  {bytes} bytes"),
        ArtifactKind::Link { to } => format!("{path}  link to {}, not followed", for_terminal(to)),
        ArtifactKind::Other => format!("{path}  no file"),
    }
}

/// A path that can't move the cursor, break the line or change colours.
fn for_terminal(path: &str) -> String {
    path.escape_debug()
        .to_string()
        .replace("\\'", "'")
        .replace("\\\"", "\"")
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt as _;
    use std::os::unix::fs::symlink;

    use camino::Utf8Path;

    use super::*;

    #[test]
    fn names_can_not_write_to_the_terminal() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &std::ffi::OsStr| std::fs::write(folder.path().join(name), "").unwrap();
        write("a\u{1b}[2Jb\nc".as_ref());
        write(std::ffi::OsStr::from_bytes(b"\xff"));
        write("it's \u{202e}caf\u{e9}".as_ref());
        symlink("/\u{1b}x", folder.path().join("z")).unwrap();
        let artifacts = Artifacts::of(Utf8Path::from_path(folder.path()).unwrap());
        assert_eq!(
            lines(&artifacts),
            [
                "a\\u{1b}[2Jb\\nc  0 bytes",
                "it's \\u{202e}caf\u{e9}  0 bytes",
                "z  link to /\\u{1b}x, not followed",
                "\u{fffd}  0 bytes",
            ]
        );
    }

    #[test]
    fn those_that_are_not_listed_are_counted() {
        let mut artifacts = Artifacts {
            folder: "f".into(),
            items: vec![],
            total_count: 4,
            uncounted: false,
        };
        assert_eq!(lines(&artifacts), ["and 4 others"]);
        artifacts.uncounted = true;
        assert_eq!(lines(&artifacts), ["and more than 4 others"]);
    }
}

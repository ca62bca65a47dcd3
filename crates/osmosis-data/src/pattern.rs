//! Patterns of paths: `data/part-*.parquet`.

use camino::{Utf8Component, Utf8Path, Utf8PathBuf};

/// Files that one pattern may stand for.
pub(crate) const MAX_FILES: usize = 10_000;

/// Whether a path is a pattern: `*` stands for any characters of a name, `?` for one.
pub(crate) fn is_pattern(path: &Utf8Path) -> bool {
    path.as_str().contains(['*', '?'])
}

/// The files that a pattern stands for, in the order of their paths' bytes.
pub(crate) fn files(pattern: &Utf8Path) -> Vec<Utf8PathBuf> {
    let mut found = vec![Utf8PathBuf::new()];
    for component in pattern.components() {
        found = match component {
            Utf8Component::Normal(name) if is_pattern(Utf8Path::new(name)) => found
                .iter()
                .flat_map(|folder| matching(folder, name))
                .take(MAX_FILES + 1)
                .collect(),
            other => found
                .into_iter()
                .map(|folder| folder.join(other.as_str()))
                .collect(),
        };
    }
    found.retain(|path| path.is_file());
    found.sort();
    found
}

fn matching(folder: &Utf8Path, name: &str) -> Vec<Utf8PathBuf> {
    let listed = if folder.as_str().is_empty() {
        Utf8Path::new(".")
    } else {
        folder
    };
    let Ok(entries) = listed.read_dir_utf8() else {
        return Vec::new();
    };
    entries
        .filter_map(Result::ok)
        .map(|entry| entry.file_name().to_owned())
        // As in a shell, hidden files are meant only where the dot is written.
        .filter(|file| name.starts_with('.') || !file.starts_with('.'))
        .filter(|file| matches(name.as_bytes(), file.as_bytes()))
        .map(|file| folder.join(file))
        .collect()
}

/// Whether a name fits. Goes back to the last `*` alone, so that no pattern takes long.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(b'?') => {
                // One character, however many bytes it has.
                n += 1;
                while n < name.len() && name[n] & 0xc0 == 0x80 {
                    n += 1;
                }
                p += 1;
            }
            Some(byte) if *byte == name[n] => {
                p += 1;
                n += 1;
            }
            _ => match &mut star {
                Some((at, from)) => {
                    *from += 1;
                    (p, n) = (*at + 1, *from);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_is_any_characters_and_a_question_mark_one() {
        for (pattern, name, fits) in [
            ("part-*.parquet", "part-0001.parquet", true),
            ("part-*.parquet", "part-0001.parquet.tmp", false),
            ("*", "anything", true),
            ("*a*b", "xaxxb", true),
            ("*a*b", "xbxa", false),
            ("part-?", "part-1", true),
            ("part-?", "part-é", true),
            ("part-?", "part-12", false),
            ("", "", true),
        ] {
            assert_eq!(
                matches(pattern.as_bytes(), name.as_bytes()),
                fits,
                "{pattern} {name}"
            );
        }
        let long = "a".repeat(5000);
        assert!(!matches("a*a*a*a*a*a*a*b".as_bytes(), long.as_bytes()));
    }
}

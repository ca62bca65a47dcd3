//! Where runs are kept, as a URL: `file:///home/ada/workspace`.

use std::fmt;

use camino::{Utf8Path, Utf8PathBuf};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

use crate::StoreError;

/// The scheme of folders on this machine.
const FILE: &str = "file";

/// What a path can't hold as it is in a URL.
const NOT_IN_PATHS: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'`')
    .add(b'{')
    .add(b'}');

/// Where a catalogue, or one run in it, is kept. The scheme decides which backend knows more; `file:` is a folder.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StoreUrl {
    text: String,
    scheme_length: usize,
}

impl StoreUrl {
    /// A scheme, a colon, and whatever the scheme's backend makes of the rest.
    pub fn parse(text: &str) -> Result<Self, StoreError> {
        let scheme = text.split_once(':').map(|(scheme, _)| scheme);
        let well_formed = |scheme: &&str| {
            scheme.starts_with(|c: char| c.is_ascii_alphabetic())
                && scheme
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
        };
        let Some(scheme) = scheme.filter(well_formed) else {
            return Err(invalid(text, "it has no scheme, as in `file:///folder`"));
        };
        Ok(Self {
            text: text.to_owned(),
            scheme_length: scheme.len(),
        })
    }

    /// The URL of a folder, which must be named from the root.
    pub fn of_folder(folder: &Utf8Path) -> Result<Self, StoreError> {
        if !folder.is_absolute() {
            return Err(invalid(
                folder.as_str(),
                "the folder is not named from the root",
            ));
        }
        let path = utf8_percent_encode(folder.as_str(), NOT_IN_PATHS);
        Ok(Self {
            text: format!("{FILE}://{path}"),
            scheme_length: FILE.len(),
        })
    }

    pub fn scheme(&self) -> &str {
        &self.text[..self.scheme_length]
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The folder of a `file:` URL; `InvalidUrl` for any other.
    pub fn folder(&self) -> Result<Utf8PathBuf, StoreError> {
        let refused = |why: &str| invalid(&self.text, why);
        if !self.scheme().eq_ignore_ascii_case(FILE) {
            return Err(refused("only `file:` URLs name a folder"));
        }
        let rest = &self.text[self.scheme_length + 1..];
        // `file:/folder`, `file:///folder` and `file://localhost/folder` are the same.
        let path = match rest.strip_prefix("//") {
            Some(after) => after.strip_prefix("localhost").unwrap_or(after),
            None => rest,
        };
        if !path.starts_with('/') {
            return Err(refused(
                "the folder must be on this machine and named from the root",
            ));
        }
        if path.contains(['?', '#']) {
            return Err(refused(
                "a folder has no query and no fragment; write `%3F` and `%23`",
            ));
        }
        match percent_decode_str(path).decode_utf8() {
            Ok(path) => Ok(Utf8PathBuf::from(path.into_owned())),
            Err(_) => Err(refused("the folder is not UTF-8")),
        }
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn invalid(url: &str, message: &str) -> StoreError {
    StoreError::InvalidUrl {
        url: url.to_owned(),
        message: message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StoreErrorKind;

    #[test]
    fn a_folder_comes_back_whatever_is_in_its_name() {
        for folder in ["/", "/a/b", "/50% a?b#c/ü {x}", "/with\nline"] {
            let url = StoreUrl::of_folder(Utf8Path::new(folder)).unwrap();
            assert_eq!(url.folder().unwrap(), folder, "{url}");
            let again = StoreUrl::parse(url.as_str()).unwrap();
            assert_eq!((again.scheme(), &again), ("file", &url));
        }
        for same in ["file:/a%20b", "file:///a%20b", "FILE://localhost/a%20b"] {
            assert_eq!(StoreUrl::parse(same).unwrap().folder().unwrap(), "/a b");
        }
    }

    #[test]
    fn what_is_no_folder_is_refused() {
        let kind = |error: StoreError| error.kind();
        for text in ["", "no scheme", "/folder", ":x", "1:x", "a b:x"] {
            let error = StoreUrl::parse(text).unwrap_err();
            assert_eq!(kind(error), StoreErrorKind::InvalidUrl, "{text}");
        }
        for text in [
            "postgres://host/db",
            "file:relative",
            "file://elsewhere/folder",
            "file:///a?b",
            "file:///a#b",
            "file:///%ff",
        ] {
            let error = StoreUrl::parse(text).unwrap().folder().unwrap_err();
            assert_eq!(kind(error), StoreErrorKind::InvalidUrl, "{text}");
        }
        let error = StoreUrl::of_folder(Utf8Path::new("relative")).unwrap_err();
        assert_eq!(kind(error), StoreErrorKind::InvalidUrl);
    }
}

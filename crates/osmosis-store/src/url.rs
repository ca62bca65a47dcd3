//! Where runs are kept, as a URL: `file:///home/ada/workspace`, `postgres://ada@host/database`.
//!
//! A password in a URL is shown nowhere: not by `Display`, not by `Debug`, not in errors.

use std::fmt;

use camino::{Utf8Path, Utf8PathBuf};
use percent_encoding::{
    AsciiSet, CONTROLS, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode,
};

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

/// The schemes of PostgreSQL databases.
const POSTGRES: [&str; 2] = ["postgres", "postgresql"];

/// What stands in the place of a password.
const HIDDEN: &str = "***";

/// Where a catalogue, or one run in it, is kept. The scheme decides which backend knows more; `file:` is a folder.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct StoreUrl {
    text: String,
    /// The same without passwords, for people.
    shown: String,
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
            shown: without_passwords(text),
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
        let text = format!("{FILE}://{path}");
        Ok(Self {
            shown: text.clone(),
            text,
            scheme_length: FILE.len(),
        })
    }

    pub fn scheme(&self) -> &str {
        &self.text[..self.scheme_length]
    }

    /// The URL as people may see it: a password in it is hidden.
    pub fn as_str(&self) -> &str {
        &self.shown
    }

    /// The whole URL with its password: for whoever connects, never to be shown or stored.
    pub fn with_secrets(&self) -> &str {
        &self.text
    }

    /// The same for another user: the password, and what names a user otherwise, is replaced.
    pub fn with_credentials(&self, user: &str, password: &str) -> Result<Self, StoreError> {
        let encode = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let (before, after) = self.around_credentials();
        let text = format!("{before}{}:{}@{after}", encode(user), encode(password));
        Self::parse(&text)
    }

    /// The same without user and password.
    pub fn without_credentials(&self) -> Result<Self, StoreError> {
        let (before, after) = self.around_credentials();
        Self::parse(&format!("{before}{after}"))
    }

    /// What stands before and after user and password; the parameters that name them are left out.
    fn around_credentials(&self) -> (&str, String) {
        let after_scheme = self.text.find("://").map_or(0, |at| at + 3);
        let (before, rest) = self.text.split_at(after_scheme);
        let query = rest.find(['?', '#']).unwrap_or(rest.len());
        let end = rest.rfind('@').map_or(0, |at| {
            let in_parameter = at > query && !rest[..query].contains(':');
            if in_parameter { 0 } else { at + 1 }
        });
        let rest = &rest[end..];
        let Some((place, query)) = rest.split_once('?') else {
            return (before, rest.to_owned());
        };
        let kept: Vec<&str> = query
            .split('&')
            .filter(|parameter| {
                let name = parameter.split('=').next().unwrap_or_default();
                !["user", "password"].contains(&name)
            })
            .collect();
        if kept.is_empty() {
            return (before, place.to_owned());
        }
        (before, format!("{place}?{}", kept.join("&")))
    }

    /// Whether it names a folder of this machine.
    pub fn is_folder(&self) -> bool {
        self.scheme().eq_ignore_ascii_case(FILE)
    }

    /// Whether it names a PostgreSQL database.
    pub fn is_postgres(&self) -> bool {
        POSTGRES
            .iter()
            .any(|scheme| self.scheme().eq_ignore_ascii_case(scheme))
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
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StoreUrl").field(&self.shown).finish()
    }
}

fn invalid(url: &str, message: &str) -> StoreError {
    StoreError::InvalidUrl {
        url: without_passwords(url),
        message: message.to_owned(),
    }
}

/// What may be a password: between the first colon after the scheme and the last `@` of the authority, and in the
/// parameter `password`. A text that is no URL is treated alike, because a mistyped one holds the password too.
fn without_passwords(text: &str) -> String {
    if text
        .get(..FILE.len() + 1)
        .is_some_and(|start| start.eq_ignore_ascii_case("file:"))
    {
        return text.to_owned();
    }
    let after_scheme = text.find("://").map_or(0, |at| at + 3);
    let (scheme, rest) = text.split_at(after_scheme);
    // A password may hold what ends an authority, when somebody forgot to encode it.
    let query = rest.find(['?', '#']).unwrap_or(rest.len());
    let end = match rest.rfind('@') {
        Some(at) if at > query => rest[at..]
            .find(['/', '?', '#'])
            .map_or(rest.len(), |n| at + n),
        Some(_) | None => query,
    };
    let (authority, query) = rest.split_at(end);
    let shown = match (authority.find(':'), authority.rfind('@')) {
        (Some(colon), Some(at)) if colon < at => {
            format!(
                "{}{HIDDEN}{}{query}",
                &authority[..=colon],
                &authority[at..]
            )
        }
        (_, _) => rest.to_owned(),
    };
    format!("{scheme}{}", without_password_parameters(&shown))
}

fn without_password_parameters(text: &str) -> String {
    let mut shown = String::new();
    for part in text.split_inclusive(['?', '&', '#']) {
        let ends = part.len() - usize::from(part.ends_with(['?', '&', '#']));
        let (parameter, end) = part.split_at(ends);
        match parameter.split_once('=') {
            Some((name, _)) if name.to_ascii_lowercase().contains("password") => {
                shown.push_str(name);
                shown.push('=');
                shown.push_str(HIDDEN);
            }
            Some(_) | None => shown.push_str(parameter),
        }
        shown.push_str(end);
    }
    shown
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
    fn a_password_is_never_shown() {
        for (text, shown) in [
            ("postgres://ada@h/db", "postgres://ada@h/db"),
            ("postgres://h:5432/db", "postgres://h:5432/db"),
            (
                "postgres://ada:s3cret@h:5432/db?sslmode=require#x",
                "postgres://ada:***@h:5432/db?sslmode=require#x",
            ),
            (
                "postgresql://ada:s3:c@ret@h/db",
                "postgresql://ada:***@h/db",
            ),
            ("postgres://ada:s3cret?#/@h/db", "postgres://ada:***@h/db"),
            (
                "postgres:///db?host=/tmp&password=s3cret&user=ada",
                "postgres:///db?host=/tmp&password=***&user=ada",
            ),
            (
                "postgres:///db?sslpassword=s3cret",
                "postgres:///db?sslpassword=***",
            ),
        ] {
            let url = StoreUrl::parse(text).unwrap();
            assert!(url.is_postgres() && !url.is_folder());
            assert_eq!(url.to_string(), shown);
            assert_eq!(url.as_str(), shown);
            assert_eq!(format!("{url:?}"), format!("StoreUrl({shown:?})"));
            assert_eq!(url.with_secrets(), text);
            let error = url.folder().unwrap_err();
            assert!(!format!("{error} {error:?}").contains("s3"), "{error}");
        }
        let error = StoreUrl::parse("//ada:s3cret@h/db").unwrap_err();
        assert!(!error.to_string().contains("s3cret"), "{error}");
    }

    #[test]
    fn a_url_can_be_had_for_another_user_and_for_none() {
        for (text, as_role, for_nobody) in [
            (
                "postgres://h/db",
                "postgres://r:p%40%2F@h/db",
                "postgres://h/db",
            ),
            (
                "postgres://ada:s3c@ret@h:1/db?sslmode=require",
                "postgres://r:p%40%2F@h:1/db?sslmode=require",
                "postgres://h:1/db?sslmode=require",
            ),
            (
                "postgres:///db?host=/tmp&user=ada&password=s3cret",
                "postgres://r:p%40%2F@/db?host=/tmp",
                "postgres:///db?host=/tmp",
            ),
            (
                "postgres://ada@/db?host=/tmp",
                "postgres://r:p%40%2F@/db?host=/tmp",
                "postgres:///db?host=/tmp",
            ),
        ] {
            let url = StoreUrl::parse(text).unwrap();
            let role = url.with_credentials("r", "p@/").unwrap();
            assert_eq!(role.with_secrets(), as_role);
            assert!(!format!("{role} {role:?}").contains("p%40"));
            let nobody = url.without_credentials().unwrap();
            assert_eq!(nobody.with_secrets(), for_nobody);
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

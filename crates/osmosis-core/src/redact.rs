use crate::Failure;

/// The start of every gateway key, by which a key is recognised in any text.
pub const KEY_PREFIX: &str = "osm-";

/// A key has at least this many characters after its prefix.
const KEY_MIN_LENGTH: usize = 24;

const MARK: &str = "[redacted]";

/// Takes secrets out of texts before they are written anywhere.
///
/// ```
/// use osmosis_core::Redactor;
///
/// let redactor = Redactor::new(["hunter2-hunter2".to_owned()]);
/// assert_eq!(redactor.clean("pw=hunter2-hunter2!"), "pw=[redacted]!");
/// ```
#[derive(Clone, Default)]
pub struct Redactor {
    /// Longest first, so that a secret that contains another goes whole.
    secrets: Vec<String>,
}

impl std::fmt::Debug for Redactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Redactor({} secrets)", self.secrets.len())
    }
}

impl Redactor {
    /// Secrets of fewer than four characters are left alone: they would blot out ordinary text.
    pub fn new(secrets: impl IntoIterator<Item = String>) -> Self {
        let mut secrets: Vec<String> = secrets.into_iter().filter(|s| s.len() >= 4).collect();
        secrets.sort_by_key(|s| std::cmp::Reverse(s.len()));
        secrets.dedup();
        Self { secrets }
    }

    /// The text without secrets and gateway keys.
    pub fn clean(&self, text: &str) -> String {
        let mut text = clean_keys(text);
        for secret in &self.secrets {
            if text.contains(secret.as_str()) {
                text = text.replace(secret.as_str(), MARK);
            }
        }
        text
    }

    pub fn clean_failure(&self, failure: Failure) -> Failure {
        Failure {
            category: failure.category,
            kind: failure.kind,
            message: self.clean(&failure.message),
            traceback: failure.traceback.map(|text| self.clean(&text)),
        }
    }
}

fn clean_keys(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(KEY_PREFIX) {
        let tail = &rest[at + KEY_PREFIX.len()..];
        let length = tail.bytes().take_while(u8::is_ascii_alphanumeric).count();
        if length >= KEY_MIN_LENGTH {
            clean.push_str(&rest[..at]);
            clean.push_str(MARK);
        } else {
            clean.push_str(&rest[..at + KEY_PREFIX.len() + length]);
        }
        rest = &tail[length..];
    }
    clean.push_str(rest);
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_secrets_go_and_everything_else_stays() {
        let key = format!("{KEY_PREFIX}{}", "a1B2".repeat(10));
        let redactor = Redactor::new([
            "s3cret-value".to_owned(),
            "s3cret".to_owned(),
            "ab".to_owned(),
        ]);
        assert_eq!(
            redactor.clean(&format!(
                "Bearer {key}, osm-short, s3cret-value, s3cret, ab"
            )),
            "Bearer [redacted], osm-short, [redacted], [redacted], ab"
        );
        assert_eq!(redactor.clean("osm-"), "osm-");
    }
}

//! Digests of texts and files.

use std::fmt::Write as _;

use sha2::{Digest, Sha256};

pub(crate) fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// SHA-256 of one text.
pub fn text_digest(text: &str) -> String {
    bytes_digest(text.as_bytes())
}

pub fn bytes_digest(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

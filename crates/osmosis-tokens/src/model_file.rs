//! Files of a model, as whoever made it put them there.

use std::fs::{self, File};
use std::io;

use camino::Utf8Path;

/// Opens a file of a model. A pipe, a socket or a device in its place is an error: it would be waited for, or never end.
pub fn open_model_file(path: &Utf8Path) -> io::Result<File> {
    let kind = fs::metadata(path)?.file_type();
    if kind.is_file() || kind.is_dir() {
        // A folder has its own message.
        return File::open(path);
    }
    let message = "it is a pipe, a socket or a device, and no file";
    Err(io::Error::new(io::ErrorKind::InvalidInput, message))
}

/// Reads a file of a model as text.
pub fn read_model_text(path: &Utf8Path) -> io::Result<String> {
    io::read_to_string(open_model_file(path)?)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::{ChatFormat, ChatFormatParts};

    #[test]
    fn a_pipe_or_a_device_is_no_model_file() {
        let keep = tempfile::tempdir().unwrap();
        let folder = Utf8Path::from_path(keep.path()).unwrap();
        let file = folder.join("tokenizer.json");
        let made = Command::new("mkfifo").arg(&file).status().unwrap();
        assert!(made.success());
        // Who opens it waits for somebody who writes.
        let error = ChatFormat::load(folder).unwrap_err().to_string();
        let expected = format!("`{file}`: it is a pipe, a socket or a device, and no file");
        assert_eq!(error, expected);
        fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &file).unwrap();
        assert_eq!(ChatFormat::load(folder).unwrap_err().to_string(), expected);
        fs::remove_file(&file).unwrap();
        let missing = ChatFormat::load(folder).unwrap_err();
        assert!(missing.hint().is_some(), "{missing}");
    }

    /// A tokenizer of one word.
    fn format(decoder: &str) -> Result<ChatFormat, crate::TokensError> {
        ChatFormat::from_parts(ChatFormatParts {
            tokenizer: format!(
                r#"{{"version": "1.0", "added_tokens": [], "decoder": {decoder}, "model":
                {{"type": "WordLevel", "vocab": {{"h": 0, "?": 1}}, "unk_token": "?"}}}}"#
            ),
            tokenizer_config: "{}".to_owned(),
            chat_template: Some("{{ messages[0].content }}".to_owned()),
            generation_config: None,
        })
    }

    #[test]
    fn a_tokenizer_that_panics_is_an_error() {
        let format = format(r#"{"type": "Strip", "content": "h", "start": 0, "stop": 5}"#).unwrap();
        assert_eq!(format.encode("h").unwrap(), [0]);
        let error = format.decode(&[0], false).unwrap_err().to_string();
        assert!(
            error.starts_with("the tokenizer failed: the library that reads it failed: "),
            "{error}"
        );
        assert_eq!(format.token_text(0), None);
    }
}

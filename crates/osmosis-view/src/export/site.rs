//! The folder of an export: files at the addresses of the API, without secrets and without our paths.

use std::fmt::Write as _;

use camino::Utf8PathBuf;
use osmosis_core::{JsonText, JsonTextError, Redactor};
use osmosis_data::export::clean_json;
use osmosis_run::workspace::Workspace;
use osmosis_run::{RunError, RunErrorKind, io_error};

/// The file that says that a folder is an export of ours, which may be written again.
const MARK: &str = ".osmosis-view-export";

#[derive(Debug)]
pub(super) struct Site {
    folder: Utf8PathBuf,
    redactor: Redactor,
    /// Where the runs are on this machine, as a JSON text has it.
    root: String,
    pub(super) files: u64,
    pub(super) bytes: u64,
}

impl Site {
    /// The folder must be new, empty, or an earlier export.
    pub(super) fn new(
        folder: Utf8PathBuf,
        redactor: Redactor,
        workspace: &Workspace,
    ) -> Result<Self, RunError> {
        let io = |error: std::io::Error| io_error(&folder, &error);
        if folder.exists() {
            let is_ours = folder.join(MARK).exists();
            let mut entries = folder.read_dir_utf8().map_err(io)?;
            if !is_ours && entries.next().is_some() {
                return Err(RunError::usage(
                    RunErrorKind::FileExists,
                    format!("`{folder}` holds something else than an export"),
                )
                .hint("name a new or empty folder"));
            }
            if is_ours {
                std::fs::remove_dir_all(&folder).map_err(io)?;
            }
        }
        std::fs::create_dir_all(&folder).map_err(io)?;
        let mut site = Self {
            folder,
            redactor,
            root: workspace.root.to_string(),
            files: 0,
            bytes: 0,
        };
        site.write(MARK, b"written by `osmosis view --export`\n")?;
        Ok(site)
    }

    /// A JSON document at the path that the API has it at; returns it as it is written.
    pub(super) fn document(&mut self, path: &str, json: &[u8]) -> Result<String, RunError> {
        let text = String::from_utf8_lossy(json).into_owned();
        let failed =
            |error: JsonTextError| RunError::failed(RunErrorKind::Internal, error.to_string());
        let document = JsonText::parse(text).map_err(failed)?;
        let clean = clean_json(&self.redactor, &document).map_err(failed)?;
        // Where this machine keeps its files is nobody's business.
        let clean = clean.as_str().replace(&self.root, ".");
        self.write(&format!("data/{path}.json"), clean.as_bytes())?;
        Ok(clean)
    }

    /// Bytes as they were recorded, but for secrets. A web server would send them as a page if they were called one.
    pub(super) fn raw(&mut self, path: &str, bytes: &[u8]) -> Result<(), RunError> {
        let path = format!("data/{path}.txt");
        let text = String::from_utf8_lossy(bytes);
        let clean = self.redactor.clean(&text);
        if clean == text {
            // Also bytes that are no text stay as they are, unless they stand around a secret.
            self.write(&path, bytes)
        } else {
            self.write(&path, clean.as_bytes())
        }
    }

    /// A picture, which a browser shows by its name.
    pub(super) fn picture(&mut self, path: &str, bytes: &[u8]) -> Result<(), RunError> {
        self.write(&format!("data/{path}"), bytes)
    }

    pub(super) fn write(&mut self, path: &str, bytes: &[u8]) -> Result<(), RunError> {
        let path = self.folder.join(path);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).map_err(|error| io_error(parent, &error))?;
        }
        std::fs::write(&path, bytes).map_err(|error| io_error(&path, &error))?;
        self.files += 1;
        self.bytes += bytes.len() as u64;
        Ok(())
    }
}

/// A name as one part of a path, as the page writes it.
pub(super) fn segment(name: &str) -> String {
    let mut text = String::new();
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.".contains(&byte) {
            text.push(char::from(byte));
        } else {
            let _ = write!(text, "_{byte:02x}");
        }
    }
    text
}

//! Opens the user's browser.

use std::process::{Command, Stdio};

use crate::output::Output;

/// Programs that open an address, the first that is there.
const OPENERS: &[&str] = if cfg!(target_os = "macos") {
    &["open"]
} else {
    &["xdg-open", "wslview", "sensible-browser"]
};

/// Never fails: the address is printed, too.
pub(super) fn open(url: &str, output: &Output) {
    for opener in OPENERS {
        let started = Command::new(opener)
            .arg(url)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        if started.is_ok() {
            return;
        }
    }
    output.note("No program to open a browser was found: open the address yourself.");
}

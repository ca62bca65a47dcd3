//! What user code prints goes to the run's log. A line that starts with `\x1e<rollout id>\x1f`
//! belongs to that rollout; what `println!`, subprocesses and C code write arrives untagged.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};

use osmosis_core::RolloutId;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

const TAG_START: char = '\x1e';
const TAG_END: char = '\x1f';

/// Lines beyond this are split, so that one write stays whole among other writers.
const MAX_LINE_BYTES: usize = 8_000;

/// A line that the engine does not take in this time is lost.
const STUCK_LIMIT: Timespec = Timespec {
    tv_sec: 30,
    tv_nsec: 0,
};

tokio::task_local! {
    /// The rollout whose task is being polled.
    pub(crate) static CURRENT_ROLLOUT: RolloutId;
}

/// Writes to the run's log, in the name of the rollout whose `run` or `grade` this is called from.
/// From a task or thread of your own it does not know the rollout; `ctx.log` always does.
pub fn log(text: impl std::fmt::Display) {
    write_current(&text.to_string());
}

/// Where log lines go, for loggers that want a writer:
///
/// ```ignore
/// tracing_subscriber::fmt().with_writer(osmosis_sdk::log_writer).init();
/// ```
pub fn log_writer() -> LogWriter {
    LogWriter {
        partial: Vec::new(),
    }
}

/// Writes whole lines to the run's log, tagged with the rollout that is running. What is left of
/// the last line follows when it is dropped.
#[derive(Debug)]
pub struct LogWriter {
    partial: Vec<u8>,
}

impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.partial.extend_from_slice(bytes);
        if let Some(end) = self.partial.iter().rposition(|byte| *byte == b'\n') {
            let rest = self.partial.split_off(end + 1);
            let lines = std::mem::replace(&mut self.partial, rest);
            write_current(&String::from_utf8_lossy(&lines));
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for LogWriter {
    fn drop(&mut self) {
        if !self.partial.is_empty() {
            write_current(&String::from_utf8_lossy(&self.partial));
        }
    }
}

fn write_current(text: &str) {
    let tagged = CURRENT_ROLLOUT.try_with(|rollout| write_tagged(Some(rollout.as_str()), text));
    if tagged.is_err() {
        write_tagged(None, text);
    }
}

/// Writes lines with their tag. When nobody listens any more they are lost.
pub(crate) fn write_tagged(rollout: Option<&str>, text: &str) {
    let data = tagged_lines(rollout, text);
    // Held so that a line of `println!` is never cut in two. Not written through: standard output
    // may hold half a line, and a tag counts at the start of a line only.
    let stdout = io::stdout().lock();
    let mut rest = data.as_bytes();
    while !rest.is_empty() {
        match rustix::io::write(stdout.as_fd(), rest) {
            Ok(written) => rest = &rest[written..],
            Err(Errno::INTR) => {}
            // A subprocess that shares the stream may have made it non-blocking.
            Err(Errno::AGAIN) if becomes_writable(stdout.as_fd()) => {}
            Err(_) => return,
        }
    }
}

fn becomes_writable(stream: BorrowedFd<'_>) -> bool {
    let mut watched = [PollFd::new(&stream, PollFlags::OUT)];
    poll(&mut watched, Some(&STUCK_LIMIT)).is_ok_and(|ready| ready > 0)
}

fn tagged_lines(rollout: Option<&str>, text: &str) -> String {
    let mut data = String::with_capacity(text.len() + 32);
    let text = text.strip_suffix('\n').unwrap_or(text);
    for line in text.split('\n') {
        let mut line = line.trim_end_matches('\r');
        loop {
            let (piece, rest) = line.split_at(line.floor_char_boundary(MAX_LINE_BYTES));
            match rollout {
                Some(rollout) => {
                    data.push(TAG_START);
                    data.push_str(rollout);
                    data.push(TAG_END);
                    data.push_str(piece);
                }
                // Nobody may speak in the name of a rollout.
                None => match piece.strip_prefix(TAG_START) {
                    Some(untagged) => {
                        data.push('\u{241e}');
                        data.push_str(untagged);
                    }
                    None => data.push_str(piece),
                },
            }
            data.push('\n');
            line = rest;
            if line.is_empty() {
                break;
            }
        }
    }
    data
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(rollout: Option<&str>, text: &str, expected: &str) {
        assert_eq!(tagged_lines(rollout, text), expected, "{text:?}");
    }

    #[test]
    fn every_line_carries_the_tag() {
        check(Some("r0-0"), "a\r\nb\n", "\x1er0-0\x1fa\n\x1er0-0\x1fb\n");
        check(Some("r0-0"), "", "\x1er0-0\x1f\n");
        check(None, "a", "a\n");
    }

    #[test]
    fn an_untagged_line_can_not_pretend() {
        check(None, "\x1er0-0\x1fhello", "\u{241e}r0-0\x1fhello\n");
    }

    #[test]
    fn a_long_line_is_told_in_pieces() {
        let text = "é".repeat(MAX_LINE_BYTES);
        let told = tagged_lines(Some("r"), &text);
        assert!(told.lines().count() > 1);
        let joined: String = told
            .lines()
            .map(|line| line.strip_prefix("\x1er\x1f").unwrap())
            .collect();
        assert_eq!(joined, text);
    }
}

//! The process that writes to a run, as others see it.

use std::fmt;

use camino::Utf8Path;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The process that writes to a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    pub pid: u32,
    pub host: String,
    /// When it took hold of the run, in milliseconds since 1970.
    pub since_ms: i64,
    /// What it is, for people: `osmosis eval submit`.
    pub command: String,
}

impl Holder {
    /// This process, which does `command`.
    pub fn this_process(since_ms: i64, command: &str) -> Self {
        Self {
            pid: std::process::id(),
            host: rustix::system::uname()
                .nodename()
                .to_string_lossy()
                .into_owned(),
            since_ms,
            command: command.to_owned(),
        }
    }

    /// The program and its subcommands. Not what follows: options may hold what is nobody's business.
    pub fn command_line() -> String {
        let mut arguments = std::env::args();
        let program = arguments.next().unwrap_or_default();
        let program = Utf8Path::new(&program).file_name().unwrap_or_default();
        let words = arguments.take_while(|word| word.chars().all(|c| c.is_ascii_lowercase()));
        std::iter::once(program.to_owned())
            .chain(words.take(2))
            .collect::<Vec<_>>()
            .join(" ")
    }

    /// Somebody, but nothing tells who.
    pub fn unknown() -> Self {
        Self {
            pid: 0,
            host: "an unknown host".to_owned(),
            since_ms: 0,
            command: String::new(),
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.pid == 0 {
            return f.write_str("another process");
        }
        write!(f, "process {} on {}", self.pid, self.host)?;
        if let Ok(since) = Timestamp::from_millisecond(self.since_ms) {
            write!(f, " since {since:.0}")?;
        }
        if !self.command.is_empty() {
            write!(f, " (`{}`)", self.command)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_is_told_with_its_command_where_it_has_one() {
        let mut holder = Holder {
            pid: 7,
            host: "here".to_owned(),
            since_ms: 0,
            command: String::new(),
        };
        let text = "process 7 on here since 1970-01-01T00:00:00Z";
        assert_eq!(holder.to_string(), text);
        holder.command = "osmosis serve".to_owned();
        assert_eq!(holder.to_string(), format!("{text} (`osmosis serve`)"));
    }
}

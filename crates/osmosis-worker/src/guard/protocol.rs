//! What the engine and a guard say to each other, one line each, and how a guard is told what to start.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use osmosis_core::execution::ExitStatus;

use crate::Limits;

/// The engine to the guard. The end of the connection is an order to end everything too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// The worker has loaded the entrypoint: orphans that are there now belong to the import, and may stay
    /// as long as the worker.
    Keep,
    /// A process that the worker forked has ended: its orphans are to be ended.
    Sweep,
    /// Everything is to end.
    End,
}

impl Order {
    pub(crate) fn line(self) -> &'static str {
        match self {
            Self::Keep => "keep\n",
            Self::Sweep => "sweep\n",
            Self::End => "end\n",
        }
    }

    #[cfg(target_os = "linux")]
    pub(super) fn parse(line: &str) -> Option<Self> {
        [Self::Keep, Self::Sweep, Self::End]
            .into_iter()
            .find(|order| order.line().trim_end() == line)
    }
}

/// The guard to the engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Report {
    Started {
        pid: u32,
    },
    NotStarted {
        message: String,
    },
    /// The worker has ended.
    Ended(ExitStatus),
}

impl Report {
    #[cfg(target_os = "linux")]
    pub(super) fn line(&self) -> String {
        match self {
            Self::Started { pid } => format!("started {pid}\n"),
            Self::NotStarted { message } => {
                format!("failed {}\n", message.replace(['\n', '\r'], " "))
            }
            Self::Ended(ExitStatus::Signal(signal)) => format!("signal {signal}\n"),
            Self::Ended(ExitStatus::Code(code)) => format!("code {code}\n"),
            Self::Ended(ExitStatus::Unknown) => "gone \n".to_owned(),
        }
    }

    pub(crate) fn parse(line: &str) -> Option<Self> {
        let (kind, rest) = line.split_once(' ')?;
        Some(match kind {
            "started" => Self::Started {
                pid: rest.parse().ok()?,
            },
            "failed" => Self::NotStarted {
                message: rest.to_owned(),
            },
            "signal" => Self::Ended(ExitStatus::Signal(rest.parse().ok()?)),
            "code" => Self::Ended(ExitStatus::Code(rest.parse().ok()?)),
            "gone" => Self::Ended(ExitStatus::Unknown),
            _ => return None,
        })
    }
}

/// What a guard is started with, after the subcommand.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Settings {
    /// What the worker may use.
    pub(crate) limits: Limits,
    /// The folder of the engine's socket, to be removed when the engine can't do it any more.
    pub(crate) folder: Option<PathBuf>,
    /// The first line from the engine is a token, which the worker reads from its standard input.
    pub(crate) has_token: bool,
    /// The user and the group that the worker runs as; the guard stays what it is.
    pub(crate) user: Option<(u32, u32)>,
}

impl Settings {
    pub(crate) fn arguments(&self) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = Vec::new();
        let mut add = |name: &str, value: &OsStr| {
            arguments.push(name.into());
            arguments.push(value.to_owned());
        };
        if let Some(bytes) = self.limits.memory {
            add("--memory", OsStr::new(&bytes.to_string()));
        }
        if let Some(count) = self.limits.processes {
            add("--processes", OsStr::new(&count.to_string()));
        }
        if let Some(folder) = &self.folder {
            add("--folder", folder.as_os_str());
        }
        if let Some((uid, gid)) = self.user {
            add("--user", OsStr::new(&format!("{uid}:{gid}")));
        }
        if self.has_token {
            arguments.push("--token".into());
        }
        arguments.push("--".into());
        arguments
    }

    /// The settings, the worker's program and its arguments.
    #[cfg(target_os = "linux")]
    pub(super) fn parse(
        arguments: Vec<OsString>,
    ) -> Result<(Self, OsString, Vec<OsString>), String> {
        let mut settings = Self::default();
        let mut arguments = arguments.into_iter();
        let number = |value: Option<OsString>| {
            value
                .and_then(|value| value.to_str()?.parse().ok())
                .ok_or("a number is missing")
        };
        loop {
            let name = arguments.next().ok_or("there is nothing to start")?;
            match name.to_str() {
                Some("--") => break,
                Some("--memory") => settings.limits.memory = Some(number(arguments.next())?),
                Some("--processes") => settings.limits.processes = Some(number(arguments.next())?),
                Some("--folder") => {
                    settings.folder = Some(arguments.next().ok_or("a folder is missing")?.into());
                }
                Some("--token") => settings.has_token = true,
                Some("--user") => {
                    let user = arguments.next().and_then(|value| {
                        let (uid, gid) = value.to_str()?.split_once(':')?;
                        Some((uid.parse().ok()?, gid.parse().ok()?))
                    });
                    settings.user = Some(user.ok_or("a user is missing")?);
                }
                _ => return Err(format!("unknown argument `{}`", name.display())),
            }
        }
        let program = arguments.next().ok_or("there is nothing to start")?;
        Ok((settings, program, arguments.collect()))
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn what_one_side_says_the_other_understands() {
        for order in [Order::Keep, Order::Sweep, Order::End] {
            assert_eq!(Order::parse(order.line().trim_end()), Some(order));
        }
        assert_eq!(Order::parse("leave"), None);
        for report in [
            Report::Started { pid: 7 },
            Report::NotStarted {
                message: "no such file".to_owned(),
            },
            Report::Ended(ExitStatus::Code(3)),
            Report::Ended(ExitStatus::Signal(11)),
            Report::Ended(ExitStatus::Unknown),
        ] {
            let line = report.line();
            let line = line.strip_suffix('\n').unwrap();
            assert_eq!(Report::parse(line), Some(report));
        }
    }

    #[test]
    fn settings_survive_the_command_line() {
        let settings = Settings {
            limits: Limits {
                memory: Some(1 << 30),
                processes: Some(64),
            },
            folder: Some("/tmp/a folder".into()),
            has_token: true,
            user: Some((60_900, 7)),
        };
        let mut arguments = settings.arguments();
        arguments.extend(["python3".into(), "--memory".into()]);
        let (read, program, rest) = Settings::parse(arguments).unwrap();
        assert_eq!((read, program), (settings, "python3".into()));
        assert_eq!(rest, ["--memory"]);
        assert!(Settings::parse(vec!["--".into()]).is_err());
        assert!(Settings::parse(vec!["--what".into()]).is_err());
    }
}

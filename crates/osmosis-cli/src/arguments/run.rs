//! What several commands that run rollouts take.

use camino::Utf8PathBuf;
use clap::{Args, ValueEnum};

use osmosis_run::settings::{Throughput, Trackers};
use osmosis_run::tracking::TrackerKind;
use osmosis_store::StopRequest;

#[derive(Debug, Clone, Args)]
pub(crate) struct SecretArguments {
    /// File of NAME=VALUE lines for the config's [secrets]; missing names are taken from the environment
    #[arg(long, value_name = "FILE")]
    pub(crate) secrets_file: Option<Utf8PathBuf>,
}

/// Where else the numbers of a run go.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct LogArguments {
    /// Also send the numbers to these trackers during the run; see docs/tracking.md
    #[arg(long, value_enum, value_name = "TRACKERS", value_delimiter = ',')]
    pub(crate) log: Vec<Tracker>,

    /// Python interpreter with the packages for `--log` [default: the project's]
    #[arg(long, value_name = "PATH", requires = "log")]
    pub(crate) log_python: Option<Utf8PathBuf>,
}

/// Where numbers can go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Tracker {
    /// Event files in the run's folder
    Tensorboard,
    /// MLFLOW_TRACKING_URI, or a store in the workspace's `.osmosis`
    Mlflow,
    /// Offline in the run's folder, unless WANDB_MODE says otherwise
    Wandb,
}

impl From<Tracker> for TrackerKind {
    fn from(tracker: Tracker) -> Self {
        match tracker {
            Tracker::Tensorboard => Self::Tensorboard,
            Tracker::Mlflow => Self::Mlflow,
            Tracker::Wandb => Self::Wandb,
        }
    }
}

impl From<LogArguments> for Trackers {
    fn from(arguments: LogArguments) -> Self {
        Self {
            kinds: arguments.log.into_iter().map(TrackerKind::from).collect(),
            python: arguments.log_python,
        }
    }
}

/// Settings that change how fast a run goes, never what it means.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ThroughputArguments {
    /// Maximum of concurrent rollouts [default: evaluation: the config's
    /// `batch_size`, else 32; training: all rollouts of a step, and of
    /// the `max_staleness` steps ahead, at most 256]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_in_flight: Option<u32>,

    /// Agent worker processes [default: number of cores, at most 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) workers: Option<u32>,

    /// Limit for the address space of each worker process, like `4G` [default: unlimited]
    #[arg(long, value_name = "SIZE")]
    pub(crate) worker_memory: Option<ByteSize>,

    /// Limit for the number of processes and threads of all workers (no effect for root) [default: unlimited]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(8..))]
    pub(crate) worker_processes: Option<u64>,

    /// Python interpreter for the project, used as it is: nothing is made or installed [default: its
    /// .venv, VIRTUAL_ENV, PATH]
    #[arg(long, value_name = "PATH")]
    pub(crate) python: Option<Utf8PathBuf>,
}

impl From<ThroughputArguments> for Throughput {
    fn from(arguments: ThroughputArguments) -> Self {
        Self {
            max_in_flight: arguments.max_in_flight,
            workers: arguments.workers,
            worker_memory: arguments.worker_memory.map(|size| size.0),
            worker_processes: arguments.worker_processes,
            python: arguments.python,
        }
    }
}

/// What every `logs` takes.
#[derive(Debug, Clone, Args)]
pub(crate) struct LogsArguments {
    /// Name of the run
    pub(crate) run: String,

    /// Only lines of this rollout
    #[arg(long, value_name = "ID")]
    pub(crate) rollout: Option<String>,

    /// Print further lines as they are written, until the run ends. Ctrl-C stops printing and not the
    /// run (exit code 130). With `--json`, one document per line
    #[arg(long, short)]
    pub(crate) follow: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct StopArguments {
    /// Run: its name or the beginning of it, or `latest`, `latest~1`, …
    pub(crate) run: String,

    /// Stop immediately: active rollouts are cancelled, and a resume runs them again
    #[arg(long)]
    pub(crate) now: bool,
}

impl StopArguments {
    pub(crate) fn request(&self) -> StopRequest {
        if self.now {
            StopRequest::Now
        } else {
            StopRequest::Drain
        }
    }
}

/// A number of bytes: `512M`, `4G`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ByteSize(pub(crate) u64);

impl std::str::FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let shift = match &text[digits.len()..] {
            "" | "B" => 0,
            "K" | "KB" | "KiB" => 10,
            "M" | "MB" | "MiB" => 20,
            "G" | "GB" | "GiB" => 30,
            unit => return Err(format!("`{unit}` is no unit; write K, M or G")),
        };
        let number: u64 = digits
            .parse()
            .map_err(|_| "write a size like `512M` or `4G`".to_owned())?;
        number
            .checked_mul(1 << shift)
            .filter(|bytes| *bytes > 0)
            .map(Self)
            .ok_or_else(|| "out of range".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::ByteSize;

    #[test]
    fn sizes_have_units() {
        assert_eq!("512M".parse(), Ok(ByteSize(512 << 20)));
        assert_eq!("4G".parse(), Ok(ByteSize(4 << 30)));
        assert_eq!("10".parse(), Ok(ByteSize(10)));
        for bad in ["", "G", "4T", "-1", "0", "99999999999G"] {
            assert!(bad.parse::<ByteSize>().is_err(), "{bad}");
        }
    }
}

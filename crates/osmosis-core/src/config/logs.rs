use super::reader::Reader;

/// `[logs]`: how much of what user code prints is kept in `logs.txt`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogLimits {
    /// Bytes that one rollout may write.
    pub max_bytes_per_rollout: u64,
    /// Bytes that all of them may write, those before a resume included.
    pub max_bytes_per_run: u64,
}

impl Default for LogLimits {
    fn default() -> Self {
        Self {
            max_bytes_per_rollout: 1024 * 1024,
            max_bytes_per_run: 1024 * 1024 * 1024,
        }
    }
}

pub(super) fn read(reader: &mut Reader<'_>) -> LogLimits {
    let section = reader.section("logs");
    let default = LogLimits::default();
    let any = 0..=u64::MAX;
    LogLimits {
        max_bytes_per_rollout: reader
            .integer(section, "max_bytes_per_rollout", any.clone())
            .unwrap_or(default.max_bytes_per_rollout),
        max_bytes_per_run: reader
            .integer(section, "max_bytes_per_run", any)
            .unwrap_or(default.max_bytes_per_run),
    }
}

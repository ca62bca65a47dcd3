use serde::Serialize;

use super::reader::Reader;

/// `[workers]`
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Workers {
    pub isolation: WorkerIsolation,
}

/// `isolation`: what rollouts share with each other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerIsolation {
    /// A worker process and its event loop.
    #[default]
    Shared,
    /// No process: each rollout, and each grading, has a fresh one.
    Process,
}

impl std::str::FromStr for WorkerIsolation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "shared" => Ok(Self::Shared),
            "process" => Ok(Self::Process),
            other => Err(format!("unknown value `{}`", other.escape_debug())),
        }
    }
}

impl Workers {
    #[expect(
        clippy::trivially_copy_pass_by_ref,
        reason = "what serde calls it with"
    )]
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

pub(super) fn read(reader: &mut Reader<'_>) -> Workers {
    let section = reader.section("workers");
    Workers {
        isolation: reader
            .parsed(section, "isolation", str::parse, |_: &String| {
                Some("write `shared` or `process`".to_owned())
            })
            .unwrap_or_default(),
    }
}

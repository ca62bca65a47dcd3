use osmosis_core::RolloutId;

/// Something worth a line in the log.
#[derive(Debug, Clone)]
pub enum WorkerEvent {
    /// A line that user code (or anything it started) printed.
    Output {
        worker: u64,
        rollout_id: Option<RolloutId>,
        line: String,
    },
    Started {
        worker: u64,
        role: Role,
        pid: u32,
    },
    /// A worker ended that nobody asked to.
    Died {
        worker: u64,
        role: Role,
        detail: String,
        held: Vec<RolloutId>,
    },
    /// We ended a worker that did not answer.
    Killed {
        worker: u64,
        role: Role,
        reason: String,
    },
    LoopBlocked {
        worker: u64,
        blocked_ms: u64,
        stack: String,
    },
}

/// What a worker is for: a blocking grader must never stall an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    Agent,
    Grader,
}

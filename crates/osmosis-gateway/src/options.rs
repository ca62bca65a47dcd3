use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use osmosis_dialect::Sampling;

use crate::policy::registry::HoldLimits;
use crate::secret::Secret;
use crate::serving::control_service::ControlService;
use crate::telemetry::spans::TelemetryOptions;

/// What a gateway needs to know.
#[derive(Debug, Clone)]
pub struct GatewayOptions {
    /// Loopback and any port, unless asked otherwise.
    pub listen: SocketAddr,
    pub sampling: Sampling,
    /// A request body beyond this is refused with 413.
    pub max_body_bytes: usize,
    pub connections: ConnectionLimits,
    /// How calls are held while a policy is paused.
    pub hold: HoldLimits,
    /// What opens the control API; a new one is made when there is none.
    pub control_key: Option<Secret>,
    /// Whether `/metrics` is shown without a key.
    pub open_metrics: bool,
    /// Further parts of the control API, each with the path that it answers, and answers below.
    pub services: Vec<(String, Arc<dyn ControlService>)>,
    /// Where spans go.
    pub telemetry: Option<TelemetryOptions>,
    pub durability: Durability,
}

/// When a call's record is on the disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Durability {
    /// Records are committed together, up to 60 ms after their answers. A crash in that time loses the
    /// records of calls that were answered.
    #[default]
    Group,
    /// A call is committed before its answer is complete: a stream's last events wait for the commit.
    Answer,
}

/// What a connection may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// A connection without a request for so long is closed.
    pub idle: Duration,
    /// The head of a request must be complete so long after its first byte.
    pub head: Duration,
    /// A caller that takes nothing of its reply for so long is cut off.
    pub stalled: Duration,
    /// When the system has had no descriptor for a new connection for so long, it is a fault of the run.
    pub exhausted: Duration,
    /// The head of a request beyond this is refused with 431. As much of a reply, about, is held for a
    /// caller that does not read.
    pub buffer_bytes: usize,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            // Longer than any client keeps one open, so that none is closed under its hands.
            idle: Duration::from_mins(15),
            head: Duration::from_secs(30),
            stalled: Duration::from_mins(5),
            exhausted: Duration::from_secs(5),
            buffer_bytes: 128 << 10,
        }
    }
}

impl Default for GatewayOptions {
    fn default() -> Self {
        Self {
            listen: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0),
            sampling: Sampling::default(),
            max_body_bytes: 64 << 20,
            connections: ConnectionLimits::default(),
            hold: HoldLimits::default(),
            control_key: None,
            open_metrics: false,
            services: Vec::new(),
            telemetry: None,
            durability: Durability::default(),
        }
    }
}

use std::time::Duration;

use osmosis_gateway::{AddressRules, Secret};

/// How a rollout server behaves.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// What every request but `GET /health` must bring as `Authorization: Bearer KEY`; `None` lets
    /// everybody in who can reach the address.
    pub api_key: Option<Secret>,
    /// What `create_rollout_server()` sends along: then it is the one who asks, and by which name the server is
    /// called is for it to check.
    pub facade_token: Option<Secret>,
    /// Names that a server on loopback is called by besides `localhost` and its addresses.
    pub allowed_hosts: Vec<String>,
    /// Where callbacks may go, and model calls: the relay is to have the same.
    pub address_rules: AddressRules,
    /// As many rollouts run at once; the engine's own number.
    pub max_in_flight: usize,
    /// As many more may wait; beyond that a request gets 429.
    pub max_queued: usize,
    /// A request body beyond this is refused with 413.
    pub max_body_bytes: usize,
    pub callbacks: CallbackOptions,
    /// How long a drain may take. Then what still runs is cancelled, which its callbacks say.
    pub drain_limit: Duration,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            api_key: None,
            facade_token: None,
            allowed_hosts: vec![],
            address_rules: AddressRules::anywhere(),
            max_in_flight: 32,
            max_queued: 1024,
            max_body_bytes: 100 << 20,
            callbacks: CallbackOptions::default(),
            drain_limit: Duration::from_mins(10),
        }
    }
}

/// How patient we are with receivers of callbacks.
#[derive(Debug, Clone, Copy)]
pub struct CallbackOptions {
    /// The wait before the second try; it doubles from there, with jitter.
    pub first_wait: Duration,
    pub longest_wait: Duration,
    /// How long one try may take.
    pub try_limit: Duration,
    /// After this a callback is given up.
    pub give_up_after: Duration,
    pub connect_timeout: Duration,
}

impl Default for CallbackOptions {
    fn default() -> Self {
        Self {
            first_wait: Duration::from_millis(500),
            longest_wait: Duration::from_secs(30),
            try_limit: Duration::from_secs(30),
            give_up_after: Duration::from_mins(10),
            connect_timeout: Duration::from_secs(10),
        }
    }
}

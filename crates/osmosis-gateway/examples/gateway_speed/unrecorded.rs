//! The gateway itself, with its store off: what is left is identifying, checking and passing on.

use std::sync::Arc;

use osmosis_core::RolloutId;
use osmosis_gateway::{Gateway, GatewayOptions, UpstreamOptions, UpstreamPolicy};

use crate::Outcome;

/// Prints the address and the key, then serves until the process is killed.
#[expect(
    clippy::print_stdout,
    reason = "whoever started this waits for the address"
)]
pub(crate) async fn serve(upstream: &str) -> Outcome<()> {
    let options = UpstreamOptions::new(format!("{upstream}/v1"), "osmosis-rollout");
    let policy = Arc::new(UpstreamPolicy::new(options)?);
    let gateway = Gateway::start_unrecorded(GatewayOptions::default(), policy).await?;
    let door = gateway.open_standing(RolloutId::new("gateway")?);
    println!("{} {}", gateway.url(), door.key());
    std::future::pending().await
}

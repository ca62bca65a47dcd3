//! The gateway itself, as `osmosis gateway` has it; without a folder for its store it records nothing, and
//! what is left is identifying, checking and passing on.

use std::sync::Arc;

use camino::Utf8Path;
use osmosis_core::RolloutId;
use osmosis_gateway::{Durability, Gateway, GatewayOptions, UpstreamOptions, UpstreamPolicy};
use osmosis_store_sqlite::{SqliteOptions, SqliteStore};

use crate::{Options, Outcome};

/// Prints the address and the key, then serves until the process is killed.
#[expect(
    clippy::print_stdout,
    reason = "whoever started this waits for the address"
)]
pub(crate) async fn serve(options: &Options) -> Outcome<()> {
    let base_url = format!("{}/v1", options.text("upstream")?);
    let upstream = UpstreamOptions::new(base_url, "osmosis-rollout");
    let policy = Arc::new(UpstreamPolicy::new(upstream)?);
    let gateway_options = GatewayOptions {
        durability: match options.text("durable").unwrap_or("group") {
            "group" => Durability::Group,
            "answer" => Durability::Answer,
            other => return Err(format!("`{other}` is not `group` or `answer`").into()),
        },
        ..GatewayOptions::default()
    };
    let gateway = match options.text("store") {
        Ok(folder) => {
            let store = SqliteStore::open(Utf8Path::new(folder), SqliteOptions::default())?;
            Gateway::start(gateway_options, policy, Arc::new(store)).await?
        }
        Err(_) => Gateway::start_unrecorded(gateway_options, policy).await?,
    };
    let session = gateway.open_standing(RolloutId::new("gateway")?);
    println!("{} {}", gateway.url(), session.key());
    std::future::pending().await
}

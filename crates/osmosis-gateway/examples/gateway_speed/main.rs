//! The parts of `benches/gateway.py`: a model server that answers at once, bare proxies and a gateway that
//! records nothing to compare the gateway with, and a client that asks as fast as it can.
//!
//! ```console
//! gateway_speed upstream [--delay-ms N] [--gap-ms N]
//! gateway_speed proxy --upstream http://127.0.0.1:PORT [--client general|direct]
//! gateway_speed gateway --upstream http://127.0.0.1:PORT [--store FOLDER] [--durable group|answer]
//! gateway_speed load --url URL --key KEY --kind plain|logprobs|stream --concurrency N
//!     [--requests N] [--seconds N] [--per-second N]
//! ```
//!
//! Servers print their URL and serve until they are killed; the client prints what it measured as JSON.
#![expect(
    clippy::print_stdout,
    reason = "a program for measurements reports to its caller"
)]

mod gateway;
mod load;
mod proxy;
mod serving;
mod upstream;

use std::collections::HashMap;
use std::error::Error;

/// The same as in `osmosis`: none of what is compared shall have a better allocator.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// What the parts return: there is nobody to tell errors apart.
pub(crate) type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

#[tokio::main]
async fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let part = arguments.next().unwrap_or_default();
    let options = Options::read(arguments)?;
    match part.as_str() {
        "upstream" => {
            let upstream = upstream::Upstream::new(
                options.number("delay-ms", 0)?,
                options.number("gap-ms", 0)?,
            );
            serving::serve(upstream).await
        }
        "proxy" => {
            let client = options.text("client").unwrap_or("general");
            serving::serve(proxy::Proxy::new(options.text("upstream")?, client)?).await
        }
        "gateway" => gateway::serve(&options).await,
        "load" => {
            println!("{}", load::run(&options).await?);
            Ok(())
        }
        other => Err(format!("`{other}` is not `upstream`, `proxy`, `gateway` or `load`").into()),
    }
}

/// `--name value` pairs.
pub(crate) struct Options(HashMap<String, String>);

impl Options {
    fn read(mut arguments: impl Iterator<Item = String>) -> Outcome<Self> {
        let mut options = HashMap::new();
        while let Some(name) = arguments.next() {
            let value = arguments
                .next()
                .ok_or_else(|| format!("`{name}` has no value"))?;
            options.insert(name.trim_start_matches('-').to_owned(), value);
        }
        Ok(Self(options))
    }

    pub(crate) fn text(&self, name: &str) -> Outcome<&str> {
        let value = self.0.get(name);
        Ok(value.ok_or_else(|| format!("`--{name}` is missing"))?)
    }

    pub(crate) fn number(&self, name: &str, default: u64) -> Outcome<u64> {
        match self.0.get(name) {
            Some(value) => Ok(value.parse()?),
            None => Ok(default),
        }
    }
}

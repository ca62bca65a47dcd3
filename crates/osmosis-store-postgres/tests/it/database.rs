//! A catalogue in a database of a test's own.

use std::time::Duration;

use osmosis_core::RunName;
use osmosis_store::{RunKey, RunKind, StoreUrl};
use osmosis_store_postgres::{PostgresCatalogue, PostgresOptions};
use osmosis_testkit::postgres_server::PostgresServer;
use tokio_postgres::{Client, NoTls};

pub(crate) fn run(name: &str) -> RunKey {
    RunKey {
        kind: RunKind::Evaluation,
        name: RunName::new(name).unwrap(),
    }
}

/// Signs of life come often, so that tests need not wait.
pub(crate) fn options() -> PostgresOptions {
    PostgresOptions {
        presence_every: Duration::from_millis(200),
        ..PostgresOptions::default()
    }
}

pub(crate) fn catalogue(server: &PostgresServer) -> PostgresCatalogue {
    catalogue_at(&server.url(), options())
}

pub(crate) fn catalogue_at(url: &str, options: PostgresOptions) -> PostgresCatalogue {
    PostgresCatalogue::at(&StoreUrl::parse(url).unwrap(), options).unwrap()
}

/// A plain connection, for what no store does.
#[expect(clippy::disallowed_methods, reason = "it ends with the client")]
pub(crate) async fn client(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(async move {
        let _ = connection.await;
    });
    client
}

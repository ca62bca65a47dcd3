//! Every behaviour of the conformance suite, each as a test of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use osmosis_store::conformance::shared::{self, SharedFixture};
use osmosis_store::conformance::{self, Fixture, ManualClock, TestResult};
use osmosis_store::{Catalogue as _, Store, StoreError};
use osmosis_store::{for_each_shared_behaviour, for_each_store_behaviour};
use osmosis_store_postgres::PostgresOptions;
use osmosis_testkit::postgres_server::PostgresServer;

use crate::database::{catalogue, catalogue_at, options, run};

async fn fixture(server: &Arc<PostgresServer>, options: PostgresOptions, name: String) -> Fixture {
    let server = Arc::clone(server);
    Fixture::new(move |clock: ManualClock| {
        let (url, options, name) = (server.url(), options.clone(), name.clone());
        async move { open(&url, options, &name, clock).await }
    })
    .await
    .unwrap()
}

async fn open(
    url: &str,
    options: PostgresOptions,
    name: &str,
    clock: ManualClock,
) -> Result<Arc<dyn Store>, StoreError> {
    let options = PostgresOptions {
        clock: Some(Arc::new(clock)),
        ..options
    };
    let catalogue = catalogue_at(url, options);
    if catalogue.contains(&run(name)).await? {
        catalogue.open(&run(name)).await
    } else {
        catalogue.create(&run(name)).await
    }
}

macro_rules! each {
    ($($name:ident)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() -> TestResult {
            let server = Arc::new(PostgresServer::start());
            conformance::$name(fixture(&server, options(), "run".to_owned()).await).await?;
            let report = catalogue(&server).verify(&run("run"), Box::new(|_| {})).await?;
            assert!(report.is_whole(), "{:?}", report.damage);
            Ok(())
        }
    )*};
}
for_each_store_behaviour!(each);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_behaviours_hold_with_tiny_batches_and_queues_and_many_runs() -> TestResult {
    let options = PostgresOptions {
        batch: 2,
        queue: 1,
        ..options()
    };
    let server = Arc::new(PostgresServer::start());
    let made = AtomicU32::new(0);
    conformance::run_all(|| async {
        let name = format!("run-{}", made.fetch_add(1, Ordering::Relaxed));
        Ok(fixture(&server, options.clone(), name).await)
    })
    .await
}

/// Nodes join by a role of the run, as they do elsewhere than in tests.
async fn shared_fixture(server: &Arc<PostgresServer>) -> SharedFixture {
    let owner = catalogue(server);
    let controller = owner.create(&run("run")).await.unwrap();
    let role = owner.create_role(&run("run")).await.unwrap();
    let account = format!("{}:{}", role.role, role.password);
    let url = server.url_as(&account, "postgres");
    SharedFixture::new(controller, move || {
        let url = url.clone();
        async move { catalogue_at(&url, options()).join(&run("run")).await }
    })
}

macro_rules! each_shared {
    ($($name:ident)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() -> TestResult {
            let server = Arc::new(PostgresServer::start());
            shared::$name(shared_fixture(&server).await).await
        }
    )*};
}
for_each_shared_behaviour!(each_shared);

//! Every behaviour of the conformance suite, each as a test of its own.

use std::sync::Arc;

use camino::Utf8Path;
use osmosis_store::{SqliteOptions, SqliteStore, Store, StoreError};
use osmosis_testkit::for_each_store_behaviour;
use osmosis_testkit::store_conformance::{self, Fixture, ManualClock, Verdict};

async fn fixture(options: SqliteOptions) -> Fixture {
    let folder = tempfile::tempdir().unwrap();
    Fixture::new(move |clock: ManualClock| {
        let opened = open(folder.path().try_into().unwrap(), &options, clock);
        async { opened }
    })
    .await
    .unwrap()
}

fn open(
    folder: &Utf8Path,
    options: &SqliteOptions,
    clock: ManualClock,
) -> Result<Arc<dyn Store>, StoreError> {
    let options = SqliteOptions {
        clock: Arc::new(clock),
        ..options.clone()
    };
    Ok(Arc::new(SqliteStore::open(folder, options)?))
}

macro_rules! each {
    ($($name:ident)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() -> Verdict {
            store_conformance::$name(fixture(SqliteOptions::default()).await).await
        }
    )*};
}
for_each_store_behaviour!(each);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_behaviours_hold_with_tiny_batches_queues_and_segments() -> Verdict {
    let options = SqliteOptions {
        batch: 2,
        queue: 1,
        segment_bytes: 1000,
        ..SqliteOptions::default()
    };
    store_conformance::run_all(|| async { Ok(fixture(options.clone()).await) }).await
}

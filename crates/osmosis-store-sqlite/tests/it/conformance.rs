//! Every behaviour of the conformance suite, each as a test of its own.

use std::sync::Arc;

use camino::Utf8Path;
use osmosis_store::conformance::{self, Fixture, ManualClock, TestResult};
use osmosis_store::for_each_store_behaviour;
use osmosis_store::{Authenticity, KeyFolder, Store, StoreError};
use osmosis_store_sqlite::{SqliteOptions, SqliteStore};
use tempfile::TempDir;

async fn fixture(options: SqliteOptions) -> (Arc<TempDir>, Fixture) {
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let kept = Arc::clone(&folder);
    let options = SqliteOptions {
        keys: keys(&folder),
        ..options
    };
    let fixture = Fixture::new(move |clock: ManualClock| {
        let opened = open(folder.path().try_into().unwrap(), &options, clock);
        async { opened }
    });
    (kept, fixture.await.unwrap())
}

/// Beside the files of the run.
fn keys(folder: &TempDir) -> KeyFolder {
    KeyFolder::at(folder.path().join("keys").try_into().unwrap())
}

/// Whatever was done to a store, each of its rows has the right checksum and the right MAC, and its totals are sealed: a
/// statement that writes one without it would make a run look damaged.
fn assert_whole(folder: &TempDir) {
    let keys = keys(folder);
    let folder = folder.path().try_into().unwrap();
    let report = SqliteStore::verify(folder, &keys, |_| {}).unwrap();
    assert!(report.is_whole(), "{:?}", report.damage);
    assert_eq!(report.without_checksum, 0);
    assert_eq!(report.authenticity, Some(Authenticity::Authenticated));
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
        async fn $name() -> TestResult {
            let (folder, fixture) = fixture(SqliteOptions::default()).await;
            conformance::$name(fixture).await?;
            assert_whole(&folder);
            Ok(())
        }
    )*};
}
for_each_store_behaviour!(each);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_behaviours_hold_with_tiny_batches_queues_and_segments() -> TestResult {
    let options = SqliteOptions {
        batch: 2,
        queue: 1,
        segment_bytes: 1000,
        ..SqliteOptions::default()
    };
    conformance::run_all(|| async { Ok(fixture(options.clone()).await.1) }).await
}

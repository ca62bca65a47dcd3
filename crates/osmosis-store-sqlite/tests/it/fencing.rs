//! Two writers of one run: at most one is let in, and one that was passed over stops.

use std::fs;

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::RolloutId;
use osmosis_store::conformance::{call, claim_one, plan, scored};
use osmosis_store::{CallQuery, Claim, KeyFolder, Recovery, Store, StoreError, StoreErrorKind};
use osmosis_store_sqlite::{SqliteOptions, SqliteStore};

use crate::folder::{folder, open};

async fn record(store: &SqliteStore, claim: &Claim, turn: usize) -> Result<(), StoreError> {
    let body = format!("{}-{turn} ", store_name(store)).repeat(500);
    let new = call(claim, "main", body.clone(), body).unwrap();
    store.record_call_durably(new).await
}

fn store_name(store: &SqliteStore) -> String {
    format!("{:p}", std::ptr::from_ref(store))
}

fn assert_whole(path: &Utf8Path) {
    let report = SqliteStore::verify(path, &KeyFolder::none(), |_| {}).unwrap();
    assert!(report.is_whole(), "{:?}", report.damage);
}

#[tokio::test]
async fn a_removed_lock_file_lets_no_second_writer_in() {
    let (_keep, path) = folder();
    let first = open(&path).unwrap();
    plan(&first, 2, 1).await.unwrap();
    let claim = claim_one(&first).await.unwrap();
    record(&first, &claim, 0).await.unwrap();
    fs::remove_file(path.join("run.lock")).unwrap();
    let error = open(&path).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Held);
    // The name is in the database too.
    let pid = std::process::id();
    assert!(
        error.to_string().contains(&format!("process {pid} ")),
        "{error}"
    );
    assert_eq!(SqliteStore::holder(&path).unwrap().pid, pid);
    record(&first, &claim, 1).await.unwrap();
    first.complete(scored(&claim, 1.0).unwrap()).await.unwrap();
    first.close().await.unwrap();
    assert_eq!(SqliteStore::holder(&path), None);
    open(&path).unwrap().close().await.unwrap();
    assert_whole(&path);
}

/// Gets around every lock: the files move to a new folder of the old name, without `run.lock`.
fn get_around_locks(path: &Utf8Path) {
    let aside = Utf8PathBuf::from(format!("{path}-aside"));
    fs::rename(path, &aside).unwrap();
    fs::create_dir(path).unwrap();
    for entry in aside.read_dir_utf8().unwrap() {
        let entry = entry.unwrap();
        if entry.file_name() != "run.lock" {
            fs::rename(entry.path(), path.join(entry.file_name())).unwrap();
        }
    }
    // The old folder is where the first writer believes to be.
    fs::remove_dir_all(&aside).unwrap();
}

#[tokio::test]
async fn a_writer_that_was_passed_over_stops_and_damages_nothing() {
    let (_keep, path) = folder();
    let first = open(&path).unwrap();
    plan(&first, 2, 1).await.unwrap();
    let claim = claim_one(&first).await.unwrap();
    record(&first, &claim, 0).await.unwrap();
    get_around_locks(&path);
    let second = open(&path).unwrap();
    for turn in 1..4 {
        let error = record(&first, &claim, turn).await.unwrap_err();
        // It notices that its folder is another one before it looks for who took the run over.
        assert!(
            matches!(error, StoreError::Moved { .. } | StoreError::Fenced { .. }),
            "{error}"
        );
        assert!(error.hint().is_some());
        record(&second, &claim, turn).await.unwrap();
    }
    assert!(first.complete(scored(&claim, 1.0).unwrap()).await.is_err());
    drop(first);
    second.complete(scored(&claim, 0.5).unwrap()).await.unwrap();
    let query = CallQuery {
        rollout_id: RolloutId::of(0, 0),
        attempt: None,
    };
    assert_eq!(second.calls(query).await.unwrap().len(), 4);
    second.close().await.unwrap();
    assert_whole(&path);
}

#[tokio::test]
async fn the_epoch_alone_stops_a_writer_that_was_passed_over() {
    let (_keep, path) = folder();
    let first = open(&path).unwrap();
    plan(&first, 2, 1).await.unwrap();
    let claim = claim_one(&first).await.unwrap();
    record(&first, &claim, 0).await.unwrap();
    // What a second writer does when no lock stands in its way, on a file system that has none.
    let database = rusqlite::Connection::open(path.join("run.db")).unwrap();
    database
        .execute("UPDATE writer SET epoch = epoch + 1, holder = ''", [])
        .unwrap();
    drop(database);
    let error = record(&first, &claim, 1).await.unwrap_err();
    assert!(matches!(error, StoreError::Fenced { .. }), "{error}");
    assert_eq!(error.kind(), StoreErrorKind::Held);
    first.recover(Recovery::AfterTakeover).await.unwrap_err();
    first.close().await.unwrap();
    let again = open(&path).unwrap();
    again.recover(Recovery::AfterTakeover).await.unwrap();
    again.close().await.unwrap();
    assert_whole(&path);
}

#[tokio::test]
async fn a_writer_appends_to_no_segment_but_its_own() {
    let (_keep, path) = folder();
    let first = open(&path).unwrap();
    plan(&first, 2, 1).await.unwrap();
    let claim = claim_one(&first).await.unwrap();
    record(&first, &claim, 0).await.unwrap();
    first.close().await.unwrap();
    let before = fs::read(path.join("segments/000001.seg")).unwrap();
    let second = open(&path).unwrap();
    record(&second, &claim, 1).await.unwrap();
    second.close().await.unwrap();
    assert_eq!(fs::read(path.join("segments/000001.seg")).unwrap(), before);
    assert!(path.join("segments/000002.seg").exists());
    assert_whole(&path);
}

#[tokio::test]
async fn a_folder_that_is_moved_while_in_use_is_still_held_and_its_writer_stops() {
    let (_keep, path) = folder();
    let first = open(&path).unwrap();
    plan(&first, 2, 1).await.unwrap();
    let claim = claim_one(&first).await.unwrap();
    record(&first, &claim, 0).await.unwrap();
    let moved = Utf8PathBuf::from(format!("{path}-moved"));
    fs::rename(&path, &moved).unwrap();
    assert_eq!(open(&moved).unwrap_err().kind(), StoreErrorKind::Held);
    let error = record(&first, &claim, 1).await.unwrap_err();
    assert!(matches!(error, StoreError::Moved { .. }), "{error}");
    // A new run takes the old place, and the first writer leaves it alone.
    let other = open(&path).unwrap();
    plan(&other, 2, 1).await.unwrap();
    record(&first, &claim, 2).await.unwrap_err();
    let others = claim_one(&other).await.unwrap();
    record(&other, &others, 0).await.unwrap();
    first.close().await.unwrap();
    other.close().await.unwrap();
    assert_whole(&path);
    assert_whole(&moved);
    let again = open(&moved).unwrap();
    assert_eq!(again.recover(Recovery::AfterTakeover).await.unwrap(), 1);
    again.close().await.unwrap();
}

#[tokio::test]
async fn a_copy_of_a_run_in_use_is_a_run_of_its_own() {
    let (_keep, path) = folder();
    let first = open(&path).unwrap();
    plan(&first, 3, 1).await.unwrap();
    let claim = claim_one(&first).await.unwrap();
    record(&first, &claim, 0).await.unwrap();
    let copied = Utf8PathBuf::from(format!("{path}-copied"));
    fs::create_dir_all(copied.join("segments")).unwrap();
    for file in ["run.db", "run.db-wal", "run.lock", "segments/000001.seg"] {
        fs::copy(path.join(file), copied.join(file)).unwrap();
    }
    let second = open(&copied).unwrap();
    assert_eq!(second.recover(Recovery::AfterTakeover).await.unwrap(), 1);
    let theirs = claim_one(&second).await.unwrap();
    for turn in 1..3 {
        record(&first, &claim, turn).await.unwrap();
        record(&second, &theirs, turn).await.unwrap();
    }
    first.close().await.unwrap();
    second.close().await.unwrap();
    assert_whole(&path);
    assert_whole(&copied);
}

#[tokio::test]
async fn every_file_of_a_run_is_its_owners_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let (_keep, path) = folder();
    // As an older program left it.
    fs::create_dir_all(path.join("segments")).unwrap();
    fs::write(path.join("run.lock"), "").unwrap();
    fs::write(path.join("run.db"), "").unwrap();
    for entry in ["", "segments", "run.lock", "run.db"] {
        let is_file = entry.starts_with("run.");
        let mode = fs::Permissions::from_mode(if is_file { 0o644 } else { 0o755 });
        fs::set_permissions(path.join(entry), mode).unwrap();
    }
    let store = SqliteStore::open(&path, SqliteOptions::default()).unwrap();
    plan(&store, 2, 1).await.unwrap();
    let claim = claim_one(&store).await.unwrap();
    record(&store, &claim, 0).await.unwrap();
    let mut seen = vec![];
    let mut folders = vec![path.clone()];
    while let Some(folder) = folders.pop() {
        for entry in folder.read_dir_utf8().unwrap() {
            let entry = entry.unwrap();
            let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
            assert_eq!(mode & 0o077, 0, "{} has mode {mode:o}", entry.path());
            seen.push(entry.file_name().to_owned());
            if entry.path().is_dir() {
                folders.push(entry.into_path());
            }
        }
    }
    for expected in [
        "run.db",
        "run.db-wal",
        "run.db-shm",
        "run.lock",
        "000001.seg",
    ] {
        assert!(seen.iter().any(|name| name == expected), "{seen:?}");
    }
    let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o700);
    store.close().await.unwrap();
}

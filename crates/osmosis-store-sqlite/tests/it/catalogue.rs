//! Every behaviour of the catalogues' conformance suite, and what only folders have.

use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::RunName;
use osmosis_store::conformance::TestResult;
use osmosis_store::conformance::catalogue as behaviours;
use osmosis_store::{
    Catalogue, KeyFolder, RunKey, RunKind, StoreErrorKind, StoreUrl, for_each_catalogue_behaviour,
};
use osmosis_store_sqlite::{SqliteCatalogue, SqliteOptions, SqliteStore};

fn catalogue(folder: &Utf8Path) -> SqliteCatalogue {
    let url = StoreUrl::of_folder(folder).unwrap();
    SqliteCatalogue::at(url, SqliteOptions::default()).unwrap()
}

/// A workspace whose name means something in a URL.
fn workspace(keep: &tempfile::TempDir) -> Utf8PathBuf {
    Utf8PathBuf::try_from(keep.path().join("50% a?b#c")).unwrap()
}

fn run(name: &str) -> RunKey {
    RunKey {
        kind: RunKind::Training,
        name: RunName::new(name).unwrap(),
    }
}

macro_rules! each {
    ($($name:ident)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() -> TestResult {
            let keep = tempfile::tempdir()?;
            behaviours::$name(Arc::new(catalogue(&workspace(&keep)))).await
        }
    )*};
}
for_each_catalogue_behaviour!(each);

/// Where runs are is a promise: older and newer programs find each other's.
#[tokio::test]
async fn a_run_is_where_it_always_was() {
    let keep = tempfile::tempdir().unwrap();
    let root = workspace(&keep);
    let catalogue = catalogue(&root);
    let folder = root.join(".osmosis/training/x");
    catalogue
        .create(&run("x"))
        .await
        .unwrap()
        .close()
        .await
        .unwrap();
    assert_eq!(catalogue.folder_of(&run("x")), folder);
    assert!(folder.join("run.db").is_file());
    assert_eq!(
        catalogue.url_of(&run("x")).unwrap().folder().unwrap(),
        folder
    );
    let archived = catalogue.archive(&run("x")).await.unwrap();
    let archived = archived.url.folder().unwrap();
    assert_eq!(archived.parent(), Some(&*root.join(".osmosis/archive")));
    SqliteStore::open_read_only(&archived, &KeyFolder::none()).unwrap();
}

/// A folder without a store, or with a name that no run has, is passed over.
#[tokio::test]
async fn other_folders_are_not_listed() {
    let keep = tempfile::tempdir().unwrap();
    let root = workspace(&keep);
    let catalogue = catalogue(&root);
    for name in ["empty", "not a name"] {
        std::fs::create_dir_all(root.join(".osmosis/training").join(name)).unwrap();
    }
    std::fs::write(root.join(".osmosis/training/not a name/run.db"), "").unwrap();
    std::fs::write(root.join(".osmosis/training/file"), "").unwrap();
    assert_eq!(catalogue.list(RunKind::Training).await.unwrap(), []);
    // One that can't be opened is listed all the same: somebody must hear of it.
    std::fs::write(root.join(".osmosis/training/empty/run.db"), "junk").unwrap();
    let listed = catalogue.list(RunKind::Training).await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].key, run("empty"));
}

#[test]
fn another_scheme_is_refused() {
    let url = StoreUrl::parse("postgres://host/database").unwrap();
    let refused = SqliteCatalogue::at(url, SqliteOptions::default()).unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::InvalidUrl);
}

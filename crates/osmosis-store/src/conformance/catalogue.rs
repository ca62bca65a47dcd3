//! What every catalogue must do. A backend runs each behaviour as a test of its own through
//! [`for_each_catalogue_behaviour!`](crate::for_each_catalogue_behaviour), on a catalogue without runs.

use std::sync::Arc;

use osmosis_core::RunName;

pub use super::kept_runs::{
    a_held_run_keeps_its_name_and_is_not_removed, a_removed_run_is_gone_and_its_name_is_free,
    a_renamed_run_is_whole_and_remembers_its_name, a_run_has_a_size,
    an_archived_run_is_listed_apart_and_comes_back, tags_are_added_and_taken_away_beside_a_writer,
};

use super::changes::reported;
use super::{TestResult, claim_one, plan, run_record, scored};
use crate::{Catalogue, RunKey, RunKind, Store, StoreError, StoreErrorKind, StoreUrl};

/// Hands the names of all behaviours to a macro: `for_each_catalogue_behaviour!(each)`.
#[macro_export]
macro_rules! for_each_catalogue_behaviour {
    ($each:ident) => {
        $each! {
            a_created_run_is_listed_and_opens_again
            runs_of_one_name_and_two_kinds_are_two_runs
            a_run_is_created_once
            what_is_not_there_is_not_found_and_not_made
            a_run_that_is_held_names_its_holder_and_is_not_opened_twice
            readers_read_beside_a_writer_and_write_nothing
            an_archived_run_makes_way_and_is_kept
            a_held_run_is_not_archived
            a_whole_run_verifies_and_can_be_salvaged
            an_archived_run_is_listed_apart_and_comes_back
            a_renamed_run_is_whole_and_remembers_its_name
            a_held_run_keeps_its_name_and_is_not_removed
            tags_are_added_and_taken_away_beside_a_writer
            a_removed_run_is_gone_and_its_name_is_free
            a_run_has_a_size
        }
    };
}

pub(super) fn key(kind: RunKind, name: &str) -> anyhow::Result<RunKey> {
    Ok(RunKey {
        kind,
        name: RunName::new(name)?,
    })
}

pub(super) fn eval(name: &str) -> anyhow::Result<RunKey> {
    key(RunKind::Evaluation, name)
}

pub(super) async fn names(catalogue: &dyn Catalogue, kind: RunKind) -> anyhow::Result<Vec<String>> {
    let entries = catalogue.list(kind).await?;
    let mut names: Vec<String> = entries
        .iter()
        .map(|entry| entry.key.name.to_string())
        .collect();
    names.sort();
    Ok(names)
}

/// Makes a run with its record and leaves it.
pub(super) async fn make(catalogue: &dyn Catalogue, run: &RunKey) -> TestResult {
    let store = catalogue.create(run).await?;
    store.create_run(run_record(run.name.as_str())?).await?;
    store.close().await?;
    Ok(())
}

pub(super) fn kind_of<T>(result: Result<T, StoreError>) -> Option<StoreErrorKind> {
    result.err().map(|error| error.kind())
}

/// What was written comes back, under a URL that is the run's own.
pub async fn a_created_run_is_listed_and_opens_again(catalogue: Arc<dyn Catalogue>) -> TestResult {
    assert!(catalogue.list(RunKind::Evaluation).await?.is_empty());
    let run = eval("first")?;
    assert!(!catalogue.contains(&run).await?);
    make(&*catalogue, &run).await?;
    make(&*catalogue, &eval("second")?).await?;
    assert!(catalogue.contains(&run).await?);
    assert_eq!(
        names(&*catalogue, RunKind::Evaluation).await?,
        ["first", "second"]
    );

    let entries = catalogue.list(RunKind::Evaluation).await?;
    assert_ne!(entries[0].url, entries[1].url);
    // Newest first.
    assert!(entries[0].made_at >= entries[1].made_at, "{entries:?}");
    for entry in &entries {
        assert_eq!(entry.url, catalogue.url_of(&entry.key)?);
        assert_eq!(entry.url.scheme(), catalogue.url().scheme());
        assert_eq!(StoreUrl::parse(entry.url.as_str())?, entry.url);
    }

    let store = catalogue.open(&run).await?;
    let record = store.run().await?;
    assert_eq!(record.map(|record| record.name), Some(run.name));
    store.close().await?;
    Ok(())
}

pub async fn runs_of_one_name_and_two_kinds_are_two_runs(
    catalogue: Arc<dyn Catalogue>,
) -> TestResult {
    let kinds = [RunKind::Evaluation, RunKind::Training, RunKind::Serving];
    for kind in kinds {
        make(&*catalogue, &key(kind, "same")?).await?;
    }
    for kind in kinds {
        assert_eq!(names(&*catalogue, kind).await?, ["same"]);
    }
    catalogue.archive(&key(RunKind::Training, "same")?).await?;
    assert!(catalogue.contains(&eval("same")?).await?);
    assert!(!catalogue.contains(&key(RunKind::Training, "same")?).await?);
    Ok(())
}

pub async fn a_run_is_created_once(catalogue: Arc<dyn Catalogue>) -> TestResult {
    let run = eval("once")?;
    make(&*catalogue, &run).await?;
    let again = kind_of(catalogue.create(&run).await);
    assert_eq!(again, Some(StoreErrorKind::AlreadyExists));
    Ok(())
}

pub async fn what_is_not_there_is_not_found_and_not_made(
    catalogue: Arc<dyn Catalogue>,
) -> TestResult {
    let run = eval("missing")?;
    let found = [
        kind_of(catalogue.open(&run).await),
        kind_of(catalogue.open_read_only(&run).await),
        kind_of(catalogue.holder(&run).await),
        kind_of(catalogue.archive(&run).await),
        kind_of(catalogue.open_archived("missing.20260101-120000.1").await),
        kind_of(catalogue.verify(&run, Box::new(|_| {})).await),
        kind_of(catalogue.salvage(&run, &RunName::new("saved")?).await),
    ];
    assert_eq!(found, [Some(StoreErrorKind::NotFound); 7]);
    assert!(catalogue.list(RunKind::Evaluation).await?.is_empty());
    Ok(())
}

/// A backend that several processes write to at once holds nothing, and has no use for this behaviour.
pub async fn a_run_that_is_held_names_its_holder_and_is_not_opened_twice(
    catalogue: Arc<dyn Catalogue>,
) -> TestResult {
    let run = eval("held")?;
    let store = catalogue.create(&run).await?;
    let holder = catalogue.holder(&run).await?;
    assert_eq!(holder.map(|holder| holder.pid), Some(std::process::id()));
    let second = kind_of(catalogue.open(&run).await);
    assert_eq!(second, Some(StoreErrorKind::Held));
    store.close().await?;
    assert_eq!(catalogue.holder(&run).await?, None);
    catalogue.open(&run).await?.close().await?;
    Ok(())
}

pub async fn readers_read_beside_a_writer_and_write_nothing(
    catalogue: Arc<dyn Catalogue>,
) -> TestResult {
    let run = eval("read")?;
    let writer = catalogue.create(&run).await?;
    plan(&*writer, 2, 1).await?;
    let reader = catalogue.open_read_only(&run).await?;
    assert_eq!(reader.counts().await?.queued, 2);
    let mut changes = reader.changes();
    writer
        .complete(scored(&claim_one(&*writer).await?, 1.0)?)
        .await?;
    assert_eq!(reader.counts().await?.done, 1);
    reported(&mut changes).await?;
    assert!(
        claim_one(&*reader).await.is_err(),
        "a reader claims nothing"
    );
    assert_eq!(writer.counts().await?.queued, 1);
    reader.close().await?;
    writer.close().await?;
    Ok(())
}

pub async fn an_archived_run_makes_way_and_is_kept(catalogue: Arc<dyn Catalogue>) -> TestResult {
    let run = eval("again")?;
    let mut places = vec![catalogue.url_of(&run)?];
    for _ in 0..2 {
        make(&*catalogue, &run).await?;
        let archived = catalogue.archive(&run).await?;
        assert_eq!(catalogue.archived(run.kind).await?[0], archived);
        let place = archived.url;
        assert!(!places.contains(&place), "{place} is taken");
        places.push(place);
        assert!(!catalogue.contains(&run).await?);
        assert!(names(&*catalogue, RunKind::Evaluation).await?.is_empty());
    }
    make(&*catalogue, &run).await
}

pub async fn a_held_run_is_not_archived(catalogue: Arc<dyn Catalogue>) -> TestResult {
    let run = eval("busy")?;
    let store: Arc<dyn Store> = catalogue.create(&run).await?;
    let refused = kind_of(catalogue.archive(&run).await);
    assert_eq!(refused, Some(StoreErrorKind::Held));
    plan(&*store, 1, 1).await?;
    store.close().await?;
    assert!(catalogue.contains(&run).await?);
    catalogue.archive(&run).await?;
    Ok(())
}

pub async fn a_whole_run_verifies_and_can_be_salvaged(catalogue: Arc<dyn Catalogue>) -> TestResult {
    let (run, saved) = (eval("whole")?, eval("saved")?);
    let store = catalogue.create(&run).await?;
    store.create_run(run_record("whole")?).await?;
    plan(&*store, 2, 1).await?;
    let claim = claim_one(&*store).await?;
    store.complete(scored(&claim, 1.0)?).await?;
    store.close().await?;

    let report = catalogue.verify(&run, Box::new(|_| {})).await?;
    assert!(report.is_whole(), "{:?}", report.damage);
    assert_eq!((report.checked.rows, report.checked.rollouts), (2, 2));
    let report = catalogue.salvage(&run, &saved.name).await?;
    assert!(report.has_record && report.lost.is_empty(), "{report:?}");
    assert_eq!((report.rows, report.results, report.waiting), (2, 1, 1));
    let again = kind_of(catalogue.salvage(&run, &saved.name).await);
    assert_eq!(again, Some(StoreErrorKind::AlreadyExists));
    let store = catalogue.open_read_only(&saved).await?;
    let record = store.run().await?;
    assert_eq!(record.map(|record| record.name), Some(saved.name));
    assert_eq!(store.samples(&claim.id).await?.len(), 1);
    Ok(())
}

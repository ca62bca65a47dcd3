//! What every catalogue must do with runs that are over.

use std::sync::Arc;

use osmosis_core::{RunName, RunTag};

use super::catalogue::{eval, key, kind_of, make, names};
use super::{TestResult, claim_one, plan, run_record, scored};
use crate::{Catalogue, RunKind, RunPlace, RunStatus, StoreErrorKind};

pub async fn an_archived_run_is_listed_apart_and_comes_back(
    catalogue: Arc<dyn Catalogue>,
) -> TestResult {
    let run = eval("away")?;
    let training = key(RunKind::Training, "away")?;
    make(&*catalogue, &run).await?;
    make(&*catalogue, &training).await?;
    assert!(catalogue.archived(RunKind::Evaluation).await?.is_empty());
    catalogue.archive(&run).await?;
    catalogue.archive(&training).await?;
    let archived = catalogue.archived(RunKind::Evaluation).await?;
    assert_eq!(archived.len(), 1, "{archived:?}");
    assert_eq!(archived[0].key, run);
    let id = &archived[0].id;
    // It is read where it is.
    let store = catalogue.open_archived(id).await?;
    assert!(store.run().await?.is_some());
    assert!(
        store.set_status(RunStatus::Running).await.is_err(),
        "nothing is written to an archived run"
    );
    store.close().await?;

    make(&*catalogue, &run).await?;
    let taken = kind_of(catalogue.restore(id, None).await);
    assert_eq!(taken, Some(StoreErrorKind::AlreadyExists));
    let other = RunName::new("back")?;
    let restored = catalogue.restore(id, Some(&other)).await?;
    assert_eq!(restored, eval("back")?);
    assert_eq!(
        names(&*catalogue, RunKind::Evaluation).await?,
        ["away", "back"]
    );
    let store = catalogue.open_read_only(&restored).await?;
    assert_eq!(store.run().await?.map(|run| run.name), Some(other));
    assert!(catalogue.archived(RunKind::Evaluation).await?.is_empty());
    let gone = kind_of(catalogue.restore(id, None).await);
    assert_eq!(gone, Some(StoreErrorKind::NotFound));
    Ok(())
}

pub async fn a_renamed_run_is_whole_and_remembers_its_name(
    catalogue: Arc<dyn Catalogue>,
) -> TestResult {
    let (old, new) = (eval("old")?, eval("new")?);
    let store = catalogue.create(&old).await?;
    store.create_run(run_record("old")?).await?;
    plan(&*store, 1, 1).await?;
    store
        .complete(scored(&claim_one(&*store).await?, 1.0)?)
        .await?;
    store.close().await?;
    make(&*catalogue, &eval("taken")?).await?;

    let taken = catalogue.rename(&old, &RunName::new("taken")?).await;
    assert_eq!(kind_of(taken), Some(StoreErrorKind::AlreadyExists));
    catalogue.rename(&old, &new.name).await?;
    assert!(!catalogue.contains(&old).await?);
    assert_eq!(
        names(&*catalogue, RunKind::Evaluation).await?,
        ["new", "taken"]
    );
    let labels = catalogue.labels(&new).await?;
    assert_eq!(labels.former_names, std::slice::from_ref(&old.name));
    let report = catalogue.verify(&new, Box::new(|_| {})).await?;
    assert!(report.is_whole(), "{:?}", report.damage);
    // It is written to under its new name, too.
    let store = catalogue.open(&new).await?;
    let name = store.run().await?.map(|run| run.name);
    assert_eq!(name, Some(new.name.clone()));
    assert_eq!(store.counts().await?.done, 1);
    store.close().await?;

    // A run that gets its name back was never called otherwise.
    catalogue.rename(&new, &old.name).await?;
    let labels = catalogue.labels(&old).await?;
    assert_eq!(labels.former_names, [new.name]);
    Ok(())
}

pub async fn a_held_run_keeps_its_name_and_is_not_removed(
    catalogue: Arc<dyn Catalogue>,
) -> TestResult {
    let run = eval("busy")?;
    let store = catalogue.create(&run).await?;
    let refused = [
        kind_of(catalogue.rename(&run, &RunName::new("other")?).await),
        kind_of(catalogue.remove(&RunPlace::Listed(run.clone())).await),
    ];
    assert_eq!(refused, [Some(StoreErrorKind::Held); 2]);
    plan(&*store, 1, 1).await?;
    store.close().await?;
    assert_eq!(names(&*catalogue, RunKind::Evaluation).await?, ["busy"]);
    assert!(catalogue.labels(&run).await?.former_names.is_empty());
    Ok(())
}

pub async fn tags_are_added_and_taken_away_beside_a_writer(
    catalogue: Arc<dyn Catalogue>,
) -> TestResult {
    let run = eval("marked")?;
    let store = catalogue.create(&run).await?;
    assert!(catalogue.labels(&run).await?.tags.is_empty());
    let [best, old] = [RunTag::new("best")?, RunTag::new("old")?];
    catalogue
        .tag(&run, &[best.clone(), old.clone()], &[])
        .await?;
    let labels = catalogue
        .tag(&run, std::slice::from_ref(&best), &[old])
        .await?;
    assert_eq!(labels.tags.iter().collect::<Vec<_>>(), [&best]);
    store.close().await?;
    // They go with the run.
    catalogue.archive(&run).await?;
    let archived = catalogue.archived(RunKind::Evaluation).await?.remove(0);
    assert_eq!(archived.labels, labels);
    catalogue.restore(&archived.id, None).await?;
    assert_eq!(catalogue.labels(&run).await?, labels);
    let missing = catalogue.tag(&eval("missing")?, &[best], &[]).await;
    assert_eq!(kind_of(missing), Some(StoreErrorKind::NotFound));
    Ok(())
}

pub async fn a_removed_run_is_gone_and_its_name_is_free(
    catalogue: Arc<dyn Catalogue>,
) -> TestResult {
    let run = eval("gone")?;
    let place = RunPlace::Listed(run.clone());
    let missing = kind_of(catalogue.remove(&place).await);
    assert_eq!(missing, Some(StoreErrorKind::NotFound));
    make(&*catalogue, &run).await?;
    make(&*catalogue, &eval("stays")?).await?;
    catalogue.remove(&place).await?;
    assert_eq!(names(&*catalogue, RunKind::Evaluation).await?, ["stays"]);
    make(&*catalogue, &run).await?;

    catalogue.archive(&run).await?;
    let id = catalogue.archived(RunKind::Evaluation).await?.remove(0).id;
    catalogue.remove(&RunPlace::Archived(id)).await?;
    assert!(catalogue.archived(RunKind::Evaluation).await?.is_empty());
    Ok(())
}

pub async fn a_run_has_a_size(catalogue: Arc<dyn Catalogue>) -> TestResult {
    let run = eval("sized")?;
    make(&*catalogue, &run).await?;
    let size = catalogue.size(&RunPlace::Listed(run.clone())).await?;
    assert!(size.bytes > 0, "{size:?}");
    assert_eq!(size.parts.values().sum::<u64>(), size.bytes);
    catalogue.archive(&run).await?;
    let id = catalogue.archived(RunKind::Evaluation).await?.remove(0).id;
    let archived = catalogue.size(&RunPlace::Archived(id)).await?;
    assert!(archived.bytes > 0, "{archived:?}");
    Ok(())
}

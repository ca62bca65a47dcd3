//! What every store must do that several processes work on at once. A backend runs each behaviour as a test of its own
//! through [`for_each_shared_behaviour!`](crate::for_each_shared_behaviour).

use std::collections::BTreeSet;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use osmosis_core::{JsonText, OutcomeKind, RolloutId};

use super::changes::reported;
use super::{LEASE, TestResult, claim_one, plan, run_record, scored};
use crate::{
    FinishedCursor, MemberKind, PackageFile, RunStatus, SharedRun, StopRequest, Store, StoreError,
};

/// Hands the names of all behaviours to a macro: `for_each_shared_behaviour!(each)`.
#[macro_export]
macro_rules! for_each_shared_behaviour {
    ($each:ident) => {
        $each! {
            a_package_comes_back_and_can_be_replaced
            only_the_controller_changes_what_nodes_read
            members_are_listed_with_what_they_hold_and_have_done
            what_others_finish_is_reported_once
            what_was_finished_before_is_counted_and_not_reported
            what_is_finished_while_it_is_looked_for_is_reported_once
            a_result_that_is_put_back_and_made_again_is_reported_again
            a_request_to_stop_reaches_everybody_and_can_be_taken_back
            the_standing_follows_the_queue_and_the_record
        }
    };
}

type Joining = Pin<Box<dyn Future<Output = Result<Arc<dyn Store>, StoreError>> + Send>>;

/// A run under test that one process controls and others can join.
pub struct SharedFixture {
    pub controller: Arc<dyn Store>,
    join: Box<dyn Fn() -> Joining + Send + Sync>,
}

impl SharedFixture {
    /// `join` opens the same run as one more node each time.
    pub fn new<F, Fut>(controller: Arc<dyn Store>, join: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Arc<dyn Store>, StoreError>> + Send + 'static,
    {
        Self {
            controller,
            join: Box::new(move || Box::pin(join())),
        }
    }

    /// One more node.
    pub async fn join(&self) -> anyhow::Result<Arc<dyn Store>> {
        Ok((self.join)().await?)
    }
}

impl fmt::Debug for SharedFixture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedFixture")
            .field("controller", &self.controller)
            .finish_non_exhaustive()
    }
}

fn shared(store: &dyn Store) -> anyhow::Result<&dyn SharedRun> {
    store
        .shared()
        .ok_or_else(|| anyhow::anyhow!("the run is not shared"))
}

fn file(sha256: &str, content: &[u8]) -> PackageFile {
    PackageFile {
        sha256: sha256.to_owned(),
        content: Bytes::copy_from_slice(content),
    }
}

/// What is put is what is found, and what a later package lacks is gone.
pub async fn a_package_comes_back_and_can_be_replaced(fixture: SharedFixture) -> TestResult {
    let node = fixture.join().await?;
    let (ours, theirs) = (shared(&*fixture.controller)?, shared(&*node)?);
    assert_eq!(theirs.package().await?, None);
    let big: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    let manifest = JsonText::parse(r#"{"files":  {"a": "1"}}"#)?;
    let files = vec![file("1", b""), file("2", &big)];
    ours.put_package(manifest.clone(), files).await?;
    assert_eq!(theirs.package().await?, Some(manifest));
    assert_eq!(theirs.package_file("1").await?, Some(Bytes::new()));
    assert_eq!(theirs.package_file("2").await?, Some(big.into()));
    assert_eq!(theirs.package_file("3").await?, None);

    let manifest = JsonText::parse("{}")?;
    let files = vec![file("3", b"\0\xff"), file("1", b"")];
    ours.put_package(manifest.clone(), files).await?;
    assert_eq!(theirs.package().await?, Some(manifest));
    assert_eq!(theirs.package_file("2").await?, None);
    let found = theirs.package_file("3").await?;
    assert_eq!(found.as_deref(), Some(&b"\0\xff"[..]));

    let controller = (Some("http://10.0.0.1:7000"), Some("ab12"));
    ours.set_controller(controller.0, controller.1).await?;
    let found = (
        theirs.controller_url().await?,
        theirs.node_key_sha256().await?,
    );
    assert_eq!((found.0.as_deref(), found.1.as_deref()), controller);
    ours.set_controller(None, None).await?;
    assert_eq!(theirs.controller_url().await?, None);
    Ok(())
}

/// A node reads, and changes nothing of what all share.
pub async fn only_the_controller_changes_what_nodes_read(fixture: SharedFixture) -> TestResult {
    let node = fixture.join().await?;
    let theirs = shared(&*node)?;
    let manifest = JsonText::parse("{}")?;
    assert!(theirs.put_package(manifest, vec![]).await.is_err());
    let url = Some("http://evil.example");
    assert!(theirs.set_controller(url, None).await.is_err());
    let ours = shared(&*fixture.controller)?;
    assert_eq!(ours.package().await?, None);
    assert_eq!(ours.controller_url().await?, None);
    Ok(())
}

/// Who works on the run, and on how much.
pub async fn members_are_listed_with_what_they_hold_and_have_done(
    fixture: SharedFixture,
) -> TestResult {
    let controller = &fixture.controller;
    plan(&**controller, 4, 1).await?;
    let node = fixture.join().await?;
    let first = claim_one(&*node).await?;
    claim_one(&*node).await?;
    node.complete(scored(&first, 1.0)?).await?;
    shared(&*node)?.set_draining().await?;

    let members = shared(&**controller)?.members().await?;
    let facts: Vec<_> = members
        .iter()
        .map(|member| {
            assert!(member.alive && member.seen_ago < Duration::from_mins(1));
            let holder = member.holder.as_ref().map(|holder| holder.pid);
            assert_eq!(holder, Some(std::process::id()));
            (
                member.kind,
                member.is_self,
                member.leases,
                member.done,
                member.draining,
            )
        })
        .collect();
    assert_eq!(
        facts,
        [
            (MemberKind::Controller, true, 0, 0, false),
            (MemberKind::Node, false, 1, 1, true),
        ]
    );
    let seen_by_node = shared(&*node)?.members().await?;
    assert!(seen_by_node[1].is_self && !seen_by_node[0].is_self);
    node.close().await?;
    assert_eq!(shared(&**controller)?.members().await?.len(), 1);
    Ok(())
}

async fn since(
    store: &dyn Store,
    cursor: FinishedCursor,
) -> anyhow::Result<(Vec<RolloutId>, FinishedCursor)> {
    let (found, cursor) = shared(store)?.finished_since(cursor).await?;
    assert!(found.iter().all(|rollout| rollout.outcome.is_some()));
    Ok((found.into_iter().map(|one| one.id).collect(), cursor))
}

/// Each once, and not one's own.
pub async fn what_others_finish_is_reported_once(fixture: SharedFixture) -> TestResult {
    let controller = &fixture.controller;
    plan(&**controller, 4, 1).await?;
    let node = fixture.join().await?;
    let (cursor, counts) = shared(&**controller)?.watch_finished().await?;
    assert_eq!((counts.queued, counts.done), (4, 0));
    let theirs = claim_one(&*node).await?;
    let ours = claim_one(&**controller).await?;
    let mut changes = controller.changes();
    node.complete(scored(&theirs, 1.0)?).await?;
    reported(&mut changes).await?;
    controller.complete(scored(&ours, 0.5)?).await?;
    let (found, cursor) = since(&**controller, cursor).await?;
    assert_eq!(found, [theirs.id]);
    let (found, cursor) = since(&**controller, cursor).await?;
    assert_eq!(found, []);
    let last = claim_one(&*node).await?;
    node.complete(scored(&last, 0.0)?).await?;
    let (found, _) = since(&**controller, cursor).await?;
    assert_eq!(found, [last.id]);
    Ok(())
}

/// The count and the reports go together: nothing is in both, nothing in neither.
pub async fn what_was_finished_before_is_counted_and_not_reported(
    fixture: SharedFixture,
) -> TestResult {
    let controller = &fixture.controller;
    plan(&**controller, 3, 1).await?;
    let node = fixture.join().await?;
    let claim = claim_one(&*node).await?;
    node.complete(scored(&claim, 1.0)?).await?;
    let (cursor, counts) = shared(&**controller)?.watch_finished().await?;
    assert_eq!((counts.queued, counts.done), (2, 1));
    assert_eq!(since(&**controller, cursor).await?.0, []);
    Ok(())
}

/// However reports and results interleave.
pub async fn what_is_finished_while_it_is_looked_for_is_reported_once(
    fixture: SharedFixture,
) -> TestResult {
    let controller = &fixture.controller;
    plan(&**controller, 120, 1).await?;
    let nodes = [fixture.join().await?, fixture.join().await?];
    let (mut cursor, _) = shared(&**controller)?.watch_finished().await?;
    let working = async {
        let work = nodes.iter().map(|node| async {
            while let Some(claim) = node.claim("node", 1, LEASE).await?.pop() {
                node.complete(scored(&claim, 1.0)?).await?;
            }
            anyhow::Ok(())
        });
        let [one, other] = work
            .collect::<Vec<_>>()
            .try_into()
            .map_err(|_| anyhow::anyhow!("two nodes"))?;
        let (one, other) = tokio::join!(one, other);
        one.and(other)
    };
    let mut seen = BTreeSet::new();
    let watching = async {
        while seen.len() < 120 {
            let (found, next) = since(&**controller, cursor.clone()).await?;
            cursor = next;
            for id in found {
                assert!(seen.insert(id.clone()), "{id} was reported twice");
            }
            tokio::task::yield_now().await;
        }
        anyhow::Ok(())
    };
    let watching = tokio::time::timeout(Duration::from_mins(1), watching);
    let (worked, watched) = tokio::join!(working, watching);
    worked?;
    watched?
}

/// A second result of a rollout is news.
pub async fn a_result_that_is_put_back_and_made_again_is_reported_again(
    fixture: SharedFixture,
) -> TestResult {
    let controller = &fixture.controller;
    plan(&**controller, 1, 1).await?;
    let node = fixture.join().await?;
    let (mut cursor, _) = shared(&**controller)?.watch_finished().await?;
    for _ in 0..2 {
        let claim = claim_one(&*node).await?;
        node.complete(scored(&claim, 1.0)?).await?;
        let (found, next) = since(&**controller, cursor).await?;
        assert_eq!(found, [claim.id]);
        cursor = next;
        controller.requeue(&[OutcomeKind::Scored]).await?;
    }
    Ok(())
}

/// Whoever works on the run hears of it.
pub async fn a_request_to_stop_reaches_everybody_and_can_be_taken_back(
    fixture: SharedFixture,
) -> TestResult {
    let node = fixture.join().await?;
    let (ours, theirs) = (shared(&*fixture.controller)?, shared(&*node)?);
    for request in [Some(StopRequest::Drain), Some(StopRequest::Now), None] {
        let mut changes = node.changes();
        ours.ask_to_stop(request).await?;
        reported(&mut changes).await?;
        assert_eq!(theirs.standing().await?.stop_asked, request);
    }
    Ok(())
}

/// What can be claimed, what is under way, and how the run stands.
pub async fn the_standing_follows_the_queue_and_the_record(fixture: SharedFixture) -> TestResult {
    let controller = &fixture.controller;
    let node = fixture.join().await?;
    let theirs = shared(&*node)?;
    let standing = theirs.standing().await?;
    assert_eq!(standing.status, None);
    assert!(standing.is_idle());
    controller.create_run(run_record("x")?).await?;
    plan(&**controller, 1, 1).await?;
    let standing = theirs.standing().await?;
    assert_eq!(standing.status, Some(RunStatus::Running));
    assert!(standing.claimable && !standing.leased);
    let claim = claim_one(&*node).await?;
    let standing = theirs.standing().await?;
    assert!(!standing.claimable && standing.leased && !standing.is_idle());
    node.complete(scored(&claim, 1.0)?).await?;
    controller.set_status(RunStatus::Interrupted).await?;
    let standing = theirs.standing().await?;
    assert_eq!(standing.status, Some(RunStatus::Interrupted));
    assert!(standing.is_idle());
    Ok(())
}

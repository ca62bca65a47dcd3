use std::num::{NonZeroU32, NonZeroU64};

use super::*;
use crate::PolicyVersion;
use crate::config::IncompleteGroups;

fn plan(pace: Pace) -> Plan {
    Plan {
        batches: Batches {
            groups: NonZeroU32::new(2).unwrap(),
            rows: None,
            steps: None,
        },
        members: NonZeroU32::new(3).unwrap(),
        max_concurrent: NonZeroU64::new(100).unwrap(),
        pace,
        incomplete_groups: IncompleteGroups::Drop,
    }
}

fn asynchronous(stale_rows: StaleRows, straggler: Straggler) -> Plan {
    plan(Pace::of(1, stale_rows, straggler))
}

fn member(group: u64, number: u32) -> MemberId {
    MemberId {
        group: GroupId(group),
        number,
    }
}

fn scored(versions: &[u64]) -> MemberEnd {
    MemberEnd::Scored {
        tokens: versions.iter().map(|v| Some(PolicyVersion(*v))).collect(),
    }
}

fn discard(group: u64, reason: DiscardReason) -> Decision {
    Decision::Discard {
        group: GroupId(group),
        reason,
    }
}

/// Ends all members of these groups as scored, with tokens of these versions.
fn complete(admission: &mut Admission, groups: std::ops::Range<u64>, versions: &[u64]) {
    for group in groups {
        for number in 0..3 {
            let end = scored(versions);
            admission.finished(member(group, number), end).unwrap();
        }
    }
}

fn train(admission: &mut Admission) -> Batch {
    let batch = admission.take_batch().unwrap();
    admission.trained().unwrap();
    let next = PolicyVersion(admission.version().0 + 1);
    admission.advance(next).unwrap();
    batch
}

#[test]
fn only_topping_up_makes_groups_larger() {
    for (max_staleness, straggler, tops_up) in [
        (1, Straggler::Wait, false),
        (1, Straggler::Drop, false),
        (1, Straggler::TopUp, true),
        (0, Straggler::TopUp, false),
    ] {
        let pace = Pace::of(max_staleness, StaleRows::Drop, straggler);
        assert_eq!(pace.tops_up(), tops_up, "{pace:?}");
    }
}

#[test]
fn capacity_is_that_of_the_contract() {
    let mut admission = Admission::begin(asynchronous(StaleRows::Drop, Straggler::Wait));
    // (1 + 0 + 1) * 2 groups of 3.
    assert_eq!(admission.capacity(), RolloutCount(12));
    assert_eq!(admission.admit().len(), 12);
    complete(&mut admission, 0..3, &[0]);
    assert_eq!(
        admission.capacity(),
        RolloutCount(0),
        "accepted groups count"
    );
    train(&mut admission);
    assert_eq!(admission.capacity(), RolloutCount(6), "one batch more");
}

#[test]
fn a_group_larger_than_the_concurrency_is_started_bit_by_bit() {
    let mut admission = Admission::begin(Plan {
        max_concurrent: NonZeroU64::new(2).unwrap(),
        ..plan(Pace::Synchronous)
    });
    assert_eq!(admission.admit(), [member(0, 0), member(0, 1)]);
    admission.finished(member(0, 0), scored(&[0])).unwrap();
    assert_eq!(admission.admit(), [member(0, 2)]);
    admission.finished(member(0, 2), scored(&[0])).unwrap();
    assert_eq!(admission.admit(), [member(1, 0)]);
    let counts = admission.counts();
    assert_eq!(
        (counts.running, counts.open),
        (RolloutCount(2), GroupCount(2))
    );
}

#[test]
fn the_last_batch_of_an_epoch_is_smaller() {
    let batches = Batches {
        groups: NonZeroU32::new(4).unwrap(),
        rows: NonZeroU64::new(10),
        steps: Some(5),
    };
    let sizes: Vec<u64> = (0..7).map(|done| batches.size(done).0).collect();
    assert_eq!(sizes, [4, 4, 2, 4, 4, 0, 0]);
    assert_eq!(batches.through(4), GroupCount(14));
}

#[test]
fn no_more_is_admitted_than_the_run_has_steps_for() {
    let mut plan = asynchronous(StaleRows::Drop, Straggler::Wait);
    plan.batches.steps = Some(1);
    let mut admission = Admission::begin(plan);
    assert_eq!(admission.admit().len(), 6);
    complete(&mut admission, 0..2, &[0]);
    train(&mut admission);
    assert_eq!(admission.waits_for(), WaitsFor::End);
    assert!(admission.admit().is_empty());
}

#[test]
fn stale_groups_leave_and_make_room() {
    let mut admission = Admission::begin(asynchronous(StaleRows::Drop, Straggler::Wait));
    admission.admit();
    // Group 3 has a straggler; its siblings sampled at version 0.
    complete(&mut admission, 0..3, &[0]);
    admission.finished(member(3, 0), scored(&[0])).unwrap();
    admission.finished(member(3, 1), scored(&[0])).unwrap();
    train(&mut admission);
    admission.admit();
    complete(&mut admission, 4..6, &[1]);
    let batch = train(&mut admission);
    let ids: Vec<u64> = batch.groups.iter().map(|group| group.id.0).collect();
    assert_eq!(ids, [2, 4], "the first admitted of the ready ones");
    assert_eq!(
        batch.staleness.counts().collect::<Vec<_>>(),
        [(0, 3), (1, 3)]
    );

    let before = admission.counts();
    let decisions = admission
        .finished(member(3, 2), scored(&[0, 1, 2]))
        .unwrap();
    assert_eq!(decisions, [discard(3, DiscardReason::Stale)]);
    let after = admission.counts();
    assert_eq!(after.accepted(), before.accepted());
    assert_eq!(after.open.0, before.open.0 - 1);
}

#[test]
fn masking_keeps_what_is_fresh_of_a_group() {
    let mut admission = Admission::begin(asynchronous(StaleRows::Mask, Straggler::Wait));
    admission.admit();
    admission.advance(PolicyVersion(2)).unwrap();
    admission
        .finished(member(0, 0), scored(&[0, 0, 0]))
        .unwrap();
    admission
        .finished(member(0, 1), scored(&[0, 1, 2]))
        .unwrap();
    let decisions = admission.finished(member(0, 2), scored(&[2])).unwrap();
    assert_eq!(decisions, [Decision::Ready(GroupId(0))]);
    complete(&mut admission, 1..2, &[0]);
    assert_eq!(admission.counts().discarded[&DiscardReason::Stale], 1);
    complete(&mut admission, 2..3, &[2]);

    let batch = admission.take_batch().unwrap();
    let trainable: Vec<Trainable> = batch.groups[0]
        .members
        .iter()
        .map(|m| m.trainable)
        .collect();
    assert_eq!(
        trainable,
        [Trainable::FreshOnly, Trainable::FreshOnly, Trainable::All]
    );
    assert_eq!((batch.masked_tokens, batch.staleness.tokens()), (4, 6));
}

#[test]
fn keeping_incomplete_groups_keeps_them_without_their_stale_members() {
    let mut admission = Admission::begin(Plan {
        incomplete_groups: IncompleteGroups::Keep,
        ..asynchronous(StaleRows::Drop, Straggler::Wait)
    });
    admission.admit();
    admission.advance(PolicyVersion(2)).unwrap();
    admission.finished(member(0, 0), scored(&[0])).unwrap();
    admission.finished(member(0, 1), scored(&[1])).unwrap();
    admission.finished(member(0, 2), scored(&[2])).unwrap();
    complete(&mut admission, 1..2, &[2]);
    let batch = admission.take_batch().unwrap();
    let numbers: Vec<u32> = batch.groups[0].members.iter().map(|m| m.number).collect();
    assert_eq!(numbers, [1, 2]);
    assert_eq!(batch.stale_rollouts, RolloutCount(1));
}

#[test]
fn a_group_that_can_not_be_complete_is_given_up_at_once() {
    let mut admission = Admission::begin(asynchronous(StaleRows::Drop, Straggler::Wait));
    admission.admit();
    let decisions = admission
        .finished(member(1, 1), MemberEnd::Unscored)
        .unwrap();
    let expected = [
        Decision::Cancel(member(1, 0)),
        Decision::Cancel(member(1, 2)),
        discard(1, DiscardReason::Incomplete),
    ];
    assert_eq!(decisions, expected);
    // One slot more than before, and another group for it.
    assert_eq!(admission.counts().running, RolloutCount(11));
    assert_eq!(
        admission.admit(),
        [member(4, 0), member(4, 1), member(4, 2)]
    );
    // What was cancelled may have been scored after all; that changes nothing.
    assert_eq!(admission.finished(member(1, 0), scored(&[0])), Ok(vec![]));
    let again = admission.finished(member(1, 0), scored(&[0]));
    assert_eq!(again, Err(AdmissionError::NotRunning(member(1, 0))));
}

#[test]
fn a_straggler_is_waited_for_topped_up_or_dropped() {
    let straggling = |straggler| {
        let mut admission = Admission::begin(asynchronous(StaleRows::Drop, straggler));
        admission.admit();
        admission.finished(member(0, 0), scored(&[0])).unwrap();
        admission.finished(member(0, 1), scored(&[0])).unwrap();
        let decisions = admission.straggling(member(0, 2));
        (admission, decisions)
    };
    assert_eq!(straggling(Straggler::Wait).1, []);

    let (mut admission, decisions) = straggling(Straggler::TopUp);
    assert_eq!(decisions, [Decision::TopUp(GroupId(0))]);
    assert_eq!(admission.straggling(member(0, 2)), [], "once per straggler");
    assert_eq!(admission.admit(), [member(0, 3)]);
    let decisions = admission.finished(member(0, 3), scored(&[0])).unwrap();
    let expected = [Decision::Cancel(member(0, 2)), Decision::Ready(GroupId(0))];
    assert_eq!(decisions, expected);

    let (_, decisions) = straggling(Straggler::Drop);
    let expected = [
        Decision::Cancel(member(0, 2)),
        discard(0, DiscardReason::Incomplete),
    ];
    assert_eq!(decisions, expected);
}

#[test]
fn a_skipped_group_leaves_in_the_asynchronous_pace_only() {
    let mut admission = Admission::begin(asynchronous(StaleRows::Drop, Straggler::Wait));
    admission.admit();
    complete(&mut admission, 0..2, &[0]);
    let not_ready = admission.skip(GroupId(2));
    assert_eq!(not_ready, Err(AdmissionError::NotReady(GroupId(2))));
    assert_eq!(admission.skip(GroupId(1)), Ok(Place::Freed));
    assert_eq!(admission.take_batch(), None);
    assert_eq!(admission.admit().len(), 3);

    let mut admission = Admission::begin(plan(Pace::Synchronous));
    admission.admit();
    complete(&mut admission, 0..2, &[0]);
    assert_eq!(admission.skip(GroupId(1)), Ok(Place::Kept));
    assert_eq!(train(&mut admission).groups.len(), 2);
}

#[test]
fn one_batch_is_taken_at_a_time() {
    let mut admission = Admission::begin(asynchronous(StaleRows::Drop, Straggler::Wait));
    admission.admit();
    complete(&mut admission, 0..4, &[0]);
    assert!(admission.take_batch().is_some());
    assert_eq!(admission.take_batch(), None);
    admission.trained().unwrap();
    assert_eq!(admission.trained(), Err(AdmissionError::NothingTaken));
    assert!(admission.take_batch().is_some());
}

#[test]
fn a_resumed_run_has_the_batch_that_its_trainer_had() {
    let plan = asynchronous(StaleRows::Drop, Straggler::Wait);
    let groups = |ids: &[u64]| ids.iter().copied().map(GroupId).collect();
    let mut admission = Admission::resume(
        plan,
        Standing {
            version: PolicyVersion(4),
            trained_batches: 4,
            next: GroupId(11),
            again: groups(&[7, 8, 9]),
            taken: Some(groups(&[8, 10])),
        },
    );
    assert_eq!(admission.waits_for(), WaitsFor::Training);
    let mut again: Vec<u64> = admission.admit().iter().map(|m| m.group.0).collect();
    again.dedup();
    assert_eq!(again, [7, 9]);
    admission.trained().unwrap();
    assert_eq!(admission.counts().accepted(), GroupCount(10));
}

#[test]
fn a_resumed_run_has_accepted_its_steps_and_takes_up_what_was_left() {
    let plan = asynchronous(StaleRows::Drop, Straggler::Wait);
    let standing = Standing {
        version: PolicyVersion(4),
        trained_batches: 4,
        next: GroupId(11),
        again: [GroupId(9), GroupId(7)].into(),
        taken: None,
    };
    let mut admission = Admission::resume(plan, standing);
    assert_eq!(admission.counts().accepted(), GroupCount(8));
    let mut groups: Vec<u64> = admission.admit().iter().map(|m| m.group.0).collect();
    groups.dedup();
    assert_eq!(groups, [7, 9, 11, 12]);
    // Sampled by weights that the resume does not have any more.
    complete(&mut admission, 7..8, &[5]);
    assert_eq!(admission.counts().discarded[&DiscardReason::Stale], 1);
}

#[test]
fn a_version_never_goes_back() {
    let mut admission = Admission::begin(plan(Pace::Synchronous));
    admission.advance(PolicyVersion(2)).unwrap();
    let error = admission.advance(PolicyVersion(1)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "version `1` is announced after version `2`"
    );
    assert_eq!(admission.version(), PolicyVersion(2));
}

//! Calls that are told in ids, without messages.

use osmosis_core::{PolicyVersion, SampleId};
use osmosis_tokens::{CallTree, Given, Origin, TokenRecord};
use proptest::prelude::*;
use serde_json::{Map, json};

use crate::toy;

fn call(tree: &mut CallTree, prompt: &[u32], sampled: &[u32], given: Given) -> TokenRecord {
    let planned = tree.plan_ids(prompt.to_vec());
    assert_eq!(planned.ids, prompt);
    let versions = vec![PolicyVersion(0); sampled.len()];
    let logprobs = vec![-0.5; sampled.len()];
    tree.finished_ids(planned, sampled.to_vec(), logprobs, versions, 1.0, given)
}

#[test]
fn the_longest_earlier_call_is_continued() {
    let mut tree = CallTree::default();
    let first = call(&mut tree, &[1, 2], &[3], Given::Whole);
    assert_eq!(first.origin, Origin::Root { reason: None });
    let second = call(&mut tree, &[1, 2, 3, 4], &[5], Given::Whole);
    assert_eq!(second.origin, Origin::Continues { call: 0, kept: 3 });
    assert_eq!(second.prompt_suffix, [4]);
    let third = call(&mut tree, &[1, 2, 3, 4, 5, 6], &[7], Given::Whole);
    assert_eq!(third.origin, Origin::Continues { call: 1, kept: 5 });
    let branch = call(&mut tree, &[1, 2, 3, 9], &[9], Given::Whole);
    assert_eq!(branch.origin, Origin::Continues { call: 0, kept: 3 });
    let other = call(&mut tree, &[2], &[2], Given::Whole);
    assert!(matches!(other.origin, Origin::Root { reason: Some(_) }));
}

#[test]
fn what_was_cut_off_is_not_continued() {
    let mut tree = CallTree::default();
    let cut = call(&mut tree, &[1], &[2], Given::CutOff);
    assert!(!cut.complete);
    let next = call(&mut tree, &[1, 2, 3], &[4], Given::Whole);
    assert_eq!(next.origin, Origin::Root { reason: None });
    assert_eq!(next.call, 1);
    assert_eq!(tree.skip(), 2);
}

#[test]
fn ids_go_on_from_a_conversation_in_messages() {
    let format = toy::format(toy::CHATML);
    let mut tree = CallTree::default();
    let question = json!({"role": "user", "content": "a"});
    let prompt = tree.plan(&format, &[question], None, &Map::new()).unwrap();
    let so_far = [prompt.ids.clone(), vec![7]].concat();
    let reply = json!({"role": "assistant", "content": "b"});
    let version = vec![PolicyVersion(0)];
    tree.finished(prompt, vec![7], vec![-0.1], version, 1.0, Some(&reply));
    let next = call(
        &mut tree,
        &[so_far.clone(), vec![8]].concat(),
        &[9],
        Given::Whole,
    );
    let kept = u32::try_from(so_far.len()).unwrap();
    assert_eq!(next.origin, Origin::Continues { call: 0, kept });
}

proptest! {
    #[test]
    fn rows_are_what_was_seen_and_sampled(
        turns in prop::collection::vec((any::<bool>(), prop::collection::vec(0..3_u32, 1..4), prop::collection::vec(0..3_u32, 1..4)), 1..12),
    ) {
        let mut tree = CallTree::default();
        let mut records = Vec::new();
        let mut conversation: Vec<u32> = Vec::new();
        let mut told: Vec<Vec<u32>> = Vec::new();
        for (anew, more, sampled) in turns {
            if anew {
                conversation.clear();
            }
            conversation.extend(&more);
            records.push(call(&mut tree, &conversation, &sampled, Given::Whole));
            conversation.extend(&sampled);
            told.push(conversation.clone());
        }
        let rows = CallTree::rows(&SampleId::main(), &records).unwrap();
        for row in &rows {
            prop_assert!(told.contains(&row.ids));
        }
        let trained: usize = rows.iter().flat_map(|row| &row.loss_mask).filter(|trained| **trained).count();
        let sampled: usize = records.iter().map(|record| record.sampled.len()).sum();
        prop_assert_eq!(trained, sampled);
    }
}

use proptest::prelude::*;

use super::*;

fn records() -> impl Strategy<Value = TokenRecord> {
    let origin = prop_oneof![
        (any::<u32>(), any::<u32>()).prop_map(|(call, kept)| Origin::Continues { call, kept }),
        any::<Option<String>>().prop_map(|reason| Origin::Root { reason }),
    ];
    let sampled = prop::collection::vec((any::<u32>(), -50f32..=0.0, 0u64..3), 0..20);
    let prompt = prop::collection::vec(any::<u32>(), 0..20);
    let logprobs_of = prop::sample::select(vec![
        LogprobsOf::Tempered,
        LogprobsOf::Untempered,
        LogprobsOf::Filtered,
        LogprobsOf::Unknown,
    ]);
    (
        any::<u32>(),
        origin,
        prompt,
        sampled,
        (0f32..2.0, logprobs_of),
        any::<(bool, bool, Vec<u32>, Option<String>)>(),
    )
        .prop_map(
            |(
                call,
                origin,
                prompt_suffix,
                sampled,
                (temperature, logprobs_of),
                (complete, one_of_several, replaces, grammar),
            )| {
                TokenRecord {
                    call,
                    origin,
                    prompt_suffix,
                    sampled: sampled.iter().map(|token| token.0).collect(),
                    logprobs: sampled.iter().map(|token| token.1).collect(),
                    logprobs_of,
                    versions: sampled.iter().map(|t| PolicyVersion(t.2 << 62)).collect(),
                    temperature,
                    complete,
                    one_of_several,
                    replaces,
                    constraint: grammar.map(|grammar| RecordedConstraint {
                        constraint: Constraint {
                            grammar: grammar.into(),
                        },
                        allowed: sampled.iter().map(|token| token.0 % 70_000).collect(),
                    }),
                }
            },
        )
}

proptest! {
    #[test]
    fn a_record_comes_back_from_its_bytes(record in records()) {
        prop_assert_eq!(TokenRecord::decode(&record.encode()), Ok(record));
    }

    #[test]
    fn a_record_that_ends_early_is_refused(record in records(), cut in any::<prop::sample::Index>()) {
        let bytes = record.encode();
        let end = cut.index(bytes.len());
        prop_assert!(TokenRecord::decode(&bytes[..end]).is_err());
    }

    #[test]
    fn damaged_bytes_give_an_error_or_a_consistent_record(
        record in records(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = record.encode();
        for (place, byte) in damage {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        if let Ok(record) = TokenRecord::decode(&bytes) {
            prop_assert_eq!(record.logprobs.len(), record.sampled.len());
            prop_assert_eq!(record.versions.len(), record.sampled.len());
        }
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let _ = TokenRecord::decode(&bytes);
        let _ = TokenRecord::decode(&[&[VERSION, COMPLETE], bytes.as_slice()].concat());
    }
}

#[test]
fn a_huge_count_allocates_nothing() {
    let mut bytes = vec![VERSION, 0, 0, 0, 0, 0, 0];
    write_number(&mut bytes, u64::MAX);
    assert_eq!(
        TokenRecord::decode(&bytes).unwrap_err().to_string(),
        "damaged token record: it ends too early"
    );
}

#[test]
fn a_call_without_ids_says_why_and_gives_no_row() {
    let record = TokenRecord::unknown(4, "the server sent none");
    let read = TokenRecord::decode(&record.encode()).unwrap();
    assert_eq!(read.ids_unknown(), Some("the server sent none"));
    assert_eq!(read, record);
    let sample = osmosis_core::SampleId::main();
    assert_eq!(crate::CallTree::rows(&sample, &[read]), Ok(vec![]));
}

#[test]
fn an_origin_is_either_a_call_or_a_reason() {
    for flags in [
        CONTINUES | HAS_REASON,
        COMPLETE | CONTINUES | HAS_REASON,
        0x80,
    ] {
        let error = TokenRecord::decode(&[VERSION, flags, 0, 0, 0, 0, 0, 0]).unwrap_err();
        let expected = format!("damaged token record: unknown flags {flags:#04x}");
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn another_format_version_is_named() {
    assert_eq!(
        TokenRecord::decode(&[9]).unwrap_err().to_string(),
        "damaged token record: it has format version 9, this program knows 1"
    );
}

#[test]
fn the_bytes_of_version_1_stay_readable() {
    let record = TokenRecord {
        call: 3,
        origin: Origin::Continues { call: 1, kept: 300 },
        prompt_suffix: vec![7, 128],
        sampled: vec![5, 6],
        logprobs: vec![-1.0, -0.5],
        logprobs_of: LogprobsOf::Tempered,
        versions: vec![PolicyVersion(2), PolicyVersion(2)],
        temperature: 1.0,
        complete: true,
        one_of_several: false,
        replaces: vec![],
        constraint: None,
    };
    let bytes = [
        1, 3, 3, 1, 0xac, 2, 0, 0, 0x80, 0x3f, 2, 7, 0x80, 1, 2, 5, 6, 2, 0, 0, 0x80, 0xbf, 0, 0,
        0, 0xbf, 2, 2,
    ];
    assert_eq!(record.encode(), bytes);
    assert_eq!(TokenRecord::decode(&bytes), Ok(record));
}

//! Files that were good once.

use std::fmt::Write as _;

use insta::assert_snapshot;
use osmosis_data::{DataErrorKind, validate};

use crate::compressed::{gzip, zstd};
use crate::parquet::fixture;
use crate::{error_of, file};

/// What becomes of a file: nothing but an error or rows.
fn survives(name: &str, contents: &[u8]) {
    let (_folder, path) = file(name, contents);
    match validate(&path) {
        Ok(_) => {}
        Err(error) => {
            assert!(
                matches!(
                    error.kind(),
                    DataErrorKind::Unreadable | DataErrorKind::Invalid
                ),
                "{error}"
            );
            assert!(error.to_string().contains(path.as_str()), "{error}");
        }
    }
}

/// Numbers that look random and are the same each time.
fn numbers(seed: u64) -> impl Iterator<Item = usize> {
    let mut state = seed;
    std::iter::repeat_with(move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).unwrap()
    })
}

#[test]
fn parquet_that_is_cut_short_is_refused_wherever_it_was_cut() {
    let contents = std::fs::read(fixture("duckdb.parquet")).unwrap();
    for end in 0..contents.len() {
        let (_folder, path) = file("d.parquet", &contents[..end]);
        let error = validate(&path).expect_err("a part was taken for the whole");
        assert_eq!(
            error.kind(),
            DataErrorKind::Unreadable,
            "cut at {end}: {error}"
        );
    }
}

#[test]
fn no_flipped_bit_of_a_parquet_file_ends_the_program() {
    // These write pages with checksums and without, of both versions and of every codec.
    for name in [
        "duckdb.parquet",
        "pandas.parquet",
        "pyarrow.parquet",
        "binary.parquet",
    ] {
        let contents = std::fs::read(fixture(name)).unwrap();
        for number in numbers(1).take(1500) {
            let mut damaged = contents.clone();
            damaged[(number / 8) % contents.len()] ^= 1 << (number % 8);
            survives("d.parquet", &damaged);
        }
    }
}

#[test]
fn no_flipped_bit_of_a_compressed_file_ends_the_program() {
    let mut text = String::new();
    for number in 0..200 {
        writeln!(
            text,
            "{{\"user_prompt\":\"{number}\",\"label\":\"{number}\"}}"
        )
        .unwrap();
    }
    for (name, contents) in [
        ("d.jsonl.gz", gzip(text.as_bytes())),
        ("d.jsonl.zst", zstd(text.as_bytes())),
    ] {
        for number in numbers(2).take(1500) {
            let mut damaged = contents.clone();
            damaged[(number / 8) % contents.len()] ^= 1 << (number % 8);
            survives(name, &damaged);
        }
    }
}

#[test]
fn what_is_no_parquet_says_so() {
    assert_snapshot!(error_of("d.parquet", b""), @"`d.parquet` can't be read: this is no parquet data");
    assert_snapshot!(error_of("d.parquet", b"PAR1"), @"`d.parquet` can't be read: the parquet data is damaged: Parquet file too small. Size is 4 but need 8");
    assert_snapshot!(error_of("d.parquet", b"PAR1 and something"), @"`d.parquet` can't be read: the parquet data is cut short");
    assert_snapshot!(error_of("d.parquet", b"user_prompt,label\nx,1\n"), @"`d.parquet` can't be read: this is no parquet data");
}

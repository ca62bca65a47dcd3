use std::io::{self, BufReader, Read};

use osmosis_data::{JsonlRows, MAX_ROW_BYTES, RowProblem};

/// Makes rows as they are asked for, and counts how many were.
struct Endless {
    made: u64,
    left: Vec<u8>,
}

impl Endless {
    fn new() -> Self {
        Self {
            made: 0,
            left: Vec::new(),
        }
    }
}

impl Read for Endless {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left.is_empty() {
            self.left = format!(
                "{{\"user_prompt\":\"row {}\",\"label\":\"x\"}}\n",
                self.made
            )
            .into();
            self.made += 1;
        }
        let count = buffer.len().min(self.left.len());
        buffer[..count].copy_from_slice(&self.left[..count]);
        self.left.drain(..count);
        Ok(count)
    }
}

#[test]
fn rows_are_read_as_they_are_asked_for() {
    let mut rows = JsonlRows::new(BufReader::with_capacity(64, Endless::new()));
    // The source has no end: whoever reads ahead never comes back.
    let last = rows.nth(99_999).unwrap().unwrap();
    assert_eq!((last.index, last.line), (99_999, 100_000));
    assert_eq!(last.prompt[0]["content"], "row 99999");
}

#[test]
fn a_row_beyond_the_limit_is_passed_over_and_the_next_one_read() {
    let long = io::repeat(b'x').take(MAX_ROW_BYTES as u64 * 3);
    let good = &b"\n{\"user_prompt\":\"x\",\"label\":\"1\"}\n"[..];
    let mut rows = JsonlRows::new(BufReader::with_capacity(1 << 20, long.chain(good)));
    let error = rows.next().unwrap().unwrap_err();
    assert_eq!((error.index, error.line), (0, 1));
    assert_eq!(error.problem, RowProblem::TooLong);
    let row = rows.next().unwrap().unwrap();
    assert_eq!((row.index, row.line), (1, 2));
    assert!(rows.next().is_none());
}

/// Gives some bytes, is interrupted, and breaks.
struct Breaking(Vec<io::Result<&'static [u8]>>);

impl Read for Breaking {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.0.is_empty() {
            return Ok(0);
        }
        let part = self.0.remove(0)?;
        buffer[..part.len()].copy_from_slice(part);
        Ok(part.len())
    }
}

#[test]
fn a_disk_that_fails_midway_ends_the_rows_with_an_error() {
    let source = Breaking(vec![
        Ok(b"{\"user_prompt\":\"x\","),
        Err(io::ErrorKind::Interrupted.into()),
        Ok(b"\"label\":\"1\"}\n{\"user"),
        Err(io::Error::other("the disk is gone")),
        Ok(b"_prompt\":\"y\",\"label\":\"1\"}\n"),
    ]);
    let rows: Vec<_> = JsonlRows::new(BufReader::new(source)).collect();
    assert_eq!(rows.len(), 2);
    assert!(rows[0].is_ok());
    let error = rows[1].as_ref().unwrap_err();
    assert_eq!(
        error.to_string(),
        "line 2: the file can't be read any further: the disk is gone"
    );
}

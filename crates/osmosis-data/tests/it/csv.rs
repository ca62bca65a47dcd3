use std::io::{self, BufReader, Read};

use insta::assert_snapshot;
use osmosis_data::{CsvRows, Format, JsonlRows, MAX_ROW_BYTES, ReportMode, Row, validate};

use crate::{error_of, file, problems};

fn rows(text: impl AsRef<[u8]>) -> Vec<Row> {
    CsvRows::new(text.as_ref())
        .collect::<Result<_, _>>()
        .unwrap()
}

/// The bodies of the rows.
fn bodies(text: impl AsRef<[u8]>) -> Vec<String> {
    let rows = rows(text);
    rows.iter()
        .map(|row| row.body.as_str().to_owned())
        .collect()
}

#[test]
fn a_row_is_what_the_same_object_in_jsonl_is() {
    let csv = "system_prompt,user_prompt,ground_truth,metadata,extra\n\
               Be brief.,\"6 × \"\"7\"\"?\",42,\"{\"\"a\"\": 1}\",x\n";
    let row = &rows(csv)[0];
    let jsonl = format!("{}\n", row.body.as_str());
    let same = JsonlRows::new(jsonl.as_bytes()).next().unwrap().unwrap();
    assert_eq!(row.prompt, same.prompt);
    assert_eq!((&row.label, &row.metadata), (&same.label, &same.metadata));
    assert_snapshot!(row.body.as_str(), @r#"{"system_prompt":"Be brief.","user_prompt":"6 × \"7\"?","ground_truth":"42","metadata":"{\"a\": 1}","extra":"x"}"#);
    assert_eq!(row.metadata.as_ref().unwrap().as_str(), r#"{"a": 1}"#);
}

#[test]
fn cells_keep_their_space_and_names_do_not() {
    assert_eq!(
        bodies("\u{feff}user_prompt , label\r\n a ,  1\r\n"),
        [r#"{"user_prompt":" a ","label":"  1"}"#]
    );
}

#[test]
fn an_empty_cell_is_an_absent_column() {
    assert_eq!(
        bodies("user_prompt,label,extra,\na,1,,\nb,2,\"\",z\n"),
        [
            r#"{"user_prompt":"a","label":"1"}"#,
            r#"{"user_prompt":"b","label":"2"}"#
        ]
    );
}

#[test]
fn an_empty_cell_of_metadata_still_makes_the_others_optional() {
    let rows = rows("user_prompt,metadata\na,\n,\"{\"\"k\"\": 1}\"\n");
    assert_eq!(
        rows[0].body.as_str(),
        r#"{"user_prompt":"a","metadata":null}"#
    );
    assert_eq!((&rows[0].label, &rows[0].metadata), (&None, &None));
    assert!(rows[1].prompt.is_empty());
}

#[test]
fn lines_are_those_of_the_file() {
    let text = "\r\nuser_prompt,label\r\n\r\n\"a\r\nb\nc\",1\r\n\n\nd,2\re,3\r\n\"\nz\",4\nf,5";
    let places: Vec<_> = rows(text).iter().map(|row| (row.index, row.line)).collect();
    // A lone carriage return ends a record, and is no line to anybody who counts lines.
    assert_eq!(places, [(0, 4), (1, 9), (2, 9), (3, 10), (4, 12)]);
}

#[test]
fn every_bad_row_is_reported_with_its_line() {
    let mut csv = b"user_prompt,label,metadata\n\
        fine,1,\n\
        too,few\n\
        \"a\nlong one\",too,many,cells\n\
        ,1,\n\
        not utf-8: \xff,1,\n\
        x,1,not json\n\
        x,1,[1]\n"
        .to_vec();
    csv.extend_from_slice(b"never \"closed,1,\n\"open,1,\n,,");
    assert_snapshot!(problems("d.csv", &csv), @r#"
    d.csv:3: the row has 2 cells, and the header 3
      hint: put quotes around a cell with commas or line ends, and write a quote in it as ""
    d.csv:4: the row has 4 cells, and the header 3
      hint: put quotes around a cell with commas or line ends, and write a quote in it as ""
    d.csv:6: neither `user_prompt` nor `metadata` says anything
      hint: add a `user_prompt`, or put something into `metadata`
    d.csv:7: not UTF-8
      hint: save the file as UTF-8
    d.csv:8: `metadata` is a string that holds no JSON object: expected ident
      hint: write the object itself, or a string such as "{\"a\": 1}"
    d.csv:9: `metadata` is a string that holds no JSON object: found an array
      hint: write the object itself, or a string such as "{\"a\": 1}"
    d.csv:11: a quote is never closed
      hint: a quote within a quoted cell is written as ""
    "#);
}

#[test]
fn an_empty_cell_that_is_needed_is_named_as_the_file_names_it() {
    assert_snapshot!(problems("d.csv", b"user_prompt,label\nx,\n,1\n"), @r"
    d.csv:2: `label` must not be empty
      hint: write one; it is optional only in rows with `metadata`
    d.csv:3: `user_prompt` must not be empty
      hint: write a prompt
    ");
    assert_snapshot!(problems("d.csv", b"ground_truth,user_prompt\n,x"), @r"
    d.csv:2: `ground_truth` must not be empty
      hint: write one; it is optional only in rows with `metadata`
    ");
}

#[test]
fn what_is_wrong_with_the_header_is_told_once() {
    assert_snapshot!(error_of("d.csv", b"question,answer\nx,1\ny,2\n"), @r#"
    `d.csv`: missing column `user_prompt`; missing column `ground_truth`
      hint: the file has `question`, `answer`; name the columns in the config: `[dataset.columns]` with `user_prompt = "question"` and `ground_truth = "answer"`; both prompt and label are optional only in rows with `metadata`
    "#);
    assert_snapshot!(error_of("d.csv", b"user_prompt,label,x,x,x, label\n"), @r"
    `d.csv`: two columns are called `x`; two columns are called `label`
      hint: rename one of them, or leave it out
    ");
    assert_snapshot!(error_of("d.csv", b"user_prompt;label\nx;1\n"), @r"
    `d.csv`: missing column `user_prompt`; missing column `ground_truth`
      hint: separate cells with commas
    ");
    assert_snapshot!(error_of("d.csv", b"\xff\xfeu\0s\0e\0r\0\n\0"), @r"
    `d.csv`: the header is not UTF-8
      hint: save the file as UTF-8
    ");
    assert_snapshot!(error_of("d.csv", b"user_prompt,\"label\nx,1\n"), @"`d.csv`: a quote in the header is never closed");
}

#[test]
fn a_file_without_rows_is_empty() {
    for contents in [
        &b""[..],
        b"\xef\xbb\xbf",
        b"\n\r\n",
        b"user_prompt,label",
        b"user_prompt,label\n\n",
    ] {
        assert_eq!(
            error_of("d.csv", contents),
            "`d.csv` has no rows\n  hint: write a header, and below it one row on each line"
        );
    }
}

#[test]
fn a_report_says_what_the_file_holds() {
    let (_folder, path) = file("d.csv", b"user_prompt,label,x\na,1,\nb,2,y\n");
    let report = validate(&path).unwrap();
    report.check().unwrap();
    assert_eq!((report.format, report.rows), (Format::Csv, 2));
    assert_eq!(report.mode, Some(ReportMode::Prompt));
    assert_eq!(report.columns["x"], 1);
    assert_eq!(report.bytes, 31);
}

/// Gives one byte at a time.
struct Dribble<R>(R);

impl<R: Read> Read for Dribble<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = buffer.len().min(1);
        self.0.read(&mut buffer[..length])
    }
}

#[test]
fn it_does_not_matter_how_the_bytes_arrive() {
    let text = "\u{feff}\"user_prompt\",label,ﬁ\r\n\"a\"\"\r\nb\",1,é\r\n\r\nc,2,\r\n";
    for text in [text, &text[3..], "ﬁ,user_prompt,label\n1,2,3"] {
        let whole = rows(text);
        let slow = CsvRows::new(BufReader::with_capacity(1, Dribble(text.as_bytes())));
        let slow: Vec<Row> = slow.collect::<Result<_, _>>().unwrap();
        assert_eq!(slow, whole);
    }
}

#[test]
fn a_row_beyond_the_limit_is_passed_over_and_the_next_one_read() {
    let start = &b"user_prompt,label\n\""[..];
    let long = io::repeat(b'\n').take(MAX_ROW_BYTES as u64 * 2);
    let good = &b"\",1\nx,1\n"[..];
    let text = start.chain(long).chain(good);
    let mut rows = CsvRows::new(BufReader::with_capacity(1 << 20, text));
    let error = rows.next().unwrap().unwrap_err();
    assert_eq!((error.line, error.problem.code()), (2, "too_long"));
    let row = rows.next().unwrap().unwrap();
    assert_eq!((row.index, row.line), (1, 3 + MAX_ROW_BYTES as u64 * 2));
    assert!(rows.next().is_none());
}

#[test]
fn a_row_of_nothing_but_commas_has_too_many_cells_and_is_not_kept() {
    let start = &b"user_prompt,label\n"[..];
    let commas = io::repeat(b',').take(MAX_ROW_BYTES as u64);
    let text = start.chain(commas).chain(&b"\nx,1\n"[..]);
    let mut rows = CsvRows::new(BufReader::with_capacity(1 << 20, text));
    assert_eq!(
        rows.next().unwrap().unwrap_err().problem.code(),
        "too_many_cells"
    );
    assert_eq!(rows.next().unwrap().unwrap().index, 1);
}

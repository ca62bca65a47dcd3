//! What must hold for any bytes whatever, of datasets and of recorded conversations: for the programs in
//! `fuzz/`, and for their seeds in a test.
//!
//! The first byte of a dataset picks what is taken of its rows and what it is compressed with.

use std::fs::File;
use std::io::{Seek as _, Write as _};

use osmosis_core::config::DatasetColumns;
use osmosis_core::{JsonText, Redactor, RolloutId, RunName, Sample, SampleId};
use serde_json::Value;

use crate::conversation::{Conversation, ConversationTree, RecordedCall, Usage};
use crate::decompress::Text;
use crate::export::{
    ExportRecord, JsonlExport, RunFacts, SampleTalk, SftFilter, TalkExport, TalkFormat,
};
use crate::{ArrowRows, Compression, CsvRows, JsonlRows, ParquetRows, Row, RowError, Taking};

/// Rows that are looked at; a few bytes may be millions when they are compressed.
const MAX_ROWS: usize = 1000;

const DIALECTS: [&str; 5] = [
    "chat_completions",
    "responses",
    "messages",
    "completions",
    "generate",
];

pub fn jsonl(data: &[u8]) {
    if let Some((taking, text)) = opened(data) {
        check(JsonlRows::new(text).taking(taking), taking);
    }
}

pub fn csv(data: &[u8]) {
    if let Some((taking, text)) = opened(data) {
        check(CsvRows::new(text).taking(taking), taking);
    }
}

pub fn parquet(data: &[u8]) {
    let Some((way, bytes)) = data.split_first() else {
        return;
    };
    if let Some(file) = on_disk(bytes) {
        let taking = taking(*way);
        check(
            ParquetRows::new(file, taking, &DatasetColumns::default()),
            taking,
        );
    }
}

pub fn arrow(data: &[u8]) {
    let Some((way, bytes)) = data.split_first() else {
        return;
    };
    if let Some(file) = on_disk(bytes) {
        let taking = taking(*way);
        check(
            ArrowRows::new(file, taking, &DatasetColumns::default()),
            taking,
        );
    }
}

/// Whatever was said and recorded, it can be told and exported. The parts of the input are divided by a
/// zero byte: messages of a sample, request and reply of its call.
pub fn conversations(data: &[u8]) {
    let Some((way, rest)) = data.split_first() else {
        return;
    };
    let mut parts = rest.split(|byte| *byte == 0);
    let mut part = || parts.next().unwrap_or_default();
    let (messages, request, response) = (part(), part(), part());
    let text = String::from_utf8_lossy(messages).into_owned();
    let messages: Vec<Value> = serde_json::from_str(&text).unwrap_or_default();
    let mut tree = ConversationTree::default();
    tree.add(&RecordedCall {
        call_id: 1,
        dialect: DIALECTS[usize::from(*way) % DIALECTS.len()],
        model: "m",
        status: if way & 64 == 0 { 200 } else { 500 },
        error: None,
        request,
        response,
        usage: Usage::default(),
        queued_at_ms: 0,
        first_byte_at_ms: None,
        done_at_ms: 1,
        tokens: &[],
    });
    let mut conversations = tree.conversations(&messages);
    conversations.push(Conversation::of_messages(&messages));
    let main = Conversation::main_of(&conversations, &messages);
    assert!(main < conversations.len());
    exported(&text, conversations, main);
}

fn exported(messages: &str, conversations: Vec<Conversation>, main: usize) {
    let Ok(document) = JsonText::parse(messages) else {
        return;
    };
    let Ok(run_name) = RunName::new("t") else {
        return;
    };
    let mut record = ExportRecord::new(
        run_name.clone(),
        RolloutId::of(0, 0),
        0,
        0,
        document.clone(),
    );
    record.metadata = Some(document.clone());
    record.metrics = Some(document.clone());
    record.samples = vec![Sample {
        id: SampleId::main(),
        messages: document.clone(),
        reward: None,
        remove_sample: false,
        metrics: Some(document.clone()),
        extra_fields: Some(document),
    }];
    let talks = [SampleTalk {
        id: SampleId::main(),
        reward: Some(1.0),
        removed: false,
        conversations,
        main,
    }];
    let facts = RunFacts {
        name: run_name,
        rollout: "r".to_owned(),
        model: "m".to_owned(),
        dataset: "d".to_owned(),
        n: 1,
        finished: true,
        created_at_ms: 0,
        finished_at_ms: None,
        version: "0".to_owned(),
    };
    let redactor = || Redactor::new(["secret".to_owned()]);
    let sink = std::io::sink;
    assert!(JsonlExport::to(sink(), redactor()).write(&record).is_ok());
    for format in [TalkFormat::Messages, TalkFormat::Sft, TalkFormat::Atif] {
        let export = TalkExport::to(format, sink(), SftFilter::default(), redactor());
        let written = export.map(|mut export| export.write(&facts, &record, &talks));
        assert!(written.is_none_or(|written| written.is_ok()));
    }
}

fn taking(way: u8) -> Taking {
    if way & 1 == 0 {
        Taking::Columns
    } else {
        Taking::WholeRows
    }
}

fn opened(data: &[u8]) -> Option<(Taking, Text<&[u8]>)> {
    let (way, bytes) = data.split_first()?;
    let compression = match way >> 1 & 3 {
        1 => Some(Compression::Gzip),
        2 => Some(Compression::Zstd),
        _ => None,
    };
    let text = Text::new(compression, bytes).ok()?;
    Some((taking(*way), text))
}

/// Rows count up, say what they are, and are the same when they are read again.
fn check(rows: impl Iterator<Item = Result<Row, RowError>>, taking: Taking) {
    let mut next = 0;
    for row in rows.take(MAX_ROWS) {
        match row {
            Ok(row) => {
                assert!(row.index >= next);
                next = row.index + 1;
                assert!(!row.body.is_too_deep());
                let _ = row.content(taking);
                if taking == Taking::Columns {
                    let again = Row::from_body(row.index, row.line, &row.body);
                    assert_eq!(again.as_ref(), Ok(&row));
                }
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}

fn on_disk(bytes: &[u8]) -> Option<File> {
    let mut file = tempfile::tempfile().ok()?;
    file.write_all(bytes).ok()?;
    file.rewind().ok()?;
    Some(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    include!("../../../fuzz/run_seeds.rs");

    #[test]
    fn every_seed_of_the_fuzzers_and_its_changes_pass() {
        run_seeds(&[
            ("jsonl", jsonl),
            ("csv", csv),
            ("parquet", parquet),
            ("arrow", arrow),
            ("conversations", conversations),
        ]);
    }
}

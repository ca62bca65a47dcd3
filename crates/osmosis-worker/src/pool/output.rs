//! What workers print, line by line, tagged with the rollout that printed it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use osmosis_core::RolloutId;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::WorkerEvent;

/// Longer lines are told in pieces.
const MAX_LINE_BYTES: usize = 64 * 1024;

/// How many of the last lines an error message can show.
const TAIL_LINES: usize = 40;

/// Opens the tag of a line, which `TAG_END` closes: `\x1e<rollout id>\x1f<text>`.
const TAG_START: char = '\x1e';
const TAG_END: char = '\x1f';

/// Takes everything one worker prints, from however many pipes and connections.
#[derive(Debug)]
pub(super) struct OutputSink {
    worker: u64,
    events: mpsc::Sender<WorkerEvent>,
    tail: Mutex<VecDeque<String>>,
    readers: TaskTracker,
    /// Those of all workers.
    all_readers: TaskTracker,
    abandon: CancellationToken,
}

impl OutputSink {
    pub(super) fn new(
        worker: u64,
        events: mpsc::Sender<WorkerEvent>,
        abandon: CancellationToken,
        all_readers: TaskTracker,
    ) -> Arc<Self> {
        Arc::new(Self {
            worker,
            events,
            tail: Mutex::default(),
            readers: TaskTracker::new(),
            all_readers,
            abandon,
        })
    }

    /// Reads `source` to its end. `already_read` came with it before we knew that it is output.
    pub(super) fn follow(
        self: &Arc<Self>,
        source: impl AsyncRead + Send + Unpin + 'static,
        already_read: BytesMut,
    ) {
        let sink = Arc::clone(self);
        let counted = self.all_readers.token();
        self.readers.spawn(async move {
            let _counted = counted;
            let abandon = sink.abandon.clone();
            abandon
                .run_until_cancelled(sink.read_lines(source, already_read))
                .await;
        });
    }

    /// The last lines, once the readers are done or `patience` is over.
    pub(super) async fn last_lines(&self, patience: Duration) -> Vec<String> {
        self.readers.close();
        drop(tokio::time::timeout(patience, self.readers.wait()).await);
        self.tail.lock().iter().cloned().collect()
    }

    async fn read_lines(&self, mut source: impl AsyncRead + Unpin, already_read: BytesMut) {
        let mut splitter = LineSplitter {
            pending: already_read,
            tag: None,
            inside_line: false,
        };
        loop {
            while let Some(line) = splitter.next_line() {
                self.tell(line).await;
            }
            match source.read_buf(&mut splitter.pending).await {
                Ok(0) | Err(_) => break,
                Ok(_) => {}
            }
        }
        if let Some(line) = splitter.rest() {
            self.tell(line).await;
        }
    }

    async fn tell(&self, line: Line) {
        {
            let mut tail = self.tail.lock();
            if tail.len() == TAIL_LINES {
                tail.pop_front();
            }
            tail.push_back(line.text.clone());
        }
        // Waiting here when nobody takes events slows down whoever prints, and nobody else.
        drop(
            self.events
                .send(WorkerEvent::Output {
                    worker: self.worker,
                    rollout_id: line.rollout_id,
                    line: line.text,
                })
                .await,
        );
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Line {
    rollout_id: Option<RolloutId>,
    text: String,
}

#[derive(Debug, Default)]
struct LineSplitter {
    pending: BytesMut,
    /// Whose line the pending bytes continue.
    tag: Option<RolloutId>,
    /// The pending bytes continue a line of which a piece was already told.
    inside_line: bool,
}

impl LineSplitter {
    fn next_line(&mut self) -> Option<Line> {
        let window = self.pending.len().min(MAX_LINE_BYTES + 1);
        let newline = self.pending[..window]
            .iter()
            .position(|byte| *byte == b'\n');
        match newline {
            Some(end) => {
                let mut bytes = self.pending.split_to(end + 1);
                bytes.truncate(end);
                if bytes.last() == Some(&b'\r') {
                    bytes.truncate(end - 1);
                }
                let line = self.take(&bytes);
                self.inside_line = false;
                self.tag = None;
                Some(line)
            }
            None if self.pending.len() > MAX_LINE_BYTES => {
                let bytes = self.pending.split_to(end_of_piece(&self.pending));
                let line = self.take(&bytes);
                self.inside_line = true;
                Some(line)
            }
            None => None,
        }
    }

    fn rest(&mut self) -> Option<Line> {
        let bytes = self.pending.split();
        (!bytes.is_empty()).then(|| self.take(&bytes))
    }

    fn take(&mut self, bytes: &[u8]) -> Line {
        let text = String::from_utf8_lossy(bytes);
        let text = if self.inside_line {
            text.into_owned()
        } else if let Some((rollout_id, rest)) = split_tag(&text) {
            self.tag = Some(rollout_id);
            rest.to_owned()
        } else {
            text.into_owned()
        };
        Line {
            rollout_id: self.tag.clone(),
            text,
        }
    }
}

/// Where to cut an over-long line: not inside a UTF-8 character, if it is one.
fn end_of_piece(bytes: &[u8]) -> usize {
    let is_continuation = |byte: u8| byte & 0b1100_0000 == 0b1000_0000;
    (MAX_LINE_BYTES - 3..=MAX_LINE_BYTES)
        .rev()
        .find(|end| !is_continuation(bytes[*end]))
        .unwrap_or(MAX_LINE_BYTES)
}

fn split_tag(text: &str) -> Option<(RolloutId, &str)> {
    let (tag, rest) = text.strip_prefix(TAG_START)?.split_once(TAG_END)?;
    Some((RolloutId::new(tag).ok()?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(input: &[u8]) -> Vec<(Option<String>, String)> {
        let mut splitter = LineSplitter {
            pending: BytesMut::from(input),
            ..LineSplitter::default()
        };
        let mut lines = Vec::new();
        while let Some(line) = splitter.next_line() {
            lines.push(line);
        }
        lines.extend(splitter.rest());
        lines
            .into_iter()
            .map(|line| (line.rollout_id.map(String::from), line.text))
            .collect()
    }

    fn tagged(id: &str, text: &str) -> (Option<String>, String) {
        (Some(id.to_owned()), text.to_owned())
    }

    fn untagged(text: &str) -> (Option<String>, String) {
        (None, text.to_owned())
    }

    #[test]
    fn a_line_belongs_to_the_rollout_in_its_tag() {
        assert_eq!(
            lines(b"hello\n\x1er1-0\x1fworld\r\nlast"),
            [untagged("hello"), tagged("r1-0", "world"), untagged("last")]
        );
    }

    #[test]
    fn a_forged_tag_is_only_text() {
        assert_eq!(
            lines(b"\x1e../x\x1fa\n\x1enever closed\n"),
            [untagged("\x1e../x\x1fa"), untagged("\x1enever closed")]
        );
    }

    #[test]
    fn bytes_that_are_no_text_are_replaced() {
        assert_eq!(lines(b"a\xffb\n"), [untagged("a\u{fffd}b")]);
    }

    #[test]
    fn a_very_long_line_comes_in_pieces_of_the_same_rollout() {
        let mut input = b"\x1er1-0\x1f".to_vec();
        input.extend("é".repeat(MAX_LINE_BYTES).as_bytes());
        input.extend(b"\nnext\n");
        let lines = lines(&input);
        let (last, pieces) = lines.split_last().unwrap();
        assert_eq!(*last, untagged("next"));
        assert_eq!(pieces.len(), 3);
        assert!(pieces.iter().all(|(id, _)| id.as_deref() == Some("r1-0")));
        let joined: String = pieces.iter().map(|(_, text)| text.as_str()).collect();
        assert_eq!(joined, "é".repeat(MAX_LINE_BYTES));
    }
}

//! Takes a stream apart, one event at a time.

use bytes::{Bytes, BytesMut};
use memchr::memmem;

/// An event beyond this is not one.
const MAX_EVENT_BYTES: usize = 64 << 20;

/// What is said of a server whose event is larger.
pub const LARGE_EVENT: &str = "sent an event of more than 64 MiB";
const _: () = assert!(MAX_EVENT_BYTES == 64 << 20, "the text names it");

/// Puts events together from the pieces they come in.
#[derive(Debug, Default)]
pub struct EventBuffer {
    held: BytesMut,
    /// So far there is no end of an event.
    searched: usize,
}

/// An event without end.
#[derive(Debug, PartialEq, Eq)]
pub struct Endless;

impl EventBuffer {
    pub fn push(&mut self, piece: &[u8]) -> Result<(), Endless> {
        self.held.extend_from_slice(piece);
        if self.held.len() > MAX_EVENT_BYTES {
            return Err(Endless);
        }
        Ok(())
    }

    /// The next event, with the blank line that ends it.
    #[expect(
        clippy::should_implement_trait,
        reason = "`None` is no end: more events come with the next piece"
    )]
    pub fn next(&mut self) -> Option<Bytes> {
        let searched = &self.held[self.searched..];
        let plain = memmem::find(searched, b"\n\n").map(|at| at + 2);
        let with_return = memmem::find(searched, b"\n\r\n").map(|at| at + 3);
        let end = match (plain, with_return) {
            (Some(plain), Some(with_return)) => Some(plain.min(with_return)),
            (one, other) => one.or(other),
        };
        let Some(end) = end else {
            // The last bytes may be the beginning of a blank line.
            self.searched = self.held.len().saturating_sub(2);
            return None;
        };
        let event = self.held.split_to(self.searched + end).freeze();
        self.searched = 0;
        Some(event)
    }

    /// What is left when nothing follows.
    pub fn rest(&mut self) -> Bytes {
        self.searched = 0;
        self.held.split().freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sse::data_of;
    use proptest::prelude::*;

    const STREAM: &[u8] =
        b"data: {\"a\":1}\n\n: ping\n\nevent: x\r\ndata: 2\r\n\r\ndata: [DONE]\n\n";

    proptest! {
        #[test]
        fn events_are_the_same_however_they_are_cut(cuts in prop::collection::vec(0..STREAM.len(), 0..8)) {
            let mut cuts = cuts;
            cuts.extend([0, STREAM.len()]);
            cuts.sort_unstable();
            let mut buffer = EventBuffer::default();
            let mut events = Vec::new();
            for pair in cuts.windows(2) {
                buffer.push(&STREAM[pair[0]..pair[1]]).unwrap();
                while let Some(event) = buffer.next() {
                    events.push(event);
                }
            }
            prop_assert_eq!(events.concat(), STREAM);
            let data: Vec<_> = events.iter().map(|event| data_of(event)).collect();
            prop_assert_eq!(data, [Some(&b"{\"a\":1}"[..]), None, Some(b"2"), Some(b"[DONE]")]);
            prop_assert!(buffer.rest().is_empty());
        }
    }
}

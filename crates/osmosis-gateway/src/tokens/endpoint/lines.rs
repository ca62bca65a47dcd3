//! Events of an answer, a line each.

use bytes::BytesMut;

use super::wire::Event;

/// No line is longer.
const MAX_LINE_BYTES: usize = 256 << 10;

/// Bytes as they come, to be taken by lines.
#[derive(Debug, Default)]
pub(super) struct LineBuffer(BytesMut);

impl LineBuffer {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// The next event; an `Err` says what is wrong with it.
    pub(super) fn next(&mut self) -> Result<Option<Event>, String> {
        let Some(end) = memchr::memchr(b'\n', &self.0) else {
            return if self.0.len() > MAX_LINE_BYTES {
                Err(format!("sent a line of more than {MAX_LINE_BYTES} bytes"))
            } else {
                Ok(None)
            };
        };
        let line = self.0.split_to(end + 1);
        serde_json::from_slice(&line)
            .map(Some)
            .map_err(|error| format!("sent a bad event: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_without_an_end_is_not_waited_for_forever() {
        let mut lines = LineBuffer::default();
        lines.push(&vec![b'x'; MAX_LINE_BYTES]);
        assert_eq!(lines.next(), Ok(None));
        lines.push(b"x");
        assert!(lines.next().unwrap_err().contains("a line of more"));
        let mut lines = LineBuffer::default();
        lines.push(b"{}\n");
        assert!(lines.next().unwrap_err().contains("bad event"));
    }
}

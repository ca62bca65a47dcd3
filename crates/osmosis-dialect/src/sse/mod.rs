//! Server-sent events: cut into events, put together from the pieces they come in, and watched on their way.

mod buffer;
mod watch;

pub use self::buffer::{Endless, EventBuffer};
pub use self::watch::{EventTooLarge, LARGE_EVENT, SseWatch, StreamEnd};

/// What is reported of a server whose event is too large for an [`EventBuffer`].
pub use self::buffer::LARGE_EVENT as LARGE_BUFFERED_EVENT;

/// The events of a text that ends with one.
pub fn each_event(mut events: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        if events.is_empty() {
            return None;
        }
        let (event, rest) = events.split_at(end_of_first_event(events));
        events = rest;
        Some(event)
    })
}

/// The lines of an event, without what ends them; what follows the last newline counts as one.
fn lines_of(event: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut left = Some(event);
    std::iter::from_fn(move || {
        let text = left?;
        let Some(end) = memchr::memchr(b'\n', text) else {
            left = None;
            return Some(text);
        };
        left = Some(&text[end + 1..]);
        Some(&text[..end])
    })
}

/// The data of an event. Several data lines are joined nowhere in this API, so one line is all that is
/// looked at; the rest passes on like everything else.
pub fn data_of(event: &[u8]) -> Option<&[u8]> {
    lines_of(event)
        .find_map(|line| line.strip_prefix(b"data:"))
        .map(<[u8]>::trim_ascii)
}

/// Where the first event ends, after its blank line; the length when it does not.
fn end_of_first_event(bytes: &[u8]) -> usize {
    let mut line_start = 0;
    for newline in memchr::memchr_iter(b'\n', bytes) {
        let line = &bytes[line_start..newline];
        if (line.is_empty() || line == b"\r") && line_start > 0 {
            return newline + 1;
        }
        line_start = newline + 1;
    }
    bytes.len()
}

//! What may reach a terminal.
//!
//! Errors, messages, prints, names of tools and files, replies of servers: outsiders wrote most of what
//! this program prints, and a terminal obeys what it is shown. So every text for people passes here on
//! its way to standard output or error, whether that is a terminal or not: a pipe often ends in one.
//! Control characters become visible (`\x1b`); only line ends, tabs and our own colours pass. JSON keeps
//! its values: there they are escapes of JSON. Files keep what was written.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, IsTerminal, Write};
use std::sync::LazyLock;

use owo_colors::{OwoColorize, Stream, Style};

/// Starts every colour of ours on its way to a stream. The numbers are this process's secret, so that a
/// text from outside can't be taken for one. None has more than four digits: to those who measure texts it
/// is a colour too.
static MARK: LazyLock<String> = LazyLock::new(|| {
    let mut secret = RandomState::new().hash_one("colour");
    let mut mark = "\x1b[".to_owned();
    for _ in 0..4 {
        // Writing into a string can't fail.
        let _ = write!(mark, "{};", secret % 9999);
        secret /= 9999;
    }
    mark
});

/// The styles of `tracing`, which escapes the values itself.
const LOG_STYLES: [&str; 9] = ["0", "1", "2", "3", "31", "32", "33", "34", "35"];

/// Text in a style, where the stream shows colours. Only [`shown`] turns it into what a terminal knows.
pub(crate) fn paint(text: &str, style: Style, stream: Stream) -> String {
    neutral(text)
        .if_supports_color(stream, |text| text.style(style))
        .to_string()
        .replace("\x1b[", &MARK)
}

/// A text for people, with our own colours and without anything else that a terminal would obey.
pub(crate) fn shown(text: &str) -> Cow<'_, str> {
    filtered(text, |rest| {
        let codes = rest.strip_prefix(MARK.as_str())?;
        Some((MARK.len(), codes.find('m')?))
    })
}

/// A text without anything that a terminal would obey, for those who draw on it themselves.
pub(crate) fn neutral(text: &str) -> Cow<'_, str> {
    filtered(text, |_| None)
}

/// JSON that says the same with nothing in it that a terminal would obey. The control characters below
/// the space are escaped in any JSON.
pub(crate) fn json(text: &str) -> Cow<'_, str> {
    let unsafe_in_json = |c: char| c >= '\x7f' && is_control(c);
    if !text.contains(unsafe_in_json) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if unsafe_in_json(c) {
            // All of them are below U+10000. Writing into a string can't fail.
            let _ = write!(safe, "\\u{:04x}", u32::from(c));
        } else {
            safe.push(c);
        }
    }
    Cow::Owned(safe)
}

/// Writes text for people. The reader may have gone (`| head`); what was to be done has been done.
pub(crate) fn write_out(text: &str) {
    put(&mut io::stdout().lock(), &shown(text));
}

pub(crate) fn write_err(text: &str) {
    put(&mut io::stderr().lock(), &shown(text));
}

/// Writes JSON for programs.
pub(crate) fn write_json_out(text: &str) {
    put(&mut io::stdout().lock(), &json(text));
}

pub(crate) fn write_json_err(text: &str) {
    put(&mut io::stderr().lock(), &json(text));
}

fn put(stream: &mut dyn Write, text: &str) {
    let _ = stream.write_all(text.as_bytes());
    let _ = stream.flush();
}

/// Where an export goes that has no file: exact, except that on a terminal some characters are written
/// as escapes of JSON.
pub(crate) fn export_target() -> Box<dyn Write + Send> {
    let stdout = io::stdout();
    if stdout.is_terminal() {
        Box::new(JsonOut::new(stdout))
    } else {
        Box::new(stdout)
    }
}

/// JSON on its way to a terminal, in pieces that may end within a character.
#[derive(Debug)]
struct JsonOut<W> {
    inner: W,
    /// The beginning of a character.
    held: Vec<u8>,
}

impl<W: Write> JsonOut<W> {
    fn new(inner: W) -> Self {
        Self {
            inner,
            held: Vec::new(),
        }
    }
}

impl<W: Write> Write for JsonOut<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.held.extend_from_slice(bytes);
        let whole = match std::str::from_utf8(&self.held) {
            Ok(_) => self.held.len(),
            Err(error) => match error.error_len() {
                None => error.valid_up_to(),
                // No UTF-8 after all, which JSON never is.
                Some(_) => self.held.len(),
            },
        };
        let rest = self.held.split_off(whole);
        let text = std::mem::replace(&mut self.held, rest);
        let text = String::from_utf8_lossy(&text);
        self.inner.write_all(json(&text).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Where the program's own diagnostics go: standard error.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogOut;

impl Write for LogOut {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // An event comes whole.
        let text = String::from_utf8_lossy(bytes);
        io::stderr().lock().write_all(log(&text).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

fn log(text: &str) -> Cow<'_, str> {
    filtered(text, |rest| {
        let codes = rest.strip_prefix("\x1b[")?;
        let end = codes.find('m')?;
        LOG_STYLES.contains(&&codes[..end]).then_some((2, end))
    })
}

/// A panic's message may quote what somebody else wrote.
pub(crate) fn tame_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("<unnamed>");
        write_err(&format!("\nthread '{name}' {panic}\n"));
        let trace = std::backtrace::Backtrace::capture();
        if trace.status() == std::backtrace::BacktraceStatus::Captured {
            write_err(&format!("{trace}\n"));
        } else {
            write_err(
                "note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace\n",
            );
        }
    }));
}

/// Makes control characters visible, except where `style` finds a colour: it returns how long its
/// beginning is and how long its codes, which end with `m`.
fn filtered(text: &str, style: impl Fn(&str) -> Option<(usize, usize)>) -> Cow<'_, str> {
    let Some(first) = text.find(is_control) else {
        return Cow::Borrowed(text);
    };
    let mut visible = String::with_capacity(text.len() + 16);
    visible.push_str(&text[..first]);
    let mut rest = &text[first..];
    loop {
        let at = rest.find(is_control).unwrap_or(rest.len());
        visible.push_str(&rest[..at]);
        rest = &rest[at..];
        let Some(c) = rest.chars().next() else {
            return Cow::Owned(visible);
        };
        if let Some((start, length)) = style(rest) {
            let codes = &rest[start..start + length];
            visible.push_str("\x1b[");
            visible.push_str(codes);
            visible.push('m');
            rest = &rest[start + length + 1..];
            continue;
        }
        // The line end of another system is one here too.
        if !rest.starts_with("\r\n") {
            push_visible(&mut visible, c);
        }
        rest = &rest[c.len_utf8()..];
    }
}

fn push_visible(text: &mut String, c: char) {
    // Writing into a string can't fail.
    let _ = match u32::from(c) {
        code @ 0..=0x7f => write!(text, "\\x{code:02x}"),
        code => write!(text, "\\u{{{code:x}}}"),
    };
}

/// What moves the cursor, starts a command, breaks lines or turns the order of characters around: C0
/// except line end and tab, DEL, C1, separators of lines and paragraphs, bidirectional controls.
fn is_control(c: char) -> bool {
    match c {
        '\n' | '\t' => false,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
            true
        }
        c => c.is_control(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everything that a terminal could take for more than text.
    fn hostile() -> String {
        let codes = (0..=0x9f).chain([0x61c, 0x200e, 0x200f]);
        let codes = codes.chain(0x2028..=0x202e).chain(0x2066..=0x2069);
        codes.filter_map(char::from_u32).collect()
    }

    #[test]
    fn nothing_but_line_ends_and_tabs_passes_unseen() {
        let text = hostile();
        for safe in [shown(&text), neutral(&text), log(&text)] {
            assert!(!safe.contains(is_control), "{safe:?}");
            assert_eq!(safe.matches(['\n', '\t']).count(), 2);
        }
        assert_eq!(
            shown("\x1b]0;owned\x07 \x1b[2J\u{9b}8m a\u{202e}b \r\n\x7f 5%\r6% \t é 漢 🦀"),
            "\\x1b]0;owned\\x07 \\x1b[2J\\u{9b}8m a\\u{202e}b \n\\x7f 5%\\x0d6% \t é 漢 🦀"
        );
        assert!(matches!(shown("plain é\n\tText"), Cow::Borrowed(_)));
    }

    #[test]
    fn our_colours_pass_and_others_do_not() {
        let marked = format!("{}1;31mred{}0m", *MARK, *MARK);
        assert_eq!(shown(&marked), "\x1b[1;31mred\x1b[0m");
        assert_eq!(shown("\x1b[1;31mred"), r"\x1b[1;31mred");
        assert_eq!(shown("\x1b[12345;1;31mred"), r"\x1b[12345;1;31mred");
        // Cut off, it is no colour either.
        assert!(shown(&MARK).starts_with(r"\x1b["));
        assert!(!neutral(&marked).contains('\x1b'));
        // The width of what is painted is that of its text.
        assert_eq!(console::measure_text_width(&marked), 3);
    }

    #[test]
    fn diagnostics_have_the_colours_of_their_library_and_nothing_else() {
        assert_eq!(
            log("\x1b[33m WARN\x1b[0m \x1b[2mtarget\x1b[0m: \x1b[8mhidden \x1b[2Jx"),
            "\x1b[33m WARN\x1b[0m \x1b[2mtarget\x1b[0m: \\x1b[8mhidden \\x1b[2Jx"
        );
    }

    #[test]
    fn json_stays_what_it_says() {
        let text = hostile();
        let value = serde_json::json!({ text.clone(): [text.clone(), "é 漢 🦀"] });
        for written in [value.to_string(), format!("{value:#}")] {
            let safe = json(&written);
            assert!(!safe.contains(is_control), "{safe:?}");
            let read: serde_json::Value = serde_json::from_str(&safe).unwrap();
            assert_eq!(read, value);
        }
    }

    #[test]
    fn an_export_on_a_terminal_says_the_same_however_it_is_cut() {
        let value = serde_json::json!({ "text": hostile(), "é": "漢🦀" });
        let text = format!("{value}\n");
        for size in 1..9 {
            let mut out = JsonOut::new(Vec::new());
            for piece in text.as_bytes().chunks(size) {
                out.write_all(piece).unwrap();
            }
            let written = String::from_utf8(out.inner).unwrap();
            assert_eq!(written, json(&text));
            assert!(!written.contains(is_control));
        }
    }
}

//! A secret as others spell it: escaped in JSON, in a URL, in base64. Texts are read as such readers read them, layer by
//! layer, and what is found in a layer is led back to where it stands.

use std::collections::BTreeSet;
use std::ops::Range;

use aho_corasick::AhoCorasick;

/// JSON in a string in JSON in a URL. Deeper than this nobody looks.
const LAYERS: usize = 4;

/// Fewer characters of base64 stand in any picture.
const SHORTEST_BASE64: usize = 6;

/// The shortest lines that tools break base64 into.
pub(super) const LINE: usize = 64;

/// What stands in a text, once its escapes are undone, when a secret does.
pub(super) fn forms(secrets: &BTreeSet<String>) -> BTreeSet<Vec<u8>> {
    let mut forms = BTreeSet::new();
    for secret in secrets {
        let mut plain = secret.clone().into_bytes();
        // A secret may hold escapes itself, as the address of a database does.
        for _ in 0..=LAYERS {
            if plain.len() < 4 || forms.contains(&plain) {
                break;
            }
            if plain.contains(&b' ') {
                forms.insert(
                    plain
                        .iter()
                        .map(|&byte| if byte == b' ' { b'+' } else { byte })
                        .collect(),
                );
            }
            for before in 0..3 {
                for symbols in [*b"+/", *b"-_"] {
                    let form = base64(&plain, before, symbols);
                    if form.len() >= SHORTEST_BASE64 {
                        forms.insert(form);
                    }
                }
            }
            let decoded = Layer::unescaped(&plain);
            forms.insert(plain);
            match decoded {
                Some(layer) => plain = layer.text,
                None => break,
            }
        }
    }
    forms
}

/// The characters of base64 that depend on the bytes alone, when so many bytes stand before them.
fn base64(bytes: &[u8], before: usize, symbols: [u8; 2]) -> Vec<u8> {
    const LETTERS: &[u8; 62] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    let letter = |six: u16| match usize::from(six & 63) {
        at @ 0..62 => LETTERS[at],
        at => symbols[at - 62],
    };
    let byte = |at: usize| {
        let known = at.checked_sub(before).and_then(|at| bytes.get(at));
        u16::from(known.copied().unwrap_or_default())
    };
    let whole = (before * 8).div_ceil(6)..(before + bytes.len()) * 8 / 6;
    whole
        .map(|at| {
            let bit = at * 6;
            letter((byte(bit / 8) << 8 | byte(bit / 8 + 1)) >> (10 - bit % 8))
        })
        .collect()
}

/// Where the forms stand in a text, also below escapes and across the line ends of base64.
pub(super) fn find(forms: &AhoCorasick, long: bool, text: &str, found: &mut Vec<Range<usize>>) {
    let mut layers: Vec<Layer> = vec![];
    loop {
        let bytes = layers.last().map_or(text.as_bytes(), |layer| &layer.text);
        let mut take = |start: usize, end: usize| {
            let back = |at: usize| layers.iter().rev().fold(at, |at, layer| layer.origin(at));
            found.push(text.floor_char_boundary(back(start))..text.ceil_char_boundary(back(end)));
        };
        for hit in overlapping(forms, bytes) {
            take(hit.start, hit.end);
        }
        if long && let Some(joined) = Layer::joined(bytes) {
            for hit in overlapping(forms, &joined.text) {
                take(joined.origin(hit.start), joined.origin(hit.end - 1) + 1);
            }
        }
        if layers.len() == LAYERS {
            return;
        }
        match Layer::unescaped(bytes) {
            Some(layer) => layers.push(layer),
            None => return,
        }
    }
}

fn overlapping(forms: &AhoCorasick, bytes: &[u8]) -> impl Iterator<Item = Range<usize>> {
    forms.find_overlapping_iter(bytes).map(|hit| hit.range())
}

/// A text with something undone.
struct Layer {
    text: Vec<u8>,
    /// Behind each thing undone: where that is here, and where it was.
    jumps: Vec<(usize, usize)>,
}

impl Layer {
    /// Without the escapes of JSON, of Python's `repr` and of URLs; `None` when there are none.
    fn unescaped(text: &[u8]) -> Option<Self> {
        Self::read(text, memchr::memchr2_iter(b'\\', b'%', text), push_escaped)
    }

    /// Without line ends.
    fn joined(text: &[u8]) -> Option<Self> {
        Self::read(text, memchr::memchr2_iter(b'\r', b'\n', text), |_, _| {
            Some(1)
        })
    }

    /// `undo` appends what stands at the start of a text and returns how long it was there.
    fn read(
        text: &[u8],
        places: impl Iterator<Item = usize>,
        undo: impl Fn(&[u8], &mut Vec<u8>) -> Option<usize>,
    ) -> Option<Self> {
        let mut layer = Self {
            text: Vec::new(),
            jumps: vec![],
        };
        let mut plain = vec![];
        let mut done = 0;
        for place in places {
            if place < done {
                continue;
            }
            let Some(length) = undo(&text[place..], &mut plain) else {
                continue;
            };
            layer.text.extend_from_slice(&text[done..place]);
            layer.text.append(&mut plain);
            done = place + length;
            layer.jumps.push((layer.text.len(), done));
        }
        if layer.jumps.is_empty() {
            return None;
        }
        layer.text.extend_from_slice(&text[done..]);
        Some(layer)
    }

    /// Where a place of this text was before.
    fn origin(&self, at: usize) -> usize {
        match self
            .jumps
            .partition_point(|&(here, _)| here <= at)
            .checked_sub(1)
        {
            Some(last) => self.jumps[last].1 + (at - self.jumps[last].0),
            None => at,
        }
    }
}

/// Appends what the escape at the start of a text means; `None` when there is none.
fn push_escaped(text: &[u8], plain: &mut Vec<u8>) -> Option<usize> {
    let hex = |at: usize, count: usize| {
        let digits = std::str::from_utf8(text.get(at..at + count)?).ok()?;
        let all = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        u32::from_str_radix(digits, 16).ok().filter(|_| all)
    };
    let byte = |value: u32| u8::try_from(value).ok();
    let (byte, length) = match text {
        [b'%', ..] => (byte(hex(1, 2)?)?, 3),
        [_, b'x', ..] => (byte(hex(2, 2)?)?, 4),
        [_, b'u', ..] => {
            let first = hex(2, 4)?;
            let low = || {
                let second = text
                    .get(6..8)
                    .filter(|start| start == b"\\u")
                    .and(hex(8, 4))?;
                (0xdc00..0xe000).contains(&second).then_some(second)
            };
            let (code, length) = match first {
                0xd800..0xdc00 => (0x10000 + ((first - 0xd800) << 10) + (low()? - 0xdc00), 12),
                _ => (first, 6),
            };
            let mut utf8 = [0; 4];
            plain.extend_from_slice(char::from_u32(code)?.encode_utf8(&mut utf8).as_bytes());
            return Some(length);
        }
        [_, b'n', ..] => (b'\n', 2),
        [_, b'r', ..] => (b'\r', 2),
        [_, b't', ..] => (b'\t', 2),
        [_, b'b', ..] => (8, 2),
        [_, b'f', ..] => (12, 2),
        [_, same @ (b'"' | b'\'' | b'\\' | b'/'), ..] => (*same, 2),
        _ => return None,
    };
    plain.push(byte);
    Some(length)
}

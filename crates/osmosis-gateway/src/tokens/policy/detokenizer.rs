//! Tokens to text as they come. A token may end within a character, or mean something only together with
//! the one before it, so text is given when it is known to stay.

/// The text of the tokens so far.
#[derive(Debug, Default)]
pub(super) struct Detokenizer {
    /// The tokens whose text was given last, then those whose text is not given yet.
    window: Vec<u32>,
    /// How many of the window were given.
    given: usize,
    text: String,
}

/// Tokens that may wait for the rest of a character; more are no character.
const MAX_WAITING: usize = 16;

const REPLACEMENT: char = '\u{fffd}';

impl Detokenizer {
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn push(&mut self, id: u32, decode: impl Fn(&[u32]) -> String) {
        self.window.push(id);
        let all = decode(&self.window);
        let waiting = self.window.len() - self.given;
        if all.ends_with(REPLACEMENT) && waiting < MAX_WAITING {
            return;
        }
        self.give(&all, waiting >= MAX_WAITING, decode);
    }

    /// No token follows: what waits is given as it is.
    pub(super) fn finish(&mut self, decode: impl Fn(&[u32]) -> String) {
        if self.window.len() > self.given {
            let all = decode(&self.window);
            self.give(&all, true, decode);
        }
    }

    fn give(&mut self, all: &str, even_nothing: bool, decode: impl Fn(&[u32]) -> String) {
        let given = decode(&self.window[..self.given]);
        // Text that is in the middle of a character now was not, when it was given.
        let mut from = given.len().min(all.len());
        while !all.is_char_boundary(from) {
            from += 1;
        }
        let new = &all[from..];
        if new.is_empty() && !even_nothing {
            return;
        }
        self.text.push_str(new);
        self.window.drain(..self.given);
        self.given = self.window.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A vocabulary of single bytes and of some pieces longer than that.
    const PIECES: [&[u8]; 6] = [
        b" the",
        b"\xe2\x82",
        b"\xac!",
        b"",
        b"<tool_call>",
        b"\xf0\x9f",
    ];

    fn bytes_of(id: u32) -> Vec<u8> {
        match u8::try_from(id) {
            Ok(byte) => vec![byte],
            Err(_) => PIECES[id as usize % PIECES.len()].to_vec(),
        }
    }

    fn decode(ids: &[u32]) -> String {
        let bytes: Vec<u8> = ids.iter().flat_map(|id| bytes_of(*id)).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The text, and what was given after each token.
    fn run(ids: &[u32]) -> (String, Vec<String>) {
        let mut detokenizer = Detokenizer::default();
        let mut steps = Vec::new();
        for id in ids {
            detokenizer.push(*id, decode);
            steps.push(detokenizer.text().to_owned());
        }
        detokenizer.finish(decode);
        (detokenizer.text().to_owned(), steps)
    }

    #[test]
    fn a_character_comes_when_it_is_whole() {
        let ids: Vec<u32> = "a€".bytes().map(u32::from).collect();
        let (text, steps) = run(&ids);
        assert_eq!(text, "a€");
        assert_eq!(steps, ["a", "a", "a", "a€"]);
    }

    #[test]
    fn half_a_character_at_the_end_is_told_as_that() {
        assert_eq!(run(&[97, 0xe2, 0x82]).0, "a\u{fffd}");
    }

    proptest! {
        #[test]
        fn text_is_given_whole_and_never_taken_back(
            ids in prop::collection::vec(prop_oneof![3 => 97..123_u32, 2 => 128..256_u32, 2 => 256..262_u32], 0..60),
        ) {
            let (text, steps) = run(&ids);
            for pair in steps.windows(2) {
                prop_assert!(pair[1].starts_with(&pair[0]));
            }
            // A run of nonsense may be cut anywhere; anything else comes out as it is.
            let nonsense = ids.split(|id| *id < 128).map(<[u32]>::len).max().unwrap_or(0);
            if nonsense < MAX_WAITING {
                prop_assert_eq!(text, decode(&ids));
            }
        }
    }
}

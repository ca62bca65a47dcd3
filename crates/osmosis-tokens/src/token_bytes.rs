//! The bytes of every token of a tokenizer.

use llguidance::toktrie::TokTrie;
use tokenizers::Tokenizer;
use tokenizers::decoders::DecoderWrapper;

use crate::TokensError;

/// How a vocabulary writes bytes that are no text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Writing {
    /// Each byte is a character of GPT-2's table.
    ByteLevel,
    /// `<0x0A>` is a byte, and this character is a space.
    Fallback { space: char },
}

/// Tags that replies are read by. Some vocabularies have them as special tokens, but grammars have them as text.
const TEXT_TAGS: [&str; 4] = ["<tool_call>", "</tool_call>", "<think>", "</think>"];

/// Bytes by id. A special token begins with the marker that no text has; an id without a token has no bytes.
pub(crate) fn token_bytes(tokenizer: &Tokenizer) -> Result<Vec<Vec<u8>>, TokensError> {
    let decoder = tokenizer.get_decoder();
    let writing = decoder
        .and_then(writing_of)
        .ok_or_else(|| TokensError::Constraint {
            message: "the tokenizer is neither byte-level nor of the kind with byte fallback"
                .to_owned(),
        })?;
    let vocabulary = tokenizer.get_vocab(true);
    let added = tokenizer.get_added_tokens_decoder();
    let greatest = vocabulary.values().max().copied().unwrap_or(0);
    let mut words = vec![Vec::new(); greatest as usize + 1];
    for (token, id) in vocabulary {
        words[id as usize] = match added.get(&id) {
            Some(added) if added.special && !TEXT_TAGS.contains(&added.content.as_str()) => {
                let mut word = vec![TokTrie::SPECIAL_TOKEN_MARKER];
                word.extend_from_slice(added.content.as_bytes());
                word
            }
            Some(added) => added.content.as_bytes().to_vec(),
            None => bytes_of(&token, writing),
        };
    }
    Ok(words)
}

fn writing_of(decoder: &DecoderWrapper) -> Option<Writing> {
    match decoder {
        DecoderWrapper::ByteLevel(_) => Some(Writing::ByteLevel),
        DecoderWrapper::Sequence(sequence) => {
            let parts = sequence.get_decoders();
            if let Some(found) = parts.iter().find_map(|part| match part {
                DecoderWrapper::ByteLevel(_) => Some(Writing::ByteLevel),
                _ => None,
            }) {
                return Some(found);
            }
            parts
                .iter()
                .any(|part| matches!(part, DecoderWrapper::ByteFallback(_)))
                .then_some(Writing::Fallback { space: '\u{2581}' })
        }
        _ => None,
    }
}

fn bytes_of(token: &str, writing: Writing) -> Vec<u8> {
    match writing {
        Writing::ByteLevel => {
            let bytes: Option<Vec<u8>> = token.chars().map(byte_of).collect();
            // A token with other characters can't come from text.
            bytes.unwrap_or_default()
        }
        Writing::Fallback { space } => {
            let byte = token
                .strip_prefix("<0x")
                .and_then(|rest| rest.strip_suffix('>'))
                .and_then(|digits| u8::from_str_radix(digits, 16).ok());
            match byte {
                Some(byte) => vec![byte],
                None => token.replace(space, " ").into_bytes(),
            }
        }
    }
}

/// The byte that a character of GPT-2's table stands for: printable ones stand for themselves, the others follow from
/// U+0100 on.
fn byte_of(character: char) -> Option<u8> {
    let code = u32::from(character);
    if let Ok(byte) = u8::try_from(code) {
        return is_printable(byte).then_some(byte);
    }
    let place = usize::try_from(code.checked_sub(0x100)?).ok()?;
    (0..=u8::MAX).filter(|byte| !is_printable(*byte)).nth(place)
}

fn is_printable(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_one_character() {
        let characters = (0..0x200).filter_map(char::from_u32);
        let mut bytes: Vec<u8> = characters.filter_map(byte_of).collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=u8::MAX).collect::<Vec<_>>());
        assert_eq!(bytes_of("Ġa", Writing::ByteLevel), b" a");
        assert_eq!(bytes_of("ĊÃ©", Writing::ByteLevel), "\né".as_bytes());
        assert_eq!(bytes_of("漢", Writing::ByteLevel), b"");
    }

    #[test]
    fn fallback_tokens_are_bytes_and_the_mark_is_a_space() {
        let writing = Writing::Fallback { space: '\u{2581}' };
        assert_eq!(bytes_of("<0x0A>", writing), b"\n");
        assert_eq!(bytes_of("\u{2581}a<0x", writing), b" a<0x");
    }
}

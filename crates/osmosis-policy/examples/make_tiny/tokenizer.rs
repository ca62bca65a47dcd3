//! The tokenizer of `builtin/tiny`: byte-level BPE, trained on the conversations themselves.

use std::error::Error;

use osmosis_tokens::{ChatFormat, ChatFormatParts};
use serde_json::{Map, json};
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{
    AddedToken, DecoderWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper,
    SplitDelimiterBehavior, TokenizerBuilder, TokenizerImpl,
};

use super::conversation::{CHAT_TEMPLATE, tools};
use super::drawn::Conversations;
use super::settings::Settings;

/// Ids from 0 in this order. `<|endoftext|>` pads; the others have a place in the chat template.
pub(crate) const SPECIAL: [&str; 7] = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
];
/// A piece is a digit, or a white space, or a run of anything else with the space before it. Punctuation
/// stays with its word, so that `"operation":` becomes one token; digits stand alone, so that a number
/// has the same tokens wherever it stands.
pub(crate) const PIECES: &str = r" ?[^\s\d]+|\d|\s";

type Tokenizer = TokenizerImpl<
    BPE,
    NormalizerWrapper,
    PreTokenizerWrapper,
    PostProcessorWrapper,
    DecoderWrapper,
>;

/// Special tokens in the texts are left out of the merges.
fn train(
    texts: &[String],
    settings: &Settings,
) -> Result<ChatFormatParts, Box<dyn Error + Send + Sync>> {
    let split = Split::new(
        SplitPattern::Regex(PIECES.to_owned()),
        SplitDelimiterBehavior::Isolated,
        false,
    )?;
    let bytes = ByteLevel::new(false, false, false);
    let mut tokenizer: Tokenizer = TokenizerBuilder::new()
        .with_model(BPE::default())
        .with_normalizer(None)
        .with_pre_tokenizer(Some(PreTokenizerWrapper::Sequence(Sequence::new(vec![
            PreTokenizerWrapper::Split(split),
            PreTokenizerWrapper::ByteLevel(bytes),
        ]))))
        .with_post_processor(None)
        .with_decoder(Some(DecoderWrapper::ByteLevel(bytes)))
        .build()?;
    let special: Vec<AddedToken> = SPECIAL
        .iter()
        .map(|token| AddedToken::from(*token, true))
        .collect();
    let mut trainer = BpeTrainer::builder()
        .vocab_size(settings.vocabulary)
        .min_frequency(settings.token_min_frequency)
        .show_progress(false)
        .special_tokens(special.clone())
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .build();
    tokenizer.train(
        &mut trainer,
        texts.iter().flat_map(|text| plain_pieces(text)),
    )?;
    tokenizer.add_special_tokens(special)?;
    Ok(ChatFormatParts {
        tokenizer: tokenizer.to_string(false)?,
        tokenizer_config: json!({
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "clean_up_tokenization_spaces": false,
            "model_max_length": super::model::CONTEXT,
        })
        .to_string(),
        chat_template: Some(CHAT_TEMPLATE.to_owned()),
        generation_config: None,
    })
}

/// A chat format whose tokenizer has been trained on conversations in that same format.
pub(crate) fn trained_format(
    settings: &Settings,
    conversations: &mut Conversations<'_>,
) -> Result<ChatFormat, Box<dyn Error + Send + Sync>> {
    let bytes_only = ChatFormat::from_parts(train(&[], settings)?)?;
    let tools = tools();
    let texts: Vec<String> = (0..settings.tokenizer_texts)
        .map(|_| {
            let messages = conversations.draw().messages;
            bytes_only.render(&messages, Some(&tools), false, &Map::new())
        })
        .collect::<Result<_, _>>()?;
    Ok(ChatFormat::from_parts(train(&texts, settings)?)?)
}

fn plain_pieces(text: &str) -> Vec<String> {
    let mut pieces = vec![text.to_owned()];
    for token in SPECIAL {
        pieces = pieces
            .iter()
            .flat_map(|piece| piece.split(token))
            .map(str::to_owned)
            .collect();
    }
    pieces
}

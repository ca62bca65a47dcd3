//! Formats of published models, each read once.

use std::sync::{Arc, OnceLock};

use osmosis_testkit::published_models::{PublishedTokenizer, tokenizer_folder};
use osmosis_tokens::ChatFormat;

pub(crate) fn format(family: PublishedTokenizer) -> Arc<ChatFormat> {
    static FORMATS: [OnceLock<Arc<ChatFormat>>; 5] = [const { OnceLock::new() }; 5];
    let slot = PublishedTokenizer::ALL.iter().position(|f| *f == family);
    FORMATS[slot.unwrap()]
        .get_or_init(|| Arc::new(ChatFormat::load(&tokenizer_folder(family)).unwrap()))
        .clone()
}

//! Property of the tokenizer builders, on vocabularies of random structure. A builder must refuse
//! the vocabulary or make a tokenizer. Its streamed text must equal text that is decoded at once.

use arbitrary::Unstructured;
use thermocline_engine::{
    format::Metadata,
    tokenizer::{EncodeOptions, Tokenizer},
};

use crate::vocabularies;

/// Checks the property on one input.
pub fn check(input: &[u8]) {
    let mut u = Unstructured::new(input);
    let Ok(tokenizer) = build(&mut u) else { return };
    let Some(tokenizer) = tokenizer else { return };
    while let (false, Ok(text)) = (u.is_empty(), vocabularies::text(&mut u)) {
        for options in [EncodeOptions::PLAIN, EncodeOptions::CHAT] {
            let ids = tokenizer.encode(&text, options).expect("every text has ids");
            let mut stream = tokenizer.stream().with_special().at_text_start();
            let mut streamed: String = ids.iter().map(|&id| stream.push(id)).collect();
            streamed.push_str(&stream.finish());
            assert_eq!(streamed, tokenizer.decode(&ids, false));
        }
    }
}

fn build(u: &mut Unstructured) -> arbitrary::Result<Option<Tokenizer>> {
    let tokenizer = if u.arbitrary()? {
        Tokenizer::from_metadata(&vocabularies::metadata(u)?)
    } else {
        let text = vocabularies::tokenizer_json(u)?;
        Tokenizer::from_json(&text, &serde_json::Value::Null, &Metadata::new("fuzz"))
    };
    Ok(tokenizer.ok())
}

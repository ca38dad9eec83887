//! Prompts as tokens: encoded texts, chats rendered by the model's template, and how to read the
//! answer.

use super::{
    ChatOptions, ContextPolicy, Message, Prompt, Role, chat_history::ChatHistory, embedding, engine::Engine,
    engine_state::EngineState, picture_ids::ConversationPictures, prompt_pictures::PromptPictures,
};
use thermocline_base::error::{Error, Result};
use thermocline_text::{
    ChatMessage, ContentGuard, EncodeOptions, PromptText, RenderOptions, Tokenizer,
    reasoning::{AnswerParser, transcript::Thoughts},
};

/// The tokens that close the thoughts and begin the answer.
pub(super) fn end_of_thoughts(state: &EngineState) -> Result<Vec<u32>> {
    let options = EncodeOptions { special: true, add_bos: false, add_eos: false };
    state.text.tokenizer.encode(&state.text.template.reasoning().end_of_thoughts(), options)
}

/// A prompt's tokens, and how to read the answer.
pub(super) struct EncodedPrompt {
    /// Token ids of the prompt.
    pub tokens: Vec<u32>,
    /// True if the answer is a text of its own, not the rest of one.
    pub starts_text: bool,
    /// Parser of the answer in a chat; `None` for other prompts.
    pub parser: Option<AnswerParser>,
    /// The pictures among the tokens.
    pub pictures: ConversationPictures,
    /// Index of the second text's first token, in a pair of texts.
    pub second_at: Option<usize>,
}

/// A prompt that fits the context.
pub(super) struct FittedPrompt<'a> {
    /// The prompt without the forgotten tokens.
    pub encoded: EncodedPrompt,
    /// Number of forgotten tokens.
    pub forgotten_tokens: usize,
    /// History of a chat that may forget more turns.
    pub history: Option<ChatHistory<'a>>,
}

/// Encodes a prompt and shortens it to a context of `capacity` tokens as `on_full` requires. A chat
/// loses its oldest turns, any other prompt what a shift would forget. `text` holds the options of
/// [`Prompt::Text`].
///
/// # Errors
/// [`Error::ContextFull`] if the prompt must not be shortened, or its last turn alone is too long.
pub(super) fn encode_to_fit<'a>(
    state: &'a EngineState,
    prompt: Prompt,
    chat: &ChatOptions,
    text: EncodeOptions,
    on_full: ContextPolicy,
    capacity: usize,
) -> Result<FittedPrompt<'a>> {
    let stops = on_full == ContextPolicy::Stop;
    let mut history = if stops { None } else { ChatHistory::new(state, &prompt, chat) };
    let encoded = encode(state, prompt, chat, text, stops.then_some(capacity))?;
    let vocab = state.model.config.n_vocab;
    let with_pictures = !encoded.pictures.is_empty();
    let known = |id: u32| (id as usize) < vocab || (with_pictures && ConversationPictures::is_picture(id));
    if let Some(id) = encoded.tokens.iter().find(|id| !known(**id)) {
        return Err(Error::invalid("prompt", format!("token ids below {vocab}"), id));
    }
    let whole = encoded.tokens.len();
    let tokens = match &mut history {
        Some(history) => history.fit(encoded.tokens, capacity)?,
        None => fit(encoded.tokens, capacity, on_full)?,
    };
    let forgotten_tokens = whole - tokens.len();
    Ok(FittedPrompt { encoded: EncodedPrompt { tokens, ..encoded }, forgotten_tokens, history })
}

impl Engine {
    /// Token ids of a request's prompt. `chat` holds the values for the chat template. No picture
    /// is decoded.
    ///
    /// # Errors
    /// [`Error::Template`] if the template refuses the messages, [`Error::Invalid`] if a chat to
    /// continue does not end with an assistant message.
    pub fn prompt_tokens(&self, prompt: Prompt, chat: &ChatOptions) -> Result<Vec<u32>> {
        let (encoded, pictures) = encode_text(self.state(), prompt, chat, EncodeOptions::CHAT, None)?;
        match pictures {
            Some(pictures) => pictures.count(&encoded.tokens),
            None => Ok(encoded.tokens),
        }
    }
}

/// Encodes a prompt; `text` holds the options of [`Prompt::Text`]. A text that must have more than
/// `limit` tokens is refused before it is encoded, because encoding megabytes takes seconds.
pub(super) fn encode(
    state: &EngineState,
    prompt: Prompt,
    chat: &ChatOptions,
    text: EncodeOptions,
    limit: Option<usize>,
) -> Result<EncodedPrompt> {
    let (encoded, pictures) = encode_text(state, prompt, chat, text, limit)?;
    let Some(PromptPictures { all, marks }) = pictures else { return Ok(encoded) };
    // Decoding pixels takes up to a second, so it must not happen while the ids are locked.
    all.iter().try_for_each(|it| it.picture.hash().map(drop))?;
    let (tokens, pictures) =
        ConversationPictures::expand(&encoded.tokens, &all, marks.token, &mut state.pictures.lock())?;
    Ok(EncodedPrompt { tokens, pictures, ..encoded })
}

/// Encodes the text of a prompt, in which one token or several stand for each of the pictures that
/// are returned.
fn encode_text(
    state: &EngineState,
    prompt: Prompt,
    chat: &ChatOptions,
    text: EncodeOptions,
    limit: Option<usize>,
) -> Result<(EncodedPrompt, Option<PromptPictures>)> {
    let tokenizer = &state.text.tokenizer;
    let check = |text: &str| limit.map_or(Ok(()), |limit| refuse_long_text(tokenizer, text, limit));
    let encode = |prompt: &PromptText| {
        check(prompt.with_breaks())?;
        tokenizer.encode_prompt(prompt)
    };
    let pictures = PromptPictures::of(state, &prompt)?;
    let mut second_at = None;
    let (mut tokens, starts_text, parser) = match prompt {
        Prompt::Text(said) => {
            check(&said)?;
            (tokenizer.encode(&said, text)?, said.is_empty(), None)
        }
        Prompt::Tokens(tokens) => (tokens, false, None),
        Prompt::Pair { query, document } => {
            check(&query)?;
            check(&document)?;
            let pair = embedding::encode_pair(state, &query, &document)?;
            second_at = Some(pair.second_at);
            (pair.ids, false, None)
        }
        Prompt::Chat(messages) => {
            let (text, parser) = render(state, &messages, chat, None, pictures.as_ref())?;
            (encode(&text)?, true, Some(parser))
        }
        Prompt::Continue(messages) => {
            let Some((Message { role: Role::Assistant, content, .. }, before)) = messages.split_last() else {
                return Err(Error::invalid("prompt", "an assistant message at the end to continue", "no such message"));
            };
            let begun = (!content.is_empty()).then(|| Thoughts::of(content));
            let (text, parser) = render(state, before, chat, begun.as_ref(), pictures.as_ref())?;
            (encode(&text)?, begun.is_none(), Some(parser))
        }
    };
    if tokens.is_empty() {
        let none = "at least one token, because the vocabulary has no token that begins a text";
        tokens.push(tokenizer.bos().ok_or_else(|| Error::invalid("prompt", none, "an empty prompt"))?);
    }
    let none = ConversationPictures::default();
    Ok((EncodedPrompt { tokens, starts_text, parser, pictures: none, second_at }, pictures))
}

/// Refuses a text that would exceed `limit` tokens even if each were the longest token of the
/// vocabulary.
fn refuse_long_text(tokenizer: &Tokenizer, text: &str, limit: usize) -> Result<()> {
    // Shorter texts are encoded without this check.
    const SHORT: usize = 1 << 16;
    if text.len() <= SHORT {
        return Ok(());
    }
    let longest = (0..tokenizer.vocab_len() as u32).map(|id| tokenizer.token_bytes(id).len()).max().unwrap_or(1).max(1);
    let least = text.len() / longest;
    if least > limit { Err(Error::ContextFull { wanted: least, at_least: true, available: limit }) } else { Ok(()) }
}

/// Renders a chat up to where the assistant speaks, or continues after `begun`, and returns the
/// parser of its answer.
fn render(
    state: &EngineState,
    messages: &[Message],
    chat: &ChatOptions,
    begun: Option<&Thoughts<'_>>,
    pictures: Option<&PromptPictures>,
) -> Result<(PromptText, AnswerParser)> {
    let messages: Vec<ChatMessage<'_>> = messages.iter().map(chat_message).collect();
    let guard = (!state.text.special_in_content).then_some(&state.text.tokenizer);
    let (tools, variables) = (&chat.tools[..], Some(&chat.variables));
    let marks = pictures.map(|pictures| &pictures.marks);
    let options = RenderOptions { add_generation_prompt: true, tools, variables, guard, marks };
    let mut text = state.text.template.render_with(&messages, options)?;
    let format = state.text.template.reasoning();
    let parser = format.parser(text.with_breaks(), begun);
    if let Some(begun) = begun {
        format.write(&mut text, begun, ContentGuard::new(guard));
    }
    Ok((text, parser))
}

fn chat_message(message: &Message) -> ChatMessage<'_> {
    let fields = Some(&message.fields).filter(|fields| !fields.is_empty());
    ChatMessage { role: message.role.name(), content: &message.content, fields, pictures: message.pictures.len() }
}

/// Shortens a prompt without turns that exceeds the context, as a shift would. It keeps the first
/// `keep` tokens, and of the last tokens as many as fill half of the rest.
fn fit(prompt: Vec<u32>, capacity: usize, on_full: ContextPolicy) -> Result<Vec<u32>> {
    if prompt.len() <= capacity {
        return Ok(prompt);
    }
    match on_full {
        ContextPolicy::Stop => Err(Error::ContextFull { wanted: prompt.len(), at_least: false, available: capacity }),
        ContextPolicy::Shift { keep } => {
            let last = (capacity - keep).div_ceil(2);
            Ok([&prompt[..keep], &prompt[prompt.len() - last..]].concat())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_prompts_are_shortened_only_by_the_shift_policy() {
        let prompt: Vec<u32> = (0..10).collect();
        let shift = |keep| ContextPolicy::Shift { keep };
        assert_eq!(fit(prompt.clone(), 10, ContextPolicy::Stop).unwrap(), prompt);
        let error = fit(prompt.clone(), 9, ContextPolicy::Stop).unwrap_err();
        assert!(matches!(error, Error::ContextFull { wanted: 10, at_least: false, available: 9 }));
        assert_eq!(fit(prompt.clone(), 6, shift(2)).unwrap(), [0, 1, 8, 9]);
        assert_eq!(fit(prompt.clone(), 6, shift(0)).unwrap(), [7, 8, 9]);
        assert_eq!(fit(prompt.clone(), 6, shift(5)).unwrap(), [0, 1, 2, 3, 4, 9]);
        assert_eq!(fit(prompt, 1, shift(0)).unwrap(), [9]);
    }
}

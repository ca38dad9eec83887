//! Chats longer than the context, with the built-in model.

use std::path::Path;

use super::*;
use crate::session::{ContextPolicy, Engine, EngineOptions, Event, GenerationStats, Request, Sampling, SessionOptions};

const CONTEXT: usize = 128;

fn engine(context: usize) -> Engine {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/storyteller/storyteller-F16.gguf");
    Engine::open(&path, EngineOptions { context: Some(context), ..EngineOptions::default() }).unwrap()
}

/// A chat of `turns` turns, of which the last has no answer.
fn chat(turns: usize) -> Vec<Message> {
    let mut messages = vec![Message::new(Role::System, "You are kind.")];
    for turn in 0..turns {
        messages.push(Message::new(Role::User, format!("Tell me a story about a frog and {turn} boats.")));
        messages.push(Message::new(Role::Assistant, format!("The frog had {turn} boats.")));
    }
    messages.pop();
    messages
}

fn ids(engine: &Engine, messages: Vec<Message>) -> Vec<u32> {
    engine.prompt_tokens(Prompt::Chat(messages), &ChatOptions::default()).unwrap()
}

/// A chat without its first turns.
fn without(turns: usize, messages: &[Message]) -> Vec<Message> {
    [&messages[..1], &messages[1 + 2 * turns..]].concat()
}

/// The token ids of an answer and its statistics.
fn answer(engine: &Engine, prompt: Prompt, tokens: usize) -> Result<(Vec<u32>, GenerationStats)> {
    let request = Request {
        sampling: Sampling::greedy(),
        max_tokens: Some(tokens),
        ignore_eos: true,
        on_full: ContextPolicy::Shift { keep: 1 },
        ..Request::new(prompt)
    };
    let (mut ids, mut end) = (Vec::new(), None);
    for event in engine.session(SessionOptions::default())?.generate(request) {
        match event {
            Event::Token { id, .. } => ids.push(id),
            Event::Done { stats, .. } => end = Some(stats),
            Event::Error(error) => return Err(error),
            _ => {}
        }
    }
    Ok((ids, end.unwrap()))
}

#[test]
fn oldest_turns_are_forgotten_as_a_whole_and_the_system_prompt_never() {
    let engine = engine(CONTEXT);
    let mut forgotten = 0;
    for turns in 1..30 {
        let messages = chat(turns);
        let whole = ids(&engine, messages.clone()).len();
        // An answer that fills the context forces more turns to be forgotten.
        let tokens = if (CONTEXT - 6..=CONTEXT).contains(&whole) { 1 } else { 6 };
        let (said, stats) = answer(&engine, Prompt::Chat(messages.clone()), tokens).unwrap();
        assert_eq!(stats.forgotten_turns == 0, whole <= CONTEXT, "{turns} turns, {whole} tokens");
        assert!(stats.forgotten_turns >= forgotten && stats.forgotten_turns < turns, "{stats:?}");
        forgotten = stats.forgotten_turns;
        let left = without(forgotten, &messages);
        let prompt = ids(&engine, left.clone());
        assert_eq!((stats.prompt_tokens, stats.forgotten_tokens), (prompt.len(), whole - prompt.len()));
        assert!(prompt.len() <= CONTEXT - CONTEXT / ANSWER_FRACTION || forgotten == 0, "{turns} turns: {prompt:?}");
        assert_eq!(said, answer(&engine, Prompt::Chat(left), tokens).unwrap().0, "as if the rest had never been said");
    }
    assert!(forgotten > 20, "{forgotten}");
}

#[test]
fn chat_that_grows_keeps_its_beginning_for_several_turns() {
    let engine = engine(4 * CONTEXT);
    let counts: Vec<usize> =
        (20..40).map(|turns| answer(&engine, Prompt::Chat(chat(turns)), 1).unwrap().1.forgotten_turns).collect();
    let moved = counts.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert!((2..counts.len() - 5).contains(&moved), "{counts:?}");
}

#[test]
fn message_that_is_too_long_by_itself_is_refused_with_both_lengths() {
    let engine = engine(CONTEXT);
    let mut messages = chat(4);
    let long = Message::new(Role::User, "a frog and a boat and ".repeat(40));
    messages.extend([Message::new(Role::Assistant, "Well."), long.clone()]);
    let alone = ids(&engine, vec![messages[0].clone(), long]).len();
    let error = answer(&engine, Prompt::Chat(messages), 6).unwrap_err();
    assert!(
        matches!(error, Error::ContextFull { wanted, available: CONTEXT, .. } if wanted == alone && alone > CONTEXT),
        "{error}"
    );
}

#[test]
fn full_context_forgets_turns_before_the_answer() {
    let engine = engine(CONTEXT);
    let messages = chat(3);
    let prompt = Prompt::Chat(messages.clone());
    let mut history = ChatHistory::new(engine.state(), &prompt, &ChatOptions::default()).unwrap();
    let whole = ids(&engine, messages.clone());
    assert_eq!(history.fit(whole.clone(), CONTEXT).unwrap(), whole, "there is room for all of it");
    let mut held = whole.clone();
    let mut last = None;
    for _ in 0..20 {
        held.extend((held.len()..CONTEXT).map(|at| at as u32));
        let answer = held[history.prompt.len()..].to_vec();
        held = history.make_room(&held, CONTEXT).unwrap().unwrap();
        assert!(held.len() < CONTEXT);
        let left = ids(&engine, without(history.forgotten, &messages));
        assert!(held.starts_with(&left), "system prompt, question and role marks are there");
        assert!(answer.ends_with(&held[left.len()..]), "the latest of the answer is there");
        if last == Some(history.forgotten) {
            assert_eq!(history.forgotten, 2, "turns go before the answer does");
        } else {
            assert_eq!(held.len() - left.len(), answer.len(), "none of the answer goes with turns");
        }
        last = Some(history.forgotten);
    }
    assert_eq!(last, Some(2));
    // An endless answer continues.
    let (said, stats) = answer(&engine, prompt, 400).unwrap();
    assert_eq!((said.len(), stats.forgotten_turns), (400, 2));
    assert!(stats.forgotten_tokens > 200, "{stats:?}");
}

#[test]
fn answer_without_room_ends_and_one_to_go_on_with_keeps_its_end() {
    let engine = engine(CONTEXT);
    let fits = |words: usize| {
        let messages = vec![Message::new(Role::User, "boat ".repeat(words))];
        (ids(&engine, messages.clone()).len(), messages)
    };
    let (length, messages) = (1..).map(fits).find(|(length, _)| *length > CONTEXT - 8).unwrap();
    assert!(length <= CONTEXT);
    let (said, stats) = answer(&engine, Prompt::Chat(messages), 400).unwrap();
    assert_eq!((said.len(), stats.forgotten_tokens), (CONTEXT - length + 1, 0));
    let mut messages = chat(2);
    let question = ids(&engine, without(1, &messages)).len();
    messages.push(Message::new(Role::Assistant, "The frog went home. ".repeat(60)));
    let (said, stats) = answer(&engine, Prompt::Continue(messages), 9).unwrap();
    assert_eq!((said.len(), stats.forgotten_turns), (9, 1));
    assert_eq!(stats.prompt_tokens, question + (CONTEXT - question).div_ceil(2));
}

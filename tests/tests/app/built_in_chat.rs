//! Chats of several turns with the built-in model.

#![allow(clippy::unwrap_used)]

use std::collections::HashSet;

use thermocline_engine::session::{ContextPolicy, Event, Message, Prompt, Request, Role, Sampling, SessionOptions};
use thermocline_host::builtin;
use thermocline_tests::served::storyteller;

/// The words that occur at least three times in the stories that trained the model, one per line.
const WORDS: &str = include_str!("../../fixtures/storyteller/words.txt");

const REQUESTS: [&str; 5] = [
    "Tell me a story about a dog.",
    "Tell me a story about a cat and a boat.",
    "What happened to Lily?",
    "Tell me another story.",
    "Write a story about a bird.",
];

/// Returns the five stories of one chat. The session forgets the oldest turns when the context is
/// full.
fn chat(seed: u64) -> Vec<String> {
    let engine = storyteller();
    let session = engine.session(SessionOptions::default()).unwrap();
    let mut messages = Vec::new();
    let mut stories = Vec::new();
    for request in REQUESTS {
        messages.push(Message::new(Role::User, request));
        let prompt = Prompt::Chat(messages.clone());
        let sampling = Sampling { seed: Some(seed), ..builtin::sampling() };
        let request = Request {
            sampling,
            on_full: ContextPolicy::Shift { keep: 1 },
            max_tokens: Some(400),
            ..Request::new(prompt)
        };
        let piece = |event| match event {
            Event::Token { text, .. } => text.to_string(),
            Event::Error(error) => panic!("{error}"),
            _ => String::new(),
        };
        let story: String = session.generate(request).into_iter().map(piece).collect();
        messages.push(Message::new(Role::Assistant, &story));
        stories.push(story);
    }
    stories
}

#[test]
fn five_stories_of_a_chat_are_made_of_words() {
    let known: HashSet<&str> = WORDS.lines().collect();
    let (mut words, mut unknown) = (0, Vec::new());
    for seed in 1..=3 {
        for (turn, story) in chat(seed).iter().enumerate() {
            let lower = story.to_lowercase();
            let of_story: Vec<&str> =
                lower.split(|c: char| !c.is_alphabetic()).filter(|word| !word.is_empty()).collect();
            assert!(of_story.len() > 20, "story {} of seed {seed}: {story}", turn + 1);
            words += of_story.len();
            let others = of_story.iter().filter(|word| !known.contains(**word));
            unknown.extend(others.map(|word| format!("{word} (story {}, seed {seed})", turn + 1)));
        }
    }
    // The list lacks names and rare words, so one word in 200 may be unknown.
    assert!(200 * unknown.len() <= words, "of {words} words: {unknown:?}");
}

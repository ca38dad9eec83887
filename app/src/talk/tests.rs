use std::time::{Duration, Instant};

use thermocline_engine::session::EngineOptions;

use super::*;
use crate::library::ModelId;

fn until_quiet(talk: &mut Talk, store: &mut Store, host: &Host) {
    let began = Instant::now();
    while talk.is_busy() {
        assert!(talk.tick(store, host).is_empty());
        assert!(began.elapsed() < Duration::from_secs(60), "no end within 60 s");
        thread::sleep(Duration::from_millis(2));
    }
}

fn chat(store: &mut Store, choices: &Choices) -> ChatId {
    let chat = store.add_chat(None, "").unwrap();
    store.set_chat_sampling(chat, choices.json().as_deref()).unwrap();
    chat
}

#[test]
fn answers_wait_for_the_model_and_are_kept_with_figures_versions_and_more() {
    let (mut store, mut talk, host) = (Store::in_memory().unwrap(), Talk::default(), Host::new(|| ()));
    host.open(ModelId::Builtin, EngineOptions::default());
    let choices = Choices { max_tokens: Some(12), seed: Some(7), ..Choices::default() };
    let chat = chat(&mut store, &choices);
    talk.say(&mut store, &host, chat, None, "Tell me a story about a frog.\nPlease.").unwrap();
    until_quiet(&mut talk, &mut store, &host);
    let branch = store.branch(chat).unwrap();
    assert_eq!(store.chat(chat).unwrap().title, "Tell me a story about a frog.");
    assert_eq!(
        (branch.len(), branch[1].state, branch[1].model.as_deref()),
        (2, MessageState::Cut, Some("Storyteller"))
    );
    let figures = Figures::of(branch[1].stats.as_deref()).unwrap();
    assert_eq!((&*figures.reason, figures.generated_tokens), ("max_tokens", 12));
    assert!(figures.line().contains("12 tokens"), "{}", figures.line());

    talk.resume(&mut store, &host, chat, branch[1].id).unwrap();
    until_quiet(&mut talk, &mut store, &host);
    let more = store.message(branch[1].id).unwrap();
    assert!(more.content.starts_with(&branch[1].content) && more.content.len() > branch[1].content.len(), "{more:?}");

    talk.answer(&mut store, &host, chat, Some(branch[0].id)).unwrap();
    until_quiet(&mut talk, &mut store, &host);
    let again = store.branch(chat).unwrap();
    assert_eq!(again[1].version, (2, 2));
    assert_ne!(again[1].content, branch[1].content, "another draw");
}

#[test]
fn an_answer_that_finds_no_end_is_as_long_as_the_context() {
    let (mut store, mut talk, host) = (Store::in_memory().unwrap(), Talk::default(), Host::new(|| ()));
    host.open(ModelId::Builtin, EngineOptions { context: Some(128), ..EngineOptions::default() });
    // Of words drawn at random, few are the end.
    let random = Choices { temperature: Some(20.0), top_p: Some(1.0), ..Choices::default() };
    let ends = (1..=8).map(|seed| {
        let chat = chat(&mut store, &Choices { seed: Some(seed), ..random.clone() });
        talk.say(&mut store, &host, chat, None, "Hello").unwrap();
        until_quiet(&mut talk, &mut store, &host);
        let figures = Figures::of(store.branch(chat).unwrap()[1].stats.as_deref()).unwrap();
        (figures.reason, figures.generated_tokens)
    });
    let ends: Vec<_> = ends.collect();
    assert!(ends.iter().all(|(_, tokens)| *tokens <= 128), "{ends:?}");
    assert!(ends.contains(&("max_tokens".to_owned(), 128)), "{ends:?}");
}

#[test]
fn failures_are_sentences_and_a_model_that_leaves_takes_nothing_along() {
    let (mut store, mut talk, host) = (Store::in_memory().unwrap(), Talk::default(), Host::new(|| ()));
    let chat = chat(&mut store, &Choices::default());
    talk.say(&mut store, &host, chat, None, "Hello").unwrap();
    until_quiet(&mut talk, &mut store, &host);
    let answer = store.branch(chat).unwrap().pop().unwrap();
    assert_eq!(answer.state, MessageState::Failed);
    assert_eq!(Figures::of(answer.stats.as_deref()).unwrap().error.as_deref(), Some("No model is open."));

    host.open(ModelId::Builtin, EngineOptions::default());
    talk.say(&mut store, &host, chat, Some(answer.id), "Tell me a story about a bear.").unwrap();
    let began = Instant::now();
    while talk.progress(chat).is_some_and(|progress| progress.content.is_empty()) {
        assert!(talk.tick(&mut store, &host).is_empty() && began.elapsed() < Duration::from_secs(60));
    }
    host.close();
    until_quiet(&mut talk, &mut store, &host);
    let answer = store.branch(chat).unwrap().pop().unwrap();
    assert!(!answer.content.is_empty() && answer.state != MessageState::Streaming, "{answer:?}");
}

#[test]
fn with_patience_answers_begin_with_the_next_tick_and_their_end_can_be_waited_for() {
    let (mut store, mut talk, host) = (Store::in_memory().unwrap(), Talk::default(), Host::new(|| ()));
    talk.set_patient();
    let greedy = Choices { temperature: Some(0.0), ..Choices::default() };
    let chat = chat(&mut store, &greedy);
    talk.say(&mut store, &host, chat, None, "Tell me a story about a frog.").unwrap();
    assert!(talk.is_busy() && !talk.begins(&host), "there is no model yet");
    host.open(ModelId::Builtin, EngineOptions::default());
    while host.engine().is_none() {
        thread::sleep(Duration::from_millis(2));
    }
    assert!(talk.begins(&host) && !talk.is_speaking());
    assert!(talk.tick(&mut store, &host).is_empty());
    assert!(talk.is_speaking() && !talk.begins(&host));
    let began = Instant::now();
    talk.wait(Duration::from_secs(60));
    assert!(began.elapsed() < Duration::from_secs(60), "the end is not waited out");
    assert!(talk.tick(&mut store, &host).is_empty());
    assert!(!talk.is_speaking() && !talk.is_busy());
    assert_eq!(store.branch(chat).unwrap()[1].state, MessageState::Complete);
}

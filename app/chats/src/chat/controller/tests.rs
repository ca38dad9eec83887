use thermocline_engine::session::EngineOptions;

use super::*;
use crate::{chat::SamplingOverrides, store::MessageState};
use thermocline_host::{answer_stats::AnswerStats, builtin, library::ModelId, testing::eventually};

fn controller() -> (Store, ChatController, EngineHandle) {
    let engine_handle = EngineHandle::new(|| ());
    (Store::in_memory().unwrap(), ChatController::new(engine_handle.clone()), engine_handle)
}

fn until_quiet(controller: &mut ChatController, store: &mut Store) {
    eventually("the end", || {
        assert!(controller.poll(store).is_empty());
        !controller.is_busy()
    });
}

fn chat(store: &mut Store, choices: &SamplingOverrides) -> ChatId {
    let chat = store.add_chat(None, "").unwrap();
    store.set_chat_sampling(chat, choices.to_json().as_deref()).unwrap();
    chat
}

#[test]
fn answers_wait_for_the_model_and_are_saved_with_statistics_and_versions() {
    let (mut store, mut controller, engine_handle) = controller();
    engine_handle.open(ModelId::Builtin, EngineOptions::default());
    let choices = SamplingOverrides { max_tokens: Some(12), seed: Some(7), ..SamplingOverrides::default() };
    let chat = chat(&mut store, &choices);
    controller.send_message(&mut store, chat, None, "Tell me a story about a frog.\nPlease.").unwrap();
    until_quiet(&mut controller, &mut store);
    let branch = store.branch(chat).unwrap();
    assert_eq!(store.chat(chat).unwrap().title, "Tell me a story about a frog.");
    assert_eq!(
        (branch.len(), branch[1].state, branch[1].model.as_deref()),
        (2, MessageState::Truncated, Some("Storyteller"))
    );
    let figures = AnswerStats::from_json(branch[1].stats.as_deref()).unwrap();
    assert_eq!((&*figures.reason, figures.generated_tokens), ("max_tokens", 12));
    assert!(figures.line().contains("12 tokens"), "{}", figures.line());

    controller.resume_answer(&mut store, chat, branch[1].id).unwrap();
    until_quiet(&mut controller, &mut store);
    let more = store.message(branch[1].id).unwrap();
    assert!(more.content.starts_with(&branch[1].content) && more.content.len() > branch[1].content.len(), "{more:?}");

    controller.start_answer(&mut store, chat, Some(branch[0].id)).unwrap();
    until_quiet(&mut controller, &mut store);
    let again = store.branch(chat).unwrap();
    assert_eq!(again[1].version, (2, 2));
    assert_ne!(again[1].content, branch[1].content, "another draw");
}

#[test]
fn answer_tokens_end_at_the_context_length() {
    let (mut store, mut controller, engine_handle) = controller();
    engine_handle.open(ModelId::Builtin, EngineOptions { context: Some(128), ..EngineOptions::default() });
    // At this temperature, the end token is rarely drawn.
    let random = SamplingOverrides { temperature: Some(20.0), top_p: Some(1.0), ..SamplingOverrides::default() };
    let ends = (1..=8).map(|seed| {
        let chat = chat(&mut store, &SamplingOverrides { seed: Some(seed), ..random.clone() });
        controller.send_message(&mut store, chat, None, "Hello").unwrap();
        until_quiet(&mut controller, &mut store);
        let figures = AnswerStats::from_json(store.branch(chat).unwrap()[1].stats.as_deref()).unwrap();
        (figures.reason, figures.generated_tokens)
    });
    let ends: Vec<_> = ends.collect();
    assert!(ends.iter().all(|(_, tokens)| *tokens <= 128), "{ends:?}");
    assert!(ends.contains(&("max_tokens".to_owned(), 128)), "{ends:?}");
}

#[test]
fn failed_answers_have_a_reason_and_closing_the_model_keeps_their_text() {
    let (mut store, mut controller, engine_handle) = controller();
    let chat = chat(&mut store, &SamplingOverrides::default());
    controller.send_message(&mut store, chat, None, "Hello").unwrap();
    until_quiet(&mut controller, &mut store);
    let answer = store.branch(chat).unwrap().pop().unwrap();
    assert_eq!(answer.state, MessageState::Failed);
    assert_eq!(AnswerStats::from_json(answer.stats.as_deref()).unwrap().error.as_deref(), Some("No model is open."));

    engine_handle.open(ModelId::Builtin, EngineOptions::default());
    controller.send_message(&mut store, chat, Some(answer.id), "Tell me a story about a bear.").unwrap();
    eventually("its first words", || {
        assert!(controller.poll(&mut store).is_empty());
        controller.progress(chat).is_none_or(|progress| !progress.content.is_empty())
    });
    engine_handle.close();
    until_quiet(&mut controller, &mut store);
    let answer = store.branch(chat).unwrap().pop().unwrap();
    assert!(!answer.content.is_empty() && answer.state != MessageState::Streaming, "{answer:?}");
}

#[test]
fn deferred_answers_start_with_the_next_poll_and_can_be_waited_for() {
    let (mut store, mut controller, engine_handle) = controller();
    controller.set_deferred(true);
    let greedy = SamplingOverrides { temperature: Some(0.0), ..SamplingOverrides::default() };
    let chat = chat(&mut store, &greedy);
    controller.send_message(&mut store, chat, None, "Tell me a story about a frog.").unwrap();
    assert!(controller.is_busy() && !controller.will_start_answer(), "there is no model yet");
    engine_handle.open(ModelId::Builtin, EngineOptions::default());
    eventually("a model", || engine_handle.engine().is_some());
    assert!(controller.will_start_answer() && !controller.is_generating());
    assert!(controller.poll(&mut store).is_empty());
    assert!(controller.is_generating() && !controller.will_start_answer());
    // Returns when the answer ends.
    controller.wait_until_idle(Duration::from_secs(3600));
    assert!(controller.poll(&mut store).is_empty());
    assert!(!controller.is_generating() && !controller.is_busy());
    assert_eq!(store.branch(chat).unwrap()[1].state, MessageState::Complete);
}

/// Polls until no chat needs a title and none is being written.
fn until_named(controller: &mut ChatController, store: &mut Store) {
    until_quiet(controller, store);
    eventually("the titles", || {
        assert!(controller.poll(store).is_empty());
        controller.has_no_titles_to_write()
    });
}

/// Opens the built-in model from a file. Models from files write titles.
fn open_from_file(folder: &std::path::Path, engine_handle: &EngineHandle) {
    let path = folder.join("storyteller.gguf");
    std::fs::write(&path, builtin::file()).unwrap();
    engine_handle.open(ModelId::Path(path), EngineOptions::default());
    eventually("a model", || engine_handle.engine().is_some());
}

#[test]
fn first_answer_names_the_chat_and_a_given_title_stays() {
    const QUESTION: &str = "Tell me a story about a frog.";
    let folder = tempfile::tempdir().unwrap();
    let (mut store, mut controller, engine_handle) = controller();
    open_from_file(folder.path(), &engine_handle);
    let choices = SamplingOverrides { max_tokens: Some(24), seed: Some(7), ..SamplingOverrides::default() };
    let (named, own) = (chat(&mut store, &choices), chat(&mut store, &choices));
    controller.send_message(&mut store, named, None, QUESTION).unwrap();
    assert_eq!(store.chat(named).unwrap().title, QUESTION);
    until_quiet(&mut controller, &mut store);
    let engine = engine_handle.engine().unwrap();
    let recorded = engine.neurons().latest().map(|token| (token.index, token.session));
    let before = controller.revision();
    until_named(&mut controller, &mut store);
    let title = store.chat(named).unwrap().title;
    assert!(title != QUESTION && title.chars().any(char::is_alphanumeric), "{title:?}");
    assert!(!store.is_titled(named).unwrap() && controller.revision() > before, "the list is read again");
    assert!(title.split(' ').count() <= 12 && !title.contains('\n'), "{title:?}");
    let latest = engine.neurons().latest().map(|token| (token.index, token.session));
    assert_eq!(latest, recorded, "the map has no tokens of the title");

    controller.send_message(&mut store, own, None, QUESTION).unwrap();
    store.rename_chat(own, "Mine").unwrap();
    until_named(&mut controller, &mut store);
    assert_eq!(store.chat(own).unwrap().title, "Mine");

    // A second answer does not change the title.
    store.suggest_title(named, QUESTION).unwrap();
    let last = store.branch(named).unwrap().pop().unwrap();
    controller.send_message(&mut store, named, Some(last.id), "And then?").unwrap();
    until_named(&mut controller, &mut store);
    assert_eq!(store.chat(named).unwrap().title, QUESTION);
}

#[test]
fn title_gives_way_to_answers_and_the_built_in_model_writes_none() {
    const QUESTION: &str = "Tell me a story about a bear.";
    let folder = tempfile::tempdir().unwrap();
    let (mut store, mut controller, engine_handle) = controller();
    open_from_file(folder.path(), &engine_handle);
    let choices = SamplingOverrides { max_tokens: Some(8), seed: Some(7), ..SamplingOverrides::default() };
    let (first, second) = (chat(&mut store, &choices), chat(&mut store, &choices));
    controller.send_message(&mut store, first, None, QUESTION).unwrap();
    until_quiet(&mut controller, &mut store);
    assert!(!controller.has_no_titles_to_write(), "the question was answered before its title");
    controller.send_message(&mut store, second, None, QUESTION).unwrap();
    assert_eq!(store.chat(first).unwrap().title, QUESTION, "it gives way");
    until_named(&mut controller, &mut store);
    for chat in [first, second] {
        assert_ne!(store.chat(chat).unwrap().title, QUESTION);
    }

    controller.send_message(&mut store, first, None, QUESTION).unwrap();
    engine_handle.open(ModelId::Builtin, EngineOptions::default());
    until_named(&mut controller, &mut store);
    eventually("a model", || engine_handle.engine().is_some());
    let third = chat(&mut store, &choices);
    controller.send_message(&mut store, third, None, QUESTION).unwrap();
    until_quiet(&mut controller, &mut store);
    assert!(controller.has_no_titles_to_write());
    assert_eq!(store.chat(third).unwrap().title, QUESTION);
}

#[test]
fn map_of_an_answer_is_kept_while_it_is_written_and_its_writer_with_its_figures() {
    let (mut store, mut controller, engine_handle) = controller();
    engine_handle.open(ModelId::Builtin, EngineOptions::default());
    let chat = chat(&mut store, &SamplingOverrides { seed: Some(7), ..SamplingOverrides::default() });
    controller.send_message(&mut store, chat, None, "Tell me a story about a frog.").unwrap();
    let key = ModelId::Builtin.key();
    eventually("words", || {
        assert!(controller.poll(&mut store).is_empty());
        controller.progress(chat).is_none_or(|progress| !progress.content.is_empty())
    });
    // A restart after a crash finds the map.
    assert!(store.neuron_map(chat, &key).unwrap().is_some());
    until_quiet(&mut controller, &mut store);
    let answer = store.branch(chat).unwrap().remove(1);
    let writer = AnswerStats::from_json(answer.stats.as_deref()).and_then(|stats| stats.writer);
    assert_eq!((answer.model.as_deref(), writer), (Some("Storyteller"), Some(key)));
}

use std::path::{Path, PathBuf};

use super::*;
use crate::{
    attachment::{Document, DocumentKind, fixtures::haystack},
    chat::given::{Measure, PassageDecision, decide},
    store::{ChatId, FoundPassage, MessageId, NewMessage, StoredMessage},
};
use thermocline_host::testing::{eventually, until};

fn model(name: &str) -> ModelId {
    ModelId::Path(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/encoders").join(name))
}

/// A store with a question about a long file.
fn asked() -> (Store, ChatId, MessageId, AttachmentId) {
    let (mut store, chat) = Store::with_chat();
    let text = haystack("The walrus sings at noon.");
    let document = Document::read("long.txt".to_owned(), DocumentKind::Text, text.as_bytes()).unwrap();
    let file = store.attach(chat, &document).unwrap();
    let message = store.add_message(chat, None, &NewMessage::user("When does the walrus sing?")).unwrap();
    store.send_attachments(chat, message).unwrap();
    (store, chat, message, file)
}

/// The meaning of a question, once it is known.
fn meaning(search: &MeaningSearch, store: &mut Store, file: AttachmentId, question: &str) -> QuestionMeaning {
    until("the meaning of a question", || {
        search.poll(store).unwrap();
        Some(search.question(store, &[file], question, true)).filter(|meaning| *meaning != QuestionMeaning::Waits)
    })
}

/// The passages of `file` in the order of products of vectors that are computed here.
fn expected(store: &Store, id: &ModelId, file: AttachmentId, question: &str) -> Vec<String> {
    let embedder = Embedder::open(id).unwrap();
    let [document, query] = &embedder.before;
    let of_question = embedder.vector(query, question).unwrap();
    let closeness = |text: &str| {
        let vector = embedder.vector(document, text).unwrap();
        vector.iter().zip(&of_question).map(|(a, b)| a * b).sum::<f32>()
    };
    let mut all: Vec<(f32, String)> =
        store.attached(file).unwrap().into_iter().map(|passage| (closeness(&passage.text), passage.text)).collect();
    all.sort_by(|a, b| b.0.total_cmp(&a.0));
    all.into_iter().map(|(_, text)| text).take(3).collect()
}

fn texts(found: Option<Vec<FoundPassage>>) -> Vec<String> {
    found.unwrap().into_iter().map(|found| found.passage.text).collect()
}

#[test]
fn passages_are_ranked_by_products_of_their_vectors_which_are_computed_once() {
    for name in ["nomic-bert", "qwen3-embedding"] {
        let (mut store, _, _, file) = asked();
        let (search, id) = (MeaningSearch::new(EngineHandle::new(|| ())), model(name));
        let question = "When does the walrus sing?";
        assert_eq!(search.question(&store, &[file], question, true), QuestionMeaning::Words(PassageRanking::default()));
        search.set_model(Some(&id));
        assert_eq!(search.question(&store, &[file], question, true), QuestionMeaning::Waits);
        let late = PassageRanking { model: None, failure: Some(format!("{name} is still reading the files")) };
        assert_eq!(search.question(&store, &[file], question, false), QuestionMeaning::Words(late));
        for (question, jobs) in [(question, 2), ("A boat?", 3)] {
            let QuestionMeaning::Known { key, ranking, vector } = meaning(&search, &mut store, file, question) else {
                panic!("{name}: {:?}", search.ranking());
            };
            assert_eq!(ranking, PassageRanking { model: Some(name.to_owned()), failure: None });
            let found = store.find_passages_by_meaning(&[file], &key, &vector, 3).unwrap();
            assert_eq!(texts(found), expected(&store, &id, file, question), "{name}: {question}");
            let sent = search.state.borrow().thread.as_ref().map(|thread| thread.sent);
            assert_eq!(sent, Some(jobs), "{name}: a later question needs its own vector only");
        }
        // Another search finds the vectors in the store.
        let again = MeaningSearch::new(EngineHandle::new(|| ()));
        again.set_model(Some(&id));
        meaning(&again, &mut store, file, question);
        assert_eq!(again.state.borrow().thread.as_ref().map(|thread| thread.sent), Some(1), "{name}");
    }
}

#[test]
fn choice_of_passages_waits_for_vectors_and_records_the_ranking() {
    let (mut store, chat, message, file) = asked();
    let search = MeaningSearch::new(EngineHandle::new(|| ()));
    search.set_model(Some(&model("nomic-bert")));
    let words = |text: &str| text.split_whitespace().count();
    let decided = |store: &mut Store| {
        let branch = store.branch(chat).unwrap();
        let path: Vec<&StoredMessage> = branch.iter().collect();
        decide(store, chat, &path, "", &Measure::new(1000, "m", words).with_meaning(&search, true)).unwrap()
    };
    let waits = PassageDecision::Waits(vec![file], "When does the walrus sing?".to_owned());
    assert_eq!(decided(&mut store), waits);
    assert!(store.sources(chat).unwrap().is_empty(), "nothing is chosen yet");
    eventually("a choice", || {
        search.poll(&mut store).unwrap();
        decided(&mut store) == PassageDecision::Recorded
    });
    let given = store.sources(chat).unwrap().remove(&message).unwrap();
    let expected = expected(&store, &model("nomic-bert"), file, "When does the walrus sing?");
    assert!(given.iter().any(|source| source.passage.as_ref().is_some_and(|it| it.text == expected[0])), "{given:?}");
    assert_eq!(store.rankings(chat).unwrap()[&message].words(), "ranked by meaning with nomic-bert");
}

#[test]
fn words_rank_if_the_model_fails_and_the_reason_is_recorded() {
    let relevance = model("bert-reranker");
    let gone = ModelId::Path(PathBuf::from("/nowhere/gone.gguf"));
    for (id, why) in [(relevance, "bert-reranker failed"), (gone, "gone failed")] {
        let (mut store, chat, message, file) = asked();
        let search = MeaningSearch::new(EngineHandle::new(|| ()));
        search.set_model(Some(&id));
        for question in ["When does the walrus sing?", "A boat?"] {
            let QuestionMeaning::Words(ranking) = meaning(&search, &mut store, file, question) else {
                panic!("{id} ranked");
            };
            assert!(ranking.words().starts_with(&format!("ranked by words, because {why}")), "{ranking:?}");
        }
        let branch = store.branch(chat).unwrap();
        let path: Vec<&StoredMessage> = branch.iter().collect();
        let words = |text: &str| text.split_whitespace().count();
        eventually("a choice", || {
            search.poll(&mut store).unwrap();
            let measure = Measure::new(1000, "m", words).with_meaning(&search, true);
            decide(&mut store, chat, &path, "", &measure).unwrap() == PassageDecision::Recorded
        });
        let given = store.sources(chat).unwrap().remove(&message).unwrap();
        assert!(given[0].passage.as_ref().unwrap().text.contains("walrus"), "{given:?}");
        assert!(store.rankings(chat).unwrap()[&message].failure.as_ref().unwrap().contains(why));
        // Without an embedding model nothing has failed.
        search.set_model(None);
        assert_eq!(search.ranking(), PassageRanking::default());
    }
}

#[test]
fn texts_longer_than_the_context_are_embedded_by_their_beginning() {
    let embedder = Embedder::open(&model("bert")).unwrap();
    let long = "word ".repeat(20_000);
    let vector = embedder.vector("", &long).unwrap();
    assert!((vector.iter().map(|x| x * x).sum::<f32>() - 1.0).abs() < 1e-3, "{vector:?}");
}

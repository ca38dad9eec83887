//! A thinking budget ends the thoughts, and the answer follows as if the model had ended them.

use thermocline_engine::tokenizer::{EncodeOptions, reasoning::AnswerPart};

use super::*;

/// Returns a chat request in which the assistant has begun to think.
fn thinking(budget: Option<usize>, tokens: usize, speculation: SpeculationMode) -> Request {
    let messages = vec![Message::new(Role::User, "Hi"), Message::new(Role::Assistant, "<think>\nHm")];
    Request {
        sampling: Sampling::greedy(),
        max_tokens: Some(tokens),
        ignore_eos: true,
        thought_budget: budget,
        speculation,
        ..Request::new(Prompt::Continue(messages))
    }
}

/// Returns ids, thoughts, answer, and the number of thinking tokens.
fn parts(session: &Session, request: Request) -> (Vec<u32>, String, String, usize) {
    let (mut ids, mut thoughts, mut answer) = (Vec::new(), String::new(), String::new());
    for event in session.generate(request) {
        match event {
            Event::Token { id, text, .. } => {
                ids.push(id);
                for (part, piece) in text.pieces() {
                    if part == AnswerPart::Thinking { &mut thoughts } else { &mut answer }.push_str(piece);
                }
            }
            Event::Done { stats, .. } => return (ids, thoughts, answer, stats.thought_tokens),
            Event::Error(error) => panic!("{error}"),
            _ => {}
        }
    }
    panic!("no end")
}

#[test]
fn budget_ends_thoughts_and_the_answer_continues_from_there() {
    let engine = engine();
    let session = session_of(&engine, 256);
    let free = parts(&session, thinking(None, 40, SpeculationMode::Off));
    assert_eq!((free.2.as_str(), free.3), ("", 40), "this model never ends its thoughts itself");
    let tokenizer = engine.tokenizer();
    let ending = tokenizer.encode("\n</think>\n\n", EncodeOptions::PLAIN).unwrap();
    for budget in [0, 1, 7] {
        for speculation in [SpeculationMode::Off, SpeculationMode::Always] {
            let (ids, thoughts, answer, counted) = parts(&session, thinking(Some(budget), 40, speculation));
            assert_eq!(ids[..budget], free.0[..budget], "the thoughts are those without a budget");
            assert_eq!(ids[budget..budget + ending.len()], ending);
            assert!(!answer.is_empty() && !answer.contains("think>"), "{answer:?}");
            assert!(!thoughts.contains("think>") && counted >= budget, "{thoughts:?} {counted}");
            // The tokens behind the end of the thoughts equal those behind the same tokens as a
            // prompt.
            let chat = thinking(None, 0, speculation);
            let mut prompt = engine.prompt_tokens(chat.prompt, &chat.chat).unwrap();
            prompt.extend(&ids[..budget + ending.len()]);
            let rest = ids.len() - budget - ending.len();
            assert_eq!(generate(&session_of(&engine, 256), greedy(&prompt, rest)).ids, ids[budget + ending.len()..]);
        }
    }
}

#[test]
fn answers_without_thoughts_have_no_budget_to_spend() {
    let engine = engine();
    let session = session_of(&engine, 256);
    let chat = |budget| Request {
        thought_budget: budget,
        ..Request {
            prompt: Prompt::Chat(vec![Message::new(Role::User, "Hi")]),
            ..thinking(None, 20, SpeculationMode::Off)
        }
    };
    assert_eq!(parts(&session, chat(Some(0))), parts(&session, chat(None)));
    let ended = parts(&session, Request { max_tokens: Some(3), ..thinking(Some(2), 3, SpeculationMode::Off) });
    assert_eq!(ended.0.len(), 3, "tokens that end thoughts count, too");
}

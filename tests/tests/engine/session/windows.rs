//! Sessions of models with windows. Edits, other answers, stops and full contexts give the tokens
//! of an undisturbed session, in chats longer than the window's ring.

use super::*;

const NAMES: [&str; 3] = ["gemma3", "gpt-oss", "gemma4-e2b"];
/// Tokens of a context. Layers with a window keep 640 of them.
const CONTEXT: usize = 1500;

fn open(name: &str) -> Engine {
    Engine::open(&model(name), EngineOptions { context: Some(CONTEXT), chunk: 64, ..options() }).unwrap()
}

fn ids(n: u32) -> Vec<u32> {
    (0..n).map(|i| (i * i * 31 + i * 29 + 5) % 380).collect()
}

#[test]
fn edits_and_other_answers_in_a_long_chat_are_those_of_a_fresh_session() {
    for name in NAMES {
        let engine = open(name);
        let fresh = |prompt: &[u32]| generate(&session(&engine), greedy(prompt, 12)).ids;
        let one = session(&engine);
        let prompt = ids(900);
        let begun = generate(&one, greedy(&prompt, 12));
        assert_eq!(begun.ids, fresh(&prompt), "{name}");
        let again = generate(&one, greedy(&prompt, 12));
        assert_eq!((again.stats.reused_tokens, &again.ids), (899, &begun.ids), "{name}");
        // The edits are at positions whose window is in the ring, and at positions whose window is
        // lost.
        for (at, reused) in [(880, 880), (400, 400), (270, 256), (100, 0)] {
            let mut edited = prompt.clone();
            edited[at] = (edited[at] + 1) % 380;
            let next = generate(&one, greedy(&edited, 12));
            assert_eq!((next.stats.reused_tokens, next.ids), (reused, fresh(&edited)), "{name}: edited at {at}");
            generate(&one, greedy(&prompt, 12));
        }
    }
}

#[test]
fn stopped_and_shifted_contexts_do_not_show_in_later_answers() {
    for name in NAMES {
        let engine = open(name);
        let (prompt, wanted) = (ids(800), generate(&session(&engine), greedy(&ids(800), 8)).ids);
        let one = session_of(&engine, 900);
        for wait in [0, 2, 10, 40] {
            let events = one.generate(greedy(&prompt, 60));
            std::thread::sleep(Duration::from_millis(wait));
            one.cancel();
            answer(events).unwrap();
            assert_eq!(generate(&one, greedy(&prompt, 8)).ids, wanted, "{name}: stopped after {wait} ms");
        }
        for keep in [0, 4, 700] {
            let full = Request { on_full: ContextPolicy::Shift { keep }, ..greedy(&prompt, 160) };
            let shifted = generate(&one, full);
            assert!(shifted.ids.len() == 160 && shifted.stats.forgotten_tokens > 0, "{name}: {:?}", shifted.stats);
            assert_eq!(shifted.ids[..8], wanted, "{name}");
            assert_eq!(generate(&one, greedy(&prompt, 8)).ids, wanted, "{name}: shifted behind {keep}");
        }
    }
}

#[test]
fn branches_of_a_long_prompt_are_answered_at_once_as_alone() {
    for name in NAMES {
        let engine = open(name);
        let prompts: Vec<Vec<u32>> = (0..3).map(|n| [&ids(700)[..], &ids(20 + n)[n as usize..]].concat()).collect();
        let sessions: Vec<_> = prompts.iter().map(|_| session(&engine)).collect();
        let running: Vec<_> =
            sessions.iter().zip(&prompts).map(|(it, prompt)| it.generate(greedy(prompt, 12))).collect();
        let together: Vec<_> = running.into_iter().map(|events| answer(events).unwrap().ids).collect();
        for (prompt, got) in prompts.iter().zip(together) {
            assert_eq!(got, generate(&session(&open(name)), greedy(prompt, 12)).ids, "{name}");
        }
    }
}

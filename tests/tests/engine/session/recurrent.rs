//! Sessions of models with recurrent states. Stopping, editing and answering again give the tokens
//! of an undisturbed session, without computing the conversation from its beginning.

use thermocline_engine::{
    gpu::{AdapterChoice, GpuOptions},
    session::{DeviceChoice, DeviceStatus},
};
use thermocline_tests::golden::RECURRENT;

use super::*;

const NAMES: [&str; 6] = ["qwen3_5", "qwen3_5-moe", "nemotron-h", "nemotron-3-nano", "granite-4-h", "lfm2"];

fn open(name: &str, chunk: usize) -> Engine {
    open_on(name, chunk, DeviceChoice::Cpu)
}

fn open_on(name: &str, chunk: usize, device: DeviceChoice) -> Engine {
    Engine::open(&model(name), EngineOptions { chunk, device, ..options() }).unwrap()
}

fn gpu(budget: Option<u64>) -> DeviceChoice {
    DeviceChoice::Gpu(GpuOptions { adapter: AdapterChoice::Index(0), budget, ..GpuOptions::default() })
}

/// Returns the device bytes in use; 0 on the CPU.
fn used(engine: &Engine) -> u64 {
    match at_rest(engine) {
        DeviceStatus::Gpu(memory) => memory.accounted,
        _ => 0,
    }
}

/// Waits until nothing loads or moves. Returns the device's status.
fn at_rest(engine: &Engine) -> DeviceStatus {
    until("a device at rest", || match engine.device() {
        DeviceStatus::Loading(_) => None,
        DeviceStatus::Gpu(memory) if memory.moving => None,
        status => Some(status),
    })
}

fn ids(n: u32) -> Vec<u32> {
    (0..n).map(|i| (i * 29 + 5) % 380).collect()
}

#[test]
fn turns_edits_and_other_answers_are_those_of_a_fresh_session() {
    for name in NAMES {
        check_turns(name, &open(name, 7));
    }
}

#[test]
fn turns_edits_and_other_answers_on_a_device_are_those_of_the_reference() {
    for name in RECURRENT {
        let engine = open_on(name, 7, gpu(None));
        let whole = used(&engine);
        assert!(whole > 0, "{name}: {:?}", engine.device());
        check_turns(name, &engine);
    }
}

fn check_turns(name: &str, engine: &Engine) {
    let fresh = |prompt: &[u32]| generate(&session(engine), greedy(prompt, 12)).ids;
    let one = session(engine);
    let prompt = expected(name, "input_ids");
    let begun = generate(&one, greedy(&prompt, 12));
    assert_eq!(begun.ids, expected(name, "greedy_ids")[..12], "{name}");
    // Another answer computes only the prompt's last token.
    let again = generate(&one, greedy(&prompt, 12));
    assert_eq!((again.stats.reused_tokens, &again.ids), (prompt.len() - 1, &begun.ids), "{name}");
    // The next turn continues at the end of the answer, whose last token was not computed.
    let held = prompt.len() + 11;
    let turn = [&prompt[..], &begun.ids[..], &ids(9)[..]].concat();
    let next = generate(&one, greedy(&turn, 12));
    assert_eq!((next.stats.reused_tokens, next.ids), (held, fresh(&turn)), "{name}");
    // After an edit of the last message, computation starts at the end of the previous answer.
    let edited = [&prompt[..], &begun.ids[..], &ids(4)[..], &[7, 8, 9]].concat();
    let next = generate(&one, greedy(&edited, 12));
    assert_eq!((next.stats.reused_tokens, next.ids), (held, fresh(&edited)), "{name}");
    // After an edit of the first message, computation starts at its beginning.
    let other = [&prompt[..9], &[1, 2, 3]].concat();
    let next = generate(&one, greedy(&other, 12));
    assert_eq!((next.stats.reused_tokens, next.ids), (0, fresh(&other)), "{name}");
}

#[test]
fn long_prompt_is_not_read_again_from_its_beginning() {
    let engine = Engine::open(&model("qwen3_5"), EngineOptions { context: Some(1200), ..options() }).unwrap();
    let one = session(&engine);
    let prompt = ids(1000);
    generate(&one, greedy(&prompt, 3));
    let mut edited = prompt.clone();
    edited[800] += 1;
    let answer = generate(&one, greedy(&edited, 8));
    assert!((500..=800).contains(&answer.stats.reused_tokens), "{}", answer.stats.reused_tokens);
    assert_eq!(answer.ids, generate(&session(&engine), greedy(&edited, 8)).ids);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]

    /// A session's answer equals that of a fresh session after any history.
    #[test]
    fn past_of_recurrent_states_does_not_show(
        past in prop::collection::vec((0usize..24, 1usize..24, 0u8..4, 0u64..3000), 1..8),
    ) {
        let engine = open("qwen3_5", 5);
        let session = session_of(&engine, 40);
        let tokens = expected("qwen3_5", "input_ids");
        for (from, length, how, wait) in past {
            // A shift of the context computes the remaining tokens again, because recurrent states
            // cannot be shifted.
            disturb(&session, &tokens[from.min(length)..], length.min(30), how, wait);
        }
        prop_assert_eq!(generate(&session, greedy(&tokens, 16)).ids, expected("qwen3_5", "greedy_ids"));
    }
}

#[test]
fn budget_that_changes_while_it_talks_keeps_the_tokens() {
    for name in RECURRENT {
        let engine = open_on(name, 7, gpu(None));
        let whole = used(&engine);
        let one = session(&engine);
        let prompt = expected(name, "input_ids");
        let wanted = generate(&session(&open(name, 7)), greedy(&prompt, 40)).ids;
        let (events, mut ids) = (one.generate(greedy(&prompt, 40)), Vec::new());
        for event in events.iter() {
            let Event::Token { id, .. } = event else { continue };
            ids.push(id);
            match ids.len() {
                8 => engine.set_vram_budget(whole * 6 / 10).unwrap(),
                16 => engine.set_device(&DeviceChoice::Cpu).unwrap(),
                24 => engine.set_device(&gpu(None)).unwrap(),
                _ => {}
            }
        }
        assert_eq!(ids, wanted, "{name}");
        at_rest(&engine);
        assert_eq!(generate(&one, greedy(&prompt, 40)).ids, wanted, "{name}");
    }
}

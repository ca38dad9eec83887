//! Generated answers: tokens, text, and end.

use super::*;

#[test]
fn greedy_tokens_are_the_reference_implementations() {
    for name in ["llama-relu", "opt", "qwen3", "gemma2"] {
        let engine = Engine::open(&model(name), options()).unwrap();
        let session = session(&engine);
        let prompt = expected(name, "input_ids");
        let got = generate(&session, greedy(&prompt, 16));
        assert_eq!(got.ids, expected(name, "greedy_ids"), "{name}");
        assert_eq!(got.reason, StopReason::MaxTokens);
        assert_eq!((got.stats.prompt_tokens, got.stats.reused_tokens), (24, 0));
        assert_eq!((got.stats.generated_tokens, got.stats.decode_steps), (16, 15));
        assert_eq!(got.stats.context_used, 24 + 15);
        assert_eq!(got.prompt, [(0, 24)]);
    }
}

#[test]
fn text_is_the_decoded_ids() {
    let engine = engine();
    let prompt = expected("llama-relu", "input_ids");
    for seed in 0..8 {
        let got = generate(&session(&engine), drawn(&prompt, 60, seed));
        let mut stream = engine.tokenizer().stream();
        let mut want: String = got.ids.iter().map(|&id| stream.push(id)).collect();
        want.push_str(&stream.finish());
        assert_eq!(got.text, want);
    }
}

#[test]
fn same_seed_same_text_on_any_number_of_threads() {
    let prompt = expected("llama-relu", "input_ids");
    let texts = |threads| {
        let cpu = CpuOptions { threads: Some(threads), ..CpuOptions::default() };
        let engine = Engine::open(&model("llama-relu"), EngineOptions { cpu, ..options() }).unwrap();
        let session = session(&engine);
        [7, 7, 8].map(|seed| {
            let got = generate(&session, drawn(&prompt, 40, seed));
            assert_eq!(got.stats.seed, seed);
            got.text
        })
    };
    let want = texts(1);
    assert_eq!(want[0], want[1]);
    assert_ne!(want[0], want[2]);
    for threads in [2, 3] {
        assert_eq!(texts(threads), want, "{threads} threads");
    }
}

#[test]
fn only_new_tokens_are_computed_and_the_answer_is_the_same() {
    let engine = engine();
    let prompt = expected("llama-relu", "input_ids");
    let first = session(&engine);
    let begun = generate(&first, greedy(&prompt, 10));
    // The cache lacks the last generated token, which was not computed.
    let held = [&prompt[..], &begun.ids[..9]].concat();
    let longer = [&prompt[..], &begun.ids[..], &[5, 6, 7]].concat();
    let reused = generate(&first, greedy(&longer, 20));
    assert_eq!(reused.stats.reused_tokens, held.len());
    assert_eq!(reused.prompt, [(33, 37)]);
    // This session has its own engine, because sessions of one engine copy prefixes from each
    // other.
    let fresh = generate(&session(&self::engine()), greedy(&longer, 20));
    assert_eq!((fresh.stats.reused_tokens, &fresh.ids), (0, &reused.ids));

    // The same prompt again computes only its last token, whose logits are needed.
    let again = generate(&first, greedy(&longer, 20));
    assert_eq!((again.stats.reused_tokens, &again.ids), (36, &reused.ids));
    // This prompt branches off in the middle.
    let branched = [&prompt[..12], &[9, 10]].concat();
    let turn = generate(&first, greedy(&branched, 20));
    assert_eq!(turn.stats.reused_tokens, 12);
    assert_eq!(turn.ids, generate(&session(&self::engine()), greedy(&branched, 20)).ids);
    assert_eq!(engine.telemetry().reused_tokens, 33 + 36 + 12);
}

#[test]
fn stop_strings_end_the_text_before_themselves() {
    let engine = engine();
    let session = session(&engine);
    let prompt = expected("llama-relu", "input_ids");
    let whole = generate(&session, drawn(&prompt, 40, 3)).text;
    let characters: Vec<(usize, char)> = whole.char_indices().collect();
    let mut found = 0;
    for window in characters.windows(3) {
        let start = window[0].0;
        let stop: String = window.iter().map(|(_, character)| character).collect();
        let request = Request { stop: vec!["never there".to_owned(), stop.clone()], ..drawn(&prompt, 40, 3) };
        let got = generate(&session, request);
        let first = whole.find(&stop).unwrap();
        assert_eq!(got.text, whole[..first], "stop {stop:?} at {start}");
        assert_eq!(got.reason, StopReason::StopString(stop));
        found += 1;
    }
    assert!(found > 20, "the text is too short to test with: {whole:?}");
    let possible: String = whole.chars().last().into_iter().chain("?".chars()).collect();
    let got = generate(&session, Request { stop: vec![possible], ..drawn(&prompt, 40, 3) });
    assert_eq!(got.text, whole, "text held back must come out at the end");
}

#[test]
fn end_token_ends_unless_ignored() {
    let engine = engine();
    let session = session(&engine);
    let eos = engine.tokenizer().eos().unwrap();
    let sampling = Sampling { logit_bias: vec![(eos, 1000.0)], ..Sampling::greedy() };
    let request = |ignore_eos| Request { sampling: sampling.clone(), ignore_eos, ..greedy(&[5, 6], 4) };
    let got = generate(&session, request(false));
    assert_eq!((got.reason, got.ids.len(), got.text.as_str()), (StopReason::EndOfText, 0, ""));
    let got = generate(&session, request(true));
    assert_eq!((got.reason, got.ids), (StopReason::MaxTokens, vec![eos; 4]));
}

#[test]
fn full_context_stops_or_shifts() {
    for (name, keep) in [("llama-relu", 4), ("llama-relu", 0), ("opt", 3), ("gemma3", 31)] {
        let engine = Engine::open(&model(name), EngineOptions { context: Some(32), ..options() }).unwrap();
        let session = session(&engine);
        let prompt = &expected(name, "input_ids")[..20];
        let stopped = generate(&session, greedy(prompt, 500));
        assert_eq!(stopped.reason, StopReason::ContextFull);
        // The last token is still sent although it no longer fits.
        assert_eq!((stopped.ids.len(), stopped.stats.context_used), (13, 32));

        let shift = ContextPolicy::Shift { keep };
        let shifted = generate(&session, Request { on_full: shift, ..greedy(prompt, 150) });
        assert_eq!((shifted.reason, shifted.ids.len()), (StopReason::MaxTokens, 150), "{name}");
        assert_eq!(shifted.ids[..13], stopped.ids);
        assert!(shifted.stats.context_used <= 32);

        // After a shift, moved entries are not reused for the prompt.
        let after = generate(&session, greedy(prompt, 8));
        assert_eq!(after.ids, stopped.ids[..8]);
        assert!(after.stats.reused_tokens <= keep.min(19));
    }
}

#[test]
fn shift_with_learned_positions_equals_a_fresh_computation() {
    let engine = Engine::open(&model("opt"), EngineOptions { context: Some(16), ..options() }).unwrap();
    let prompt = &expected("opt", "input_ids")[..12];
    let shift = ContextPolicy::Shift { keep: 2 };
    let got = generate(&session(&engine), Request { on_full: shift, ..greedy(prompt, 12) });
    // Tokens 0..16 fill the context. The shift keeps 2 and the last 7, and the fifth token is
    // computed behind them.
    let all = [prompt, &got.ids].concat();
    let rest = [&all[..2], &all[9..17]].concat();
    let fresh = generate(&session(&engine), greedy(&rest, 6));
    assert_eq!(got.ids[5..11], fresh.ids);
}

#[test]
fn every_sampler_runs_on_real_logits() {
    let engine = engine();
    let session = session(&engine);
    let prompt = expected("llama-relu", "input_ids");
    let base = Sampling { seed: Some(1), temperature: 1.0, ..Sampling::default() };
    let all = Sampling {
        top_k: 0,
        typical_p: 0.9,
        repeat_penalty: 1.3,
        presence_penalty: 0.5,
        frequency_penalty: 0.2,
        penalty_last_n: usize::MAX,
        dry_multiplier: 0.8,
        logit_bias: vec![(7, 2.0), (8, f32::NEG_INFINITY)],
        ..base.clone()
    };
    for sampling in [
        base.clone(),
        Sampling { top_k: 1, ..base.clone() },
        Sampling { top_k: 0, top_p: 1.0, min_p: 0.0, ..base.clone() },
        Sampling { temperature: 1e-9, ..base.clone() },
        Sampling { temperature: 1e9, ..base },
        all,
    ] {
        let request = Request { sampling, ..greedy(&prompt, 50) };
        assert_eq!(generate(&session, request.clone()).ids, generate(&session, request).ids);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    /// A session's answer equals that of a fresh session after any history.
    #[test]
    fn answers_do_not_depend_on_earlier_requests(
        past in prop::collection::vec((0usize..24, 1usize..24, 0u8..5, 0u64..3000), 1..12),
    ) {
        let engine = Engine::open(&model("llama-relu"), EngineOptions { chunk: 7, ..options() }).unwrap();
        let session = session_of(&engine, 40);
        let tokens = expected("llama-relu", "input_ids");
        for (from, length, how, wait) in past {
            disturb(&session, &tokens[from.min(length)..], length.min(30), how, wait);
        }
        prop_assert_eq!(generate(&session, greedy(&tokens, 16)).ids, expected("llama-relu", "greedy_ids"));
    }
}

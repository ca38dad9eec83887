//! Prompts and options that are accepted or refused.

use super::*;

#[test]
fn prompts_of_any_length_have_an_answer_or_a_reason() {
    let engine = engine();
    let session = session_of(&engine, 16);
    let prompt = expected("llama-relu", "input_ids");
    let error = answer(session.generate(greedy(&prompt, 4))).unwrap_err();
    assert!(matches!(error, Error::ContextFull { wanted: 24, at_least: false, available: 16 }), "{error}");
    let full = generate(&session, greedy(&prompt[..16], 4));
    assert_eq!((full.ids.len(), full.reason), (1, StopReason::ContextFull));
    let shift = ContextPolicy::Shift { keep: 2 };
    let shortened = generate(&session, Request { on_full: shift, ..greedy(&prompt, 40) });
    assert_eq!((shortened.ids.len(), shortened.stats.prompt_tokens), (40, 9));
    let kept = [&prompt[..2], &prompt[17..]].concat();
    assert_eq!(shortened.ids[..7], generate(&session, greedy(&kept, 7)).ids);

    let tiny = session_of(&engine, 1);
    let shift = ContextPolicy::Shift { keep: 0 };
    assert_eq!(generate(&tiny, Request { on_full: shift, ..greedy(&prompt, 9) }).ids.len(), 9);
    let error = answer(tiny.generate(Request { on_full: ContextPolicy::Shift { keep: 1 }, ..greedy(&[3], 2) }));
    assert!(matches!(error.unwrap_err(), Error::Invalid { what: "keep", .. }));
}

#[test]
fn empty_prompt_begins_with_bos() {
    let engine = engine();
    let bos = engine.tokenizer().bos().unwrap();
    let want = generate(&session(&engine), greedy(&[bos], 8));
    for prompt in [Prompt::Tokens(Vec::new()), Prompt::Text(String::new())] {
        let got = generate(&session(&engine), Request { prompt, ..greedy(&[], 8) });
        assert_eq!((got.stats.prompt_tokens, &got.ids), (1, &want.ids));
    }
}

#[test]
fn text_and_chats_are_prompts_too() {
    let engine = engine();
    let session = session(&engine);
    let text = "Grüße, 世界 👋🏽\u{0}\n";
    let tokens = engine.tokenizer().encode(text, thermocline_engine::tokenizer::EncodeOptions::CHAT).unwrap();
    let got = generate(&session, Request { prompt: Prompt::Text(text.to_owned()), ..greedy(&[], 8) });
    assert_eq!(got.ids, generate(&session, greedy(&tokens, 8)).ids);
    let message = |role, content: &str| Message::new(role, content);
    let mut chat = vec![message(Role::User, "Hello")];
    let first = generate(&session, Request { prompt: Prompt::Chat(chat.clone()), ..greedy(&[], 4) });
    chat.extend([message(Role::Assistant, &first.text), message(Role::User, "More")]);
    let second = generate(&session, Request { prompt: Prompt::Chat(chat), ..greedy(&[], 4) });
    assert!(second.stats.prompt_tokens > first.stats.prompt_tokens);
    assert!(second.stats.reused_tokens > 0, "the beginning of the chat is the same");
}

#[test]
fn bad_requests_are_refused_and_the_session_goes_on() {
    let engine = engine();
    let session = session(&engine);
    let prompt = expected("llama-relu", "input_ids");
    let good = greedy(&prompt, 16);
    let sampling = |change: fn(&mut Sampling)| {
        let mut sampling = Sampling::greedy();
        change(&mut sampling);
        Request { sampling, ..good.clone() }
    };
    for (bad, what) in [
        (sampling(|s| s.temperature = f32::NAN), "temperature"),
        (sampling(|s| s.top_p = -0.5), "top_p"),
        (sampling(|s| s.logit_bias = vec![(384, 1.0)]), "logit_bias"),
        (Request { stop: vec![String::new()], ..good.clone() }, "stop"),
        (greedy(&[1, 384], 3), "prompt"),
        (greedy(&[u32::MAX], 3), "prompt"),
        (Request { on_full: ContextPolicy::Shift { keep: usize::MAX }, ..good.clone() }, "keep"),
    ] {
        match answer(session.generate(bad)) {
            Err(Error::Invalid { what: got, .. }) => assert_eq!(got, what),
            other => panic!("{what}: {other:?}"),
        }
        assert_eq!(generate(&session, good.clone()).ids, expected("llama-relu", "greedy_ids"));
    }
    let banned = sampling(|s| s.logit_bias = (0..384).map(|id| (id, f32::NEG_INFINITY)).collect());
    let error = answer(session.generate(banned)).unwrap_err();
    assert!(matches!(error, Error::Invalid { what: "logits", .. }), "{error}");
    assert_eq!(generate(&session, Request { max_tokens: Some(0), ..good.clone() }).ids.len(), 0);
    assert_eq!(generate(&session, good).ids, expected("llama-relu", "greedy_ids"));
}

#[test]
fn long_prompt_reports_its_progress_in_chunks() {
    let engine = Engine::open(&model("llama-relu"), EngineOptions { chunk: 10, ..options() }).unwrap();
    let prompt = expected("llama-relu", "input_ids");
    let got = generate(&session(&engine), greedy(&prompt, 16));
    assert_eq!(got.prompt, [(0, 24), (10, 24), (20, 24)]);
    assert_eq!(got.ids, expected("llama-relu", "greedy_ids"));
}

#[test]
fn invalid_engine_options_are_refused() {
    let open = |name, options| Engine::open(&model(name), options);
    assert_eq!(engine().context(), 256);
    let long = open("llama-relu", EngineOptions { context: Some(1000), ..options() }).unwrap();
    assert_eq!(session(&long).context(), 1000);
    for (name, options, what) in [
        ("llama-relu", EngineOptions { context: Some(0), ..options() }, "context"),
        ("opt", EngineOptions { context: Some(100_000), ..options() }, "context"),
        ("llama-relu", EngineOptions { chunk: 0, ..options() }, "chunk"),
    ] {
        assert!(matches!(open(name, options), Err(Error::Invalid { what: got, .. }) if got == what));
    }
    let error = long.session(SessionOptions { context: Some(usize::MAX), ..SessionOptions::default() }).unwrap_err();
    assert!(matches!(error, Error::Memory { .. }), "{error}");
    assert!(matches!(open("not there", options()), Err(Error::Io { .. })));
}

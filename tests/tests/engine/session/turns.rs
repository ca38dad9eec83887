//! Several requests, sessions and threads: cancelling, waiting, dropping.

use super::*;

#[test]
fn cancelling_takes_at_most_one_token() {
    let engine = engine();
    let session = session(&engine);
    let prompt = expected("llama-relu", "input_ids");
    let endless = Request { on_full: ContextPolicy::Shift { keep: 4 }, max_tokens: None, ..greedy(&prompt, 0) };
    for _ in 0..20 {
        let events = session.generate(endless.clone());
        let start = engine.telemetry().generated_tokens;
        eventually("tokens", || engine.telemetry().generated_tokens > start + 3);
        session.cancel();
        let then = engine.telemetry().generated_tokens;
        let got = answer(events).unwrap();
        assert_eq!(got.reason, StopReason::Cancelled);
        assert_eq!(got.stats.generated_tokens, got.ids.len());
        assert!(engine.telemetry().generated_tokens <= then + 1);
    }
    // The cancellation does not affect the request after it, and the cache matches its tokens.
    assert_eq!(generate(&session, greedy(&prompt, 16)).ids, expected("llama-relu", "greedy_ids"));
}

#[test]
fn cancelling_reaches_requests_that_wait() {
    let engine = engine();
    let session = session(&engine);
    let prompt = expected("llama-relu", "input_ids");
    let endless = Request { on_full: ContextPolicy::Shift { keep: 0 }, max_tokens: None, ..greedy(&prompt, 0) };
    let events: Vec<_> = (0..3).map(|_| session.generate(endless.clone())).collect();
    session.cancel();
    for events in events {
        assert_eq!(answer(events).unwrap().reason, StopReason::Cancelled);
    }
    eventually("nothing running", || engine.telemetry().generations == 0);
}

#[test]
fn requests_of_a_session_wait_for_each_other() {
    let engine = engine();
    let session = session(&engine);
    let prompt = expected("llama-relu", "input_ids");
    let first = session.generate(greedy(&prompt, 16));
    let second = session.generate(greedy(&prompt, 8));
    let (first, second) = (answer(first).unwrap(), answer(second).unwrap());
    assert_eq!(first.ids, expected("llama-relu", "greedy_ids"));
    assert_eq!(second.ids, first.ids[..8]);
    assert_eq!(second.stats.reused_tokens, 23);
}

#[test]
fn sessions_that_take_turns_do_not_disturb_each_other() {
    let engine = Engine::open(&model("llama-relu"), EngineOptions { chunk: 5, ..options() }).unwrap();
    let prompt = expected("llama-relu", "input_ids");
    let requests: Vec<Request> = (0..4).map(|n| drawn(&prompt[n as usize..], 60, n)).collect();
    let alone: Vec<Vec<u32>> =
        requests.iter().map(|request| generate(&session(&engine), request.clone()).ids).collect();
    let sessions: Vec<Session> = requests.iter().map(|_| session(&engine)).collect();
    let events: Vec<_> = sessions.iter().zip(&requests).map(|(it, request)| it.generate(request.clone())).collect();
    let together: Vec<Vec<u32>> = events.into_iter().map(|events| answer(events).unwrap().ids).collect();
    assert_eq!(together, alone);
}

#[test]
fn short_request_completes_beside_an_endless_one() {
    let engine = engine();
    let (long, short) = (session(&engine), session(&engine));
    let prompt = expected("llama-relu", "input_ids");
    let endless = Request { on_full: ContextPolicy::Shift { keep: 4 }, max_tokens: None, ..greedy(&prompt, 0) };
    let events = long.generate(endless);
    assert_eq!(generate(&short, greedy(&prompt, 16)).ids, expected("llama-relu", "greedy_ids"));
    long.cancel();
    assert_eq!(answer(events).unwrap().reason, StopReason::Cancelled);
}

#[test]
fn dropped_receiver_or_session_frees_its_memory() {
    let engine = engine();
    let prompt = expected("llama-relu", "input_ids");
    let endless = Request { on_full: ContextPolicy::Shift { keep: 4 }, max_tokens: None, ..greedy(&prompt, 0) };
    assert_eq!(engine.memory().kv, 0);

    let first = session(&engine);
    let events = first.generate(endless.clone());
    assert!(matches!(events.recv().unwrap(), Event::Prompt { .. }));
    drop(events);
    eventually("the end of a generation without a receiver", || engine.telemetry().generations == 0);
    assert_eq!(generate(&first, greedy(&prompt, 16)).ids, expected("llama-relu", "greedy_ids"));
    let memory = engine.memory();
    assert!(memory.kv > 0 && memory.scratch > 0 && memory.weights > 0, "{memory:?}");

    let events = first.generate(endless.clone());
    drop(first);
    assert_eq!(answer(events).unwrap().reason, StopReason::Cancelled);
    eventually("the session's end", || engine.telemetry().sessions == 0 && engine.memory().kv == 0);

    // The engine ends with its last handle, which the session holds here.
    let last = session(&engine);
    let model = std::sync::Arc::downgrade(engine.model());
    drop(engine);
    let events = last.generate(endless);
    drop(last);
    assert_eq!(answer(events).unwrap().reason, StopReason::Cancelled);
    assert!(model.upgrade().is_none(), "the model outlived the engine");
}

#[test]
fn concurrent_requests_cancels_and_drops_end() {
    let engine = engine();
    let prompt = expected("llama-relu", "input_ids");
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let (engine, prompt) = (engine.clone(), &prompt);
            scope.spawn(move || {
                let shift = ContextPolicy::Shift { keep: thread as usize };
                for round in 0..15 {
                    let session = session_of(&engine, 48);
                    let request = Request { on_full: shift, ..drawn(prompt, 5 + 20 * (round % 3), thread) };
                    let events: Vec<_> = (0..3).map(|_| session.generate(request.clone())).collect();
                    match (thread + round as u64) % 4 {
                        0 => session.cancel(),
                        1 => std::thread::scope(|scope| drop(scope.spawn(|| session.cancel()))),
                        2 => drop(session),
                        _ => assert_eq!(session.context(), 48),
                    }
                    for events in events {
                        let got = answer(events).unwrap();
                        assert!(matches!(got.reason, StopReason::MaxTokens | StopReason::Cancelled));
                    }
                }
            });
        }
    });
    eventually("all sessions gone", || engine.telemetry().sessions == 0);
    assert_eq!((engine.telemetry().generations, engine.memory().kv), (0, 0));
    assert_eq!(generate(&session(&engine), greedy(&prompt, 16)).ids, expected("llama-relu", "greedy_ids"));
}

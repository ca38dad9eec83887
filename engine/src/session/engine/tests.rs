use super::*;
use crate::session::{Event, Prompt, Request};

fn engine() -> Engine {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models/llama-relu");
    Engine::open(&path, EngineOptions::default()).unwrap()
}

#[test]
fn handles_are_send_and_sync() {
    fn shared<T: Send + Sync>() {}
    shared::<Engine>();
    shared::<Session>();
}

#[test]
fn panic_of_the_engine_thread_ends_every_request_with_an_error() {
    let engine = engine();
    let (idle, busy) =
        (engine.session(SessionOptions::default()).unwrap(), engine.session(SessionOptions::default()).unwrap());
    let request = Request { ignore_eos: true, ..Request::new(Prompt::Tokens(vec![5, 6, 7])) };
    engine.break_down();
    let ends = [busy.generate(request.clone()), busy.generate(request.clone()), idle.generate(request.clone())];
    for events in ends {
        let end = events.iter().last();
        assert!(matches!(&end, Some(Event::Error(Error::Stopped(why))) if why.contains("asked to")), "{end:?}");
    }
    assert!(engine.stopped().is_some_and(|why| why.to_string().contains("asked to")));
    assert!(matches!(engine.session(SessionOptions::default()), Err(Error::Stopped(_))));
    let end = idle.generate(request).iter().last();
    assert!(matches!(end, Some(Event::Error(Error::Stopped(_)))));
    assert_eq!(engine.telemetry().generations, 0);
}

#[test]
fn panic_of_the_engine_thread_ends_running_and_waiting_requests() {
    let engine = engine();
    let session = engine.session(SessionOptions::default()).unwrap();
    let on_full = crate::session::ContextPolicy::Shift { keep: 0 };
    let endless = Request { ignore_eos: true, on_full, ..Request::new(Prompt::Tokens(vec![5, 6, 7])) };
    let events = [session.generate(endless.clone()), session.generate(endless)];
    while engine.telemetry().generated_tokens == 0 {
        std::thread::yield_now();
    }
    engine.break_down();
    for events in events {
        let end = events.iter().last();
        assert!(matches!(&end, Some(Event::Error(Error::Stopped(why))) if why.contains("asked to")), "{end:?}");
    }
}

#[test]
fn request_that_is_not_recorded_leaves_no_trace_and_counts_its_reads() {
    let engine = engine();
    let session = engine.session(SessionOptions::default()).unwrap();
    let latest = |recorded| {
        let prompt = Prompt::Tokens(vec![5, 6, 7]);
        let request = Request { recorded, ignore_eos: true, max_tokens: Some(4), ..Request::new(prompt) };
        let end = session.generate(request).iter().last();
        let Some(Event::Done { stats, .. }) = end else { panic!("{end:?}") };
        assert!(stats.ffn.tokens > 0 && stats.ffn.dense_bytes > 0, "{stats:?}");
        engine.neurons().latest().map(|token| token.index)
    };
    let recorded = latest(true);
    assert!(recorded.is_some());
    let counted = engine.neurons().tally(0);
    let speed = engine.observed_rate();
    assert_eq!(latest(false), recorded);
    assert_eq!((engine.neurons().tally(0), engine.observed_rate()), (counted, speed));
    assert!(latest(true) > recorded);
}

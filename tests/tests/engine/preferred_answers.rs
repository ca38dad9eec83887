//! Answers of sessions whose routers prefer resident experts. With a seed, an answer keeps the
//! experts that were resident at its beginning.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::{path::Path, sync::mpsc::Receiver};

use thermocline_engine::{
    cpu::CpuOptions,
    gpu::{AdapterChoice, GpuOptions},
    runtime::{KvType, RoutePreference},
    session::{
        DeviceChoice, DeviceStatus, Engine, EngineOptions, Event, Prompt, Request, Sampling, Session, SessionOptions,
        SpeculationMode,
    },
};
use thermocline_tests::wait::{LONGEST, until_given_up};

const MODEL: &str = "fixtures/models/mixtral";
/// A model with a draft head.
const DRAFTING: &str = "fixtures/models/qwen3_5-moe-mtp";
const STRONG: RoutePreference = RoutePreference { near: 0.3, drop: 1.2, frozen: false };
/// Bytes with room for the whole model.
const ALL: u64 = 32 << 20;

fn open(model: &str, budget: u64, routes: RoutePreference) -> Engine {
    let gpu = GpuOptions { adapter: AdapterChoice::Index(0), budget: Some(budget), ..GpuOptions::default() };
    // More workers than idle cores would make a tiny model slow.
    let cpu = CpuOptions { threads: Some(1), ..CpuOptions::default() };
    let (device, kv_type) = (DeviceChoice::Gpu(gpu), KvType::F32);
    let options = EngineOptions { cpu, device, kv_type, routes, ..EngineOptions::default() };
    let engine = Engine::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join(model), options).unwrap();
    rest(&engine, budget);
    engine
}

/// Waits until nothing moves any more under `budget`.
#[track_caller]
fn rest(engine: &Engine, budget: u64) {
    let rests = || matches!(engine.device(), DeviceStatus::Gpu(of) if of.budget == Some(budget) && !of.moving);
    let found = until_given_up(|| rests().then_some(()));
    assert!(found.is_some(), "not within {LONGEST:?}: {:?}", engine.device());
}

/// Number of resident experts in all layers.
fn resident(engine: &Engine) -> usize {
    let resident = engine.resident().unwrap();
    (0..resident.hot.len()).map(|layer| resident.count(layer)).sum()
}

/// A budget that holds about half of the experts.
fn half(model: &str) -> u64 {
    let engine = open(model, ALL, RoutePreference::OFF);
    let (all, experts) = match engine.device() {
        DeviceStatus::Gpu(memory) => (memory.accounted, resident(&engine)),
        status => panic!("{status:?}"),
    };
    let budgets = (0..100).rev().map(|percent| all * percent / 100);
    let found = budgets.into_iter().find(|budget| {
        engine.set_vram_budget(*budget).unwrap();
        rest(&engine, *budget);
        resident(&engine) <= experts / 2
    });
    found.unwrap()
}

fn session(engine: &Engine) -> Session {
    engine.session(SessionOptions::default()).unwrap()
}

/// A request whose prompt repeats the same eight tokens.
fn request(seed: Option<u64>, first: u32) -> Request {
    let sampling = Sampling { seed, ..Sampling::greedy() };
    let prompt = (0..32).map(|at| first + at % 8).collect();
    let (max_tokens, speculation) = (Some(80), SpeculationMode::Off);
    Request { sampling, max_tokens, speculation, ignore_eos: true, ..Request::new(Prompt::Tokens(prompt)) }
}

/// Calls `each` with the number of tokens so far whenever a token arrives. Returns all tokens, and
/// the number of tokens that were drafted.
fn listen(events: &Receiver<Event>, mut each: impl FnMut(usize)) -> (Vec<u32>, usize) {
    let mut ids = Vec::new();
    loop {
        match events.recv_timeout(LONGEST) {
            Ok(Event::Token { id, .. }) => {
                ids.push(id);
                each(ids.len());
            }
            Ok(Event::Prompt { .. } | Event::Stats(_) | Event::Device(_)) => {}
            Ok(Event::Done { stats, .. }) => return (ids, stats.drafted_tokens()),
            end => panic!("{end:?} after {ids:?}"),
        }
    }
}

fn answer(engine: &Engine, request: Request) -> Vec<u32> {
    listen(&session(engine).generate(request), |_| ()).0
}

/// Neither a new budget nor the text moves experts during an answer with a seed. The budget follows
/// at its end.
#[test]
fn seeded_answers_keep_their_experts_under_changing_budgets() {
    let half = half(MODEL);
    let want = answer(&open(MODEL, half, STRONG), request(Some(1), 20));
    assert_ne!(
        want,
        answer(&open(MODEL, half, RoutePreference::OFF), request(Some(1), 20)),
        "the preference has no effect"
    );
    assert_ne!(want, answer(&open(MODEL, ALL, STRONG), request(Some(1), 20)), "the resident experts have no effect");
    for beside in [false, true] {
        let engine = open(MODEL, half, STRONG);
        engine.set_adaptive(true).unwrap();
        let held = resident(&engine);
        let (one, other) = (session(&engine), session(&engine));
        // An answer without a seed does not end the hold.
        let seeded = one.generate(request(Some(1), 20));
        let events = beside.then(|| other.generate(request(None, 40)));
        let (ids, _) = listen(&seeded, |tokens| {
            // The engine may be ahead of this thread.
            assert!(tokens > 40 || resident(&engine) == held, "{tokens}");
            if tokens.is_multiple_of(5) && tokens < 80 {
                engine.set_vram_budget([half, half * 9 / 10, half / 2, ALL][tokens / 5 % 4]).unwrap();
            }
        });
        assert_eq!(ids, want, "beside another answer: {beside}");
        if let Some(events) = events {
            listen(&events, |_| ());
        }
        rest(&engine, ALL);
        assert!(resident(&engine) > held);
    }
}

/// Drafts do not change an answer with a seed.
#[test]
fn seeded_answers_are_the_same_with_drafts() {
    let half = half(DRAFTING);
    let requests = [request(Some(1), 20), request(Some(2), 36), request(Some(3), 50)];
    let alone = requests.clone().map(|request| answer(&open(DRAFTING, half, STRONG), request));
    let mut drafted = 0;
    for (request, want) in requests.iter().zip(&alone) {
        let engine = open(DRAFTING, half, STRONG);
        let eager = Request { speculation: SpeculationMode::default(), drafts: Some(8), ..request.clone() };
        let (ids, drafts) = listen(&session(&engine).generate(eager), |_| ());
        assert_eq!(ids, *want, "with drafts");
        drafted += drafts;
    }
    assert!(drafted > 0, "no drafts");
}

use std::{path::Path, sync::Arc, time::Duration};

use super::*;
use crate::session::{
    EngineOptions, Event, Prompt, Request, Sampling, SessionOptions, planner,
    step_times::{LayerStepTimes, StepTimes},
};
use thermocline_model::{LoadOptions, Model};
use thermocline_run::{
    placement::{GpuUse, Machine, PlacementSolver, PlanInputs},
    runtime::{KvType, Sparsity},
};

fn fixture() -> Model {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models/llama-relu");
    Model::open(&path, &LoadOptions::default()).unwrap()
}

fn fixture_planner() -> PlacementSolver {
    let machine = Arc::new(Machine::typical());
    let inputs = PlanInputs { chunk: 16, machine, ..PlanInputs::new(Sparsity::Exact, 64, KvType::F16) };
    planner(&fixture(), None, inputs).unwrap()
}

fn token(layers: usize, times: LayerStepTimes, total: u64) -> TimedToken {
    let times = StepTimes { layers: vec![times; layers], head: Duration::from_micros(500) };
    TimedToken { times, total: Duration::from_micros(total) }
}

#[track_caller]
fn near(a: f64, b: f64) {
    assert!((a - b).abs() < 1e-12, "{a} is not {b}");
}

#[test]
fn measured_parts_add_up_to_the_tokens_time_on_either_side() {
    let planner = fixture_planner();
    let us = Duration::from_micros;
    let on_cpu = planner.on_cpu();
    let layers = on_cpu.layers.len();
    let times = LayerStepTimes { mixer: us(100), ffn: us(300), device: us(0), cold: us(280) };
    let measured = MeasuredTime::of(&[token(layers, times, 4000), token(layers, times, 6000)], &on_cpu).unwrap();
    near(measured.time.total(), 5e-3);
    near(measured.time.attention, layers as f64 * 1e-4);
    near(measured.time.cold, layers as f64 * 3e-4);
    near(measured.time.head, 5e-4);
    assert!((measured.tokens, measured.has_device_times, measured.time.hot) == (2, true, 0.0));
    assert_eq!(MeasuredTime::of(&[], &on_cpu), None);

    // On a device the device's clock counts, and the slower side gets the FFN's time.
    let whole = planner.plan(2 * planner.everything(), GpuUse::Always).unwrap();
    for (cold, hot_counts) in [(us(0), true), (us(1000), false)] {
        let times = LayerStepTimes { mixer: us(5), ffn: us(400), device: us(200), cold };
        let measured = MeasuredTime::of(&[token(layers, times, 9000)], &whole).unwrap();
        near(measured.time.total(), 9e-3);
        assert_eq!((measured.time.hot > 0.0, measured.time.cold > 0.0), (hot_counts, !hot_counts));
        assert!(measured.time.attention > 0.0 && measured.time.waiting > 0.0, "{measured:?}");
    }
    let silent = LayerStepTimes { ffn: us(400), ..LayerStepTimes::default() };
    assert!(!MeasuredTime::of(&[token(layers, silent, 9000)], &whole).unwrap().has_device_times);
    // Timed tokens take longer than untimed ones.
    let timed = MeasuredTime::of(&[token(layers, times, 4000)], &on_cpu).unwrap();
    let scaled = timed.scaled_to(Some(500.0));
    near(scaled.time.total(), 2e-3);
    near(scaled.time.attention, timed.time.attention / 2.0);
    near(scaled.timed_seconds, 4e-3);
    assert_eq!((timed.scaled_to(Some(100.0)), timed.scaled_to(None)), (timed, timed), "they took no longer");
    // A device clock may report more time than the token took.
    let much = LayerStepTimes { device: us(1 << 30), ..LayerStepTimes::default() };
    near(MeasuredTime::of(&[token(layers, much, 9000)], &whole).unwrap().time.total(), 9e-3);
}

#[test]
fn answer_has_a_breakdown_whose_largest_part_is_one_that_computes() {
    let options = EngineOptions { machine: Some(Machine::typical()), ..EngineOptions::default() };
    let engine = Engine::from_model(fixture(), options).unwrap();
    let before = engine.breakdown().unwrap();
    assert!(before.measured.is_none() && !before.on_device);
    let planned = before.planned.unwrap();
    assert!((planned.hot, planned.waiting) == (0.0, 0.0) && planned.total() > 0.0, "{planned:?}");

    let started = std::time::Instant::now();
    let session = engine.session(SessionOptions::default()).unwrap();
    let request = Request {
        sampling: Sampling::greedy(),
        max_tokens: Some(48),
        ignore_eos: true,
        speculation: crate::session::SpeculationMode::Off,
        ..Request::new(Prompt::Tokens(vec![1, 2, 3]))
    };
    let tokens = session.generate(request).into_iter().filter(|event| matches!(event, Event::Token { .. })).count();
    assert!(tokens > 0);
    let measured = engine.breakdown().unwrap().measured.unwrap();
    let time = measured.time;
    assert!(measured.tokens >= 1 && measured.has_device_times, "{measured:?}");
    assert!(time.attention > 0.0 && time.cold > 0.0 && time.head > 0.0 && time.hot == 0.0, "{time:?}");
    assert!(time.waiting >= 0.0 && time.total() < started.elapsed().as_secs_f64() / 2.0, "{time:?}");
}

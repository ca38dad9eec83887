//! Time of forecasts during an answer.

use std::{
    path::Path,
    sync::mpsc::TryRecvError,
    time::{Duration, Instant},
};

use thermocline_engine::{
    cpu::CpuOptions,
    gpu::{AdapterChoice, GpuOptions},
    runtime::Sparsity,
    session::{DeviceChoice, Engine, EngineOptions, Event, Prompt, Request, Sampling, SessionOptions, SparsityChoice},
};
use thermocline_tests::wait;

use super::alone;

const MIB: u64 = 1 << 20;

#[test]
fn forecast_does_not_wait_for_a_running_answer() {
    let _alone = alone();
    let gpu = GpuOptions { adapter: AdapterChoice::Index(0), budget: Some(8 * MIB), ..GpuOptions::default() };
    let options = EngineOptions {
        context: Some(128),
        cpu: CpuOptions { threads: Some(1), ..CpuOptions::default() },
        chunk: 16,
        device: DeviceChoice::Gpu(gpu),
        sparsity: SparsityChoice::Mode(Sparsity::Predicted),
        ..EngineOptions::default()
    };
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/storyteller/storyteller-F16.gguf");
    let engine = Engine::open(&path, options).unwrap();
    engine.wait_for_device(wait::LONGEST);
    let session = engine.session(SessionOptions::default()).unwrap();
    let request = Request {
        sampling: Sampling::greedy(),
        max_tokens: Some(60),
        ignore_eos: true,
        ..Request::new(Prompt::Text("Once".to_owned()))
    };
    let (mut times, mut tokens, mut first) = (Vec::<Duration>::new(), 0, None);
    let events = session.generate(request);
    let end = loop {
        match events.try_recv() {
            Ok(Event::Token { .. }) => {
                first.get_or_insert_with(Instant::now);
                tokens += 1;
            }
            Ok(end @ (Event::Done { .. } | Event::Error(_))) => break end,
            Ok(_) => {}
            Err(TryRecvError::Empty) => {
                let began = Instant::now();
                engine.forecast(MIB * (4 + times.len() as u64 % 20)).unwrap();
                times.push(began.elapsed());
            }
            Err(error) => panic!("{error}"),
        }
    };
    assert!(matches!(end, Event::Done { .. }) && tokens == 60, "{end:?} after {tokens} tokens");
    let token = first.unwrap().elapsed() / (tokens - 1);
    times.sort_unstable();
    let middle = times[times.len() / 2];
    println!("{} forecasts, {middle:?} in the middle, while a token took {token:?}", times.len());
    assert!(times.len() > 60 && middle < token / 3, "{} forecasts of {middle:?} during {token:?}", times.len());
}

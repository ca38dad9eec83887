//! How much slower the built-in model writes on the CPU while its neurons are recorded, as the
//! window records them:
//! `cargo run --release --example recording_cost`. The ways of watching take turns, so that
//! whatever else the machine does
//! meets all of them alike.

use std::{error::Error, thread, time::Duration};

use thermocline_engine::{
    session::{DeviceChoice, EngineOptions, Event, Prompt, Request, Sampling, SessionOptions},
    telemetry::neurons::Watch,
};
use thermocline_host::{
    engine_handle::{EngineHandle, ModelState},
    library::ModelId,
};

/// Answers in each way, and tokens of each.
const ROUNDS: usize = 30;
const TOKENS: usize = 200;

const WAYS: [(Watch, &str); 3] =
    [(Watch::Off, "not recorded"), (Watch::Firing, "who fires"), (Watch::Strength, "and how strongly")];

fn main() -> Result<(), Box<dyn Error>> {
    let engine_handle = EngineHandle::new(|| ());
    engine_handle.open(ModelId::Builtin, EngineOptions { device: DeviceChoice::Cpu, ..EngineOptions::default() });
    let engine = loop {
        match engine_handle.state() {
            ModelState::Ready { engine, .. } => break engine,
            ModelState::Failed { reason, .. } => return Err(reason.to_string().into()),
            _ => thread::sleep(Duration::from_millis(2)),
        }
    };
    // Tokens per second of each answer.
    let mut rates = [const { Vec::new() }; 3];
    for round in 0..=ROUNDS {
        for ((watch, _), rates) in WAYS.iter().zip(&mut rates) {
            engine.neurons().set_watch(*watch);
            let session = engine.session(SessionOptions::default())?;
            let request = Request {
                sampling: Sampling::greedy(),
                max_tokens: Some(TOKENS),
                ignore_eos: true,
                ..Request::new(Prompt::Text("Once upon a time".to_owned()))
            };
            for event in session.generate(request) {
                match event {
                    // The first round warms everything up.
                    Event::Done { stats, .. } if round > 0 => {
                        rates.push(stats.decode_steps as f64 / stats.decode_time.as_secs_f64());
                    }
                    Event::Error(error) => return Err(error.into()),
                    _ => {}
                }
            }
        }
    }
    let median = |rates: &mut Vec<f64>| {
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    };
    let without = median(&mut rates[0]);
    println!("Medians of {ROUNDS} answers of {TOKENS} tokens:");
    for ((watch, name), rates) in WAYS.iter().zip(&mut rates) {
        let rate = median(rates);
        let spent = engine.neurons().pace(*watch).map_or(0.0, |pace| pace.recording * 1e6);
        println!("{name:<17} {rate:8.1} tokens/s  {:.3} of the speed without  {spent:.1} µs a token", rate / without);
    }
    Ok(())
}

//! A side answer, generated outside the chats: by the open model in another mode, with another VRAM
//! budget, or with some of its neurons switched off. The calling thread waits for it.

use std::{
    ops::ControlFlow,
    thread,
    time::{Duration, Instant},
};

use thermocline_engine::{
    Error, GpuFailure, Result,
    model::NeuronIndex,
    session::{
        DeviceChoice, DeviceStatus, Engine, EngineOptions, Event, Prompt, Request, SessionOptions, SparsityChoice,
    },
};

/// Time between two checks whether weights have stopped moving.
const PAUSE: Duration = Duration::from_millis(10);

/// Largest number of tokens, and longest time, of a warm-up.
const WARM_UP_TOKENS: usize = 64;
const WARM_UP_TIME: Duration = Duration::from_millis(500);

/// The model that generates the answer.
#[derive(Debug, Clone, PartialEq)]
pub enum SideModel {
    /// A copy of the open model on the CPU with these neurons switched off.
    Without(Vec<NeuronIndex>),
    /// The open model on its device, in this mode. The mode stays set.
    Mode(SparsityChoice),
    /// The open model on its device, with this VRAM budget in bytes. The budget stays set.
    Budget(u64),
}

/// Answers `request` with `model`; `engine` holds the open model. The neurons are not recorded.
/// Calls `told` with every event, and with `None` while the model is being prepared.
/// `ControlFlow::Break` ends the answer.
///
/// # Errors
/// The engine's error.
pub fn write_side(
    engine: &Engine,
    model: &SideModel,
    request: Request,
    told: &mut dyn FnMut(Option<&Event>) -> ControlFlow<()>,
) -> Result<()> {
    let request = Request { recorded: false, ..request };
    match model {
        SideModel::Without(neurons) => return generate(&without(engine, neurons, &request)?, request, told),
        SideModel::Mode(choice) => engine.set_sparsity(*choice)?,
        SideModel::Budget(bytes) => {
            if settle(engine, *bytes, told)?.is_break() {
                return Ok(());
            }
        }
    }
    match warm_up(engine, told)? {
        ControlFlow::Break(()) => Ok(()),
        ControlFlow::Continue(()) => generate(engine, request, told),
    }
}

/// A request for `tokens` tokens whose text is ignored.
fn unread(engine: &Engine, tokens: usize) -> Request {
    let prompt = Prompt::Tokens(vec![engine.tokenizer().bos().unwrap_or(0)]);
    Request { max_tokens: Some(tokens), ignore_eos: true, recorded: false, ..Request::new(prompt) }
}

/// Generates a few tokens. Otherwise the measured speed would include the first use of weights and
/// memory in this mode or budget.
fn warm_up(engine: &Engine, told: &mut dyn FnMut(Option<&Event>) -> ControlFlow<()>) -> Result<ControlFlow<()>> {
    let (began, mut wanted) = (Instant::now(), ControlFlow::Continue(()));
    generate(engine, unread(engine, WARM_UP_TOKENS), &mut |_| {
        wanted = told(None);
        if began.elapsed() >= WARM_UP_TIME { ControlFlow::Break(()) } else { wanted }
    })?;
    Ok(wanted)
}

/// Sets a budget of `bytes` and waits until all weights that fit are in VRAM. Before that, the
/// measured speed would not be the speed of this budget.
fn settle(
    engine: &Engine,
    bytes: u64,
    told: &mut dyn FnMut(Option<&Event>) -> ControlFlow<()>,
) -> Result<ControlFlow<()>> {
    engine.set_vram_budget(bytes)?;
    // The engine applies earlier changes of settings before a request. After the answer, its device
    // status reflects them.
    generate(engine, unread(engine, 1), &mut |_| told(None))?;
    while told(None).is_continue() {
        match engine.device() {
            DeviceStatus::Loading(_) => {}
            DeviceStatus::Gpu(memory) if memory.moving || memory.budget != Some(bytes) => {}
            DeviceStatus::Gpu(_) | DeviceStatus::Cpu { .. } => return Ok(ControlFlow::Continue(())),
            DeviceStatus::Lost { adapter, reason } => {
                return Err(Error::Gpu { adapter, reason, failure: GpuFailure::Lost });
            }
        }
        if let Some(now) = engine.vram_budget().filter(|now| *now != bytes) {
            return Err(Error::invalid("VRAM budget during the race", bytes.to_string(), now));
        }
        thread::sleep(PAUSE);
    }
    Ok(ControlFlow::Break(()))
}

/// An engine for the model without `neurons`, on the workers of `engine`, with a context for this
/// request alone. It counts no firings and adapts nothing. With pictures, the context is as large
/// as the context of `engine`, because the size of a picture depends on it.
fn without(engine: &Engine, neurons: &[NeuronIndex], request: &Request) -> Result<Engine> {
    let prompt = engine.prompt_tokens(request.prompt.clone(), &request.chat)?.len();
    let wanted = prompt.saturating_add(request.max_tokens.unwrap_or(usize::MAX)).saturating_add(1);
    let sees = request.prompt.pictures().next().is_some();
    let options = EngineOptions {
        context: Some(if sees { engine.context() } else { wanted.min(engine.context()) }),
        mmproj: engine.tower().filter(|_| sees).map(|tower| tower.checkpoint.path.clone()),
        kv_type: engine.kv_type(),
        device: DeviceChoice::Cpu,
        sparsity: engine.sparsity().asked,
        adaptive: Some(false),
        ..EngineOptions::default()
    };
    engine.beside(engine.model().without_neurons(neurons)?, options)
}

fn generate(engine: &Engine, request: Request, told: &mut dyn FnMut(Option<&Event>) -> ControlFlow<()>) -> Result<()> {
    let session = engine.session(SessionOptions::default())?;
    for event in session.generate(request) {
        if told(Some(&event)).is_break() {
            break;
        }
        if let Event::Error(error) = event {
            return Err(error);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use thermocline_engine::cpu::{CpuOptions, InputPrecision, Isa};

    use super::*;
    use thermocline_host::library::ModelId;

    #[test]
    fn model_without_neurons_is_computed_by_the_engines_workers_as_the_engine_computes() {
        let cpu = CpuOptions { threads: Some(1), isa: Some(Isa::Scalar), activations: InputPrecision::Int8 };
        let options = EngineOptions {
            cpu,
            device: DeviceChoice::Cpu,
            sparsity: SparsityChoice::Auto,
            ..EngineOptions::default()
        };
        let engine = Engine::from_model(ModelId::Builtin.open(&Default::default()).unwrap(), options).unwrap();
        let request = unread(&engine, 8);
        let side = without(&engine, &[NeuronIndex { layer: 0, neuron: 0 }], &request).unwrap();
        let (own, theirs) = (engine.cpu().unwrap(), side.cpu().unwrap());
        assert!(Arc::ptr_eq(&own.workers(), &theirs.workers()), "the side has threads of its own");
        assert_eq!((theirs.isa(), theirs.activations()), (Isa::Scalar, InputPrecision::Int8));
        // Both answers are computed at the same time.
        let mut written = [0; 2];
        thread::scope(|scope| {
            for (engine, written) in [&engine, &side].into_iter().zip(&mut written) {
                let request = unread(engine, 8);
                scope.spawn(move || {
                    generate(engine, request, &mut |event| {
                        *written += usize::from(matches!(event, Some(Event::Token { .. })));
                        ControlFlow::Continue(())
                    })
                    .unwrap();
                });
            }
        });
        assert!(written.iter().all(|tokens| *tokens > 0), "{written:?}");
    }
}

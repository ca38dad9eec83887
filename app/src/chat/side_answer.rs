//! An answer that is written beside the chats, by the open model in another mode, with another VRAM budget, or with some of its neurons
//! switched off. The caller's thread waits for it.

use std::{ops::ControlFlow, thread, time::Duration};

use thermocline_engine::{
    Error, GpuFailure, Result,
    model::NeuronIndex,
    session::{
        DeviceChoice, DeviceStatus, Engine, EngineOptions, Event, Prompt, Request, SessionOptions, SparsityChoice,
    },
};

/// Pause between two looks at weights that move.
const PAUSE: Duration = Duration::from_millis(10);

/// The model that writes the answer.
#[derive(Debug, Clone, PartialEq)]
pub enum SideModel {
    /// The open model's weights with these neurons switched off, on the CPU.
    Without(Vec<NeuronIndex>),
    /// The open model where it is, in this mode, which it keeps.
    Mode(SparsityChoice),
    /// The open model where it is, with this most bytes of device memory, which it keeps.
    Budget(u64),
}

/// Has `request` answered by `model`, with `engine` for the open one. `told` gets every event, and `None` while the model is being
/// made ready; a break of it is the end.
///
/// # Errors
/// The engine's error.
pub fn write_side(
    engine: &Engine,
    model: &SideModel,
    request: Request,
    told: &mut dyn FnMut(Option<&Event>) -> ControlFlow<()>,
) -> Result<()> {
    match model {
        SideModel::Without(neurons) => generate(&without(engine, neurons, &request)?, request, told),
        SideModel::Mode(choice) => {
            engine.set_sparsity(*choice)?;
            generate(engine, request, told)
        }
        SideModel::Budget(bytes) => match settle(engine, *bytes, told)? {
            ControlFlow::Break(()) => Ok(()),
            ControlFlow::Continue(()) => generate(engine, request, told),
        },
    }
}

/// Gives the engine a budget of `bytes` and waits until it holds all that allows: before that its speed is not that of the budget.
fn settle(
    engine: &Engine,
    bytes: u64,
    told: &mut dyn FnMut(Option<&Event>) -> ControlFlow<()>,
) -> Result<ControlFlow<()>> {
    engine.set_vram_budget(bytes)?;
    // A request is computed with the settings that were changed before it: once it is answered, the device's status is theirs.
    let token = engine.tokenizer().bos().unwrap_or(0);
    let request = Request { max_tokens: Some(1), records_neurons: false, ..Request::new(Prompt::Tokens(vec![token])) };
    generate(engine, request, &mut |_| told(None))?;
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

/// An engine of its own for the model without `neurons`, with room for the request alone: it counts and learns nothing.
fn without(engine: &Engine, neurons: &[NeuronIndex], request: &Request) -> Result<Engine> {
    let prompt = engine.prompt_tokens(request.prompt.clone(), &request.chat)?.len();
    let wanted = prompt.saturating_add(request.max_tokens.unwrap_or(usize::MAX)).saturating_add(1);
    let options = EngineOptions {
        context: Some(wanted.min(engine.context())),
        kv_type: engine.kv_type(),
        device: DeviceChoice::Cpu,
        sparsity: engine.sparsity().asked,
        adaptive: Some(false),
        ..EngineOptions::default()
    };
    Engine::from_model(engine.model().without_neurons(neurons)?, options)
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

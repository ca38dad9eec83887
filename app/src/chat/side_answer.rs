//! An answer that is written beside the chats, by the open model in another mode or with some of its neurons switched off. The
//! caller's thread waits for it.

use std::ops::ControlFlow;

use thermocline_engine::{
    Result,
    model::NeuronIndex,
    session::{DeviceChoice, Engine, EngineOptions, Event, Request, SessionOptions, SparsityChoice},
};

/// The model that writes the answer.
#[derive(Debug, Clone, PartialEq)]
pub enum SideModel {
    /// The open model's weights with these neurons switched off, on the CPU.
    Without(Vec<NeuronIndex>),
    /// The open model where it is, in this mode, which it keeps.
    Mode(SparsityChoice),
}

/// Has `request` answered by `model`, with `engine` for the open one. `told` gets every event, and ends the answer by a break.
///
/// # Errors
/// The engine's error.
pub fn write_side(
    engine: &Engine,
    model: &SideModel,
    request: Request,
    told: &mut dyn FnMut(&Event) -> ControlFlow<()>,
) -> Result<()> {
    match model {
        SideModel::Without(neurons) => generate(&without(engine, neurons, &request)?, request, told),
        SideModel::Mode(choice) => {
            engine.set_sparsity(*choice)?;
            generate(engine, request, told)
        }
    }
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

fn generate(engine: &Engine, request: Request, told: &mut dyn FnMut(&Event) -> ControlFlow<()>) -> Result<()> {
    let session = engine.session(SessionOptions::default())?;
    for event in session.generate(request) {
        if told(&event).is_break() {
            break;
        }
        if let Event::Error(error) = event {
            return Err(error);
        }
    }
    Ok(())
}

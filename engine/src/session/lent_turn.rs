//! The engine's turn, lent to another thread: what it computes then has the engine's workers to itself.

use std::sync::mpsc::{self, Receiver, Sender};

use super::{Engine, request::stopped_error, worker::EngineCommand};
use thermocline_base::error::Result;
use thermocline_cpu::Cpu;

/// A turn that the engine's thread gives away.
#[derive(Debug)]
pub(super) struct TurnLoan {
    /// Told when the turn begins.
    begun: Sender<()>,
    /// Closed when the turn ends.
    ends: Receiver<()>,
}

impl TurnLoan {
    /// Waits for the end of the turn, on the engine's thread.
    pub fn wait(self) {
        if self.begun.send(()).is_ok() {
            // Nothing is sent: the other end is dropped, after a panic too.
            let _ = self.ends.recv();
        }
    }
}

/// The engine's turn while this lives: no session computes. Dropping it gives the turn back.
#[derive(Debug)]
pub struct LentTurn {
    /// Dropped before the engine, whose thread waits for it.
    done: Option<Sender<()>>,
    engine: Engine,
}

impl LentTurn {
    /// Gives the turn back and waits for the next one, so that sessions compute in between. Not to be called by the engine's own
    /// thread.
    ///
    /// # Errors
    /// [`Engine::stopped`]
    pub fn pass_on(&mut self) -> Result<()> {
        self.done = None;
        let (begun, begins) = mpsc::channel();
        let (done, ends) = mpsc::channel();
        self.engine.command(EngineCommand::Lend(TurnLoan { begun, ends }))?;
        begins.recv().map_err(|_| stopped_error(self.engine.stop_cell()))?;
        self.done = Some(done);
        Ok(())
    }
}

impl Engine {
    /// The engine's turn, once it has it to give. Its holder computes on [`Engine::cpu`].
    ///
    /// # Errors
    /// [`Engine::stopped`]
    pub fn borrow_turn(&self) -> Result<LentTurn> {
        let mut turn = LentTurn { engine: self.clone(), done: None };
        turn.pass_on()?;
        Ok(turn)
    }

    /// The engine's CPU: its workers, instruction set and precision.
    ///
    /// # Errors
    /// As [`Cpu::with_workers`].
    pub fn cpu(&self) -> Result<Cpu> {
        self.state().device.load.open_cpu()
    }
}

//! Lends the engine's turn to another thread, which then has the engine's workers to itself.

use std::sync::mpsc::{self, Receiver, Sender};

use super::{Engine, request::stopped_error, worker::EngineCommand};
use thermocline_base::error::Result;
use thermocline_cpu::Cpu;

/// A turn that the engine's thread lends.
#[derive(Debug)]
pub(super) struct TurnLoan {
    /// Receives a message when the turn begins.
    begun: Sender<()>,
    /// Disconnects when the turn ends.
    ends: Receiver<()>,
}

impl TurnLoan {
    /// Waits for the end of the turn, on the engine's thread.
    pub fn wait(self) {
        if self.begun.send(()).is_ok() {
            // No message is sent: the other end is dropped, even after a panic.
            let _ = self.ends.recv();
        }
    }
}

/// The engine's turn while this value lives; no session computes meanwhile. Dropping it gives the
/// turn back.
#[derive(Debug)]
pub struct LentTurn {
    /// Declared before the engine to be dropped first, because the engine's thread waits for it.
    done: Option<Sender<()>>,
    engine: Engine,
}

impl LentTurn {
    /// Gives the turn back and waits for the next one, so that sessions compute in between. The
    /// engine's own thread must not call it.
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
    /// Waits for the engine's turn and borrows it. The borrower computes on [`Engine::cpu`].
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

//! The level of input sparsity, an option of commands that compute.

use clap::Args;
use thermocline_engine::{model::Model, runtime::Sparsity};

use crate::failure::{Failure, Outcome};
use thermocline_host::{memory, units};

/// Level of input sparsity.
#[derive(Debug, Clone, Copy, Default, Args)]
#[command(next_help_heading = "Sparsity")]
pub struct LevelArgs {
    /// With --sparsity threshold, skip this fraction of the layers' weights: the weights whose
    /// inputs are small. This changes answers; `thermocline prepare` finds the thresholds and shows
    /// the cost of 0.25, 0.4 and 0.5. With predicted or exact, skip this fraction of attention's
    /// weights
    #[arg(long, value_name = "FRACTION")]
    pub level: Option<f32>,
}

impl LevelArgs {
    /// Sets the level of `model`, which will compute in `mode`.
    ///
    /// # Errors
    /// The mode skips nothing, the RAM is too small for the copies, or an error of
    /// [`Model::skip_inputs`].
    pub fn choose(self, model: &mut Model, mode: Sparsity) -> Outcome {
        self.check(&[mode])?;
        let Some(level) = self.level else { return Ok(()) };
        let copies = model.skip_inputs(level)?;
        memory::check(copies.bytes).map_err(|free| {
            let (wanted, free) = (units::bytes(copies.bytes), units::bytes(free));
            Failure::usage(format!("--level: expected {wanted} of RAM for the transposed weights, got {free}"))
        })
    }

    /// Checks that at least one of `modes` skips inputs, if a level is given.
    pub fn check(self, modes: &[Sparsity]) -> Outcome {
        match self.level {
            Some(_) if modes.iter().all(|mode| *mode == Sparsity::Dense) => Err(Failure::usage(
                "--level: expected --sparsity threshold, predicted or exact, got a mode that skips nothing",
            )),
            _ => Ok(()),
        }
    }
}

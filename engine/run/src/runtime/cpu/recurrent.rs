//! Recurrent mixers on the CPU. Each kind of mixer has an arm, and a file of its name.

mod delta_net;
mod mamba2;
mod mixer_task;
mod short_conv;

use delta_net::delta_net;
use mamba2::mamba2;
use mixer_task::MixerScratch;
pub(super) use mixer_task::{MixerTask, RowsState};
use short_conv::short_conv;

use thermocline_base::error::Result;
use thermocline_cpu::ops::{DeltaNetScratch, Mamba2Scratch};
use thermocline_model::BoundMixer;

/// Scratch memory of recurrent mixers.
#[derive(Debug, Default)]
pub(crate) struct RecurrentMixer {
    scratch: MixerScratch,
    delta_net: DeltaNetScratch,
    mamba2: Mamba2Scratch,
}

impl RecurrentMixer {
    /// Computes a mixer.
    pub fn run(&mut self, mixer: BoundMixer<'_>, task: MixerTask<'_, '_>) -> Result<()> {
        let scratch = &mut self.scratch;
        match mixer {
            BoundMixer::DeltaNet(config, weights) => delta_net(task, config, weights, scratch, &mut self.delta_net),
            BoundMixer::Mamba2(config, weights) => mamba2(task, config, weights, scratch, &mut self.mamba2),
            BoundMixer::ShortConv(_, weights) => short_conv(task, weights, scratch),
        }
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.scratch.bytes() + self.delta_net.bytes() + self.mamba2.bytes()
    }
}

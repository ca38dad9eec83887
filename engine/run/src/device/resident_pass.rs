//! The device's part of a layer's FFN in one pass, if the CPU computes the rest.

use super::{
    firing_log::{FiringEntry, FiringLog},
    registers::Registers,
    segment::Segment,
};
use thermocline_base::error::Result;
use thermocline_gpu::Buffer;
use thermocline_model::Register;

/// The resident units of a layer's FFN in one pass. The methods are called in the order of this
/// trait. While the device computes, the CPU computes the cold units from the data handed over. Its
/// partial sum is then added to the device's.
pub(crate) trait ResidentPass {
    /// Data that the CPU needs besides the FFN's input: buffers, offsets and lengths.
    fn handed_over<'s>(&'s self, registers: &'s Registers) -> Vec<(&'s Buffer, u64, u64)>;

    /// Records the units' partial sums, and their masks if `observed`.
    ///
    /// # Errors
    /// [`Error::Gpu`](thermocline_base::error::Error::Gpu) if the device is lost.
    fn record(&mut self, segment: &mut Segment, observed: bool) -> Result<()>;

    /// True if [`ResidentPass::record`] records anything.
    fn computes(&self) -> bool;

    /// Place of the CPU's partial sum.
    fn sum_place<'s>(&'s mut self, registers: &'s Registers) -> SumPlace<'s>;

    /// Records `Out =` the sum of all partial sums, including the CPU's if it was `added`. If the
    /// pass is observed, `entry` goes to the log.
    ///
    /// # Errors
    /// [`Error::Gpu`](thermocline_base::error::Error::Gpu) if the device is lost.
    fn finish(self, segment: &mut Segment, log: &mut FiringLog, added: bool, entry: Option<FiringEntry>) -> Result<()>;
}

/// A place in a buffer for a partial sum, `[tokens, row]` f32.
#[derive(Debug)]
pub(crate) struct SumPlace<'a> {
    pub buffer: &'a Buffer,
    /// Byte offset.
    pub offset: u64,
    /// Floats between the starts of consecutive tokens' sums.
    pub row: usize,
}

impl<'a> SumPlace<'a> {
    /// The register `Out`.
    pub fn out(registers: &'a Registers) -> Self {
        SumPlace { buffer: registers.get(Register::Out), offset: 0, row: registers.pitch }
    }
}

/// An FFN of which the device computes nothing, in one pass of `tokens` tokens.
#[derive(Debug)]
pub(crate) struct NothingResident {
    pub tokens: usize,
}

impl ResidentPass for NothingResident {
    /// The residual stream.
    fn handed_over<'s>(&'s self, registers: &'s Registers) -> Vec<(&'s Buffer, u64, u64)> {
        vec![(registers.get(Register::Residual), 0, self.tokens as u64 * registers.row_bytes())]
    }

    fn record(&mut self, _: &mut Segment, _: bool) -> Result<()> {
        Ok(())
    }

    fn computes(&self) -> bool {
        false
    }

    fn sum_place<'s>(&'s mut self, registers: &'s Registers) -> SumPlace<'s> {
        SumPlace::out(registers)
    }

    fn finish(self, _: &mut Segment, log: &mut FiringLog, _: bool, entry: Option<FiringEntry>) -> Result<()> {
        log.entries.extend(entry);
        Ok(())
    }
}

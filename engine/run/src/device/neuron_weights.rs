//! The weights of neurons that can be resident one by one.

use thermocline_shaders::{WeightType, limits::NO_NEURON};

use super::{GpuLoader, neuron_rows::most_rows};
use thermocline_base::error::{Error, Result};
use thermocline_formats::format::Matrix;
use thermocline_model::{Activation, ActivationForm, Down, Ffn, FfnWeights, LayerWeights, Linear};

/// Granularity of slots, chosen so that a block's hidden activations are aligned for a binding on
/// every device.
pub(crate) const SLOT_MULTIPLE: usize = 64;

/// The three matrices of an FFN in which every neuron is a row, so that neurons can be resident one
/// by one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NeuronWeights<'a> {
    pub gate: Option<&'a Linear>,
    pub up: &'a Linear,
    /// Neuron-major.
    pub down: &'a Linear,
    /// As [`FfnWeights::limit`].
    pub limit: Option<f32>,
    /// As [`FfnWeights::gate_scales`].
    pub gate_scales: Option<&'a [f32]>,
}

impl<'a> NeuronWeights<'a> {
    /// Returns `None` if some matrix is not stored by neuron, or if gate and up do not fit one
    /// matrix.
    pub fn of(ffn: &'a FfnWeights) -> Option<Self> {
        let Down::Neurons(down) = &ffn.down else { return None };
        let ty = |linear: &Linear| linear.weight.ty().device_type();
        let alike = ffn.gate.as_ref().is_none_or(|gate| ty(gate) == ty(&ffn.up));
        let (limit, gate_scales) = (ffn.limit, ffn.gate_scales.as_deref());
        alike.then_some(NeuronWeights { gate: ffn.gate.as_ref(), up: &ffn.up, down, limit, gate_scales })
    }

    /// Number of neurons in the layer.
    pub fn neurons(&self) -> usize {
        self.up.weight.rows()
    }

    /// The form of hidden values in a model with this activation.
    pub fn form(&self, activation: Activation) -> ActivationForm {
        ActivationForm { activation, limit: self.limit }
    }

    /// Rows per neuron before the activation: gate and up, or up alone.
    pub fn rows(&self) -> usize {
        1 + usize::from(self.gate.is_some())
    }

    /// Weight types on the device, of gate and up and of down.
    pub fn types(&self) -> (WeightType, WeightType) {
        (self.up.weight.ty().device_type(), self.down.weight.ty().device_type())
    }

    /// Row `at` of the interleaved gate and up rows of `neurons`: its matrix, and the row in that
    /// matrix. `None` for an empty slot.
    pub fn gate_up(&self, neurons: &[u32], at: usize) -> Option<(&'a Matrix, usize)> {
        let neuron = neurons[at / self.rows()];
        let linear = self.gate.filter(|_| at.is_multiple_of(2)).unwrap_or(self.up);
        (neuron != NO_NEURON).then_some((&linear.weight, neuron as usize))
    }

    /// Row `at` of the down rows of `neurons`: its matrix, and the row in that matrix. `None` for
    /// an empty slot.
    pub fn down(&self, neurons: &[u32], at: usize) -> Option<(&'a Matrix, usize)> {
        let neuron = neurons[at];
        (neuron != NO_NEURON).then_some((&self.down.weight, neuron as usize))
    }

    /// Biases of gate and up of `neurons`, interleaved like the rows; `None` if there are no
    /// biases.
    pub fn biases(&self, neurons: &[u32]) -> Option<Vec<f32>> {
        let linears = [self.gate, Some(self.up)].into_iter().flatten();
        if linears.clone().all(|linear| linear.bias.is_none()) {
            return None;
        }
        let bias = |linear: &Linear, neuron: u32| {
            let bias = linear.bias.as_ref().and_then(|bias| bias.get(neuron as usize));
            bias.copied().unwrap_or(0.0)
        };
        Some(neurons.iter().flat_map(|neuron| linears.clone().map(|linear| bias(linear, *neuron))).collect())
    }

    /// Scales of the gates of `neurons`; `None` if there are no scales.
    pub fn scales(&self, neurons: &[u32]) -> Option<Vec<f32>> {
        let scale = |scales: &[f32], neuron: u32| scales.get(neuron as usize).copied().unwrap_or(1.0);
        self.gate_scales.map(|scales| neurons.iter().map(|neuron| scale(scales, *neuron)).collect())
    }

    /// Bytes per neuron in the file.
    pub fn bytes(&self) -> u64 {
        let linears = [self.gate, Some(self.up), Some(self.down)].into_iter().flatten();
        linears.map(|linear| linear.weight.row_bytes() as u64).sum()
    }

    /// Most slots of a block, limited by one binding per matrix.
    pub fn most_slots(&self, loader: &GpuLoader<'_, '_>) -> usize {
        let (gate_up, down) = self.types();
        let pairs = most_rows(loader.gpu, gate_up, self.up.weight.cols(), self.rows() * SLOT_MULTIPLE) / self.rows();
        pairs.min(most_rows(loader.gpu, down, self.down.weight.cols(), SLOT_MULTIPLE))
    }

    /// True if neurons of a layer's FFN can be resident one by one.
    pub fn places_neurons(layer: &LayerWeights) -> bool {
        matches!(&layer.ffn, Ffn::Dense(ffn) if NeuronWeights::of(ffn).is_some()) && !layer.couples_neurons()
    }

    /// Returns the matrices of an FFN whose neurons are to be resident one by one.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if its neurons cannot be resident one by one.
    pub fn of_ffn(ffn: &'a Ffn) -> Result<Self> {
        let weights = match ffn {
            Ffn::Dense(ffn) => NeuronWeights::of(ffn),
            Ffn::Experts(_) | Ffn::None => None,
        };
        weights.ok_or_else(|| {
            Error::unsupported(
                "part of an FFN on the GPU",
                "experts, or an output-major down projection",
                "a neuron-major down projection, and gate and up of one type",
            )
        })
    }
}

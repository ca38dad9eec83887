//! The matrices of an MoE layer's experts in their device layout.

use thermocline_shaders::{WeightType, limits::ROUTE_EXPERTS};

use super::product::Product;
use thermocline_base::error::{Error, Result};
use thermocline_formats::format::Matrix;
use thermocline_gpu::{Caps, Gpu, MatrixLayout};
use thermocline_model::{ExpertWeights, Linear};

/// A matrix of an expert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ExpertMatrix {
    Gate,
    Up,
    Down,
}

impl ExpertMatrix {
    /// The matrix of `expert`. `None` if the expert has no such matrix, or only a neuron-major down
    /// projection.
    fn of(self, weights: &ExpertWeights, expert: usize) -> Option<&Linear> {
        match self {
            ExpertMatrix::Gate => weights.experts.get(expert)?.gate.as_ref(),
            ExpertMatrix::Up => Some(&weights.experts.get(expert)?.up),
            ExpertMatrix::Down => weights.output_major(expert),
        }
    }
}

/// One product of all experts, with the matrices stacked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stack<'a> {
    weights: &'a ExpertWeights,
    matrices: &'static [ExpertMatrix],
    ty: WeightType,
    /// Rows of an expert.
    pub rows: usize,
    pub cols: usize,
}

impl<'a> Stack<'a> {
    /// Returns `None` if the matrices differ in type or columns, or the experts in rows.
    fn new(weights: &'a ExpertWeights, matrices: &'static [ExpertMatrix]) -> Option<Self> {
        let first = &matrices.first()?.of(weights, 0)?.weight;
        let rows_of = |expert| {
            let rows = matrices.iter().map(|matrix| Some(matrix.of(weights, expert)?.weight.rows()));
            rows.sum::<Option<usize>>()
        };
        let (ty, rows, cols) = (first.ty().device_type(), rows_of(0)?, first.cols());
        let stack = Stack { weights, matrices, ty, rows, cols };
        let alike = |linear: &Linear| linear.weight.ty().device_type() == ty && linear.weight.cols() == cols;
        let all = (0..weights.experts.len()).all(|at| rows_of(at) == Some(rows) && stack.linears(at).all(alike));
        all.then_some(stack)
    }

    /// The matrices of one expert, in the order of their rows.
    fn linears(&self, expert: usize) -> impl Iterator<Item = &'a Linear> + use<'a> {
        let Stack { weights, matrices, .. } = *self;
        matrices.iter().filter_map(move |matrix| matrix.of(weights, expert))
    }

    /// Returns the matrix of row `at` of an expert, and the row within that matrix.
    pub fn row(&self, expert: usize, mut at: usize) -> Option<(&'a Matrix, usize)> {
        for linear in self.linears(expert) {
            if at < linear.weight.rows() {
                return Some((&linear.weight, at));
            }
            at -= linear.weight.rows();
        }
        None
    }

    /// True if some matrix has a bias.
    pub fn has_bias(&self) -> bool {
        (0..self.weights.experts.len()).any(|expert| self.linears(expert).any(|linear| linear.bias.is_some()))
    }

    /// The biases of one expert, with zeros for matrices without a bias.
    pub fn bias(&self, expert: usize) -> Vec<f32> {
        let linears: Vec<&Linear> = self.linears(expert).collect();
        let mut bias = Product::stacked_bias(&linears).unwrap_or_default();
        bias.resize(self.rows, 0.0);
        bias
    }

    /// The layout of `count` experts on a device. An expert is never split.
    pub fn layout(&self, count: usize) -> MatrixLayout {
        MatrixLayout { ty: self.ty, rows: count * self.rows, cols: self.cols, rows_together: self.rows }
    }

    /// Bytes of an expert on a device.
    pub fn bytes(&self) -> u64 {
        (self.rows * self.ty.device_row_bytes(self.cols)) as u64
    }
}

/// The matrices of an MoE layer's experts in their device layout: gates and ups in one or two
/// stacks, then downs.
#[derive(Debug)]
pub(crate) struct ExpertMatrices<'a> {
    weights: &'a ExpertWeights,
    pub stacks: Vec<Stack<'a>>,
}

impl<'a> ExpertMatrices<'a> {
    /// Returns `None` if experts cannot be resident one by one. That is so if only some have gates,
    /// if an expert has only a neuron-major down projection, or if shapes or types differ. It is
    /// also so if there are more experts than the device can route.
    pub fn of(caps: &Caps, weights: &'a ExpertWeights) -> Option<Self> {
        let most = caps.max_binding.min(caps.max_buffer).min(1 << 31);
        Self::within(weights, most.saturating_sub(caps.binding_alignment.max(16)))
    }

    /// True if [`ExpertMatrices::of`] returns matrices on a device without limits.
    pub fn exist(weights: &'a ExpertWeights) -> bool {
        Self::within(weights, u64::MAX).is_some()
    }

    /// Returns the matrices of experts in bindings of at most `most` bytes.
    fn within(weights: &'a ExpertWeights, most: u64) -> Option<Self> {
        use ExpertMatrix::{Down, Gate, Up};
        let gated = weights.gated();
        let alike = weights.experts.iter().all(|expert| expert.gate.is_some() == gated);
        if !alike || weights.experts.len() > ROUTE_EXPERTS as usize {
            return None;
        }
        let together = Stack::new(weights, if gated { &[Gate, Up] } else { &[Up] });
        let mut stacks = match together.filter(|stack| stack.bytes() <= most) {
            Some(together) => vec![together],
            None if gated => vec![Stack::new(weights, &[Gate])?, Stack::new(weights, &[Up])?],
            None => vec![Stack::new(weights, &[Up])?],
        };
        stacks.push(Stack::new(weights, &[Down])?);
        Some(ExpertMatrices { weights, stacks })
    }

    /// Number of experts.
    pub fn count(&self) -> usize {
        self.weights.experts.len()
    }

    /// Rows of an expert's stacks.
    pub fn rows(&self) -> usize {
        self.stacks.iter().map(|stack| stack.rows).sum()
    }
}

/// Returns the matrices of experts that are to be resident one by one.
///
/// # Errors
/// [`Error::Unsupported`] if the experts cannot be resident one by one.
pub(crate) fn expert_matrices<'a>(gpu: &Gpu, weights: &'a ExpertWeights) -> Result<ExpertMatrices<'a>> {
    ExpertMatrices::of(gpu.caps(), weights).ok_or_else(|| {
        Error::unsupported(
            "experts on the GPU",
            format!("{} experts of different shapes or types", weights.experts.len()),
            format!(
                "up to {ROUTE_EXPERTS} experts of one shape and type, all or none with gates, with output-major down \
                 projections"
            ),
        )
    })
}

//! Interface of recurrent mixers, through which their layer is loaded, counted and placed
//! regardless of their kind.

use std::fmt::Debug;

use smallvec::SmallVec;

use super::{Linear, StateShape};
use thermocline_cpu::ops::ShortConv;

/// Sizes of a recurrent mixer.
pub trait MixerConfig: Debug {
    /// Returns the mixer's name in messages.
    fn name(&self) -> &'static str;

    /// Returns the shape of the mixer's state.
    fn state(&self) -> StateShape;
}

/// Weights of a recurrent mixer.
pub trait MixerWeights: Debug {
    /// Returns the matrices that read the mixer's input, in the order of a row of projections: the
    /// convolution's channels first.
    fn inputs(&self) -> SmallVec<[&Linear; 4]>;

    /// Returns the short convolution, if the mixer has one.
    fn conv(&self) -> Option<&ShortConv>;

    /// Returns the vectors, without the biases of matrices and of the convolution.
    fn vectors(&self) -> SmallVec<[&[f32]; 4]>;

    /// Returns the output matrix, `[d, outputs]`.
    fn output(&self) -> &Linear;
}

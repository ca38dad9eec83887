//! Interface of a recurrent mixer: the facts by which its layer is loaded, counted and placed without knowing its kind.

use std::fmt::Debug;

use smallvec::SmallVec;

use super::{Linear, StateShape};
use thermocline_cpu::ops::ShortConv;

/// Sizes of a recurrent mixer.
pub trait MixerConfig: Debug {
    /// Its name in messages.
    fn name(&self) -> &'static str;

    /// Shape of its state.
    fn state(&self) -> StateShape;
}

/// Weights of a recurrent mixer.
pub trait MixerWeights: Debug {
    /// The matrices that read its input, in the order of a row of projections: the convolution's channels first.
    fn inputs(&self) -> SmallVec<[&Linear; 4]>;

    /// Its short convolution, if it has one.
    fn conv(&self) -> Option<&ShortConv>;

    /// Its vectors but for biases of matrices and the convolution.
    fn vectors(&self) -> SmallVec<[&[f32]; 4]>;

    /// The matrix behind all else, `[d, outputs]`.
    fn output(&self) -> &Linear;
}

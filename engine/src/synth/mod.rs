//! Synthetic models: random weights at published shapes whose neurons fire as those of trained ReLU models do, so that
//! speed, placement and prediction can be measured without downloading anything.
//!
//! One channel of the residual stream (`plan`) is the same for every token and nothing writes to it. Through that
//! channel every neuron gets its own bias, chosen so that it fires with a given probability; the probabilities follow a
//! power law (`firing`). Firing rows are sums of a few shared directions plus noise (`neurons`), so a small predictor
//! can see most of what they will do; the predictor that goes into the file is built from those directions, its cut per
//! neuron set for a given recall. Rows are made and quantised on all threads (`parallel`) and go to disk as they are
//! made; sampled tokens are run through the quantised rows on the way (`sample`) to say what the file really does.
//!
//! A mixture's experts are such FFNs, each with a power law of its own, and experts are chosen by a flatter one (`choice`), again
//! through the constant channel. Predictors guess the neurons of FFNs that every token passes through: mixtures have none.
//!
//! Everything is a function of the seed: each row has its own random stream (`random`), so the number of threads does
//! not matter.

mod choice;
mod firing;
mod generate;
mod metadata;
mod neurons;
mod options;
mod parallel;
mod plan;
pub(crate) mod random;
mod report;
mod sample;
mod shape;

pub use generate::generate;
pub use options::SynthOptions;
pub use report::{Firing, Progress, SynthReport};
pub use shape::{Family, Mixture, Shape, shapes};

#[cfg(test)]
mod tests;

//! Products that skip small inputs ([`SkippedInputs`]).

use smallvec::SmallVec;

use super::{TokenInputs, WHAT};
use crate::runtime::scratch::grow;
use thermocline_base::error::Result;
use thermocline_cpu::{Cpu, FEW_TOKENS, InputsJob, MatmulJob};
use thermocline_model::{InputSite, SkippedInputs};

/// Observation of inputs for calibrating input sparsity.
#[derive(Debug, Default)]
pub struct InputCalibration {
    /// True to skip small inputs also in chunks and in every mode.
    pub in_chunks: bool,
    /// Inputs at the layers' sites, by [`InputSite`], appended as they are computed.
    pub recorded: Option<Box<[Vec<f32>; 4]>>,
}

impl InputCalibration {
    /// Records `x` if recording is on.
    pub(super) fn record(&mut self, site: InputSite, x: &[f32]) {
        if let Some(recorded) = &mut self.recorded {
            recorded[site as usize].extend_from_slice(x);
        }
    }
}

/// A site in a layer, and the inputs that are skipped there.
#[derive(Debug, Clone, Copy)]
pub(super) struct SkippedSite<'a> {
    pub skipped: &'a SkippedInputs,
    pub site: InputSite,
}

/// Products with each matrix of a site, in the order of [`InputSite::linears`].
pub(super) type SiteJobs<'a> = SmallVec<[MatmulJob<'a>; 4]>;

/// Computes the products of a site with the inputs that are not skipped, `[tokens, inputs]`. If the
/// matrix has an input-major copy, a pass of a few tokens does not read the weights of inputs that
/// all its tokens skip. `large` is scratch. Returns the bytes of weights read.
pub(super) fn products(
    cpu: &Cpu,
    SkippedSite { skipped, site }: SkippedSite<'_>,
    jobs: SiteJobs<'_>,
    TokenInputs { x, tokens }: TokenInputs<'_>,
    large: &mut Vec<f32>,
) -> Result<u64> {
    let x = match skipped.site(site) {
        Some(threshold) => {
            let large = grow(large, Some(x.len()), WHAT)?;
            threshold.keep_large(x, large);
            &*large
        }
        None => x,
    };
    let by_input = tokens <= FEW_TOKENS && skipped.site(site).is_some();
    let (mut some, mut biases, mut whole) = (SmallVec::<[_; 4]>::new(), SmallVec::<[_; 4]>::new(), SiteJobs::new());
    let mut read = 0;
    for (at, job) in jobs.into_iter().enumerate() {
        match skipped.copy(cpu, site, at, job.weight).filter(|_| by_input) {
            Some(weight) => {
                some.push(InputsJob { weight, out: job.out });
                biases.push(job.bias);
            }
            None => {
                read += job.weight.byte_len() as u64;
                whole.push(job);
            }
        }
    }
    if !whole.is_empty() {
        cpu.matmul(&mut whole, x, tokens);
    }
    if !some.is_empty() {
        read += cpu.matmul_inputs(&mut some, x, tokens);
        for (InputsJob { out, .. }, bias) in some.iter_mut().zip(biases) {
            if let Some(bias) = bias {
                out.chunks_exact_mut(bias.len().max(1)).for_each(|out| cpu.add(out, bias));
            }
        }
    }
    Ok(read)
}

//! Scores of a predictor. The forward pass, training and evaluation share this implementation, so a
//! threshold means the same in all three.

use super::scratch::grow;
use thermocline_base::error::Result;
use thermocline_cpu::{Cpu, FEW_TOKENS, InputMajor, InputsJob, MatmulJob, ops::Activation};
use thermocline_formats::format::Matrix;
use thermocline_model::{Predictor, PredictorKind};

/// Purpose of the buffers, in errors.
const WHAT: &str = "scratch memory";

/// Computes a predictor's scores, `[tokens, n_ff]`, for the inputs `x`, `[tokens, d]`. Also returns
/// the bytes of weights read. Neuron `i` is predicted to fire if its score is at least
/// [`Predictor::threshold`]. `hidden` and `scores` are scratch that grows to `[tokens, rank]` and
/// `[tokens, n_ff]`.
///
/// # Errors
/// [`Error::Memory`](thermocline_base::error::Error::Memory) if the buffers cannot grow.
///
/// # Panics
/// If `x` does not have `tokens` rows of the predictor's width.
pub fn predictor_scores<'a>(
    predictor: &Predictor,
    cpu: &Cpu,
    x: &[f32],
    tokens: usize,
    hidden: &mut Vec<f32>,
    scores: &'a mut Vec<f32>,
) -> Result<(&'a [f32], u64)> {
    let scores = grow(scores, tokens.checked_mul(predictor.neurons()), WHAT)?;
    match &predictor.kind {
        PredictorKind::LowRank { fc1, fc2 } => {
            let hidden = grow(hidden, tokens.checked_mul(fc1.rows()), WHAT)?;
            // About half of the hidden activations are zero after the ReLU. For a few tokens the
            // CPU reads an input-major copy of fc2, if there is room for one, and skips the weights
            // of zeros.
            let by_input = (tokens <= FEW_TOKENS && cpu.takes_inputs())
                .then(|| predictor.by_input.get_or_init(|| by_input(cpu, fc2)));
            let by_input = by_input.and_then(Option::as_ref);
            if tokens == 1 && by_input.is_none() {
                cpu.prefetch(&[fc2]);
            }
            cpu.matmul(&mut [MatmulJob { weight: fc1, bias: None, out: &mut *hidden }], x, tokens);
            cpu.activate(Activation::Relu, hidden, None);
            cpu.prefetch(&[]);
            if let Some(by_input) = by_input {
                let read = cpu.matmul_inputs(&mut [InputsJob { weight: by_input, out: &mut *scores }], hidden, tokens);
                return Ok((scores, fc1.data().len() as u64 + read));
            }
            cpu.matmul(&mut [MatmulJob { weight: fc2, bias: None, out: &mut *scores }], hidden, tokens);
        }
        PredictorKind::Rows { rows, bias } => {
            cpu.matmul(&mut [MatmulJob { weight: rows, bias: bias.as_deref(), out: &mut *scores }], x, tokens);
        }
    }
    Ok((scores, predictor.bytes()))
}

/// Makes an input-major copy of the second layer `[n_ff, rank]`. Returns `None` if the type has no
/// such form or memory is short. The copy is made in the first pass of a few tokens, so layers
/// whose predictor runs on a device have none.
fn by_input(cpu: &Cpu, fc2: &Matrix) -> Option<InputMajor> {
    InputMajor::new(cpu.pool(), fc2).unwrap_or_else(|error| {
        tracing::warn!(%error, "the second layer of a predictor is read whole because its input-major copy failed");
        None
    })
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    use super::*;
    use thermocline_cpu::{CpuOptions, InputPrecision};
    use thermocline_formats::{format::Bytes, quant, quant::TensorType};
    use thermocline_model::PredictorInput;

    fn noise(n: usize, rng: &mut StdRng) -> Vec<f32> {
        (0..n).map(|_| rng.random_range(-1.0..1.0)).collect()
    }

    fn matrix(rows: usize, cols: usize, rng: &mut StdRng) -> Matrix {
        let mut bytes = Vec::new();
        quant::quantise(TensorType::Q4_0, &noise(rows * cols, rng), &mut bytes).unwrap();
        Matrix::new(TensorType::Q4_0, rows, cols, Bytes::new(bytes)).unwrap()
    }

    #[test]
    fn weights_of_silent_hidden_units_are_not_read() {
        let rng = &mut StdRng::seed_from_u64(11);
        let (d, rank, n_ff) = (64, 96, 256);
        let kind = PredictorKind::LowRank { fc1: matrix(rank, d, rng), fc2: matrix(n_ff, rank, rng) };
        let (input, threshold) = (PredictorInput::Normed, 0.0);
        let predictor = Predictor { kind, input, threshold, quality: None, by_input: Default::default() };
        let x = noise(2 * d, rng);
        for activations in [InputPrecision::Int8, InputPrecision::Float] {
            // A predictor without an input-major copy.
            let predictor = predictor.clone();
            let cpu = Cpu::new(&CpuOptions { activations, ..CpuOptions::default() }).unwrap();
            let scores = |x: &[f32]| {
                let (mut hidden, mut scores) = (Vec::new(), Vec::new());
                let (scores, read) =
                    predictor_scores(&predictor, &cpu, x, x.len() / d, &mut hidden, &mut scores).unwrap();
                (scores.to_vec(), read)
            };
            // A few tokens read the weights that any of them needs, and get the same scores as
            // alone.
            let (together, of_both) = scores(&x);
            let all = predictor.bytes();
            for (x, wanted) in x.chunks(d).zip(together.chunks(n_ff)) {
                let (alone, read) = scores(x);
                assert_eq!(alone, wanted, "{activations}");
                assert!(read <= of_both && of_both <= all, "{read} bytes alone, {of_both} together, {all} in all");
                let copied = predictor.by_input.get().is_some_and(Option::is_some);
                assert_eq!(copied, activations == InputPrecision::Int8 && predictor.copied_bytes() > 0);
                match activations {
                    InputPrecision::Int8 => assert!(read < all * 9 / 10, "{read} of {all} bytes"),
                    InputPrecision::Float => assert_eq!(read, all),
                }
            }
        }
    }
}

//! The optimiser: AdamW, one pass over a parameter where it lies. The training library's own makes a dozen tensors as large as the
//! parameter in every step, on one thread; at the size of a 7B model's predictors most of the training went there.

use std::sync::{Mutex, PoisonError};

use candle_core::{CpuStorage, Error, InplaceOp2, Layout, Result, Var, backprop::GradStore};
use candle_nn::{Optimizer, ParamsAdamW};
use rayon::prelude::*;

/// Numbers a thread takes at a time.
const CHUNK: usize = 1 << 14;

/// AdamW for parameters in f32 on the CPU. A step's result does not depend on the number of threads.
pub(super) struct AdamW {
    params: ParamsAdamW,
    steps: i32,
    vars: Vec<(Var, Moments)>,
}

/// Decayed means of a parameter's gradient and of its square.
struct Moments {
    first: Vec<f32>,
    second: Vec<f32>,
}

impl Optimizer for AdamW {
    type Config = ParamsAdamW;

    fn new(vars: Vec<Var>, params: ParamsAdamW) -> Result<Self> {
        let zeros = |var: &Var| vec![0.0; var.elem_count()];
        let moments = |var: &Var| Moments { first: zeros(var), second: zeros(var) };
        let moments: Vec<_> = vars.iter().map(moments).collect();
        Ok(AdamW { params, steps: 0, vars: vars.into_iter().zip(moments).collect() })
    }

    fn step(&mut self, gradients: &GradStore) -> Result<()> {
        self.steps += 1;
        for (var, moments) in &mut self.vars {
            if let Some(gradient) = gradients.get(var) {
                let update = Update { params: &self.params, steps: self.steps, moments: Mutex::new(moments) };
                var.inplace_op2(&gradient.contiguous()?, &update)?;
            }
        }
        Ok(())
    }

    fn learning_rate(&self) -> f64 {
        self.params.lr
    }

    fn set_learning_rate(&mut self, lr: f64) {
        self.params.lr = lr;
    }
}

/// One step of one parameter.
struct Update<'a> {
    params: &'a ParamsAdamW,
    /// Steps so far, this one included.
    steps: i32,
    moments: Mutex<&'a mut Moments>,
}

impl InplaceOp2 for Update<'_> {
    fn name(&self) -> &'static str {
        "a step of AdamW"
    }

    fn cpu_fwd(&self, theta: &mut CpuStorage, at: &Layout, gradient: &CpuStorage, of: &Layout) -> Result<()> {
        let CpuStorage::F32(theta) = theta else { return Err(Error::Msg("a parameter that is not f32".to_owned())) };
        let (Some((start, end)), Some((first, last))) = (at.contiguous_offsets(), of.contiguous_offsets()) else {
            return Err(Error::RequiresContiguous { op: self.name() });
        };
        let (theta, gradient) = (&mut theta[start..end], &gradient.as_slice::<f32>()?[first..last]);
        let ParamsAdamW { lr, beta1, beta2, eps, weight_decay } = *self.params;
        let correction = |beta: f64| (1.0 / (1.0 - beta.powi(self.steps))) as f32;
        let (first_scale, second_scale) = (correction(beta1), correction(beta2));
        let (kept, rate, eps) = ((1.0 - lr * weight_decay) as f32, lr as f32, eps as f32);
        let ([beta1, beta2], [new1, new2]) =
            ([beta1, beta2].map(|b| b as f32), [beta1, beta2].map(|b| (1.0 - b) as f32));
        let mut moments = self.moments.lock().unwrap_or_else(PoisonError::into_inner);
        let Moments { first, second } = &mut **moments;
        let moments = first.par_chunks_mut(CHUNK).zip(second.par_chunks_mut(CHUNK));
        let parts = theta.par_chunks_mut(CHUNK).zip(gradient.par_chunks(CHUNK)).zip(moments);
        parts.for_each(|((theta, gradient), (first, second))| {
            for (((theta, g), m), v) in theta.iter_mut().zip(gradient).zip(first).zip(second) {
                *m = *m * beta1 + g * new1;
                *v = *v * beta2 + g * g * new2;
                *theta = *theta * kept - rate * (*m * first_scale / ((*v * second_scale).sqrt() + eps));
            }
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Tensor};

    use super::*;

    /// Several chunks, the last of which is not whole, under rates that change.
    #[test]
    fn steps_are_those_of_the_training_library() {
        let n = 2 * CHUNK + 76;
        let wave = |scale: f32| (0..n).map(|i| ((i * i) as f32 * 0.37 + scale).sin() * scale).collect::<Vec<_>>();
        let var = || Var::from_vec(wave(0.5), (7, n / 7), &Device::Cpu).unwrap();
        let (ours, theirs) = (var(), var());
        let target = Tensor::from_vec(wave(0.9), (7, n / 7), &Device::Cpu).unwrap();
        let mut a = AdamW::new(vec![ours.clone()], ParamsAdamW::default()).unwrap();
        let mut b = candle_nn::AdamW::new(vec![theirs.clone()], ParamsAdamW::default()).unwrap();
        for rate in [1e-2, 3e-2, 2e-3, 5e-3] {
            // A gradient that lies transposed in memory.
            let loss = |var: &Var| (var.t().unwrap() - target.t().unwrap()).unwrap().sqr().unwrap().sum_all().unwrap();
            a.set_learning_rate(rate);
            b.set_learning_rate(rate);
            assert_eq!(a.learning_rate(), rate);
            a.backward_step(&loss(&ours)).unwrap();
            b.backward_step(&loss(&theirs)).unwrap();
        }
        let of = |var: &Var| var.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let (ours, theirs) = (of(&ours), of(&theirs));
        assert!(ours.iter().zip(wave(0.5)).all(|(a, before)| *a != before));
        for (i, (a, b)) in ours.iter().zip(&theirs).enumerate() {
            assert!((a - b).abs() <= 1e-6, "{i}: {a} is not {b}");
        }
    }
}

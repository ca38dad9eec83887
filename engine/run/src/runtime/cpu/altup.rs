//! The streams of a model with several (AltUp, Baykal et al. 2023). A layer computes the first
//! stream; the others follow by prediction and correction. The coefficients `a` and `b` are linear
//! in `m = tanh(router norm(x) / d)`. Before the layer, where `x` is the first stream,
//! `p_i = s_i + sum over j of a_ij(m) s_j`. After the layer, where `x` is its result,
//! `s_i = p_i + (1 + b_i(m)) (x - p_0)`.

use std::ops::Range;

use super::WHAT;
use crate::runtime::scratch::{grow, held_bytes};
use thermocline_base::error::Result;
use thermocline_cpu::Cpu;
use thermocline_model::{AltupStep, AltupTable, AltupWeights, Linear};

/// Lower limit of the mean square by which a stream is scaled.
const LEAST: f32 = 1e-5;

/// The streams of a chunk's tokens, and scratch memory.
#[derive(Debug, Default)]
pub(crate) struct AltupStreams {
    /// `[streams, tokens, d]`
    streams: Vec<f32>,
    /// The predicted streams, in the same shape.
    predicted: Vec<f32>,
    /// `[tokens, d]` or less.
    scratch: Vec<f32>,
    /// `[tokens, streams]` and `[tokens, coefficients]`.
    modalities: Vec<f32>,
    coefficients: Vec<f32>,
    count: usize,
    tokens: usize,
    d: usize,
}

impl AltupStreams {
    /// Makes the streams from the embeddings `x`, `[tokens, d]`.
    pub fn begin(&mut self, cpu: &Cpu, table: &AltupTable, x: &[f32], d: usize) -> Result<()> {
        (self.count, self.tokens, self.d) = (table.projections.len() + 1, x.len() / d.max(1), d);
        let all = x.len().checked_mul(self.count);
        grow(&mut self.predicted, all, WHAT)?;
        grow(&mut self.scratch, Some(x.len()), WHAT)?;
        let (first, others) = grow(&mut self.streams, all, WHAT)?.split_at_mut(x.len());
        first.copy_from_slice(x);
        for (map, stream) in table.projections.iter().zip(others.chunks_exact_mut(x.len())) {
            cpu.matmul(&mut [map.job(stream)], x, self.tokens);
            scale_rows(stream, x, d);
        }
        Ok(())
    }

    /// Copies streams that were computed elsewhere, `[streams, tokens, d]`.
    pub fn take(&mut self, streams: &[f32], tokens: usize, d: usize) -> Result<()> {
        (self.count, self.tokens, self.d) = (streams.len() / (tokens * d).max(1), tokens, d);
        grow(&mut self.streams, Some(streams.len()), WHAT)?.copy_from_slice(streams);
        Ok(())
    }

    /// All streams, `[streams, tokens, d]`; empty for a model with one stream.
    pub fn all(&self) -> &[f32] {
        &self.streams[..self.count * self.tokens * self.d]
    }

    /// Computes a step between the streams. The registers are those of
    /// [`Register`](thermocline_model::Register), `[tokens, d]` each.
    pub fn step(
        &mut self,
        cpu: &Cpu,
        step: AltupStep,
        weights: &AltupWeights,
        eps: f32,
        [residual, normed, normed_ffn, out]: [&mut [f32]; 4],
    ) -> Result<()> {
        match step {
            AltupStep::Predict => self.predict(cpu, weights, eps, residual),
            AltupStep::Laurel => self.laurel(cpu, weights, eps, normed, normed_ffn),
            AltupStep::Correct => self.correct(cpu, weights, eps, residual),
            AltupStep::AddOut => {
                self.add_out(cpu, out, residual);
                Ok(())
            }
        }
    }

    /// Predicts all streams. `x`, `[tokens, d]`, becomes the predicted first stream.
    fn predict(&mut self, cpu: &Cpu, weights: &AltupWeights, eps: f32, x: &mut [f32]) -> Result<()> {
        let (n, d, len) = (self.count, self.d, x.len());
        self.route(cpu, weights, eps, None)?;
        self.mix(cpu, &weights.predict)?;
        for to in 0..n {
            let predicted = &mut self.predicted[to * len..][..len];
            predicted.copy_from_slice(&self.streams[to * len..][..len]);
            for (t, row) in predicted.chunks_exact_mut(d).enumerate() {
                for from in 0..n {
                    let factor = self.coefficients[(t * n + to) * n + from];
                    let stream = &self.streams[from * len + t * d..][..d];
                    row.iter_mut().zip(stream).for_each(|(x, s)| *x += factor * s);
                }
            }
        }
        x.copy_from_slice(&self.predicted[..len]);
        Ok(())
    }

    /// `out = x + norm(right (left x))`, both `[tokens, d]`.
    fn laurel(&mut self, cpu: &Cpu, weights: &AltupWeights, eps: f32, x: &[f32], out: &mut [f32]) -> Result<()> {
        let [left, right] = &weights.laurel;
        let low = grow(&mut self.scratch, Some(self.tokens * left.weight.rows()), WHAT)?;
        cpu.matmul(&mut [left.job(&mut *low)], x, self.tokens);
        cpu.matmul(&mut [right.job(out)], low, self.tokens);
        cpu.rms_norm(out, None, &weights.laurel_norm.weight, eps);
        cpu.add(out, x);
        Ok(())
    }

    /// Corrects all predictions by the first stream's result `x`, `[tokens, d]`. `x` becomes the
    /// corrected first stream, scaled.
    fn correct(&mut self, cpu: &Cpu, weights: &AltupWeights, eps: f32, x: &mut [f32]) -> Result<()> {
        let (n, d, len) = (self.count, self.d, x.len());
        self.route(cpu, weights, eps, Some(x))?;
        self.mix(cpu, &weights.correct)?;
        for to in 0..n {
            for (t, result) in x.chunks_exact(d).enumerate() {
                let factor = 1.0 + self.coefficients[t * n + to];
                let [first, own] = [0, to].map(|stream| &self.predicted[stream * len + t * d..][..d]);
                let stream = &mut self.streams[to * len + t * d..][..d];
                for (((stream, own), first), x) in stream.iter_mut().zip(own).zip(first).zip(result) {
                    *stream = own + factor * (x - first);
                }
            }
        }
        for (row, stream) in x.chunks_exact_mut(d).zip(self.streams[..len].chunks_exact(d)) {
            row.iter_mut().zip(stream).zip(&weights.scale).for_each(|((x, s), scale)| *x = s * scale);
        }
        Ok(())
    }

    /// Adds `out`, `[tokens, d]`, to all streams except the first, which becomes `x`.
    fn add_out(&mut self, cpu: &Cpu, out: &[f32], x: &mut [f32]) {
        let (first, others) = self.streams[..self.count * x.len()].split_at_mut(x.len());
        others.chunks_exact_mut(out.len().max(1)).for_each(|stream| cpu.add(stream, out));
        x.copy_from_slice(first);
    }

    /// Sets `x` to the mean of the streams of `tokens`, `[tokens.len(), d]`, mapped back to the
    /// embedding's space.
    pub fn merge(&mut self, cpu: &Cpu, table: &AltupTable, tokens: Range<usize>, x: &mut [f32]) -> Result<()> {
        let (d, all) = (self.d, self.tokens * self.d);
        let part = grow(&mut self.scratch, Some(x.len()), WHAT)?;
        let first = &self.streams[tokens.start * d..tokens.end * d];
        x.copy_from_slice(first);
        for (at, map) in table.unembed.iter().enumerate() {
            let stream = &self.streams[(at + 1) * all..][tokens.start * d..tokens.end * d];
            cpu.matmul(&mut [map.job(&mut *part)], stream, tokens.len());
            scale_rows(part, first, d);
            cpu.add(x, part);
        }
        cpu.scale(x, 1.0 / self.count as f32);
        Ok(())
    }

    /// Computes the modalities from `x`, or from the first stream.
    fn route(&mut self, cpu: &Cpu, weights: &AltupWeights, eps: f32, x: Option<&[f32]>) -> Result<()> {
        let len = self.tokens * self.d;
        let modalities = grow(&mut self.modalities, self.tokens.checked_mul(self.count), WHAT)?;
        let normed = grow(&mut self.scratch, Some(len), WHAT)?;
        cpu.rms_norm(normed, Some(x.unwrap_or(&self.streams[..len])), &weights.router_norm.weight, eps);
        cpu.matmul(&mut [weights.router.job(&mut *modalities)], normed, self.tokens);
        modalities.iter_mut().for_each(|x| *x = x.tanh());
        Ok(())
    }

    /// Computes coefficients, `[tokens, rows of map]`.
    fn mix(&mut self, cpu: &Cpu, map: &Linear) -> Result<()> {
        let coefficients = grow(&mut self.coefficients, Some(self.tokens * map.weight.rows()), WHAT)?;
        let modalities = &self.modalities[..self.tokens * self.count];
        cpu.matmul(&mut [map.job(coefficients)], modalities, self.tokens);
        Ok(())
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        held_bytes([&self.streams, &self.predicted, &self.scratch, &self.modalities, &self.coefficients])
    }
}

fn mean_square(row: &[f32]) -> f32 {
    row.iter().map(|x| x * x).sum::<f32>() / row.len().max(1) as f32
}

/// Scales each of `rows`, of `d` elements, to the mean square of its row in `like`.
fn scale_rows(rows: &mut [f32], like: &[f32], d: usize) {
    for (row, like) in rows.chunks_exact_mut(d).zip(like.chunks_exact(d)) {
        let factor = (mean_square(like) / mean_square(row).max(LEAST)).sqrt();
        row.iter_mut().for_each(|x| *x *= factor);
    }
}

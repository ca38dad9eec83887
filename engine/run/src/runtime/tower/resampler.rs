//! Learned queries that read all patches of a picture (MiniCPM-V).

use std::slice;

use super::{
    patches::{PatchOrder, PatchPlace},
    processor::{CHUNK, TowerBuffers, WHAT, heads_of, product},
};
use crate::runtime::{cpu::norm::normed_rows, scratch::grow};
use thermocline_base::error::Result;
use thermocline_cpu::{
    Cpu,
    ops::{AttentionShape, AttentionWindow, Queries, SeenRows},
};
use thermocline_model::{Norm, Resampler, TowerConfig};

/// Base of the wavelengths of positions.
const BASE: f64 = 10_000.0;

impl TowerBuffers {
    /// Computes the embeddings of a picture from its residual stream, `[queries, d_model]`.
    pub(super) fn resample(
        &mut self,
        cpu: &Cpu,
        config: &TowerConfig,
        resampler: &Resampler,
        order: &PatchOrder,
    ) -> Result<Vec<f32>> {
        let d = config.d_model;
        let norm = |norm: &Norm, x: &mut [f32], from: Option<&[f32]>| {
            normed_rows(cpu, config.norm, norm.eps(config.norm_eps), norm, x, from);
        };
        let [mut keys, mut values] = [heads_of(resampler.heads, order.len())?, heads_of(resampler.heads, order.len())?];
        let waves = Waves::new(order.rows().max(order.cols()), d / 4);
        let [of_query, of_key, of_value] = &resampler.qkv;
        for (at, x) in self.x[..order.len() * config.width].chunks(CHUNK * config.width).enumerate() {
            let (first, rows) = (at * CHUNK, x.len() / config.width);
            let normed = grow(&mut self.normed, Some(x.len()), WHAT)?;
            norm(&resampler.patches, normed, Some(x));
            let inputs = grow(&mut self.hidden, Some(rows * d), WHAT)?;
            match &resampler.inputs {
                Some(linear) => product(cpu, linear, normed, rows, inputs),
                None => inputs.copy_from_slice(normed),
            }
            norm(&resampler.input_norm, inputs, None);
            let out = grow(&mut self.out, Some(rows * d), WHAT)?;
            product(cpu, of_value, inputs, rows, out);
            cpu.push_rows(&mut values, first, out, d);
            inputs.chunks_exact_mut(d).zip(&order.places[first..]).for_each(|(x, place)| waves.add(*place, x));
            product(cpu, of_key, inputs, rows, out);
            cpu.push_rows(&mut keys, first, out, d);
        }
        let count = resampler.tokens();
        let normed = grow(&mut self.normed, Some(count * d), WHAT)?;
        norm(&resampler.query_norm, normed, Some(&resampler.queries));
        let queries = grow(&mut self.hidden, Some(count * d), WHAT)?;
        product(cpu, of_query, normed, count, queries);
        let heads = grow(&mut self.heads, Some(count * d), WHAT)?;
        let shape = AttentionShape {
            heads: resampler.heads,
            scale: 1.0 / (resampler.heads.head_dim as f32).sqrt(),
            softcap: None,
            window: AttentionWindow::BOTH_DIRECTIONS,
            sinks: None,
            key_bias: None,
        };
        // A query at the place of a patch reads all patches, so one call computes at most as many
        // queries as there are patches.
        let (picture, at_once) = (0..order.len(), order.len() * d);
        for (q, out) in queries.chunks(at_once).zip(heads.chunks_mut(at_once)) {
            let queries = Queries { q, first: 0, whole: slice::from_ref(&picture) };
            cpu.attention(&shape, queries, SeenRows { keys: &keys, values: &values }, out, &mut self.attention);
        }
        let out = grow(&mut self.out, Some(count * d), WHAT)?;
        product(cpu, &resampler.output, heads, count, out);
        norm(&resampler.output_norm, out, None);
        let mut embeddings = Vec::new();
        product(cpu, &resampler.projection, out, count, grow(&mut embeddings, Some(count * d), WHAT)?);
        Ok(embeddings)
    }
}

/// Embeddings of the numbers from 0: sines, then cosines, of growing wavelengths.
struct Waves {
    /// `[numbers, 2 * frequencies]`
    table: Vec<f32>,
    /// Elements of an embedding.
    len: usize,
}

impl Waves {
    fn new(numbers: usize, frequencies: usize) -> Self {
        let rate: Vec<f64> = (0..frequencies).map(|at| BASE.powf(-(at as f64) / frequencies as f64)).collect();
        let of_number = |number: usize| {
            let sines = rate.iter().map(move |rate| (number as f64 * rate).sin() as f32);
            sines.chain(rate.iter().map(move |rate| (number as f64 * rate).cos() as f32))
        };
        Waves { table: (0..numbers).flat_map(of_number).collect(), len: 2 * frequencies }
    }

    /// Adds the embedding of the place's column to the first half of `x`, and that of its row to
    /// the second half.
    fn add(&self, place: PatchPlace, x: &mut [f32]) {
        for (x, number) in x.chunks_exact_mut(self.len).zip([place.col, place.row]) {
            x.iter_mut().zip(&self.table[number * self.len..][..self.len]).for_each(|(x, wave)| *x += wave);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_have_the_waves_of_column_and_row() {
        let waves = Waves::new(4, 2);
        let mut x = vec![1.0; 8];
        waves.add(PatchPlace { row: 0, col: 3 }, &mut x);
        let of = |number: f32| [number.sin(), (number / 100.0).sin(), number.cos(), (number / 100.0).cos()];
        let expected = [of(3.0), of(0.0)].concat();
        assert!(x.iter().zip(expected).all(|(x, wave)| (x - 1.0 - wave).abs() < 1e-6), "{x:?}");
    }
}

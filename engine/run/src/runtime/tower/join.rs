//! Joining of patches between two layers.

use std::mem;

use super::{
    layer_pass::{AttentionPart, LayerPass},
    processor::{CHUNK, TowerBuffers, WHAT, product},
};
use crate::runtime::{cpu::norm::normed_rows, scratch::grow};
use thermocline_base::error::Result;
use thermocline_cpu::ops::{Activation, KvRows};
use thermocline_model::PatchJoin;

impl LayerPass<'_> {
    /// Joins squares of patches, which follow one another in the residual stream. Returns the
    /// number of patches that remain.
    pub(super) fn join(
        &self,
        join: &PatchJoin,
        buffers: &mut TowerBuffers,
        keys: &mut [KvRows],
        values: &mut [KvRows],
    ) -> Result<usize> {
        let (cpu, config, patches) = (self.cpu, self.config, self.patches);
        let (width, each) = (config.width, config.first_merge.pow(2));
        let squares: Vec<_> = (0..patches / each).map(|at| at * each..(at + 1) * each).collect();
        let part = AttentionPart {
            norm: &join.attention_norm,
            qkv: &join.qkv,
            head_norms: None,
            output: &join.output,
            post_norm: None,
            windows: &squares,
        };
        self.attend(&part, buffers, keys, values)?;
        let mut x = mem::take(&mut buffers.x);
        for first in (0..squares.len()).step_by(CHUNK) {
            let rows = CHUNK.min(squares.len() - first);
            let of_squares = &x[first * each * width..][..rows * each * width];
            let normed = grow(&mut buffers.normed, Some(of_squares.len()), WHAT)?;
            normed_rows(cpu, config.norm, config.norm_eps, &join.norm, normed, Some(of_squares));
            let hidden = grow(&mut buffers.hidden, Some(rows * join.up.weight.rows()), WHAT)?;
            product(cpu, &join.up, normed, rows, hidden);
            cpu.activate(Activation::GeluTanh, hidden, None);
            let out = grow(&mut buffers.out, Some(rows * width), WHAT)?;
            product(cpu, &join.down, hidden, rows, out);
            for (out, square) in out.chunks_exact_mut(width).zip(of_squares.chunks_exact(each * width)) {
                square.chunks_exact(width).for_each(|patch| cpu.add_scaled(out, patch, 1.0 / each as f32));
            }
            // Joined patches end before the squares of the next chunk begin.
            x[first * width..][..rows * width].copy_from_slice(out);
        }
        buffers.x = x;
        Ok(squares.len())
    }
}

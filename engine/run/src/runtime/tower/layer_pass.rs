//! The pass of one layer of a tower over the patches of a picture: attention, then the FFN.

use std::{mem, ops::Range, slice};

use super::{
    PatchOrder,
    processor::{CHUNK, TowerBuffers, WHAT, product},
};
use crate::runtime::{cpu::norm::normed_rows, scratch::grow};
use thermocline_base::error::Result;
use thermocline_cpu::{
    Cpu,
    ops::{AttentionShape, AttentionWindow, KvRows, Queries, RopeRows, SeenRows},
};
use thermocline_model::{HeadNorms, Norm, TowerConfig, TowerLayer, TowerLinear};

/// One layer's pass over all patches of a picture.
pub(super) struct LayerPass<'a> {
    pub cpu: &'a Cpu,
    pub config: &'a TowerConfig,
    pub layer: &'a TowerLayer,
    pub order: &'a PatchOrder,
    /// Number of patches. It is less than the length of `order` once patches are joined.
    pub patches: usize,
    pub rotations: Option<&'a RopeRows>,
}

/// The weights of an attention, and which patches attend to each other.
pub(super) struct AttentionPart<'a> {
    pub norm: &'a Norm,
    pub qkv: &'a [TowerLinear; 3],
    pub head_norms: Option<&'a HeadNorms>,
    pub output: &'a TowerLinear,
    pub post_norm: Option<&'a Norm>,
    /// Patches that attend to each other.
    pub windows: &'a [Range<usize>],
}

impl LayerPass<'_> {
    fn norm(&self, norm: &Norm, x: &[f32], out: &mut [f32]) {
        normed_rows(self.cpu, self.config.norm, self.config.norm_eps, norm, out, Some(x));
    }

    /// Adds attention to the residual stream. Every patch attends to all patches of its window, or
    /// of the picture.
    pub(super) fn attention(
        &self,
        buffers: &mut TowerBuffers,
        keys: &mut [KvRows],
        values: &mut [KvRows],
    ) -> Result<()> {
        let layer = self.layer;
        let picture = 0..self.patches;
        let part = AttentionPart {
            norm: &layer.attention_norm,
            qkv: &layer.qkv,
            head_norms: layer.head_norms.as_ref(),
            output: &layer.output,
            post_norm: layer.post_attention_norm.as_ref(),
            windows: if layer.windowed { &self.order.windows[..] } else { slice::from_ref(&picture) },
        };
        self.attend(&part, buffers, keys, values)
    }

    /// Adds the attention `part` to the residual stream.
    pub(super) fn attend(
        &self,
        part: &AttentionPart<'_>,
        buffers: &mut TowerBuffers,
        keys: &mut [KvRows],
        values: &mut [KvRows],
    ) -> Result<()> {
        let LayerPass { cpu, config, patches, rotations, .. } = *self;
        let width = config.width;
        let all = Some(patches * width);
        let [q, k, v] = &mut buffers.qkv;
        let (q, k, v) = (grow(q, all, WHAT)?, grow(k, all, WHAT)?, grow(v, all, WHAT)?);
        let len = CHUNK * width;
        let outputs = q.chunks_mut(len).zip(k.chunks_mut(len)).zip(v.chunks_mut(len));
        for (x, ((q, k), v)) in buffers.x[..patches * width].chunks(len).zip(outputs) {
            let normed = grow(&mut buffers.normed, Some(x.len()), WHAT)?;
            self.norm(part.norm, x, normed);
            let [of_q, of_k, of_v] = part.qkv;
            limited_products(cpu, [(of_q, q), (of_k, k), (of_v, v)], normed, &mut buffers.limited)?;
        }
        if let Some(norms) = part.head_norms {
            cpu.rms_norm(q, None, &norms.query, config.norm_eps);
            cpu.rms_norm(k, None, &norms.key, config.norm_eps);
            cpu.divide_by_rms(v, config.heads.head_dim, config.norm_eps);
        }
        if let Some(rotations) = rotations {
            cpu.rope(q, width, config.heads.head_dim, rotations);
            cpu.rope(k, width, config.heads.head_dim, rotations);
        }
        let shape = AttentionShape {
            heads: config.heads,
            scale: config.score_scale,
            softcap: None,
            window: AttentionWindow::BOTH_DIRECTIONS,
            sinks: None,
            key_bias: None,
        };
        let heads = grow(&mut buffers.heads, all, WHAT)?;
        for window in part.windows {
            let of = window.start * width..window.end * width;
            cpu.push_rows(keys, 0, &k[of.clone()], width);
            cpu.push_rows(values, 0, &v[of.clone()], width);
            let queries = Queries { q: &q[of.clone()], first: 0, whole: &[] };
            cpu.attention(&shape, queries, SeenRows { keys, values }, &mut heads[of], &mut buffers.attention);
        }
        for (x, heads) in buffers.x[..patches * width].chunks_mut(len).zip(heads.chunks(len)) {
            let out = grow(&mut buffers.out, Some(x.len()), WHAT)?;
            limited_products(cpu, [(part.output, &mut *out)], heads, &mut buffers.limited)?;
            if let Some(norm) = part.post_norm {
                normed_rows(cpu, config.norm, config.norm_eps, norm, out, None);
            }
            cpu.add(x, out);
        }
        Ok(())
    }

    /// Adds the FFN to the residual stream.
    pub(super) fn ffn(&self, buffers: &mut TowerBuffers) -> Result<()> {
        let LayerPass { cpu, config, layer, patches, .. } = *self;
        let width = config.width;
        let mut x = mem::take(&mut buffers.x);
        for x in x[..patches * width].chunks_mut(CHUNK * width) {
            let rows = x.len() / width;
            let normed = grow(&mut buffers.normed, Some(x.len()), WHAT)?;
            self.norm(&layer.ffn_norm, x, normed);
            let n = Some(rows * config.n_ff);
            let (hidden, up) = (grow(&mut buffers.hidden, n, WHAT)?, grow(&mut buffers.up, n, WHAT)?);
            match &layer.gate {
                Some(gate) => {
                    limited_products(cpu, [(gate, &mut *hidden), (&layer.up, &mut *up)], normed, &mut buffers.limited)?;
                    cpu.activate(config.activation, hidden, Some(up));
                }
                None => {
                    limited_products(cpu, [(&layer.up, &mut *hidden)], normed, &mut buffers.limited)?;
                    cpu.activate(config.activation, hidden, None);
                }
            }
            let out = grow(&mut buffers.out, Some(x.len()), WHAT)?;
            limited_products(cpu, [(&layer.down, &mut *out)], hidden, &mut buffers.limited)?;
            if let Some(norm) = &layer.post_ffn_norm {
                normed_rows(cpu, config.norm, config.norm_eps, norm, out, None);
            }
            cpu.add(x, out);
        }
        buffers.x = x;
        Ok(())
    }
}

/// Computes linear maps of the same inputs. `scratch` holds clamped inputs.
fn limited_products<const N: usize>(
    cpu: &Cpu,
    maps: [(&TowerLinear, &mut [f32]); N],
    x: &[f32],
    scratch: &mut Vec<f32>,
) -> Result<()> {
    let rows = x.len() / maps[0].0.linear.weight.cols().max(1);
    if maps.iter().all(|(map, _)| map.limits.is_none()) {
        cpu.matmul(&mut maps.map(|(map, out)| map.linear.job(out)), x, rows);
        return Ok(());
    }
    for (map, out) in maps {
        let [input, output] = map.limits.map_or([[f32::NEG_INFINITY, f32::INFINITY]; 2], |of| [of.input, of.output]);
        let clamped = grow(scratch, Some(x.len()), WHAT)?;
        clamped.iter_mut().zip(x).for_each(|(to, from)| *to = from.max(input[0]).min(input[1]));
        product(cpu, &map.linear, clamped, rows, out);
        out.iter_mut().for_each(|value| *value = value.max(output[0]).min(output[1]));
    }
    Ok(())
}

//! The layers of a tower on the CPU.

use std::{mem, slice, sync::Arc};

use super::{
    PictureEmbeddings,
    patches::{self, PatchOrder},
    positions,
};
use crate::runtime::{Probe, cpu::norm::normed_rows, finite::check_finite, scratch::grow};
use thermocline_base::error::{Error, Result};
use thermocline_cpu::{
    Cpu,
    ops::{Activation, AttentionScratch, AttentionShape, AttentionWindow, KvRows, KvType, Queries, RopeRows, SeenRows},
};
use thermocline_model::{
    Linear, Merger, Norm, NormKind, PooledHead, Tower, TowerConfig, TowerHead, TowerLayer, TowerLinear,
};
use thermocline_pictures::Picture;

/// Patches of one product. More would leave the second-level cache.
const CHUNK: usize = 512;

/// Name of the buffers, for errors.
const WHAT: &str = "computation of a picture";

/// Computes pictures with a tower. Keeps its buffers between pictures.
#[derive(Debug)]
pub struct TowerProcessor {
    tower: Arc<Tower>,
    cpu: Cpu,
    buffers: TowerBuffers,
}

/// Buffers for one picture: `[patches, ...]`, or of one chunk.
#[derive(Debug, Default)]
struct TowerBuffers {
    /// The residual stream, `[patches, width]`.
    x: Vec<f32>,
    /// Queries, keys and values, `[patches, width]` each.
    qkv: [Vec<f32>; 3],
    /// Outputs of the heads, `[patches, width]`.
    heads: Vec<f32>,
    /// Normed inputs of a chunk.
    normed: Vec<f32>,
    /// Hidden values of a chunk.
    hidden: Vec<f32>,
    /// Outputs of up matrices, for FFNs with a gate.
    up: Vec<f32>,
    /// Clamped inputs of a chunk.
    limited: Vec<f32>,
    /// Outputs of a chunk.
    out: Vec<f32>,
    attention: AttentionScratch,
}

impl TowerProcessor {
    /// Creates a processor that computes on `cpu`.
    pub fn new(tower: Arc<Tower>, cpu: Cpu) -> Self {
        TowerProcessor { tower, cpu, buffers: TowerBuffers::default() }
    }

    /// Computes `picture`. `probe` may end it between two layers.
    ///
    /// # Errors
    /// [`Error::Cancelled`] if `probe` says so; [`Error::Invalid`] for a picture that the tower
    /// does not take; [`Error::Memory`] without memory for it; [`Error::NotFinite`] if numbers
    /// overflow; [`Error::FileLost`] if the file changed.
    pub fn embed(&mut self, picture: &Picture, probe: &mut dyn Probe) -> Result<PictureEmbeddings> {
        let TowerProcessor { tower, cpu, buffers } = self;
        let config = &tower.config;
        let grid = tower.grid(picture.width(), picture.height())?;
        let [width, height] = config.sizes.fit(picture.width(), picture.height())?;
        let resized = picture.resized(width, height, config.filter)?;
        let order = PatchOrder::new(grid, config.merge, config.window);
        buffers.embed_patches(cpu, tower, &order, &resized)?;
        let rotations = config.rope.map(|rope| positions::rotations(config.heads.head_dim, rope, &order));
        let [mut keys, mut values] = [heads_of(config, order.len())?, heads_of(config, order.len())?];
        let mut deepstack = Vec::new();
        for layer in &tower.weights.layers {
            if probe.cancelled() {
                return Err(Error::Cancelled);
            }
            let pass = LayerPass { cpu, config, layer, order: &order, rotations: rotations.as_ref() };
            pass.attention(buffers, &mut keys, &mut values)?;
            pass.ffn(buffers)?;
            if let Some(merger) = &layer.deepstack {
                deepstack.push(buffers.merge(cpu, config, merger, &order)?);
            }
        }
        let embeddings = match &tower.weights.head {
            TowerHead::Merger(merger) => buffers.merge(cpu, config, merger, &order)?,
            TowerHead::Pooled(head) => buffers.pool(cpu, config, head, &order)?,
        };
        tower.checkpoint.files().check()?;
        for values in deepstack.iter().chain([&embeddings]) {
            check_finite("vision tower", values)?;
        }
        Ok(PictureEmbeddings { grid, embeddings, deepstack, hash: picture.hash() })
    }
}

/// Returns empty rows for every head of `patches` patches.
fn heads_of(config: &TowerConfig, patches: usize) -> Result<Vec<KvRows>> {
    (0..config.heads.n_kv_head).map(|_| KvRows::new(KvType::F32, config.heads.head_dim, patches)).collect()
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

/// Computes one linear map.
fn product(cpu: &Cpu, linear: &Linear, x: &[f32], rows: usize, out: &mut [f32]) {
    cpu.matmul(&mut [linear.job(out)], x, rows);
}

/// Joins `each` patches of a token, `[tokens, each, width]`, channel by channel: `[tokens, width,
/// each]`.
fn join_by_channel(patches: &[f32], width: usize, each: usize, out: &mut [f32]) {
    for (patches, out) in patches.chunks_exact(width * each).zip(out.chunks_exact_mut(width * each)) {
        for (patch, of_patch) in patches.chunks_exact(width).enumerate() {
            out[patch..].iter_mut().step_by(each).zip(of_patch).for_each(|(out, value)| *out = *value);
        }
    }
}

impl TowerBuffers {
    /// Sets the residual stream to the embeddings of patches and of their places.
    fn embed_patches(&mut self, cpu: &Cpu, tower: &Tower, order: &PatchOrder, picture: &Picture) -> Result<()> {
        let Tower { config, weights, .. } = tower;
        let (width, samples) = (config.width, config.patch_samples());
        let x = grow(&mut self.x, order.len().checked_mul(width), WHAT)?;
        for (at, x) in x.chunks_mut(CHUNK * width).enumerate() {
            let (first, rows) = (at * CHUNK, x.len() / width);
            let patches = grow(&mut self.normed, Some(rows * samples), WHAT)?;
            patches::fill(config, &order.places[first..], picture, patches);
            let norm = |norm: &Option<Norm>, x: &mut [f32]| {
                if let Some(norm) = norm {
                    normed_rows(cpu, config.norm, norm.eps(config.norm_eps), norm, x, None);
                }
            };
            norm(&weights.patch_norms.samples, patches);
            product(cpu, &weights.patch, patches, rows, x);
            norm(&weights.patch_norms.embedding, x);
            if let Some(learned) = &weights.positions {
                positions::add(learned, order, first, width, x);
            }
            norm(&weights.patch_norms.placed, x);
        }
        Ok(())
    }

    /// Merges the residual stream to tokens, `[tokens, d_model]`.
    fn merge(&mut self, cpu: &Cpu, config: &TowerConfig, merger: &Merger, order: &PatchOrder) -> Result<Vec<f32>> {
        let each = config.merge * config.merge;
        let joined = config.width * each;
        let mut merged = Vec::new();
        let out = grow(&mut merged, order.grid.tokens().checked_mul(config.d_model), WHAT)?;
        let x = &self.x[..order.len() * config.width];
        for (x, out) in x.chunks(CHUNK * joined).zip(out.chunks_mut(CHUNK * config.d_model)) {
            let rows = x.len() / joined;
            let normed = grow(&mut self.normed, Some(x.len()), WHAT)?;
            match &merger.norm {
                Some(norm) => normed_rows(cpu, config.norm, norm.eps(config.norm_eps), norm, normed, Some(x)),
                None => normed.copy_from_slice(x),
            }
            let inputs = match &merger.join {
                Some(join) => {
                    let by_channel = grow(&mut self.up, Some(x.len()), WHAT)?;
                    join_by_channel(normed, config.width, each, by_channel);
                    let inputs = grow(&mut self.out, Some(rows * config.width), WHAT)?;
                    product(cpu, join, by_channel, rows, inputs);
                    inputs
                }
                None => normed,
            };
            let hidden = grow(&mut self.hidden, Some(rows * merger.first.weight.rows()), WHAT)?;
            product(cpu, &merger.first, inputs, rows, hidden);
            cpu.activate(Activation::GeluErf, hidden, None);
            product(cpu, &merger.second, hidden, rows, out);
        }
        Ok(order.in_grid_order(merged, config.d_model))
    }

    /// Averages the patches of each token and projects them, `[tokens, d_model]`.
    fn pool(&mut self, cpu: &Cpu, config: &TowerConfig, head: &PooledHead, order: &PatchOrder) -> Result<Vec<f32>> {
        let (width, each) = (config.width, config.merge * config.merge);
        let mut pooled = Vec::new();
        let out = grow(&mut pooled, order.grid.tokens().checked_mul(config.d_model), WHAT)?;
        let x = &self.x[..order.len() * width];
        for (x, out) in x.chunks(CHUNK * each * width).zip(out.chunks_mut(CHUNK * config.d_model)) {
            let rows = x.len() / (each * width);
            let normed = grow(&mut self.normed, Some(x.len()), WHAT)?;
            match &head.patches {
                Some(norm) => normed_rows(cpu, config.norm, config.norm_eps, norm, normed, Some(x)),
                None => normed.copy_from_slice(x),
            }
            let means = grow(&mut self.hidden, Some(rows * width), WHAT)?;
            means.fill(0.0);
            for (mean, patches) in means.chunks_exact_mut(width).zip(normed.chunks_exact(each * width)) {
                patches.chunks_exact(width).for_each(|patch| cpu.add_scaled(mean, patch, head.scale / each as f32));
            }
            if let Some([bias, scale]) = &head.standard {
                for mean in means.chunks_exact_mut(width) {
                    mean.iter_mut().zip(bias).zip(scale).for_each(|((x, bias), scale)| *x = (*x - bias) * scale);
                }
            }
            normed_rows(cpu, NormKind::Rms, head.tokens.eps(config.norm_eps), &head.tokens, means, None);
            product(cpu, &head.projection, means, rows, out);
        }
        Ok(order.in_grid_order(pooled, config.d_model))
    }
}

/// One layer's pass over all patches of a picture.
struct LayerPass<'a> {
    cpu: &'a Cpu,
    config: &'a TowerConfig,
    layer: &'a TowerLayer,
    order: &'a PatchOrder,
    rotations: Option<&'a RopeRows>,
}

impl LayerPass<'_> {
    fn norm(&self, norm: &Norm, x: &[f32], out: &mut [f32]) {
        normed_rows(self.cpu, self.config.norm, self.config.norm_eps, norm, out, Some(x));
    }

    /// Adds attention to the residual stream. Every patch attends to all patches of its window, or
    /// of the picture.
    fn attention(&self, buffers: &mut TowerBuffers, keys: &mut [KvRows], values: &mut [KvRows]) -> Result<()> {
        let LayerPass { cpu, config, layer, order, rotations } = *self;
        let (width, patches) = (config.width, order.len());
        let all = Some(patches * width);
        let [q, k, v] = &mut buffers.qkv;
        let (q, k, v) = (grow(q, all, WHAT)?, grow(k, all, WHAT)?, grow(v, all, WHAT)?);
        let len = CHUNK * width;
        let outputs = q.chunks_mut(len).zip(k.chunks_mut(len)).zip(v.chunks_mut(len));
        for (x, ((q, k), v)) in buffers.x[..patches * width].chunks(len).zip(outputs) {
            let normed = grow(&mut buffers.normed, Some(x.len()), WHAT)?;
            self.norm(&layer.attention_norm, x, normed);
            let [of_q, of_k, of_v] = &layer.qkv;
            limited_products(cpu, [(of_q, q), (of_k, k), (of_v, v)], normed, &mut buffers.limited)?;
        }
        if let Some(norms) = &layer.head_norms {
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
        let picture = 0..patches;
        let windows = if layer.windowed { &order.windows[..] } else { slice::from_ref(&picture) };
        for window in windows {
            let part = window.start * width..window.end * width;
            cpu.push_rows(keys, 0, &k[part.clone()], width);
            cpu.push_rows(values, 0, &v[part.clone()], width);
            let queries = Queries { q: &q[part.clone()], first: 0, whole: &[] };
            cpu.attention(&shape, queries, SeenRows { keys, values }, &mut heads[part], &mut buffers.attention);
        }
        for (x, heads) in buffers.x[..patches * width].chunks_mut(len).zip(heads.chunks(len)) {
            let out = grow(&mut buffers.out, Some(x.len()), WHAT)?;
            limited_products(cpu, [(&layer.output, &mut *out)], heads, &mut buffers.limited)?;
            if let Some(norm) = &layer.post_attention_norm {
                normed_rows(cpu, config.norm, config.norm_eps, norm, out, None);
            }
            cpu.add(x, out);
        }
        Ok(())
    }

    /// Adds the FFN to the residual stream.
    fn ffn(&self, buffers: &mut TowerBuffers) -> Result<()> {
        let LayerPass { cpu, config, layer, order, .. } = *self;
        let width = config.width;
        let mut x = mem::take(&mut buffers.x);
        for x in x[..order.len() * width].chunks_mut(CHUNK * width) {
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

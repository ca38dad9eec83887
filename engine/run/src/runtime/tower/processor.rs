//! The layers of a tower on the CPU.

use std::{mem, ops::Range, slice, sync::Arc};

use super::{
    PartEmbeddings, PictureEmbeddings,
    patches::{self, PatchOrder, Pixels},
    positions,
};
use crate::runtime::{
    Probe,
    cpu::norm::normed_rows,
    finite::check_finite,
    scratch::{grow, held_bytes},
};
use thermocline_base::error::{Error, Result};
use thermocline_cpu::{
    Cpu,
    ops::{
        Activation, AttentionScratch, AttentionShape, AttentionWindow, HeadSizes, KvRows, KvType, Queries, RopeRows,
        SeenRows,
    },
};
use thermocline_model::{
    HeadNorms, Linear, Merger, Norm, NormKind, PictureGrid, PooledHead, Tower, TowerConfig, TowerHead, TowerLayer,
    TowerLinear,
};
use thermocline_pictures::Picture;

/// Patches of one product. More would leave the second-level cache.
pub(super) const CHUNK: usize = 512;

/// Name of the buffers, for errors.
pub(super) const WHAT: &str = "computation of a picture";

/// Computes pictures with a tower. Keeps its buffers between pictures.
#[derive(Debug)]
pub struct TowerProcessor {
    tower: Arc<Tower>,
    cpu: Cpu,
    buffers: TowerBuffers,
}

/// Buffers for one picture: `[patches, ...]`, or of one chunk.
#[derive(Debug, Default)]
pub(super) struct TowerBuffers {
    /// The residual stream, `[patches, width]`.
    pub x: Vec<f32>,
    /// Queries, keys and values, `[patches, width]` each.
    qkv: [Vec<f32>; 3],
    /// Outputs of the heads, `[patches, width]`.
    pub heads: Vec<f32>,
    /// Normed inputs of a chunk.
    pub normed: Vec<f32>,
    /// Hidden values of a chunk.
    pub hidden: Vec<f32>,
    /// Outputs of up matrices, for FFNs with a gate.
    pub up: Vec<f32>,
    /// Clamped inputs of a chunk.
    limited: Vec<f32>,
    /// Outputs of a chunk.
    pub out: Vec<f32>,
    pub attention: AttentionScratch,
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
        let tower = Arc::clone(&self.tower);
        let parts = tower.config.pictures_of(picture)?;
        let parts = parts.iter().map(|part| self.embed_part(part, probe)).collect::<Result<_>>()?;
        self.finish(tower.grid(picture.width(), picture.height())?, parts)
    }

    fn embed_part(&mut self, picture: &Picture, probe: &mut dyn Probe) -> Result<PartEmbeddings> {
        let order = self.begin(picture)?;
        let deepstack = self.layers(&order, probe)?;
        Ok(PartEmbeddings { embeddings: self.head(&order)?, deepstack })
    }

    /// Embeds the patches of a picture, or of a part of one, that has the size that the tower
    /// takes: sets the residual stream to the input of the first layer.
    ///
    /// # Errors
    /// As [`TowerProcessor::embed`].
    pub(crate) fn begin(&mut self, picture: &Picture) -> Result<PatchOrder> {
        let TowerProcessor { tower, cpu, buffers } = self;
        let order = PatchOrder::of_picture(&tower.config, picture);
        buffers.embed_patches(cpu, tower, &order, picture)?;
        Ok(order)
    }

    /// Computes the layers. Returns the additions to layers of the text model.
    ///
    /// # Errors
    /// As [`TowerProcessor::embed`].
    pub(crate) fn layers(&mut self, order: &PatchOrder, probe: &mut dyn Probe) -> Result<Vec<Vec<f32>>> {
        let TowerProcessor { tower, cpu, buffers } = self;
        let config = &tower.config;
        let rotations = config.rope.map(|rope| positions::rotations(config.heads.head_dim, rope, order));
        let [mut keys, mut values] = [heads_of(config.heads, order.len())?, heads_of(config.heads, order.len())?];
        let (mut deepstack, mut patches) = (Vec::new(), order.len());
        for layer in &tower.weights.layers {
            if probe.cancelled() {
                return Err(Error::Cancelled);
            }
            let pass = LayerPass { cpu, config, layer, order, patches, rotations: rotations.as_ref() };
            pass.attention(buffers, &mut keys, &mut values)?;
            pass.ffn(buffers)?;
            if let Some(merger) = &layer.deepstack {
                deepstack.push(buffers.merge(cpu, config, merger, order)?);
            }
            if let Some(join) = &layer.join {
                patches = pass.join(join, buffers, &mut keys, &mut values)?;
            }
        }
        Ok(deepstack)
    }

    /// Computes the embeddings of the text model from the residual stream, `[tokens, d_model]`.
    ///
    /// # Errors
    /// As [`TowerProcessor::embed`].
    pub(crate) fn head(&mut self, order: &PatchOrder) -> Result<Vec<f32>> {
        let TowerProcessor { tower, cpu, buffers } = self;
        match &tower.weights.head {
            TowerHead::Merger(merger) => buffers.merge(cpu, &tower.config, merger, order),
            TowerHead::Pooled(head) => buffers.pool(cpu, &tower.config, head, order),
            TowerHead::Resampler(resampler) => buffers.resample(cpu, &tower.config, resampler, order),
        }
    }

    /// Joins and checks the results of the parts of a picture of `grid` tokens.
    ///
    /// # Errors
    /// As [`TowerProcessor::embed`].
    pub(crate) fn finish(&self, grid: PictureGrid, parts: Vec<PartEmbeddings>) -> Result<PictureEmbeddings> {
        self.tower.checkpoint.files().check()?;
        let PartEmbeddings { embeddings, deepstack } = PartEmbeddings::joined(parts)?;
        for values in deepstack.iter().chain([&embeddings]) {
            check_finite("vision tower", values)?;
        }
        Ok(PictureEmbeddings { grid, embeddings, deepstack })
    }

    /// The tower.
    pub(crate) fn tower(&self) -> &Arc<Tower> {
        &self.tower
    }

    /// The residual stream of a picture with these patches, `[patches, width]`.
    pub(crate) fn stream(&mut self, order: &PatchOrder) -> &mut [f32] {
        &mut self.buffers.x[..order.len() * self.tower.config.width]
    }

    /// Bytes that the buffers hold between two pictures.
    pub fn held_bytes(&self) -> u64 {
        let TowerBuffers { x, qkv, heads, normed, hidden, up, limited, out, attention: _ } = &self.buffers;
        held_bytes([x, heads, normed, hidden, up, limited, out].into_iter().chain(qkv))
    }
}

/// Returns empty rows for every head of `patches` patches.
pub(super) fn heads_of(heads: HeadSizes, patches: usize) -> Result<Vec<KvRows>> {
    (0..heads.n_kv_head).map(|_| KvRows::new(KvType::F32, heads.head_dim, patches)).collect()
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
pub(super) fn product(cpu: &Cpu, linear: &Linear, x: &[f32], rows: usize, out: &mut [f32]) {
    cpu.matmul(&mut [linear.job(out)], x, rows);
}

impl TowerBuffers {
    /// Sets the residual stream to the embeddings of patches and of their places.
    fn embed_patches(&mut self, cpu: &Cpu, tower: &Tower, order: &PatchOrder, picture: &Picture) -> Result<()> {
        let Tower { config, weights, .. } = tower;
        let (width, samples) = (config.width, config.patch_samples());
        let x = grow(&mut self.x, order.len().checked_mul(width), WHAT)?;
        let rgb = picture.rgb()?;
        let pixels = Pixels { rgb: &rgb, width: picture.width() };
        for (at, x) in x.chunks_mut(CHUNK * width).enumerate() {
            let (first, rows) = (at * CHUNK, x.len() / width);
            let patches = grow(&mut self.normed, Some(rows * samples), WHAT)?;
            patches::fill(config, &order.places[first..], pixels, patches);
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
        let each = (config.merge / config.first_merge).pow(2);
        let joined = config.width * each;
        let mut merged = Vec::new();
        let out = grow(&mut merged, order.grid.tokens().checked_mul(config.d_model), WHAT)?;
        let x = &self.x[..order.grid.tokens() * joined];
        for (x, out) in x.chunks(CHUNK * joined).zip(out.chunks_mut(CHUNK * config.d_model)) {
            let rows = x.len() / joined;
            let normed = grow(&mut self.normed, Some(x.len()), WHAT)?;
            let norm = |norm: &Norm, x: &mut [f32], from: Option<&[f32]>| {
                normed_rows(cpu, config.norm, norm.eps(config.norm_eps), norm, x, from);
            };
            match (&merger.patches, &merger.norm) {
                (None, Some(joined)) => norm(joined, normed, Some(x)),
                (patches, joined) => {
                    normed.copy_from_slice(x);
                    patches.iter().chain(joined).for_each(|it| norm(it, normed, None));
                }
            }
            let inputs = match &merger.join {
                Some(join) => {
                    let inputs = grow(&mut self.out, Some(rows * config.width), WHAT)?;
                    product(cpu, join, normed, rows, inputs);
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
pub(super) struct LayerPass<'a> {
    pub cpu: &'a Cpu,
    pub config: &'a TowerConfig,
    layer: &'a TowerLayer,
    order: &'a PatchOrder,
    /// Number of patches, which is less than that of `order` once patches are joined.
    pub patches: usize,
    rotations: Option<&'a RopeRows>,
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
    fn attention(&self, buffers: &mut TowerBuffers, keys: &mut [KvRows], values: &mut [KvRows]) -> Result<()> {
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
    fn ffn(&self, buffers: &mut TowerBuffers) -> Result<()> {
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

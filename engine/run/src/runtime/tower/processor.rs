//! The layers of a tower on the CPU.

use std::sync::Arc;

use super::{
    PartEmbeddings, PictureEmbeddings,
    layer_pass::LayerPass,
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
    ops::{Activation, AttentionScratch, HeadSizes, KvRows, KvType},
};
use thermocline_model::{Linear, Merger, Norm, NormKind, PictureGrid, PooledHead, Tower, TowerConfig, TowerHead};
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
    pub qkv: [Vec<f32>; 3],
    /// Outputs of the heads, `[patches, width]`.
    pub heads: Vec<f32>,
    /// Normed inputs of a chunk.
    pub normed: Vec<f32>,
    /// Hidden values of a chunk.
    pub hidden: Vec<f32>,
    /// Outputs of up matrices, for FFNs with a gate.
    pub up: Vec<f32>,
    /// Clamped inputs of a chunk.
    pub limited: Vec<f32>,
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

    /// Embeds the patches of a picture or of a part of a picture, and sets the residual stream to
    /// the input of the first layer. The picture has a size that the tower takes.
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

//! Weights of a vision tower by role, and the loading that projectors share.

use super::config::{TowerConfig, TowerSizes};
use crate::{Linear, Norm, load::Loader};
use thermocline_base::error::Result;
use thermocline_cpu::ops::HeadSizes;
use thermocline_formats::{
    format::{Bytes, Matrix},
    quant::TensorType,
};

/// Weights of a vision tower.
#[derive(Debug, Clone)]
pub struct TowerWeights {
    /// `[width, 3 * patch_size^2]`: samples of a patch, channel by channel, to the stream.
    pub patch: Linear,
    /// Norms before the first layer.
    pub patch_norms: PatchNorms,
    /// Learned embeddings of places, if the tower has them.
    pub positions: Option<PatchPositions>,
    /// Layers, in order.
    pub layers: Vec<TowerLayer>,
    /// From the last layer to the embeddings.
    pub head: TowerHead,
}

/// Norms before the first layer, each if the tower has it. They are of the tower's kind.
#[derive(Debug, Clone, Default)]
pub struct PatchNorms {
    /// Of a patch's samples, `[3 * patch_size^2]`.
    pub samples: Option<Norm>,
    /// Of its embedding, `[width]`.
    pub embedding: Option<Norm>,
    /// Of the sum of its embedding and the embedding of its place, `[width]`.
    pub placed: Option<Norm>,
}

/// The part that makes embeddings of the text model from a tower's outputs.
#[derive(Debug, Clone)]
pub enum TowerHead {
    /// Joins the patches of a token.
    Merger(Merger),
    /// Averages the patches of a token.
    Pooled(PooledHead),
    /// Reads all patches with learned queries.
    Resampler(Box<Resampler>),
}

/// Attention of learned queries to all patches. A query is a token, so that the number of tokens is
/// the same for all pictures. Keys have embeddings of their rows and columns: sines and cosines.
#[derive(Debug, Clone)]
pub struct Resampler {
    /// Norm of patches, of the tower's kind, `[width]`.
    pub patches: Norm,
    /// Patches to keys and values, `[d_model, width]`. `None` if the patches are as wide.
    pub inputs: Option<Linear>,
    /// Norm of the projected patches, `[d_model]`.
    pub input_norm: Norm,
    /// Learned queries, `[tokens, d_model]`.
    pub queries: Vec<f32>,
    /// Norm of queries, `[d_model]`.
    pub query_norm: Norm,
    /// Queries, keys and values, `[d_model, d_model]` each.
    pub qkv: [Linear; 3],
    /// Attention heads.
    pub heads: HeadSizes,
    /// Output projection, `[d_model, d_model]`.
    pub output: Linear,
    /// Norm of the outputs, `[d_model]`.
    pub output_norm: Norm,
    /// `[d_model, d_model]`
    pub projection: Linear,
}

/// Joins squares of patches after a layer, so that later layers have fewer. The patches of a square
/// attend to each other first. A joined patch is the average of its square, plus two linear maps
/// with GELU (tanh) of the square.
#[derive(Debug, Clone)]
pub struct PatchJoin {
    /// Norm before attention, `[width]`.
    pub attention_norm: Norm,
    /// Queries, keys and values, `[width, width]` each.
    pub qkv: [TowerLinear; 3],
    /// Output projection, `[width, width]`.
    pub output: TowerLinear,
    /// Norm of a square, `[side^2 * width]`.
    pub norm: Norm,
    /// `[hidden, side^2 * width]`
    pub up: Linear,
    /// `[width, hidden]`
    pub down: Linear,
}

/// Norm of each patch, average of each token's patches, RMS norm, and projection.
#[derive(Debug, Clone)]
pub struct PooledHead {
    /// Norm of patches, of the tower's kind, `[width]`.
    pub patches: Option<Norm>,
    /// Factor of averages.
    pub scale: f32,
    /// Subtracted from scaled averages, and factor of the result, `[width]` each.
    pub standard: Option<[Vec<f32>; 2]>,
    /// RMS norm of averages, `[width]`.
    pub tokens: Norm,
    /// `[d_model, width]`
    pub projection: Linear,
}

/// Learned embeddings of places.
#[derive(Debug, Clone)]
pub enum PatchPositions {
    /// Of the places of a square, which are interpolated to other grids.
    Square {
        /// Rows and columns of the square.
        side: usize,
        /// `[side * side, width]`
        table: Vec<f32>,
    },
    /// Of the places of a square, which other grids are stretched to. A patch has the embedding of
    /// the place where it begins.
    Stretched {
        /// Rows and columns of the square.
        side: usize,
        /// `[side * side, width]`
        table: Vec<f32>,
    },
    /// Of columns and of rows, which are added.
    Sides {
        /// Number of columns, and of rows.
        length: usize,
        /// `[2, length, width]`: columns, then rows.
        table: Vec<f32>,
    },
}

/// A linear map with limits of its values, if the tower has them.
#[derive(Debug, Clone)]
pub struct TowerLinear {
    /// The map.
    pub linear: Linear,
    /// Limits to which inputs and outputs are clamped.
    pub limits: Option<ValueLimits>,
}

/// Least and largest values of a linear map.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ValueLimits {
    /// Of the inputs.
    pub input: [f32; 2],
    /// Of the outputs.
    pub output: [f32; 2],
}

/// RMS norms of heads: weights for queries and keys, `[head_dim]` each, and none for values.
#[derive(Debug, Clone)]
pub struct HeadNorms {
    /// Of queries.
    pub query: Vec<f32>,
    /// Of keys.
    pub key: Vec<f32>,
}

/// A layer of a vision tower: attention, then an FFN, each behind a norm.
#[derive(Debug, Clone)]
pub struct TowerLayer {
    /// Norm before attention.
    pub attention_norm: Norm,
    /// Queries, keys and values, `[width, width]` each.
    pub qkv: [TowerLinear; 3],
    /// Norms of the heads, if the tower has them.
    pub head_norms: Option<HeadNorms>,
    /// Output projection, `[width, width]`.
    pub output: TowerLinear,
    /// Norm of attention's result, if the tower has one.
    pub post_attention_norm: Option<Norm>,
    /// Norm before the FFN.
    pub ffn_norm: Norm,
    /// `[n_ff, width]`, for FFNs with a gate.
    pub gate: Option<TowerLinear>,
    /// `[n_ff, width]`
    pub up: TowerLinear,
    /// `[width, n_ff]`
    pub down: TowerLinear,
    /// Norm of the FFN's result, if the tower has one.
    pub post_ffn_norm: Option<Norm>,
    /// From the layer's output to additions to a layer of the text model.
    pub deepstack: Option<Merger>,
    /// True if patches attend only within their window.
    pub windowed: bool,
    /// Joins patches after the layer, if the tower does so there.
    pub join: Option<Box<PatchJoin>>,
}

/// Joins the patches of a square and projects them: norm, linear map, GELU, linear map.
#[derive(Debug, Clone)]
pub struct Merger {
    /// Norm of each patch before all else, `[width]`, if there is one.
    pub patches: Option<Norm>,
    /// Norm of each patch, `[width]`, or of joined patches, `[merge^2 * width]`, if there is one.
    pub norm: Option<Norm>,
    /// `[width, merge^2 * width]`, for mergers with a linear map before the first.
    pub join: Option<Linear>,
    /// `[hidden, merge^2 * width]`, or `[hidden, width]` behind `join`.
    pub first: Linear,
    /// `[d_model, hidden]`
    pub second: Linear,
}

impl Resampler {
    /// Returns the number of queries, which are the tokens of every picture.
    pub fn tokens(&self) -> usize {
        self.queries.len() / self.output.weight.rows()
    }
}

impl Merger {
    /// Returns the linear maps, in the order in which they are computed.
    pub fn maps(&self) -> impl Iterator<Item = &Linear> {
        self.join.iter().chain([&self.first, &self.second])
    }

    /// Reads the merger with these names of its norm and its linear maps. Its norm is of joined
    /// patches if `joined`.
    pub(super) fn load(
        loader: &Loader<'_>,
        config: &TowerConfig,
        [norm, first, second]: [&str; 3],
        joined: bool,
    ) -> Result<Self> {
        let inputs = config.width * config.merge * config.merge;
        Ok(Merger {
            patches: None,
            norm: Some(loader.norm(norm, config.norm, if joined { inputs } else { config.width })?),
            join: None,
            first: loader.linear(first, inputs, inputs)?,
            second: loader.linear(second, config.d_model, inputs)?,
        })
    }
}

impl TowerLinear {
    /// Reads the linear map `stem` and the limits beside it.
    pub(super) fn load(loader: &Loader<'_>, stem: &str, rows: usize, cols: usize) -> Result<Self> {
        let limit = |role: &str| -> Result<Option<f32>> {
            Ok(loader.optional_vector(&format!("{stem}.{role}"), 1)?.map(|value| value[0]))
        };
        let (least, most) = (f32::NEG_INFINITY, f32::INFINITY);
        let limits = [limit("input_min")?, limit("input_max")?, limit("output_min")?, limit("output_max")?];
        let or = |at: usize, default: f32| limits[at].unwrap_or(default);
        let limits = limits
            .iter()
            .any(Option::is_some)
            .then(|| ValueLimits { input: [or(0, least), or(1, most)], output: [or(2, least), or(3, most)] });
        Ok(TowerLinear { linear: loader.linear(stem, rows, cols)?, limits })
    }
}

impl TowerLayer {
    /// Returns the linear maps of attention and FFN, in the order in which they are computed.
    pub fn maps(&self) -> impl Iterator<Item = &TowerLinear> {
        self.qkv.iter().chain([&self.output]).chain(&self.gate).chain([&self.up, &self.down])
    }

    /// Reads layer `n`. Files have queries, keys and values in one tensor or in three.
    pub(super) fn load(loader: &Loader<'_>, config: &TowerConfig, n: usize) -> Result<Self> {
        let (width, n_ff) = (config.width, config.n_ff);
        let name = |role: &str| format!("v.blk.{n}.{role}");
        let linear = |role: &str, rows: usize, cols: usize| TowerLinear::load(loader, &name(role), rows, cols);
        let qkv = match loader.has(&name("attn_qkv.weight")) {
            true => {
                let parts = Linear::split(loader, &name("attn_qkv"), width, [width; 3])?;
                parts.map(|linear| TowerLinear { linear, limits: None })
            }
            false => {
                let part = |role: &str| linear(role, width, width);
                [part("attn_q")?, part("attn_k")?, part("attn_v")?]
            }
        };
        let gate = loader.has(&name("ffn_gate.weight"));
        // Old files of llama.cpp exchange the names.
        let exchanged = n_ff != width && loader.rows(&name("ffn_up.weight")) == Some(width);
        let [up, down] = if exchanged { ["ffn_down", "ffn_up"] } else { ["ffn_up", "ffn_down"] };
        Ok(TowerLayer {
            attention_norm: loader.norm(&name("ln1"), config.norm, width)?,
            qkv,
            head_norms: None,
            output: linear("attn_out", width, width)?,
            post_attention_norm: loader.optional_norm(&name("attn_post_norm"), config.norm, width)?,
            ffn_norm: loader.norm(&name("ln2"), config.norm, width)?,
            gate: gate.then(|| linear("ffn_gate", n_ff, width)).transpose()?,
            up: linear(up, n_ff, width)?,
            down: linear(down, width, n_ff)?,
            post_ffn_norm: loader.optional_norm(&name("ffn_post_norm"), config.norm, width)?,
            deepstack: None,
            windowed: false,
            join: None,
        })
    }
}

/// Reads the patch embedding `v.patch_embd`. A tower for videos has one convolution per frame. The
/// frames of a picture are equal, so the convolutions are summed.
pub(super) fn patch_embedding(loader: &Loader<'_>, sizes: &TowerSizes) -> Result<Linear> {
    let TowerSizes { width, patch_size, .. } = *sizes;
    let shape = [width, 3, patch_size, patch_size];
    let mut values = loader.vector_of_shape("v.patch_embd.weight", &[&shape])?;
    let second = "v.patch_embd.weight.1";
    if loader.has(second) {
        let further = loader.vector_of_shape(second, &[&shape])?;
        values.iter_mut().zip(further).for_each(|(sum, value)| *sum += value);
    }
    let bytes = Bytes::new(values.into_iter().flat_map(f32::to_le_bytes).collect::<Vec<u8>>());
    let weight = Matrix::new(TensorType::F32, width, 3 * patch_size * patch_size, bytes);
    let weight = weight.ok_or_else(|| loader.missing_tensor("v.patch_embd.weight", format!("shape {shape:?}")))?;
    Ok(Linear { weight, bias: loader.optional_vector("v.patch_embd.bias", width)? })
}

/// Reads a matrix that files store transposed, `[cols, rows]`, as `[rows, cols]`.
pub(super) fn transposed(loader: &Loader<'_>, name: &str, rows: usize, cols: usize) -> Result<Matrix> {
    let values = loader.vector_of_shape(name, &[&[cols, rows]])?;
    let values = (0..rows * cols).flat_map(|at| values[at % cols * rows + at / cols].to_le_bytes());
    let matrix = Matrix::new(TensorType::F32, rows, cols, Bytes::new(values.collect::<Vec<u8>>()));
    matrix.ok_or_else(|| loader.missing_tensor(name, format!("shape {:?}", [cols, rows])))
}

/// Reads the learned embeddings of places, `v.position_embd`.
pub(super) fn patch_positions(loader: &Loader<'_>, sizes: &TowerSizes) -> Result<PatchPositions> {
    let name = "v.position_embd.weight";
    let count = loader.rows(name).unwrap_or(0);
    let side = count.isqrt();
    if side == 0 || side * side != count {
        return Err(loader.tensor_error(name, "a square number of rows", format!("{count} rows")));
    }
    let table = loader.vector_of_shape(name, &[&[count, sizes.width]])?;
    Ok(PatchPositions::Square { side, table })
}

/// Reads the learned embeddings of columns and rows, `v.position_embd`.
pub(super) fn side_positions(loader: &Loader<'_>, width: usize) -> Result<PatchPositions> {
    let name = "v.position_embd.weight";
    let shape = loader.checkpoint.tensor(name).map(|tensor| tensor.shape.clone()).unwrap_or_default();
    let length = shape.get(1).copied().unwrap_or(0);
    if length == 0 {
        return Err(loader.tensor_error(name, format!("shape [2, places, {width}]"), format!("{shape:?}")));
    }
    Ok(PatchPositions::Sides { length, table: loader.vector_of_shape(name, &[&[2, length, width]])? })
}

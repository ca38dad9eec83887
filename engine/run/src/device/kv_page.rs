//! Pages of keys and values on a device, and the dispatches that work on them.

use std::ops::Range;

use super::{
    attention::{AttentionBuffers, AttentionInputs, AttentionOps, WORKGROUP},
    kv_rows::{DeviceRows, RowLayout},
    latent,
};
use thermocline_base::error::Result;
use thermocline_gpu::{Buffer, Gpu, Op, Purpose, Usage, params};
use thermocline_model::{HeadGates, Rope, RopeOrder};
use thermocline_shaders::head_pitch;

/// A page: keys and values of some heads of a layer, with the dispatches that work on them.
#[derive(Debug)]
pub(crate) struct KvPage {
    /// The page's key/value heads, numbered within the layer.
    pub heads: Range<usize>,
    pub(super) memory: PageMemory,
    /// Norms, rotation, append.
    pub append: Op,
    /// Scores of a few tokens, in one split.
    pub decode: Op,
    /// Scores of a few tokens, in several splits with partial results.
    pub decode_split: Op,
    /// Scores of many tokens.
    pub prompt: Op,
}

/// The buffers of a page: keys and values, each `[heads, room, head_pitch]`. Keys that are also
/// values have one buffer.
#[derive(Debug, Clone)]
pub(super) struct PageMemory {
    keys: Buffer,
    values: Buffer,
    /// True if the buffers hold f32; false for f16.
    full: bool,
}

impl PageMemory {
    /// Makes the buffers of `heads` heads in the layout `rows`.
    ///
    /// # Errors
    /// [`Error::Memory`](thermocline_base::error::Error::Memory) if they do not fit the budget.
    pub fn new(gpu: &Gpu, rows: &DeviceRows, heads: usize) -> Result<Self> {
        let [of_keys, of_values] = [false, true].map(|values| rows.of(values));
        let buffer = |of: RowLayout| {
            gpu.arena().buffer(Purpose::Kv, "KV cache", of.head_bytes(rows.room) * heads as u64, Usage::Storage)
        };
        let keys = buffer(of_keys)?;
        let values = if of_values.heads == 0 { keys.clone() } else { buffer(of_values)? };
        Ok(PageMemory { keys, values, full: of_keys.bytes == 4 })
    }

    /// The buffer of values (if `values`) or of keys.
    pub fn of(&self, values: bool) -> &Buffer {
        if values { &self.values } else { &self.keys }
    }
}

impl KvPage {
    /// Makes the page of `heads` in `memory`, with the dispatches of a layer whose keys are rotated
    /// by `rope`, if given.
    ///
    /// # Errors
    /// [`Error::Gpu`](thermocline_base::error::Error::Gpu) if the device is lost.
    pub(super) fn new(
        gpu: &Gpu,
        rope: Option<&Rope>,
        buffers: &AttentionBuffers,
        attention: &AttentionOps,
        heads: Range<usize>,
        memory: PageMemory,
    ) -> Result<Self> {
        let PageMemory { keys, values, full } = &memory;
        let switch = |on: bool| f64::from(u8::from(on));
        let (layout, shape) = (&attention.layout, &attention.layout.shape);
        let neox = rope.is_some_and(|rope| rope.order == RopeOrder::NeoX);
        let table = shape.positions.rope_in(&buffers.tables);
        let kv_f32 = ("KV_F32", switch(*full));
        let head_dim = ("HEAD_DIM", shape.heads.head_dim as f64);
        let value_dim = ("VALUE_DIM", shape.heads.value_dim as f64);
        let pipelines = gpu.pipelines();
        let nothing = gpu.nothing();

        let grows = ("QUERY_SCALE", switch(shape.scores.query_scale.is_some()));
        let options = [
            ("NEOX", switch(neox)),
            ("ROPE", switch(table.is_some())),
            ("QK_NORM", switch(attention.q_norm.is_some())),
            ("QK_NORM_ALL", switch(attention.norms_all)),
            ("NORM_AFTER_ROPE", switch(shape.positions.norm_after_rope)),
            ("GATED", switch(shape.gate == Some(HeadGates::InQueries))),
            ("V_NORM", switch(shape.values.normed)),
            ("VALUE_SCALE", shape.values.scale.into()),
            kv_f32,
            grows,
        ];
        let table = table.unwrap_or(nothing);
        let append = match (&attention.inputs, &buffers.latent) {
            (AttentionInputs::Latent(inputs), Some(latent)) => {
                let overrides = [options[0], options[1], kv_f32, grows];
                let append = pipelines.get("latent_append", None, latent::WORKGROUP, &overrides)?;
                let of = [&buffers.qkv, &latent.projected, table, &inputs.norm, &latent.inputs, &buffers.q, keys];
                Op::new(gpu, &append, &of.map(Into::into))?
            }
            _ => {
                // Each head has one workgroup.
                let rope_workgroup = (shape.heads.head_dim as u32 / 2).next_multiple_of(32).clamp(32, WORKGROUP);
                let append = pipelines.get("rope_append", None, rope_workgroup, &options)?;
                let [q_norm, k_norm] = [&attention.q_norm, &attention.k_norm].map(|it| it.as_ref().unwrap_or(nothing));
                let of = [&buffers.qkv, table, q_norm, k_norm, &buffers.q, keys, values];
                Op::new(gpu, &append, &of.map(Into::into))?
            }
        };
        let with_sinks = ("SINKS", switch(attention.sinks.is_some()));
        let sinks = attention.sinks.as_ref().unwrap_or(nothing);
        let overrides = [("HEADS", f64::from(layout.decode_heads)), head_dim, value_dim, kv_f32, with_sinks];
        let widest = head_pitch(shape.heads.longest() as u32);
        let workgroup = WORKGROUP.max(widest / 4).max(16 * layout.decode_heads).next_multiple_of(32);
        let decode = pipelines.get("attention_decode", None, workgroup, &overrides)?;
        let into = |out: &Buffer| Op::new(gpu, &decode, &[&buffers.q, keys, values, sinks, out].map(Into::into));
        let (direct, split) = (into(&buffers.heads)?, into(&buffers.partials)?);
        let workgroup = AttentionBuffers::PROMPT_WORKGROUP;
        let pipeline =
            pipelines.get("attention_prompt", None, workgroup, &[head_dim, value_dim, kv_f32, with_sinks])?;
        let prompt = direct.variant(&pipeline);
        Ok(KvPage { heads, memory, append, decode: direct, decode_split: split, prompt })
    }

    /// Parameters of the scores, reduced to this page's heads.
    pub(super) fn params(&self, all: params::Attention) -> params::Attention {
        params::Attention { first_kv_head: self.heads.start as u32, kv_heads: self.heads.len() as u32, ..all }
    }
}

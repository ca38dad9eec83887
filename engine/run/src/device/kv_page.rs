//! Pages of keys and values on a device, and the dispatches that work on them.

use std::ops::Range;

use super::{
    attention::{AttentionBuffers, AttentionOps},
    kv_rows::{DeviceRows, RowLayout},
    latent,
};
use thermocline_base::error::Result;
use thermocline_gpu::{Buffer, Gpu, Op, Purpose, Usage, params};
use thermocline_model::{Rope, RopeOrder};

/// A page: keys and values of some heads of a layer, with the dispatches that work on them.
#[derive(Debug)]
pub(crate) struct KvPage {
    /// Its key/value heads, of the layer's.
    pub heads: Range<usize>,
    pub(super) memory: PageMemory,
    pub(super) ops: KvOps,
}

/// The buffers of a page, `[heads, room, head_pitch]` of keys and of values; one for both where keys are their own values.
#[derive(Debug, Clone)]
pub(super) struct PageMemory {
    keys: Buffer,
    values: Buffer,
    /// True if they hold f32, otherwise f16.
    full: bool,
}

/// The dispatches of one layer that touch a page of its keys and values.
#[derive(Debug)]
pub(super) struct KvOps {
    /// Norms, rotation, append.
    pub append: Op,
    /// A few tokens, in one split.
    pub decode: Op,
    /// A few tokens, in several: partial results.
    pub decode_split: Op,
    /// Many tokens.
    pub prompt: Op,
}

impl PageMemory {
    /// Buffers of `heads` heads that lie as `rows` says.
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

    /// The buffer of values, or of keys.
    pub fn of(&self, values: bool) -> &Buffer {
        if values { &self.values } else { &self.keys }
    }
}

impl KvPage {
    /// The page of `heads` in `memory`, with the dispatches of a layer whose keys are rotated by `rope`, if at all.
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
        let ops = KvOps::new(gpu, rope, buffers, attention, &memory)?;
        Ok(KvPage { heads, memory, ops })
    }

    /// The parameters of scores, of its heads alone.
    pub(super) fn params(&self, all: params::Attention) -> params::Attention {
        params::Attention { first_kv_head: self.heads.start as u32, kv_heads: self.heads.len() as u32, ..all }
    }
}

impl KvOps {
    fn new(
        gpu: &Gpu,
        rope: Option<&Rope>,
        buffers: &AttentionBuffers,
        attention: &AttentionOps,
        memory: &PageMemory,
    ) -> Result<Self> {
        let PageMemory { keys, values, full } = memory;
        let switch = |on: bool| f64::from(u8::from(on));
        let layout = &attention.layout;
        let neox = rope.is_some_and(|rope| rope.order == RopeOrder::NeoX);
        let table = layout.shape.rope.and_then(|table| buffers.tables.get(table));
        let kv_f32 = ("KV_F32", switch(*full));
        let head_dim = ("HEAD_DIM", layout.shape.head_dim as f64);
        let value_dim = ("VALUE_DIM", layout.shape.value_dim as f64);
        let pipelines = gpu.pipelines();
        let nothing = gpu.nothing();

        let grows = ("QUERY_SCALE", switch(layout.shape.query_scale.is_some()));
        let heads = [
            ("NEOX", switch(neox)),
            ("ROPE", switch(table.is_some())),
            ("QK_NORM", switch(attention.q_norm.is_some())),
            ("QK_NORM_ALL", switch(attention.norms_all)),
            ("NORM_AFTER_ROPE", switch(layout.shape.norm_after_rope)),
            ("GATED", switch(layout.shape.gated)),
            ("V_NORM", switch(layout.shape.norm_values)),
            ("VALUE_SCALE", layout.shape.value_scale.into()),
            kv_f32,
            grows,
        ];
        let table = table.unwrap_or(nothing);
        let append = match (attention.latent_norm(), &buffers.latent) {
            (Some(norm), Some(latent)) => {
                let overrides = [heads[0], heads[1], kv_f32, grows];
                let append = pipelines.get("latent_append", None, latent::WORKGROUP, &overrides)?;
                let of = [&buffers.qkv, &latent.projected, table, norm, &latent.inputs, &buffers.q, keys];
                Op::new(gpu, &append, &of.map(Into::into))?
            }
            _ => {
                let append = pipelines.get("rope_append", None, layout.rope_workgroup(), &heads)?;
                let [q_norm, k_norm] = [&attention.q_norm, &attention.k_norm].map(|it| it.as_ref().unwrap_or(nothing));
                let of = [&buffers.qkv, table, q_norm, k_norm, &buffers.q, keys, values];
                Op::new(gpu, &append, &of.map(Into::into))?
            }
        };
        let with_sinks = ("SINKS", switch(attention.sinks.is_some()));
        let sinks = attention.sinks.as_ref().unwrap_or(nothing);
        let overrides = [("HEADS", f64::from(layout.decode_heads)), head_dim, value_dim, kv_f32, with_sinks];
        let decode = pipelines.get("attention_decode", None, layout.decode_workgroup(), &overrides)?;
        let into = |out: &Buffer| Op::new(gpu, &decode, &[&buffers.q, keys, values, sinks, out].map(Into::into));
        let (direct, split) = (into(&buffers.heads)?, into(&buffers.partials)?);
        let workgroup = AttentionBuffers::PROMPT_WORKGROUP;
        let pipeline =
            pipelines.get("attention_prompt", None, workgroup, &[head_dim, value_dim, kv_f32, with_sinks])?;
        let prompt = direct.variant(&pipeline);
        Ok(KvOps { append, decode: direct, decode_split: split, prompt })
    }
}

//! Keys and values on the device.

use std::sync::Arc;

use thermocline_shaders::head_pitch;

use super::attention::{AttentionBuffers, AttentionOps, has_prompt_kernel};
use crate::{
    error::{Error, Result},
    gpu::{Buffer, Gpu, Op, Purpose, Usage},
    model::{KvType, ModelConfig, Position, RopeOrder, Rotary},
};

/// The cache of one conversation on the device of one [`super::GpuProcessor`], with the dispatches that work on it.
#[derive(Debug)]
pub(in crate::model) struct GpuKv {
    /// Whose buffers the dispatches read beside the cache's own.
    owner: Arc<()>,
    layers: Vec<KvOps>,
    /// What is held.
    pub bytes: u64,
    pub ty: KvType,
}

/// The dispatches of one layer that touch its keys and values, each `[n_kv_head, capacity, head_pitch]`.
#[derive(Debug)]
pub(super) struct KvOps {
    /// Norms of heads, rotation, append.
    pub rope: Op,
    /// A few tokens, in one split.
    pub decode: Op,
    /// A few tokens, in several: partial results.
    pub decode_split: Op,
    /// Many tokens.
    pub prompt: Option<Op>,
}

impl GpuKv {
    /// Buffers and dispatches for `capacity` tokens. 8-bit caches are for the CPU; here they are [`KvType::F16`].
    pub(super) fn new(
        gpu: &Gpu,
        config: &ModelConfig,
        owner: &Arc<()>,
        buffers: &AttentionBuffers,
        layers: &[&AttentionOps],
        (capacity, ty): (usize, KvType),
    ) -> Result<Self> {
        let (ty, element) = match ty {
            KvType::F32 => (KvType::F32, 4),
            KvType::F16 | KvType::Q8_0 => (KvType::F16, 2),
        };
        let row = u64::from(head_pitch(config.head_dim as u32)) * config.n_kv_head as u64 * element;
        let bytes = row.saturating_mul(capacity as u64);
        let caps = gpu.caps();
        // Kernels count words, and rows of heads, in 32 bits.
        let most = caps.max_binding.min(caps.max_buffer).min(1 << 33);
        if bytes > most {
            return Err(Error::Memory { what: "KV cache of one layer", wanted: bytes, available: most });
        }
        let all = bytes.saturating_mul(2 * layers.len() as u64);
        let available = gpu.arena().available();
        if all > available {
            return Err(Error::Memory { what: "KV cache", wanted: all, available });
        }
        let rotary = Rotary::new(config, capacity);
        let buffer = || gpu.arena().buffer(Purpose::Kv, "KV cache", bytes, Usage::Storage);
        let ops = layers.iter().enumerate().map(|(layer, attention)| {
            let table = rotary.as_ref().and_then(|rotary| buffers.tables.get(rotary.table_of(layer)));
            KvOps::new(gpu, config, buffers, attention, table, (buffer()?, buffer()?), ty)
        });
        Ok(GpuKv { owner: Arc::clone(owner), layers: ops.collect::<Result<_>>()?, bytes: all, ty })
    }

    /// Whether it was made for the processor of this identity.
    pub fn is_of(&self, owner: &Arc<()>) -> bool {
        Arc::ptr_eq(&self.owner, owner)
    }

    /// The dispatches of a layer.
    pub(super) fn layer(&self, layer: usize) -> Option<&KvOps> {
        self.layers.get(layer)
    }
}

impl KvOps {
    fn new(
        gpu: &Gpu,
        config: &ModelConfig,
        buffers: &AttentionBuffers,
        attention: &AttentionOps,
        table: Option<&Buffer>,
        (keys, values): (Buffer, Buffer),
        ty: KvType,
    ) -> Result<Self> {
        let switch = |on: bool| f64::from(u8::from(on));
        let neox = matches!(&config.position, Position::Rope(rope) if rope.order == RopeOrder::NeoX);
        let kv_f32 = ("KV_F32", switch(ty == KvType::F32));
        let head_dim = ("HEAD_DIM", config.head_dim as f64);
        let pipelines = gpu.pipelines();
        let nothing = gpu.nothing();

        let overrides = [
            ("NEOX", switch(neox)),
            ("ROPE", switch(table.is_some())),
            ("QK_NORM", switch(attention.q_norm.is_some())),
            kv_f32,
        ];
        let rope = pipelines.get("rope_append", None, buffers.rope_workgroup(), &overrides)?;
        let norm = |norm: &Option<Buffer>| norm.as_ref().unwrap_or(nothing).into();
        let rope = Op::new(
            gpu,
            &rope,
            &[
                (&buffers.qkv).into(),
                table.unwrap_or(nothing).into(),
                norm(&attention.q_norm),
                norm(&attention.k_norm),
                (&buffers.q).into(),
                (&keys).into(),
                (&values).into(),
            ],
        )?;
        let overrides = [("HEADS", f64::from(buffers.decode_heads)), head_dim, kv_f32];
        let decode = pipelines.get("attention_decode", None, buffers.decode_workgroup(), &overrides)?;
        let into =
            |out: &Buffer| Op::new(gpu, &decode, &[(&buffers.q).into(), (&keys).into(), (&values).into(), out.into()]);
        let (direct, split) = (into(&buffers.heads)?, into(&buffers.partials)?);
        let prompt = has_prompt_kernel(config.head_dim).then(|| {
            let workgroup = AttentionBuffers::PROMPT_WORKGROUP;
            let pipeline = pipelines.get("attention_prompt", None, workgroup, &[head_dim, kv_f32])?;
            Ok(direct.variant(&pipeline))
        });
        Ok(KvOps { rope, decode: direct, decode_split: split, prompt: prompt.transpose()? })
    }
}

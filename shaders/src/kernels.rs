//! The table of kernels.

use crate::{
    Tier, WeightType, include,
    limits::CODE_BOOK,
    params::{self, Params},
};

/// How a kernel uses a storage buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// `var<storage, read>`
    Read,
    /// `var<storage, read_write>`
    Write,
}

/// One kernel: a file with one entry point of the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kernel {
    /// Name of the file (without `.wgsl`) and of its entry point.
    pub name: &'static str,
    /// Weight types that it can read, with one text each. Empty if it reads no weights.
    pub weights: &'static [WeightType],
    /// True if it needs hardware matrix products, and therefore subgroups and 16-bit floats.
    /// Direct3D and OpenGL do not support such kernels.
    pub cooperative: bool,
    /// True if it only prepares the input of cooperative kernels. It does not need their features
    /// itself.
    pub for_cooperative: bool,
    /// True if it computes with packed 8-bit integers.
    pub packed: bool,
    /// Storage buffers of group 0, in the order of their bindings.
    pub bindings: &'static [Access],
    /// Fields of its `Params`, set as immediates, with their offsets.
    pub params: &'static [(&'static str, usize)],
    /// Size of its `Params` in bytes.
    pub params_bytes: u32,
    text: &'static str,
}

use Access::{Read, Write};

/// All kernels.
pub const KERNELS: &[Kernel] = &[
    kernel::<params::Activation>("activation", &[Read, Write], include_str!("../wgsl/activation.wgsl")),
    kernel::<params::ActiveMask>("active_mask", &[Read, Write], include_str!("../wgsl/active_mask.wgsl")),
    kernel::<params::Streams>("altup_add", &[Read, Write, Write], include_str!("../wgsl/altup_add.wgsl")),
    kernel::<params::Streams>(
        "altup_correct",
        &[Read, Read, Read, Read, Write, Write],
        include_str!("../wgsl/altup_correct.wgsl"),
    ),
    kernel::<params::Streams>(
        "altup_predict",
        &[Read, Read, Read, Write, Write],
        include_str!("../wgsl/altup_predict.wgsl"),
    ),
    kernel::<params::Elements>("add", &[Write, Read], include_str!("../wgsl/add.wgsl")),
    kernel::<params::Attention>(
        "attention_decode",
        &[Read, Read, Read, Read, Write],
        include_str!("../wgsl/attention_decode.wgsl"),
    ),
    kernel::<params::AttentionMerge>("attention_merge", &[Read, Write], include_str!("../wgsl/attention_merge.wgsl")),
    kernel::<params::Attention>(
        "attention_prompt",
        &[Read, Read, Read, Read, Write],
        include_str!("../wgsl/attention_prompt.wgsl"),
    ),
    kernel::<params::DeltaInputs>(
        "delta_inputs",
        &[Write, Write, Read, Read],
        include_str!("../wgsl/delta_inputs.wgsl"),
    ),
    kernel::<params::DeltaNet>("delta_net", &[Read, Read, Write, Write], include_str!("../wgsl/delta_net.wgsl")),
    kernel::<params::GateExcess>("gate_excess", &[Write], include_str!("../wgsl/gate_excess.wgsl")),
    kernel::<params::GateHeads>("gate_heads", &[Write, Read], include_str!("../wgsl/gate_heads.wgsl")),
    kernel::<params::GatedNorm>("gated_norm", &[Write, Read, Read], include_str!("../wgsl/gated_norm.wgsl")),
    kernel::<params::LatentAppend>(
        "latent_append",
        &[Read, Read, Read, Read, Write, Write, Write],
        include_str!("../wgsl/latent_append.wgsl"),
    ),
    kernel::<params::Mamba2Scan>(
        "mamba2_scan",
        &[Read, Read, Read, Write, Write],
        include_str!("../wgsl/mamba2_scan.wgsl"),
    ),
    kernel::<params::Norm>("norm", &[Write, Read, Read, Read, Write], include_str!("../wgsl/norm.wgsl")),
    kernel::<params::RopeAppend>(
        "rope_append",
        &[Read, Read, Read, Read, Write, Write, Write],
        include_str!("../wgsl/rope_append.wgsl"),
    ),
    kernel::<params::GatedInput>("gated_input", &[Read, Read, Write], include_str!("../wgsl/gated_input.wgsl")),
    kernel::<params::Scale>("scale", &[Write, Read], include_str!("../wgsl/scale.wgsl")),
    kernel::<params::ShortConv>(
        "short_conv",
        &[Read, Read, Read, Write, Write],
        include_str!("../wgsl/short_conv.wgsl"),
    ),
    kernel::<params::SoftCap>("soft_cap", &[Write], include_str!("../wgsl/soft_cap.wgsl")),
    typed(kernel::<params::Embedding>("embedding", &[Read, Read, Read, Write], include_str!("../wgsl/embedding.wgsl"))),
    typed(kernel::<params::ExpertGateUp>(
        "expert_gate_up",
        &[Read, Read, Read, Read, Read, Read, Write],
        include_str!("../wgsl/expert_gate_up.wgsl"),
    )),
    typed(kernel::<params::ExpertMatmul>(
        "expert_gemm",
        &[Read, Read, Read, Read, Read, Read, Write],
        include_str!("../wgsl/expert_gemm.wgsl"),
    )),
    typed(kernel::<params::ExpertMatmul>(
        "expert_gemv",
        &[Read, Read, Read, Read, Read, Write],
        include_str!("../wgsl/expert_gemv.wgsl"),
    )),
    typed(kernel::<params::Matmul>("gemm", &[Read, Read, Read, Read, Write], include_str!("../wgsl/gemm.wgsl"))),
    cooperative(typed(kernel::<params::Matmul>(
        "gemm_coop",
        &[Read, Read, Read, Read, Write, Read],
        include_str!("../wgsl/gemm_coop.wgsl"),
    ))),
    cooperative(typed(kernel::<params::Matmul>(
        "gemm_coop_8",
        &[Read, Read, Read, Read, Write, Read],
        include_str!("../wgsl/gemm_coop_8.wgsl"),
    ))),
    typed(kernel::<params::SparseDown>(
        "gemm_neurons",
        &[Read, Read, Read, Write],
        include_str!("../wgsl/gemm_neurons.wgsl"),
    )),
    typed(kernel::<params::Matmul>("gemv", &[Read, Read, Read, Read, Write], include_str!("../wgsl/gemv.wgsl"))),
    packed(Kernel {
        weights: &WeightType::PACKED,
        ..kernel::<params::Matmul>("gemv_dot", &[Read, Read, Read, Read, Write], include_str!("../wgsl/gemv_dot.wgsl"))
    }),
    kernel::<params::GroupSlots>("group_slots", &[Read, Write, Write], include_str!("../wgsl/group_slots.wgsl")),
    packed(kernel::<params::Quantise>("quantise_q8", &[Read, Write], include_str!("../wgsl/quantise_q8.wgsl"))),
    for_cooperative(kernel::<params::HalfScale>("half_scale", &[Read, Write], include_str!("../wgsl/half_scale.wgsl"))),
    kernel::<params::Combine>("combine", &[Read, Read, Read, Read, Read, Write], include_str!("../wgsl/combine.wgsl")),
    kernel::<params::Stream>("read_bandwidth", &[Read, Write], include_str!("../wgsl/read_bandwidth.wgsl")),
    kernel::<params::Route>(
        "route",
        &[Read, Read, Read, Write, Write, Write, Read],
        include_str!("../wgsl/route.wgsl"),
    ),
    kernel::<params::SlotList>("slot_list", &[Read, Read, Write, Write, Write], include_str!("../wgsl/slot_list.wgsl")),
    typed(kernel::<params::SparseDown>(
        "sparse_down",
        &[Read, Read, Read, Write],
        include_str!("../wgsl/sparse_down.wgsl"),
    )),
    typed(kernel::<params::SparseGateUp>(
        "sparse_gate_up",
        &[Read, Read, Read, Read, Read, Write],
        include_str!("../wgsl/sparse_gate_up.wgsl"),
    )),
    kernel::<params::SubgroupTrial>("subgroup_trial", &[Write], include_str!("../wgsl/subgroup_trial.wgsl")),
    kernel::<params::SumSplits>("sum_splits", &[Read, Read, Write], include_str!("../wgsl/sum_splits.wgsl")),
    kernel::<params::TopK>("top_k", &[Read, Read, Write, Write], include_str!("../wgsl/top_k.wgsl")),
];

const fn kernel<P: Params>(name: &'static str, bindings: &'static [Access], text: &'static str) -> Kernel {
    Kernel {
        name,
        weights: &[],
        cooperative: false,
        for_cooperative: false,
        packed: false,
        bindings,
        params: P::FIELDS,
        params_bytes: size_of::<P>() as u32,
        text,
    }
}

const fn typed(kernel: Kernel) -> Kernel {
    Kernel { weights: &WeightType::ALL, ..kernel }
}

const fn cooperative(kernel: Kernel) -> Kernel {
    Kernel { cooperative: true, ..kernel }
}

const fn for_cooperative(kernel: Kernel) -> Kernel {
    Kernel { for_cooperative: true, ..kernel }
}

const fn packed(kernel: Kernel) -> Kernel {
    Kernel { packed: true, ..kernel }
}

impl Kernel {
    /// The kernel with this name.
    pub fn named(name: &str) -> Option<&'static Kernel> {
        KERNELS.iter().find(|kernel| kernel.name == name)
    }

    /// Its storage buffers and their bindings for `weights`. The code book of the weight type, if
    /// any, follows the kernel's own buffers.
    pub fn bindings_of(&self, weights: Option<WeightType>) -> impl Iterator<Item = (u32, Access)> {
        let code_book = weights.and_then(WeightType::code_book).map(|_| (CODE_BOOK, Access::Read));
        (0..).zip(self.bindings.iter().copied()).chain(code_book)
    }

    /// Tiers for which it has a text.
    pub fn tiers(&self) -> &'static [Tier] {
        if self.cooperative { &Tier::ALL[3..] } else { &Tier::ALL }
    }

    /// WGSL text for an adapter of `tier`. `weights` is the type of weights, if the kernel reads
    /// weights ([`Kernel::weights`]).
    ///
    /// # Errors
    /// A wrong directive in a file, with file and line. Tests check that no kernel has one.
    pub fn source(&self, tier: Tier, weights: Option<WeightType>) -> Result<String, String> {
        include::expand(self.name, self.text, tier, weights)
    }
}

//! The list of shapes.

use super::{
    architectures::{self, LatentSizes, Mamba2Sizes, falcon, llama, opt},
    shape::{DescribeShape, ExpertCounts, SynthShape},
};
use crate::Activation::{self, ClampedSwiglu, DRelu, GeluTanh, Relu, ReluSquared, Silu};

/// Returns every shape. These are the models of the PowerInfer paper and its repository, and two
/// dense Llamas to compare with other engines. The others are Mixtral, Mixtral with TurboSparse's
/// rectified gates, gpt-oss, Qwen 3.5, Gemma 4 E4B, Nemotron 3 Nano, GLM 4.7 Flash, SmallThinker,
/// and tiny shapes.
pub fn shapes() -> &'static [SynthShape] {
    SHAPES
}

const fn shape(
    name: &'static str,
    architecture: &'static str,
    describe: DescribeShape,
    activation: Activation,
    [d_model, n_layer, n_head, n_kv_head, n_ff, n_vocab, context]: [usize; 7],
) -> SynthShape {
    SynthShape {
        name,
        architecture,
        activation,
        d_model,
        n_layer,
        n_head,
        n_kv_head,
        n_ff,
        n_vocab,
        context,
        moe: None,
        shared_ff: None,
        tied: false,
        describe,
    }
}

const fn tied(shape: SynthShape) -> SynthShape {
    SynthShape { tied: true, ..shape }
}

const fn with_experts(shape: SynthShape, experts: usize, used: usize) -> SynthShape {
    SynthShape { moe: Some(ExpertCounts { experts, used }), ..shape }
}

const fn with_shared(shape: SynthShape, experts: usize, used: usize, shared: usize) -> SynthShape {
    SynthShape { shared_ff: Some(shared), ..with_experts(shape, experts, used) }
}

const fn gpt_oss(name: &'static str, sizes: [usize; 7]) -> SynthShape {
    shape(name, "gpt-oss", |shape, draft| architectures::gpt_oss(shape, draft, 64), ClampedSwiglu, sizes)
}

const fn nemotron_h(name: &'static str, describe: DescribeShape, sizes: [usize; 7]) -> SynthShape {
    shape(name, "nemotron_h_moe", describe, ReluSquared, sizes)
}

const MIXTRAL: [usize; 7] = [4096, 32, 32, 8, 14336, 32000, 32768];
/// Sizes of most tiny shapes.
const TINY: [usize; 7] = [256, 4, 4, 2, 512, 2048, 4096];

const QWEN35_35B: [usize; 7] = [2048, 40, 16, 2, 512, 248_320, 262_144];
const NEMOTRON3_NANO: [usize; 7] = [2688, 52, 32, 2, 1856, 131_072, 1_048_576];
const GLM_FLASH: [usize; 7] = [2048, 47, 20, 1, 1536, 154_880, 202_752];
const SMALLTHINKER_21B: [usize; 7] = [2560, 52, 28, 4, 768, 151_936, 16_384];

const QWEN35: DescribeShape = |shape, draft| architectures::qwen35(shape, draft, [16, 32, 128], 256);
const TINY_QWEN35: DescribeShape = |shape, draft| architectures::qwen35(shape, draft, [2, 4, 32], 64);
const GEMMA4: DescribeShape = |shape, draft| architectures::gemma4(shape, draft, 256);
const TINY_GEMMA4: DescribeShape = |shape, draft| architectures::gemma4(shape, draft, 32);
const SMALLTHINKER: DescribeShape = |shape, draft| architectures::smallthinker(shape, draft, 128);
const TINY_SMALLTHINKER: DescribeShape = |shape, draft| architectures::smallthinker(shape, draft, 64);
const NEMOTRON3: DescribeShape = |shape, draft| {
    let mixers = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME";
    let sizes = Mamba2Sizes { mixers, heads: 64, head_dim: 64, groups: 8, state: 128 };
    architectures::nemotron_h(shape, draft, &sizes, 128)
};
const TINY_NEMOTRON3: DescribeShape = |shape, draft| {
    let sizes = Mamba2Sizes { mixers: "MEM*E", heads: 8, head_dim: 32, groups: 2, state: 32 };
    architectures::nemotron_h(shape, draft, &sizes, 64)
};
const FLASH: DescribeShape = |shape, draft| {
    let sizes = LatentSizes { queries: 768, keys: 512, plain: 192, rotated: 64, value: 256, first_ff: 10_240 };
    architectures::deepseek2(shape, draft, &sizes)
};
const TINY_FLASH: DescribeShape = |shape, draft| {
    let sizes = LatentSizes { queries: 128, keys: 64, plain: 64, rotated: 32, value: 64, first_ff: 768 };
    architectures::deepseek2(shape, draft, &sizes)
};

const SHAPES: &[SynthShape] = &[
    shape("relu-llama-7b", "llama", llama, Relu, [4096, 32, 32, 32, 11008, 32000, 4096]),
    shape("relu-llama-13b", "llama", llama, Relu, [5120, 40, 40, 40, 13824, 32000, 4096]),
    shape("relu-llama-33b", "llama", llama, Relu, [6656, 60, 52, 52, 17920, 32000, 2048]),
    shape("relu-llama-70b", "llama", llama, Relu, [8192, 80, 64, 8, 28672, 32000, 4096]),
    shape("bamboo-7b", "bamboo", llama, DRelu, [4096, 32, 32, 8, 14336, 32000, 4096]),
    shape("falcon-40b", "falcon", falcon, Relu, [8192, 60, 128, 8, 32768, 65024, 2048]),
    tied(shape("opt-6.7b", "opt", opt, Relu, [4096, 32, 32, 32, 16384, 50272, 2048])),
    tied(shape("opt-30b", "opt", opt, Relu, [7168, 48, 56, 56, 28672, 50272, 2048])),
    tied(shape("opt-66b", "opt", opt, Relu, [9216, 64, 72, 72, 36864, 50272, 2048])),
    tied(shape("opt-175b", "opt", opt, Relu, [12288, 96, 96, 96, 49152, 50272, 2048])),
    shape("llama-7b", "llama", llama, Silu, [4096, 32, 32, 32, 11008, 32000, 4096]),
    shape("llama-1b", "llama", llama, Silu, [2048, 22, 32, 4, 5632, 32000, 2048]),
    with_experts(shape("mixtral-8x7b", "llama", llama, Silu, MIXTRAL), 8, 2),
    with_experts(shape("turbosparse-mixtral", "llama", llama, DRelu, MIXTRAL), 8, 2),
    with_experts(gpt_oss("gpt-oss-20b", [2880, 24, 64, 8, 2880, 201_088, 131_072]), 32, 4),
    with_experts(gpt_oss("gpt-oss-120b", [2880, 36, 64, 8, 2880, 201_088, 131_072]), 128, 4),
    tied(shape("qwen3.5-4b", "qwen35", QWEN35, Silu, [2560, 32, 16, 4, 9216, 248_320, 262_144])),
    with_shared(shape("qwen3.5-35b-a3b", "qwen35moe", QWEN35, Silu, QWEN35_35B), 256, 8, 512),
    tied(shape("gemma4-e4b", "gemma4", GEMMA4, GeluTanh, [2560, 42, 8, 2, 10_240, 262_144, 131_072])),
    with_shared(nemotron_h("nemotron-3-nano", NEMOTRON3, NEMOTRON3_NANO), 128, 6, 3712),
    with_shared(shape("glm-4.7-flash", "deepseek2", FLASH, Silu, GLM_FLASH), 64, 4, 1536),
    with_experts(shape("smallthinker-21b", "smallthinker", SMALLTHINKER, Relu, SMALLTHINKER_21B), 64, 6),
    shape("tiny-relu-llama", "llama", llama, Relu, [256, 4, 4, 2, 1024, 2048, 4096]),
    shape("tiny-bamboo", "bamboo", llama, DRelu, [256, 4, 4, 2, 1024, 2048, 4096]),
    tied(shape("tiny-opt", "opt", opt, Relu, [256, 4, 4, 4, 1024, 2048, 4096])),
    shape("tiny-falcon", "falcon", falcon, Relu, [256, 4, 4, 2, 1024, 2048, 4096]),
    shape("tiny-llama", "llama", llama, Silu, [256, 4, 4, 2, 768, 2048, 4096]),
    with_experts(shape("tiny-mixtral", "llama", llama, Silu, TINY), 8, 2),
    with_experts(shape("tiny-turbosparse-mixtral", "llama", llama, DRelu, TINY), 8, 2),
    with_experts(gpt_oss("tiny-gpt-oss", [256, 4, 8, 2, 512, 2048, 4096]), 8, 2),
    shape("tiny-qwen3.5", "qwen35", TINY_QWEN35, Silu, TINY),
    with_shared(nemotron_h("tiny-nemotron-3", TINY_NEMOTRON3, [256, 5, 4, 2, 512, 2048, 4096]), 8, 2, 512),
    with_shared(shape("tiny-glm-flash", "deepseek2", TINY_FLASH, Silu, [256, 3, 4, 1, 128, 2048, 4096]), 8, 2, 128),
    with_experts(shape("tiny-smallthinker", "smallthinker", TINY_SMALLTHINKER, Relu, TINY), 8, 2),
    tied(shape("tiny-gemma4", "gemma4", TINY_GEMMA4, GeluTanh, [320, 12, 4, 2, 512, 2048, 4096])),
    with_shared(shape("tiny-qwen3.5-moe", "qwen35moe", TINY_QWEN35, Silu, [256, 4, 4, 2, 128, 2048, 4096]), 8, 2, 128),
];

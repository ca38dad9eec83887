//! The shapes there are.

use super::shape::{
    DeltaNetSizes, ExpertCounts, LatentSizes, Mamba2Sizes,
    SynthFamily::{self, Bamboo, DeepSeek, Falcon, Gemma4, GptOss, Llama, NemotronH, Opt, Qwen35, SmallThinker},
    SynthShape,
};

/// Every shape: the models of the PowerInfer paper and its repository, two dense Llamas to compare with other engines, Mixtral as it
/// is and with the rectified gates of TurboSparse, gpt-oss, Qwen 3.5, Gemma 4 E4B,
/// Nemotron 3 Nano, GLM 4.7 Flash, SmallThinker, and tiny ones.
pub fn shapes() -> &'static [SynthShape] {
    SHAPES
}

const fn shape(
    name: &'static str,
    family: SynthFamily,
    relu: bool,
    [d_model, n_layer, n_head, n_kv_head, n_ff, n_vocab, context]: [usize; 7],
) -> SynthShape {
    let (wide_head, moe, shared_ff, delta_net, tied) = (None, None, None, None, matches!(family, Opt));
    SynthShape {
        name,
        family,
        relu,
        d_model,
        n_layer,
        n_head,
        n_kv_head,
        wide_head,
        n_ff,
        n_vocab,
        context,
        moe,
        shared_ff,
        delta_net,
        mamba2: None,
        latent: None,
        tied,
    }
}

const fn gpt_oss(name: &'static str, experts: usize, used: usize, head: usize, sizes: [usize; 7]) -> SynthShape {
    let moe = Some(ExpertCounts { experts, used });
    SynthShape { wide_head: Some(head), moe, ..shape(name, GptOss, false, sizes) }
}

const fn qwen35(
    name: &'static str,
    [k_heads, v_heads, head_dim]: [usize; 3],
    head: usize,
    sizes: [usize; 7],
) -> SynthShape {
    let delta_net = Some(DeltaNetSizes { k_heads, v_heads, head_dim, taps: 4, interval: 4 });
    SynthShape { wide_head: Some(head), delta_net, ..shape(name, Qwen35, false, sizes) }
}

const fn with_experts(shape: SynthShape, experts: usize, used: usize, shared: usize) -> SynthShape {
    SynthShape { moe: Some(ExpertCounts { experts, used }), shared_ff: Some(shared), ..shape }
}

const fn gemma4(name: &'static str, head: usize, sizes: [usize; 7]) -> SynthShape {
    SynthShape { wide_head: Some(head), tied: true, ..shape(name, Gemma4, false, sizes) }
}

const fn nemotron_h(name: &'static str, mamba2: Mamba2Sizes, head: usize, sizes: [usize; 7]) -> SynthShape {
    SynthShape { wide_head: Some(head), mamba2: Some(mamba2), ..shape(name, NemotronH, true, sizes) }
}

const fn deepseek(name: &'static str, latent: LatentSizes, sizes: [usize; 7]) -> SynthShape {
    SynthShape { latent: Some(latent), ..shape(name, DeepSeek, false, sizes) }
}

const fn smallthinker(name: &'static str, experts: [usize; 2], head: usize, sizes: [usize; 7]) -> SynthShape {
    let moe = Some(ExpertCounts { experts: experts[0], used: experts[1] });
    SynthShape { wide_head: Some(head), moe, ..shape(name, SmallThinker, true, sizes) }
}

const fn two_of_eight(shape: SynthShape) -> SynthShape {
    SynthShape { moe: Some(ExpertCounts { experts: 8, used: 2 }), ..shape }
}

const MIXTRAL: [usize; 7] = [4096, 32, 32, 8, 14336, 32000, 32768];
const QWEN35_4B: SynthShape = qwen35("qwen3.5-4b", [16, 32, 128], 256, [2560, 32, 16, 4, 9216, 248_320, 262_144]);
const QWEN35_35B: SynthShape = qwen35("qwen3.5-35b-a3b", [16, 32, 128], 256, [2048, 40, 16, 2, 512, 248_320, 262_144]);
const TINY_QWEN35: SynthShape = qwen35("tiny-qwen3.5", [2, 4, 32], 64, [256, 4, 4, 2, 512, 2048, 4096]);
const TINY_QWEN35_MOE: SynthShape = SynthShape { name: "tiny-qwen3.5-moe", n_ff: 128, ..TINY_QWEN35 };
const NANO: Mamba2Sizes = Mamba2Sizes {
    mixers: "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    heads: 64,
    head_dim: 64,
    groups: 8,
    state: 128,
    taps: 4,
};
const TINY_NANO: Mamba2Sizes = Mamba2Sizes { mixers: "MEM*E", heads: 8, head_dim: 32, groups: 2, state: 32, ..NANO };
const NEMOTRON3: SynthShape = nemotron_h("nemotron-3-nano", NANO, 128, [2688, 52, 32, 2, 1856, 131_072, 1_048_576]);
const TINY_NEMOTRON3: SynthShape = nemotron_h("tiny-nemotron-3", TINY_NANO, 64, [256, 5, 4, 2, 512, 2048, 4096]);
const FLASH: LatentSizes =
    LatentSizes { queries: 768, keys: 512, plain: 192, rotated: 64, value: 256, first_ff: 10_240 };
const TINY_FLASH: LatentSizes =
    LatentSizes { queries: 128, keys: 64, plain: 64, rotated: 32, value: 64, first_ff: 768 };
const GLM_FLASH: SynthShape = deepseek("glm-4.7-flash", FLASH, [2048, 47, 20, 1, 1536, 154_880, 202_752]);
const TINY_GLM_FLASH: SynthShape = deepseek("tiny-glm-flash", TINY_FLASH, [256, 3, 4, 1, 128, 2048, 4096]);
const TINY_MIXTRAL: [usize; 7] = [256, 4, 4, 2, 512, 2048, 4096];

const SHAPES: &[SynthShape] = &[
    shape("relu-llama-7b", Llama, true, [4096, 32, 32, 32, 11008, 32000, 4096]),
    shape("relu-llama-13b", Llama, true, [5120, 40, 40, 40, 13824, 32000, 4096]),
    shape("relu-llama-33b", Llama, true, [6656, 60, 52, 52, 17920, 32000, 2048]),
    shape("relu-llama-70b", Llama, true, [8192, 80, 64, 8, 28672, 32000, 4096]),
    shape("bamboo-7b", Bamboo, true, [4096, 32, 32, 8, 14336, 32000, 4096]),
    shape("falcon-40b", Falcon, true, [8192, 60, 128, 8, 32768, 65024, 2048]),
    shape("opt-6.7b", Opt, true, [4096, 32, 32, 32, 16384, 50272, 2048]),
    shape("opt-30b", Opt, true, [7168, 48, 56, 56, 28672, 50272, 2048]),
    shape("opt-66b", Opt, true, [9216, 64, 72, 72, 36864, 50272, 2048]),
    shape("opt-175b", Opt, true, [12288, 96, 96, 96, 49152, 50272, 2048]),
    shape("llama-7b", Llama, false, [4096, 32, 32, 32, 11008, 32000, 4096]),
    shape("llama-1b", Llama, false, [2048, 22, 32, 4, 5632, 32000, 2048]),
    two_of_eight(shape("mixtral-8x7b", Llama, false, MIXTRAL)),
    two_of_eight(shape("turbosparse-mixtral", Bamboo, true, MIXTRAL)),
    gpt_oss("gpt-oss-20b", 32, 4, 64, [2880, 24, 64, 8, 2880, 201_088, 131_072]),
    gpt_oss("gpt-oss-120b", 128, 4, 64, [2880, 36, 64, 8, 2880, 201_088, 131_072]),
    SynthShape { tied: true, ..QWEN35_4B },
    with_experts(QWEN35_35B, 256, 8, 512),
    gemma4("gemma4-e4b", 256, [2560, 42, 8, 2, 10_240, 262_144, 131_072]),
    with_experts(NEMOTRON3, 128, 6, 3712),
    with_experts(GLM_FLASH, 64, 4, 1536),
    smallthinker("smallthinker-21b", [64, 6], 128, [2560, 52, 28, 4, 768, 151_936, 16_384]),
    shape("tiny-relu-llama", Llama, true, [256, 4, 4, 2, 1024, 2048, 4096]),
    shape("tiny-bamboo", Bamboo, true, [256, 4, 4, 2, 1024, 2048, 4096]),
    shape("tiny-opt", Opt, true, [256, 4, 4, 4, 1024, 2048, 4096]),
    shape("tiny-falcon", Falcon, true, [256, 4, 4, 2, 1024, 2048, 4096]),
    shape("tiny-llama", Llama, false, [256, 4, 4, 2, 768, 2048, 4096]),
    two_of_eight(shape("tiny-mixtral", Llama, false, TINY_MIXTRAL)),
    two_of_eight(shape("tiny-turbosparse-mixtral", Bamboo, true, TINY_MIXTRAL)),
    gpt_oss("tiny-gpt-oss", 8, 2, 64, [256, 4, 8, 2, 512, 2048, 4096]),
    TINY_QWEN35,
    with_experts(TINY_NEMOTRON3, 8, 2, 512),
    with_experts(TINY_GLM_FLASH, 8, 2, 128),
    smallthinker("tiny-smallthinker", [8, 2], 64, [256, 4, 4, 2, 512, 2048, 4096]),
    gemma4("tiny-gemma4", 32, [320, 12, 4, 2, 512, 2048, 4096]),
    with_experts(TINY_QWEN35_MOE, 8, 2, 128),
];

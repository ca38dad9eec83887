//! Passes of several separate tokens have the bits of single tokens in every placement.

use super::{super::same_bits_gpu::broken_promises, *};

/// Models of every kind of FFN and mixer: neurons, experts, both, latent and recurrent mixers.
const KINDS: [&str; 9] = [
    "llama-relu-256",
    "llama-silu-gqa",
    "gemma2",
    "gemma3n",
    "qwen3-moe",
    "deepseek-v2-lite",
    "nemotron-h",
    "qwen3-next",
    "gpt-oss-mxfp4",
];

#[test]
fn passes_have_the_bits_of_single_tokens_in_every_placement() {
    let gpu = shared(FULL);
    let mut broken = Vec::new();
    for name in KINDS {
        let model = neuron_major(&format!("fixtures/models/{name}"));
        for (what, placement) in placements(&model, 5) {
            let mut forward = hybrid(gpu, &model, &placement, 64);
            let (promised, differs) = broken_promises(&mut forward);
            assert_eq!(promised, if model.config.is_recurrent() { 5 } else { 8 }, "{name} {what}");
            broken.extend(differs.iter().map(|differs| format!("{name} {what}: {differs}\n{placement:?}")));
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// Modes that skip nothing keep what they promise.
#[test]
fn passes_have_the_bits_of_single_tokens_in_every_mode() {
    let gpu = shared(FULL);
    for name in ["llama-silu-gqa", "qwen3-moe", "llama-relu-256"] {
        let model = neuron_major(&format!("fixtures/models/{name}"));
        let (what, placement) = placements(&model, 5).remove(1);
        let mut forward = hybrid(gpu, &model, &placement, 64);
        for mode in [Sparsity::Exact, Sparsity::Predicted, Sparsity::Threshold] {
            forward.set_sparsity(mode);
            if forward.same_bits() > 1 {
                let (_, differs) = broken_promises(&mut forward);
                assert!(differs.is_empty(), "{name} {what} {mode}: {}", differs.join("\n"));
            }
        }
    }
}

/// A device skips neurons in other kernels than those of several tokens.
#[test]
fn modes_that_skip_neurons_promise_nothing_on_a_device() {
    let (model, gpu) = (neuron_major("fixtures/models/llama-relu-256"), shared(FULL));
    let (_, placement) = placements(&model, 5).remove(1);
    let mut forward = hybrid(gpu, &model, &placement, 64);
    for (mode, promised) in [(Sparsity::Dense, 8), (Sparsity::Exact, 1), (Sparsity::Threshold, 8)] {
        forward.set_sparsity(mode);
        assert_eq!(forward.same_bits(), promised, "{mode}");
    }
}

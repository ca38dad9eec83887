//! Reads the weights of a drafter in a thread of its own, before the first draft. The first access
//! to a page of a mapped file is slow, and a slow first draft would make drafts look expensive.

use std::{
    hint::black_box,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
};

use thermocline_model::Model;

/// Distance in bytes between two accesses: the smallest size of a page.
const PAGE: usize = 4096;
/// Number of bytes after which the thread checks if it should end.
const PART: usize = 1 << 20;

/// A thread that accesses every page of a model's weights. Dropping it ends the thread.
#[derive(Debug)]
pub(super) struct WeightReader {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl WeightReader {
    /// Starts to read `model`. Reads nothing if a pager limits the RAM of its weights. If the
    /// thread does not start, each weight is read when it is needed.
    pub fn start(model: &Arc<Model>) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        if model.pager().is_some() {
            return WeightReader { ends, thread: None };
        }
        let (model, stop) = (Arc::clone(model), Arc::clone(&ends));
        let read = move || _ = read_all(&model, &stop);
        let thread = thread::Builder::new().name("thermocline-read".to_owned()).spawn(read);
        let thread = thread.inspect_err(|error| tracing::debug!(%error, "the drafter's weights are read when needed"));
        WeightReader { ends, thread: thread.ok() }
    }
}

impl Drop for WeightReader {
    fn drop(&mut self) {
        self.ends.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            // It holds the model, whose files may be deleted next. It does not panic.
            let _ = thread.join();
        }
    }
}

/// Accesses every page of the weights that each draft reads, until `ends` is true. Returns the
/// number of bytes that were read.
fn read_all(model: &Model, ends: &AtomicBool) -> usize {
    let mut read = 0;
    for matrix in model.matrices_of_each_token() {
        for part in matrix.chunks(PART) {
            if ends.load(Relaxed) {
                return read;
            }
            part.iter().step_by(PAGE).for_each(|byte| _ = black_box(*byte));
            read += part.len();
        }
    }
    read
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use thermocline_formats::format::Tensor;
    use thermocline_model::{Ffn, FfnWeights, LoadOptions};

    use super::*;

    fn open(name: &str) -> Model {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models").join(name);
        Model::open(&path, &LoadOptions::default()).unwrap()
    }

    #[test]
    fn weights_of_each_draft_are_read_once() {
        for name in ["qwen3_5-mtp", "qwen3_5-moe-mtp", "qwen3", "gemma"] {
            let model = open(name);
            let drafter = model.draft_head.as_deref().unwrap_or(&model);
            let experts = drafter.weights.layers.iter().flat_map(|layer| match &layer.ffn {
                Ffn::Experts(weights) => &weights.experts[..],
                _ => &[],
            });
            let of_experts: usize = experts.flat_map(FfnWeights::linears).map(|it| it.weight.data().len()).sum();
            let is_tied = drafter.checkpoint.tensor("output.weight").is_none();
            let of_embedding = if is_tied { 0 } else { drafter.weights.token_embedding.data().len() };
            assert_eq!((of_experts > 0, is_tied), (name.contains("moe"), name == "gemma"), "{name}");
            // The gate of a shared expert is a matrix of one row.
            let is_matrix = |it: &&Tensor| it.shape.len() > 1 || it.name.contains("ffn_gate_inp_shexp");
            let matrices = drafter.checkpoint.tensors().iter().filter(is_matrix);
            let of_matrices: usize = matrices.map(|it| it.data.len()).sum();
            let expected = of_matrices - of_experts - of_embedding;
            assert_eq!(read_all(drafter, &AtomicBool::new(false)), expected, "{name}");
            assert_eq!(read_all(drafter, &AtomicBool::new(true)), 0, "{name}");
        }
    }

    #[test]
    fn weights_with_limited_ram_are_not_read() {
        let model = open("qwen3_5-mtp");
        let head = model.draft_head.as_ref().unwrap();
        assert!(WeightReader::start(head).thread.is_some());
        // Systems without maps have no pager.
        if model.keep_within(0).is_some() {
            assert!(WeightReader::start(head).thread.is_none());
        }
    }
}

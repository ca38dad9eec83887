//! Drafts of an assistant, which reads the keys and values of the engine's model (Gemma 4).

use super::{DraftContext, DraftTask, DraftedToken, Drafter, LastState};
use crate::session::common_tokens::CommonTokens;
use thermocline_base::error::{Error, Result};
use thermocline_cpu::{Cpu, RowsJob};
use thermocline_model::{AssistantWeights, Centroids, Model};
use thermocline_run::runtime::Outputs;

/// What an assistant computes beside its layers: their input, the hidden state for a further draft,
/// and the candidates.
#[derive(Debug)]
pub(super) struct AssistantSteps {
    cpu: Cpu,
    /// `[embedding | hidden state]`, `[2 w]`. The latter is the state before the next token.
    both: Vec<f32>,
    /// Input of the first layer, `[d]`.
    input: Vec<f32>,
    /// Logits of centroids, and logits of the candidates.
    logits: Vec<f32>,
}

impl AssistantSteps {
    /// Returns `None` for a model that is not an assistant.
    pub fn new(model: &Model, cpu: Cpu) -> Option<Self> {
        let weights = model.weights.assistant.as_ref()?;
        let both = vec![0.0; 2 * weights.embedding.cols()];
        Some(AssistantSteps { cpu, both, input: vec![0.0; model.config.d_model], logits: Vec::new() })
    }

    /// Width of a hidden state of the engine's model.
    pub fn width(&self) -> usize {
        self.both.len() / 2
    }

    /// Returns the input of the first layer for `token`.
    fn input(&mut self, weights: &AssistantWeights, token: u32) -> Result<&[f32]> {
        let width = self.width();
        let rows = weights.embedding.rows();
        if token as usize >= rows {
            return Err(Error::invalid("token id", format!("an id below {rows}"), token));
        }
        let embedding = &mut self.both[..width];
        weights.embedding.dequantise_row(token as usize, embedding);
        embedding.iter_mut().for_each(|x| *x *= weights.embedding_scale);
        self.cpu.matmul(&mut [weights.input.job(&mut self.input)], &self.both, 1);
        Ok(&self.input)
    }

    /// Makes the state of the assistant, `[d]`, the one before the next token.
    fn advance(&mut self, weights: &AssistantWeights, state: &[f32]) {
        let width = self.width();
        self.cpu.matmul(&mut [weights.state.job(&mut self.both[width..])], state, 1);
    }

    /// Drafts a token of the best centroids after the state of the assistant, `[d]`.
    fn candidate(&mut self, model: &Model, centroids: &Centroids, state: &[f32]) -> DraftedToken {
        let (count, each) = (centroids.rows.weight.rows(), centroids.tokens_each());
        self.logits.resize(count, 0.0);
        self.cpu.matmul(&mut [centroids.rows.job(&mut self.logits)], state, 1);
        let mut best: Vec<usize> = (0..count).collect();
        best.sort_by(|a, b| self.logits[*b].total_cmp(&self.logits[*a]));
        let tokens = |centroid: &usize| &centroids.tokens[centroid * each..(centroid + 1) * each];
        let candidates: Vec<u32> = best[..centroids.used].iter().flat_map(tokens).copied().collect();
        self.logits.resize(candidates.len(), 0.0);
        let output = &model.weights.output;
        let (weight, bias, out) = (&output.weight, output.bias.as_deref(), &mut self.logits[..]);
        self.cpu.matmul_rows(&mut [RowsJob { weight, bias, rows: Some(&candidates), out }], state, 1);
        if let Some(cap) = model.config.final_softcap {
            self.cpu.soft_cap(&mut self.logits, cap);
        }
        let DraftedToken { token, probability } = DraftedToken::likeliest(&self.logits);
        DraftedToken { token: candidates[token as usize], probability }
    }
}

impl Drafter {
    /// [`Drafter::draft`] by an assistant. Every draft has the position of the next token, and the
    /// assistant's own hidden state in place of the model's.
    pub(super) fn draft_beside(
        &mut self,
        context: &mut DraftContext,
        mut task: DraftTask<'_>,
        drafts: &mut Vec<u32>,
    ) -> Result<()> {
        let model = self.forward.model().clone();
        let (Some(steps), Some(weights), Some(kv)) = (&mut self.assistant, &model.weights.assistant, task.kv.take())
        else {
            return Err(Error::invalid("assistant", "the keys and values of its model", "none"));
        };
        let common = self.common.as_mut().filter(|_| CommonTokens::suit(task.held));
        let mut common = common.filter(|_| weights.centroids.is_none());
        let all = weights.centroids.is_none() && common.is_none();
        let width = steps.width();
        context.keep_last_state();
        let (states, own) = context.states_and_kv();
        steps.both[width..].copy_from_slice(&states[..width]);
        let mut token = task.next;
        for count in 1..=task.most {
            let input = steps.input(weights, token)?;
            let outputs = if all { Outputs::Last } else { Outputs::None };
            let logits = self.forward.run_assistant(input, own, kv, outputs, &mut LastState(&mut self.state))?;
            let draft = match (&weights.centroids, &mut common) {
                (Some(centroids), _) => steps.candidate(&model, centroids, &self.state),
                (None, Some(common)) => common.draft(&self.state),
                (None, None) => DraftedToken::likeliest(&logits[..self.vocabulary]),
            };
            drafts.push(draft.token);
            if !task.goes_on(count, draft) {
                break;
            }
            steps.advance(weights, &self.state);
            token = draft.token;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{path::Path, sync::Arc};

    use thermocline_cpu::CpuOptions;
    use thermocline_formats::format::ReadMode;
    use thermocline_model::LoadOptions;
    use thermocline_run::runtime::{Forward, KvType, Probe};

    use super::*;

    /// Reads the integers `name` of a file of safetensors.
    fn integers(path: &Path, name: &str) -> Vec<u32> {
        let file = std::fs::read(path).unwrap();
        let header = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
        let (header, data) = file[8..].split_at(header);
        let header: serde_json::Value = serde_json::from_slice(header).unwrap();
        assert_eq!(header[name]["dtype"], "I32", "{name}");
        let at = |end: usize| header[name]["data_offsets"][end].as_u64().unwrap() as usize;
        data[at(0)..at(1)].chunks_exact(4).map(|it| u32::from_le_bytes(it.try_into().unwrap())).collect()
    }

    /// The assistant of Gemma 4 computes all logits. The assistant of E2B computes the logits of
    /// the best centroids.
    #[test]
    fn drafts_are_those_of_the_reference() {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures");
        for name in ["gemma4", "gemma4-e2b"] {
            let folder = fixtures.join("assistants").join(name);
            let target = Arc::new(Model::open(&fixtures.join("models").join(name), &LoadOptions::default()).unwrap());
            let checkpoint = Model::open_checkpoint(&folder, ReadMode::Map).unwrap();
            let model = Arc::new(Model::drafting_for(&target, checkpoint, &LoadOptions::default()).unwrap());
            let cpu = || Cpu::new(&CpuOptions { threads: Some(1), ..CpuOptions::default() });
            let mut forward = Forward::new(Arc::clone(&target), cpu().unwrap());
            let mut drafter = Drafter::new(model, target.config.n_vocab, cpu).unwrap();
            let of = |what| integers(&folder.join("expected.safetensors"), what);
            let (ids, contexts, expected) = (of("input_ids"), of("contexts"), of("drafts"));
            assert!(!contexts.is_empty());
            for (held, expected) in contexts.iter().zip(expected.chunks(3)) {
                let (held, next) = (&ids[..*held as usize], ids[*held as usize]);
                let mut kv = forward.kv_cache(64, KvType::F32).unwrap();
                let mut context = drafter.context(0, 64, KvType::F32).unwrap();
                let mut state = vec![0.0; target.config.d_model];
                forward.run(held, &mut kv, Outputs::None, &mut LastState(&mut state)).unwrap();
                context.restart(held.len() - 1);
                context.add_states(held.len() - 1, 1, &state);
                drafter.follow(&mut context, held, &mut ()).unwrap();
                assert!(context.is_ready(held.len()));
                for _ in 0..2 {
                    let (mut drafts, goes_on) = (Vec::new(), &mut |_, _| true);
                    let task = DraftTask { held, next, kv: Some(&mut kv), most: 3, goes_on };
                    drafter.draft(&mut context, task, &mut drafts).unwrap();
                    assert_eq!(drafts, expected, "{name}, {} tokens", held.len());
                    assert_eq!(kv.len(), held.len());
                }
            }
        }
    }

    /// Keeps the hidden states of all tokens of a pass.
    #[derive(Default)]
    struct AllStates(Vec<f32>);

    impl Probe for AllStates {
        fn wants_states(&mut self) -> bool {
            true
        }

        fn states(&mut self, states: &[f32]) {
            self.0.extend_from_slice(states);
        }
    }

    /// After a pass with drafts the assistant goes on from the state of the last kept token.
    #[test]
    fn drafts_follow_the_last_accepted_draft() {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures");
        let target = Arc::new(Model::open(&fixtures.join("models/gemma4"), &LoadOptions::default()).unwrap());
        let checkpoint = Model::open_checkpoint(&fixtures.join("assistants/gemma4"), ReadMode::Map).unwrap();
        let model = Arc::new(Model::drafting_for(&target, checkpoint, &LoadOptions::default()).unwrap());
        let cpu = || Cpu::new(&CpuOptions { threads: Some(1), ..CpuOptions::default() });
        let mut forward = Forward::new(Arc::clone(&target), cpu().unwrap());
        let mut drafter = Drafter::new(model, target.config.n_vocab, cpu).unwrap();
        let mut kv = forward.kv_cache(64, KvType::F32).unwrap();
        let mut context = drafter.context(0, 64, KvType::F32).unwrap();
        let (mut held, mut next) = (Vec::new(), 7);
        let mut pass: Vec<u32> = (30..38).collect();
        let mut seen = Vec::new();
        for (round, accepted) in [0, 1, 3, 2, 0, 3].into_iter().enumerate() {
            // All tokens of the pass are computed, and the context keeps some of them.
            let mut states = AllStates::default();
            forward.run(&pass, &mut kv, Outputs::None, &mut states).unwrap();
            context.add_states(held.len(), pass.len(), &states.0);
            let kept = if round == 0 { pass.len() } else { 1 + accepted };
            held.extend_from_slice(&pass[..kept]);
            kv.truncate(held.len());
            context.truncate(held.len());
            drafter.follow(&mut context, &held, &mut ()).unwrap();
            let mut fresh = drafter.context(0, 64, KvType::F32).unwrap();
            fresh.restart(held.len() - 1);
            let width = target.config.d_model;
            fresh.add_states(held.len() - 1, 1, &states.0[(kept - 1) * width..kept * width]);
            let [drafts, expected] = [&mut context, &mut fresh].map(|context| {
                let (mut drafts, goes_on) = (Vec::new(), &mut |_, _| true);
                let task = DraftTask { held: &held, next, kv: Some(&mut kv), most: 3, goes_on };
                drafter.draft(context, task, &mut drafts).unwrap();
                drafts
            });
            assert_eq!(drafts, expected, "round {round}");
            seen.push(drafts.clone());
            pass = vec![next];
            pass.extend_from_slice(&drafts);
            next = 11 + round as u32;
        }
        seen.dedup();
        assert!(seen.len() > 1, "drafts depend on the text");
    }
}

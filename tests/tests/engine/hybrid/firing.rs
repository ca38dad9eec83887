//! Reports on neurons that fire.

use thermocline_engine::telemetry::neurons::{NeuronBoard, NeuronRecorder, Strength};

use super::*;

/// Layer, number of tokens, mask of firing neurons, and predicted mask of a report.
pub(super) type Told = (usize, usize, Vec<u32>, Option<Vec<u32>>);

/// Collects the report on each layer.
#[derive(Default)]
pub(super) struct Heard(Vec<Told>);

impl Probe for Heard {
    fn wants_firing(&mut self) -> bool {
        true
    }

    fn firing(&mut self, firing: &LayerFiring<'_>) {
        let predicted = firing.predicted.map(<[u32]>::to_vec);
        self.0.push((firing.layer, firing.tokens, firing.fired.to_vec(), predicted));
    }
}

impl Heard {
    /// Returns the number of neurons that fired, or were predicted, in only one of the two runs.
    pub(super) fn differences(&self, other: &Heard) -> u32 {
        assert_eq!(self.0.len(), other.0.len());
        let pairs = self.0.iter().zip(&other.0);
        pairs
            .map(|(a, b)| {
                assert_eq!((a.0, a.1, a.2.len(), a.3.is_some()), (b.0, b.1, b.2.len(), b.3.is_some()));
                let words = |heard: &(usize, usize, Vec<u32>, Option<Vec<u32>>)| {
                    heard.2.iter().chain(heard.3.iter().flatten()).copied().collect::<Vec<u32>>()
                };
                words(a).iter().zip(words(b)).map(|(a, b)| (a ^ b).count_ones()).sum::<u32>()
            })
            .sum()
    }
}

/// Records hidden activations of single tokens, layer by layer, for a board that selects by output
/// mass.
struct Strong<'a> {
    recorder: &'a mut NeuronRecorder,
    strengths: Vec<Vec<f32>>,
}

impl Probe for Strong<'_> {
    fn wants_firing(&mut self) -> bool {
        true
    }

    fn wants_strength(&mut self) -> bool {
        self.recorder.wants_strength()
    }

    fn wants_device_strength(&mut self) -> bool {
        true
    }

    fn firing(&mut self, firing: &LayerFiring<'_>) {
        if let Some(Strength::All(values)) = firing.strength.filter(|_| firing.tokens == 1) {
            self.strengths.push(values.to_vec());
        }
        self.recorder.layer(firing);
    }
}

/// Decodes the last `ids` one by one behind a prompt. Returns their strengths and the masks of
/// neurons that hold 90 % of a layer's output mass.
fn strong(forward: &mut Forward, model: &Model, ids: &[u32]) -> (Vec<Vec<f32>>, Vec<Vec<u32>>) {
    let (board, mut recorder) = NeuronBoard::new(model.neuron_shape());
    board.set_mass(Some(0.9));
    let mut kv = forward.kv_cache(ids.len(), KvType::F32).unwrap();
    let (prompt, rest) = ids.split_at(ids.len() - 6);
    forward.run(prompt, &mut kv, Outputs::None, &mut ()).unwrap();
    let mut strengths = Vec::new();
    for (position, id) in rest.iter().enumerate() {
        recorder.begin(0, position, &[*id], true);
        let mut probe = Strong { recorder: &mut recorder, strengths: Vec::new() };
        forward.run(&[*id], &mut kv, Outputs::Last, &mut probe).unwrap();
        strengths.append(&mut probe.strengths);
        recorder.end();
    }
    let masks = board.tokens(0..u64::MAX).iter().map(|token| token.masks.as_ref().unwrap().fired.clone()).collect();
    (strengths, masks)
}

/// Neurons that are never zero. The device's strengths, and therefore the strongest neurons, equal
/// the CPU's. Neurons are placed one by one or as whole layers.
#[test]
fn placements_do_not_change_which_neurons_of_a_smooth_model_are_strongest() {
    let gpu = shared(FULL);
    let whole_layers = model("fixtures/models/qwen3");
    for (model, in_parts) in [(neuron_major("fixtures/models/llama-silu-gqa"), true), (whole_layers, false)] {
        let ids = ids(&model, 20);
        let mut scalar = golden::forward(&model, Setup { isa: Some(Isa::Scalar), chunk: 16, ..Setup::default() });
        let (strengths, masks) = strong(&mut scalar, &model, &ids);
        let shape = model.neuron_shape();
        assert_eq!((strengths.len(), masks.len()), (6 * shape.layers(), 6));
        let all = 6 * shape.total();
        let fired: u32 = masks.iter().flatten().map(|word| word.count_ones()).sum();
        assert!((fired as usize) < all * 9 / 10, "not all of them: {fired} of {all}");
        let is_whole = |(layer, hot): (usize, &Vec<u32>)| hot.is_empty() || hot.len() == neurons(&model, layer);
        for (what, placement) in placements(&model, 4) {
            if !in_parts && !placement.hot.iter().enumerate().all(is_whole) {
                continue;
            }
            let (got, selected) = strong(&mut hybrid(gpu, &model, &placement, 16), &model, &ids);
            assert_eq!((got.len(), selected.len()), (strengths.len(), masks.len()), "{what}");
            for (at, (got, want)) in got.iter().zip(&strengths).enumerate() {
                assert!(relative(got, want) < 2e-3, "{what} {at}: {}", max_diff(got, want));
            }
            let words = selected.iter().flatten().zip(masks.iter().flatten());
            let differ: u32 = words.map(|(a, b)| (a ^ b).count_ones()).sum();
            // Neurons near the threshold may differ by rounding.
            assert!(differ as usize <= all / 200, "{what}: {differ} of {all} neurons differ");
        }
    }
}

#[test]
fn placements_do_not_change_firings() {
    let gpu = shared(FULL);
    let model = model(POWERINFER);
    let ids = ids(&model, 40);
    for mode in [Sparsity::Dense, Sparsity::Exact, Sparsity::Predicted] {
        let hear = |forward: &mut Forward| {
            forward.set_sparsity(mode);
            let mut heard = Heard::default();
            let mut kv = forward.kv_cache(ids.len(), KvType::F32).unwrap();
            forward.run(&ids[..33], &mut kv, Outputs::None, &mut heard).unwrap();
            for id in &ids[33..39] {
                forward.top(&[*id], &mut kv, 4, &mut heard).unwrap();
            }
            forward.run(&ids[39..], &mut kv, Outputs::Last, &mut heard).unwrap();
            heard
        };
        let mut scalar = golden::forward(&model, Setup { isa: Some(Isa::Scalar), chunk: 16, ..Setup::default() });
        let wanted = hear(&mut scalar);
        for (what, placement) in placements(&model, 4) {
            // Of 60,000 neurons, a few near zero may differ by rounding.
            let differ = hear(&mut hybrid(gpu, &model, &placement, 16)).differences(&wanted);
            assert!(differ <= 4, "{mode} {what}: {differ} neurons differ");
        }
    }
}

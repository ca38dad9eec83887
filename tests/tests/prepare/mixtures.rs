//! Mixtures: the neurons of chosen experts are counted and cut, and experts' down projections are turned.

use thermocline_engine::model::Activation;

use super::*;

fn mixture(activation: Activation) -> Arc<Model> {
    let options = LoadOptions { activation: Some(activation), ..LoadOptions::default() };
    Arc::new(Model::open(&here("fixtures/models/mixtral"), &options).unwrap())
}

/// The same model with what `made` has for it.
fn with(model: &Model, made: &Prepared) -> Arc<Model> {
    let options = LoadOptions { activation: Some(model.config.activation), ..LoadOptions::default() };
    let mut attached = Model::open(&model.checkpoint.path, &options).unwrap();
    let choice = SidecarChoice::File(made.sidecar.path.clone());
    assert!(matches!(attach(&mut attached, &choice, ReadMode::Map).unwrap(), Attachment::Attached(_)));
    Arc::new(attached)
}

/// Of rectified mixtures what fires among the neurons of chosen experts is what the exact mode computes; the experts' down
/// projections are turned, and the answers are the model's.
#[test]
fn of_mixtures_the_neurons_of_chosen_experts_are_counted() {
    for activation in [Activation::Relu, Activation::DRelu] {
        let (folder, model) = (tempfile::tempdir().unwrap(), mixture(activation));
        let experts = model.config.experts.unwrap();
        let options = options(folder.path(), &model);
        let made = prepared(&model, &options);
        let attached = with(&model, &made);
        let Corpus::Tokens(texts) = &options.corpus else { unreachable!() };
        let (mut sparse, mut dense) =
            (Forward::new(Arc::clone(&attached), cpu()), Forward::new(Arc::clone(&model), cpu()));
        sparse.set_sparsity(Sparsity::Exact);
        let mut kvs = [&mut sparse, &mut dense].map(|forward| forward.kv_cache(40, KvType::F32).unwrap());
        // As while it was prepared.
        let (mut fired, mut rounded) = (Fired::default(), sparse.kv_cache(40, KvType::F16).unwrap());
        for text in texts {
            kvs.iter_mut().chain([&mut rounded]).for_each(|kv| kv.truncate(0));
            for token in text {
                sparse.run(&[*token], &mut rounded, Outputs::None, &mut fired).unwrap();
                let exact = sparse.run(&[*token], &mut kvs[0], Outputs::Last, &mut ()).unwrap();
                let reference = dense.run(&[*token], &mut kvs[1], Outputs::Last, &mut ()).unwrap();
                let most = reference.iter().fold(0.0f32, |most, x| most.max(x.abs()));
                assert!(exact.iter().zip(reference).all(|(a, b)| (a - b).abs() <= 1e-4 * most), "{activation}");
            }
        }
        let tokens = made.sidecar.provenance.tokens_profiled;
        for ((layer, counts), report) in made.sidecar.layers.iter().zip(&fired.0).zip(&made.layers) {
            let (shares, neurons) = (layer.frequency.as_ref().unwrap(), layer.experts.as_ref().unwrap());
            assert_eq!((shares.len(), neurons.downs.len()), (experts.count, experts.count));
            assert!((shares.iter().sum::<f32>() - experts.used as f32).abs() < 1e-3, "{shares:?}");
            assert_eq!((neurons.width, neurons.frequency.len()), (experts.n_ff, experts.count * experts.n_ff));
            // Sums in another order now and then tip a gate, or the router.
            let (mut worst, mut differ) = (0.0f64, 0.0f64);
            for (neuron, share) in neurons.frequency.iter().enumerate() {
                let off = (f64::from(*share) * tokens as f64 - counts[neuron] as f64).abs();
                (worst, differ) = (worst.max(off), differ + off);
            }
            let all = counts.iter().sum::<u64>() as f64;
            assert!(worst < 6.0 && differ <= 0.004 * all, "{activation}: {differ} of {all}, {worst} of one neuron");
            assert!(layer.predictor.is_none() && layer.cut.is_none() && report.why.contains("no predictors"));
            // Half of the neurons of chosen experts, or a quarter where two decide, and not half as many of all.
            assert!((0.1..0.7).contains(&report.density) && report.down_type.is_some(), "{report:?}");
            let density = f64::from(layer.density().unwrap());
            assert!((density - report.density).abs() < 1e-3, "{density} {report:?}");
        }
    }
}

/// Mixtures that are never silent get a cut per layer; with it single tokens leave out about the share that was asked for, and read
/// less. What was stopped goes on.
#[test]
fn mixtures_that_are_never_silent_get_cuts() {
    let (folder, model) = (tempfile::tempdir().unwrap(), mixture(Activation::Silu));
    let options = options(folder.path(), &model);
    let made = prepared(&model, &options);
    let bytes = fs::read(&options.out).unwrap();
    let again = PrepareOptions { out: folder.path().join("again.gguf"), ..options.clone() };
    let (_, stops) = in_pieces(&model, &again, 5, &mut |_| ());
    assert!(stops > 0 && fs::read(&again.out).unwrap() == bytes, "stopped {stops} times");

    for (report, layer) in made.layers.iter().zip(&made.sidecar.layers) {
        let (cut, judged) = (layer.cut.unwrap(), report.cut.unwrap());
        assert!((cut.density - 0.5).abs() < 0.1 && cut.value > 0.0 && layer.predictor.is_none(), "{cut:?}");
        assert!(judged.output_error > 0.0 && judged.output_error < 0.5 && judged.mass > 0.5, "{judged:?}");
        assert!((0.5..1.0).contains(&report.density), "{report:?}");
    }
    let attached = with(&model, &made);
    let (experts, Corpus::Tokens(texts)) = (model.config.experts.unwrap(), &options.corpus) else { unreachable!() };
    let mut read = Vec::new();
    for mode in [Sparsity::Dense, Sparsity::Threshold] {
        let mut forward = Forward::new(Arc::clone(&attached), cpu());
        forward.set_sparsity(mode);
        let (mut kv, mut seen) = (forward.kv_cache(40, KvType::F32).unwrap(), Looked::default());
        for text in texts {
            kv.truncate(0);
            text.iter().for_each(|token| {
                forward.run(&[*token], &mut kv, Outputs::None, &mut seen).unwrap();
            });
        }
        let share = seen.fired as f64 / (seen.layers * experts.used * experts.n_ff) as f64;
        assert!((0.4..0.6).contains(&share), "{mode}: {share} of the neurons are above the cut");
        read.push(seen.bytes);
    }
    assert!(read[1] * 10 < read[0] * 8, "{read:?}");
}

/// What all layers of all tokens came to.
#[derive(Default)]
struct Looked {
    layers: usize,
    fired: usize,
    bytes: u64,
}

impl Probe for Looked {
    fn wants_firing(&mut self) -> bool {
        true
    }

    fn firing(&mut self, firing: &LayerFiring<'_>) {
        self.layers += 1;
        self.fired += firing.fired.iter().map(|word| word.count_ones() as usize).sum::<usize>();
        self.bytes += firing.cpu_bytes;
    }
}

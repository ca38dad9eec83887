//! Predictors that are part of the model file.

use thermocline_engine::synth::{SynthOptions, SynthShape, generate};

use super::*;

#[test]
fn own_predictors_are_measured_at_both_thresholds() {
    let (folder, model) = (tempfile::tempdir().unwrap(), fixture("powerinfer/llama-relu-f16.powerinfer.gguf"));
    let made = prepared(&model, &options(folder.path(), &model));
    for (report, layer) in made.layers.iter().zip(&made.sidecar.layers) {
        // The candidates are the model's predictor with its own threshold, and with the threshold
        // that the target needs.
        let [.., own, changed] = &report.candidates[..] else { panic!("{:?}", report.candidates) };
        assert!(own.figures.recall > 0.0 && own.figures.tokens > 0, "{own:?}");
        assert_eq!((own.rank, own.bytes), (changed.rank, changed.bytes));
        assert!(own.figures.recall < 0.94 && changed.figures.recall > 0.94, "{own:?} {changed:?}");
        assert!(changed.figures.mass_recall > 0.985 && changed.figures.density < 0.9, "{changed:?}");
        assert!(layer.down.is_none(), "the file has rows of neurons already");
    }
}

/// `prepare` keeps good predictors that miss the target. The sidecar contains only another
/// threshold for them.
#[test]
fn own_predictors_are_kept_with_the_threshold_of_the_target() {
    let folder = tempfile::tempdir().unwrap();
    // The model is wide enough that the smallest trained predictor would pay.
    let mut shape = SynthShape::named("tiny-relu-llama").unwrap();
    (shape.d_model, shape.n_ff) = (256, 3072);
    let mut made_as = SynthOptions::new(shape, folder.path().join("m.gguf"));
    (made_as.layers, made_as.predictor_rank, made_as.recall) = (Some(2), Some(96), 0.90);
    generate(&made_as, &mut |_| {}).unwrap();
    let model = open(&made_as.out);
    // With less text the figures are too uncertain for the target. With much more text, a smaller
    // predictor could be trained.
    let texts = texts(&model, 36, 80);
    let tokens = texts.iter().map(Vec::len).sum::<usize>() as u64;
    let options = options(folder.path(), &model);
    let made =
        prepared(&model, &PrepareOptions { corpus: PrepareCorpus::Tokens(texts), tokens, length: 80, ..options });
    let mut attached = Model::open(&made_as.out, &LoadOptions::default()).unwrap();
    let choice = SidecarChoice::File(made.sidecar.path.clone());
    assert!(matches!(attach(&mut attached, &choice, ReadMode::Map).unwrap(), SidecarAttachment::Attached(_)));
    for (n, (report, prepared)) in made.layers.iter().zip(&made.sidecar.layers).enumerate() {
        let [.., as_it_is, changed] = &report.candidates[..] else { panic!("{:?}", report.candidates) };
        assert!(!as_it_is.reached() && changed.reached(), "layer {n}: {as_it_is}\n{changed}");
        assert_eq!((report.predictor.as_ref(), report.threshold.is_some()), (Some(changed), true), "{}", report.why);
        assert!(prepared.predictor.as_ref().unwrap().kind.is_none(), "layer {n}: {}", report.why);
        let [before, after] = [&model, &attached].map(|model| model.weights.layers[n].predictor.as_ref().unwrap());
        assert_eq!(Some(after.threshold), report.threshold);
        assert!(after.threshold < before.threshold, "layer {n}: {} from {}", after.threshold, before.threshold);
        assert_eq!(after.bytes(), before.bytes());
    }
}

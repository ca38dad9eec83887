//! Bundles of prepared layers.

use super::*;

/// A workspace holds the down projections, and no second copy of the model's rows.
#[test]
fn workspaces_hold_no_bundles_and_resumed_preparations_write_them() {
    let (folder, model) = (tempfile::tempdir().unwrap(), fixture("models/llama-relu"));
    let whole = PrepareOptions { predictors: PredictorChoice::Rows, bundles: true, ..options(folder.path(), &model) };
    let made = prepared(&model, &whole);
    assert!(made.sidecar.layers.iter().all(|layer| layer.bundles.is_some()));
    let expected = fs::read(&whole.out).unwrap();
    let options = PrepareOptions { out: folder.path().join("again.gguf"), ..whole };
    let layer = options.workspace().join("layer-0.gguf");
    let mut tell = |_: &_| if layer.exists() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
    assert!(matches!(run(&model, &options, &mut tell), Err(Error::Cancelled)));
    let file = Model::open_checkpoint(&layer, ReadMode::Map).unwrap();
    assert!(file.tensor("blk.0.ffn_down_t.weight").is_some() && file.tensor("blk.0.ffn_bundles").is_none());
    prepared(&model, &options);
    assert!(fs::read(&options.out).unwrap() == expected);
}

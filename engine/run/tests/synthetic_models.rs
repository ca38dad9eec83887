//! Synthetic models of architectures that no published shape has, computed on the CPU.

use std::sync::Arc;

use thermocline_cpu::{Cpu, CpuOptions};
use thermocline_model::{
    LoadOptions, Model,
    synth::{SynthOptions, generate, unlisted},
};
use thermocline_run::runtime::{Forward, KvType, Outputs};

/// A synthetic model of an architecture needs only its metadata and its list of optional tensors.
#[test]
fn architectures_of_no_shape_are_synthesised_from_metadata() {
    let folder = tempfile::tempdir().unwrap();
    for shape in unlisted::shapes() {
        let options = SynthOptions::new(shape, folder.path().join("m.gguf"));
        let report = generate(&options, &mut |_| {}).unwrap();
        assert!(report.deviation() < 0.1, "{}: {report:?}", shape.name);
        assert_eq!(report.measured.is_some(), shape.relu());
        let model = Model::open(&options.out, &LoadOptions::default()).unwrap();
        let mut forward = Forward::new(Arc::new(model), Cpu::new(&CpuOptions::default()).unwrap());
        let mut kv = forward.kv_cache(16, KvType::F16).unwrap();
        let logits = forward.run(&[2, 3, 5, 7], &mut kv, Outputs::All, &mut ()).unwrap();
        let spread = (logits.iter().map(|x| x * x).sum::<f32>() / logits.len() as f32).sqrt();
        assert!((1.0..4.0).contains(&spread), "{}: logits have a standard deviation of {spread}", shape.name);
    }
}

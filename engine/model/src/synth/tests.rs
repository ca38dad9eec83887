//! Small synthetic files, opened as models.

use super::*;
use thermocline_base::error::Error;
use thermocline_formats::{
    format::{Container, Opened, ReadMode, open},
    quant,
    quant::TensorType,
};

fn options(shape: &str, out: &std::path::Path) -> SynthOptions {
    SynthOptions::new(SynthShape::named(shape).unwrap(), out)
}

#[test]
fn generated_files_match_their_options() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("m.gguf");
    for (shape, predictor) in [
        ("tiny-relu-llama", true),
        ("tiny-relu-llama", false),
        ("tiny-bamboo", true),
        ("tiny-opt", true),
        ("tiny-falcon", false),
        ("tiny-llama", true),
        ("tiny-mixtral", true),
        ("tiny-turbosparse-mixtral", true),
        ("tiny-gpt-oss", true),
        ("tiny-qwen3.5", true),
        ("tiny-qwen3.5-moe", true),
        ("tiny-gemma4", true),
        ("tiny-glm-flash", true),
        ("tiny-smallthinker", true),
        ("tiny-nemotron-3", true),
    ] {
        let mut options = options(shape, &out);
        options.predictor = predictor;
        // The fourth layer of Nemotron 3 is the first with attention.
        options.layers = Some(if shape == "tiny-nemotron-3" { 4 } else { 2 });
        let layers = 0..options.layers.unwrap();
        let mut last = 0;
        let report = generate(&options, &mut |at| {
            assert!(at.done > last && at.done <= at.total);
            last = at.done;
        })
        .unwrap();
        assert_eq!(last, report.bytes);
        println!("{shape} {:?}", report.measured);
        let Opened::Checkpoint(file) = open(&out, ReadMode::Map).unwrap() else { panic!("not a GGUF") };
        let moe = options.shape.moe;
        let sparse = options.shape.relu() && predictor && moe.is_none();
        assert_eq!(file.container, if sparse { Container::PowerInfer(3) } else { Container::Gguf(3) });
        assert_eq!(file.tensor_bytes(), report.bytes);
        assert_eq!(file.tensor("blk.1.ffn_down_t.weight").is_some(), sparse);
        assert_eq!(file.tensor("blk.1.fc2.weight").is_some(), sparse);
        assert!(report.deviation() < 0.1, "{shape}: {report:?}");
        let with =
            |stem: &str| layers.clone().filter(|n| file.tensor(&format!("blk.{n}.{stem}.weight")).is_some()).count();
        let (with_experts, with_ffn) = (with("ffn_gate_inp"), with("ffn_up") + with("ffn_up_exps"));
        assert_eq!(report.measured_layers.len(), if options.shape.relu() { with_ffn } else { 0 });
        assert_eq!(report.frequencies.len(), report.measured_layers.len());
        assert_eq!((report.moe, report.chosen.len()), (moe, with_experts));
        assert_eq!(with_experts > 0, moe.is_some());
        if let Some(ExpertCounts { experts, used }) = moe {
            let sizes = |stem: &str| file.tensor(&format!("blk.1.ffn_{stem}.weight")).unwrap().shape.clone();
            assert_eq!(sizes("gate_inp"), [experts, 256]);
            let n_ff = options.shape.n_ff;
            assert_eq!(sizes("up_exps"), [experts, n_ff, 256]);
            if shape != "tiny-nemotron-3" {
                assert_eq!(sizes("gate_exps"), [experts, n_ff, 256]);
            }
            assert_eq!(sizes("down_exps"), [experts, 256, n_ff]);
            for frequencies in &report.chosen {
                assert!((frequencies.iter().sum::<f32>() - used as f32).abs() < 1e-3, "{frequencies:?}");
            }
            for (neurons, frequencies) in report.frequencies.iter().zip(&report.chosen) {
                let active = neurons.iter().sum::<f32>() / (512.0 * used as f32);
                assert!((active - 0.1).abs() < 0.01, "{active}");
                let of_one = neurons[512..1024].iter().sum::<f32>() / 512.0;
                assert!((of_one / frequencies[1] - 0.1).abs() < 0.01, "{of_one} of {}", frequencies[1]);
            }
        }
        for tensor in file.tensors() {
            let mut values = vec![0.0; tensor.len()];
            quant::dequantise(tensor.ty, &tensor.data, &mut values);
            assert!(values.iter().all(|x| x.is_finite()), "{}", tensor.name);
        }
    }
}

#[test]
fn generate_writes_every_quantisable_type() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("m.gguf");
    for ty in quant::QUANTISABLE {
        let mut options = options("tiny-relu-llama", &out);
        (options.ty, options.layers) = (ty, Some(1));
        let report = generate(&options, &mut |_| {}).unwrap();
        println!("{ty} {:?}", report.measured);
        // Weights of two or three values change how often neurons fire.
        let coarse = matches!(ty, TensorType::TQ1_0 | TensorType::TQ2_0 | TensorType::Q1_0);
        assert!(coarse || report.deviation() < 0.1, "{ty}: {report:?}");
    }
}

#[test]
fn generated_firing_meets_the_requested_activity_and_skew() {
    let folder = tempfile::tempdir().unwrap();
    for (active, hot_fraction, recall) in [(0.33, 0.43, 0.95), (0.05, 0.2, 0.9), (0.2, 0.35, 0.99)] {
        let mut options = options("tiny-relu-llama", &folder.path().join("m.gguf"));
        (options.active, options.hot_fraction, options.recall) = (active, hot_fraction, recall);
        let report = generate(&options, &mut |_| {}).unwrap();
        assert!(report.deviation() < 0.1, "{report:?}");
    }
}

#[test]
fn generated_file_depends_on_the_seed_only() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = |seed, threads| {
        let out = folder.path().join("m.gguf");
        let mut options = options("tiny-relu-llama", &out);
        (options.seed, options.threads, options.layers) = (seed, Some(threads), Some(2));
        generate(&options, &mut |_| {}).unwrap();
        std::fs::read(out).unwrap()
    };
    let one = bytes(7, 1);
    assert!(one == bytes(7, 1) && one == bytes(7, 3), "the same seed made different files");
    assert!(one != bytes(8, 1), "another seed made the same file");
}

#[test]
fn options_out_of_range_are_refused_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("m.gguf");
    let refused = |change: &dyn Fn(&mut SynthOptions)| {
        let mut options = options("tiny-relu-llama", &out);
        change(&mut options);
        let error = generate(&options, &mut |_| {}).unwrap_err();
        assert!(
            matches!(error, Error::Invalid { .. } | Error::Unsupported { .. } | Error::UnknownArchitecture { .. }),
            "{error}"
        );
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    };
    refused(&|o| o.active = 0.0);
    refused(&|o| o.active = f64::NAN);
    refused(&|o| o.active = 0.99);
    refused(&|o| o.hot_fraction = 0.05);
    refused(&|o| o.hot_fraction = 0.9);
    refused(&|o| o.recall = 1.0);
    refused(&|o| o.layers = Some(0));
    refused(&|o| o.predictor_rank = Some(100));
    refused(&|o| o.predictor_rank = Some(64));
    refused(&|o| o.ty = TensorType::Q2_K);
    refused(&|o| o.shape.n_head = 0);
    refused(&|o| o.shape.n_kv_head = 3);
    refused(&|o| o.shape.architecture = "lstm");
    refused(&|o| (o.shape, o.layers) = (SynthShape::named("tiny-nemotron-3").unwrap(), Some(6)));
    let moe = |experts, used| Some(ExpertCounts { experts, used });
    refused(&|o| o.shape.moe = moe(8, 8));
    refused(&|o| o.shape.moe = moe(8, 0));
    refused(&|o| o.shape.moe = moe(1000, 2));
    refused(&|o| o.shape = SynthShape { moe: moe(8, 2), ..SynthShape::named("tiny-opt").unwrap() });
    refused(&|o| (o.shape.moe, o.predictor_rank) = (moe(8, 2), Some(128)));
    assert!(matches!(SynthShape::named("llama-8t"), Err(Error::Unsupported { .. })));
}

/// Every optional tensor that a shape chooses is requested by its architecture.
#[test]
fn chosen_tensors_are_asked_for() {
    for shape in shapes().iter().copied().chain(unlisted::shapes()) {
        let options = SynthOptions::new(shape, "m.gguf");
        let draft = draft::ShapeDraft::new(&shape, &options).unwrap();
        let recorded = draft.record().unwrap().tensors;
        let names: Vec<&str> = recorded.iter().map(|tensor| tensor.layer_and_name().1).collect();
        let chosen = draft.choice.optional.iter().chain(draft.choice.rows.iter().map(|(name, _)| name));
        for name in chosen {
            // The down projection has two layouts, and the predictor determines which one is used.
            assert!(names.contains(&name.as_str()) || name == "ffn_down_t.bias", "{}: {name}", shape.name);
        }
    }
}

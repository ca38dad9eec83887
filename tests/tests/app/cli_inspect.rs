//! `inspect` reports for any file whether it runs on this machine, and how well. It names what is
//! not used, whether the model's text can be read, the source of the chat template, and what can be
//! skipped.

#![allow(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::{fs, path::Path};

use thermocline_engine::{
    format::{
        Array, Bytes, Checkpoint, ReadMode, Tensor, Value,
        gguf::{TensorInfo, to_bytes},
    },
    model::Model,
    quant::TensorType,
};
use thermocline_tests::terminal::thermocline;

/// A changed copy of a fixture.
struct Variant {
    folder: tempfile::TempDir,
    file: Checkpoint,
    added: Vec<Tensor>,
}

impl Variant {
    fn of(fixture: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(fixture);
        let file = Model::open_checkpoint(&path, ReadMode::Map).unwrap();
        Variant { folder: tempfile::tempdir().unwrap(), file, added: Vec::new() }
    }

    fn set(mut self, key: &str, value: Value) -> Self {
        self.file.metadata.set(key, value);
        self
    }

    fn text(self, key: &str, text: &str) -> Self {
        self.set(key, Value::String(text.to_owned()))
    }

    /// Adds a tensor of 64 x 64.
    fn tensor(mut self, name: &str) -> Self {
        let data = Bytes::new(vec![0; 64 * 64 * 4]);
        self.added.push(Tensor { name: name.to_owned(), ty: TensorType::F32, shape: vec![64, 64], data });
        self
    }

    /// Writes the file without the keys `without`, after `change` has changed its bytes.
    fn write(&self, without: &[&str], change: impl FnOnce(Vec<u8>) -> Vec<u8>) -> String {
        let mut metadata = thermocline_engine::format::Metadata::new("copy");
        for (key, value) in self.file.metadata.iter().filter(|(key, _)| !without.contains(key)) {
            metadata.set(key, value.clone());
        }
        let tensors: Vec<(TensorInfo, &[u8])> = self
            .file
            .tensors()
            .iter()
            .chain(&self.added)
            .map(|tensor| {
                let (name, shape) = (tensor.name.clone(), tensor.shape.clone());
                (TensorInfo { name, ty: tensor.ty, shape }, &tensor.data[..])
            })
            .collect();
        let path = self.folder.path().join("copy.gguf");
        fs::write(&path, change(to_bytes(self.file.container, &metadata, &tensors).unwrap())).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn path(&self) -> String {
        self.write(&[], |bytes| bytes)
    }
}

const LLAMA: &str = "gguf/llama-silu-gqa-256-F16.gguf";

#[test]
fn tensors_that_are_not_used_are_named_and_not_counted() {
    let plain = Variant::of(LLAMA);
    let expected = thermocline(&["inspect", &plain.path(), "--json"]).json();
    assert_eq!(expected["unused"]["tensors"], 0);
    let more =
        Variant::of(LLAMA).tensor("v.patch_embd.weight").tensor("mm.0.weight").tensor("blk.2.nextn.eh_proj.weight");
    let path = more.path();
    let text = thermocline(&["inspect", &path]).ok();
    assert!(text.contains("not used: v.*, mm.*, blk.2.* (12.3 K)\n"), "{text}");
    assert!(
        text.contains("blk.2.*: multi-token prediction") && text.contains("v.*, mm.*: for images or sound"),
        "{text}"
    );
    let shown = thermocline(&["inspect", &path, "--json", "--tensors"]).json();
    for key in ["total", "roles", "types"] {
        assert_eq!(shown[key], expected[key], "{key}");
    }
    assert_eq!((&shown["unused"]["tensors"], &shown["unused"]["bytes"]), (&3.into(), &(3 * 64 * 64 * 4).into()));
    let all = shown["tensors"].as_array().unwrap().len() as u64;
    assert_eq!(all, expected["total"]["tensors"].as_u64().unwrap() + 3, "listed all the same");
    let run = |path: &str| thermocline(&["run", "-m", path, "--raw", "-p", "abc", "--temp", "0", "-n", "4"]).ok();
    assert_eq!(run(&path), run(&plain.path()));
}

#[test]
fn layers_behind_the_count_are_said() {
    let file = Variant::of(LLAMA).set("llama.block_count", Value::U32(1));
    let text = thermocline(&["inspect", &file.path()]).ok();
    assert!(text.contains("not used: blk.1.* (") && text.contains("after the last of the 1 layers"), "{text}");
}

#[test]
fn tokenizers_that_cannot_be_used_are_said_with_the_reason() {
    let usable = thermocline(&["inspect", &Variant::of(LLAMA).path(), "--json"]).json();
    assert_eq!((&usable["tokenizer"]["usable"], &usable["tokenizer"]["problem"]), (&true.into(), &().into()));
    let pre = Variant::of(LLAMA).text("tokenizer.ggml.model", "gpt2").text("tokenizer.ggml.pre", "not-yet-known");
    let text = thermocline(&["inspect", &pre.path()]).ok();
    assert!(text.contains("tokenizer     cannot be used: pre-tokeniser `not-yet-known` is not supported"), "{text}");
    let shown = thermocline(&["inspect", &pre.path(), "--json"]).json();
    assert_eq!((&shown["tokenizer"]["usable"], &shown["chat_template"]), (&false.into(), &().into()));
    let text = thermocline(&["inspect", &pre.write(&["tokenizer.ggml.merges", "tokenizer.ggml.pre"], |it| it)]).ok();
    assert!(text.contains("cannot be used: ") && text.contains("tokenizer.ggml.merges"), "{text}");
    let text = thermocline(&["inspect", &pre.write(&["tokenizer.ggml.pre"], |it| it)]).ok();
    assert!(text.contains("usable, ") && text.contains("the file has no `tokenizer.ggml.pre`"), "{text}");
}

#[test]
fn chat_templates_are_shown_with_their_origin() {
    let key = "tokenizer.chat_template";
    let own = Variant::of(LLAMA).text(key, "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}");
    let none = Variant::of(LLAMA).text(key, "");
    let broken = Variant::of(LLAMA).text(key, "{% for m in messages %}{{ m.content | notafilter }}{% endfor %}");
    for (path, origin, said) in [
        (own.path(), "model", "chat template the model's own (`tokenizer.chat_template`)"),
        (none.write(&[key], |bytes| bytes), "built in", "chat template built in, "),
        (broken.path(), "replaced", "chat template replaced by "),
    ] {
        let text = thermocline(&["inspect", &path]).ok();
        assert!(text.contains(said), "{origin}: {text}");
        assert_eq!(thermocline(&["inspect", &path, "--json"]).json()["chat_template"]["origin"], origin);
    }
}

#[test]
fn sparsity_to_expect_names_activation_modes_and_experts() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    for (name, parts) in [
        ("models/llama-relu", &["relu: silent neurons can be skipped", "`exact` skips silent neurons"][..]),
        (LLAMA, &["silu: neurons are never zero", "after `thermocline prepare`, which measures the loss"]),
        ("models/mixtral", &["silu: neurons are never zero", "a token reads 2 of "]),
    ] {
        let text = thermocline(&["inspect", fixtures.join(name).to_str().unwrap()]).ok();
        assert!(parts.iter().all(|part| text.contains(part)), "{name}: {text}");
    }
}

#[test]
fn texts_that_are_not_utf8_are_shown_with_marks_and_do_no_harm() {
    let name = Variant::of(LLAMA).text("general.name", "caf#");
    let marked = |bytes: Vec<u8>| {
        let at = bytes.windows(4).position(|four| four == b"caf#").unwrap();
        [&bytes[..at + 3], b"\xe9", &bytes[at + 4..]].concat()
    };
    let Some(Array::String(tokens)) = Variant::of(LLAMA).file.metadata.array("tokenizer.ggml.tokens").unwrap().cloned()
    else {
        panic!("strings")
    };
    let mut tokens: Vec<Vec<u8>> = tokens.into_iter().map(String::into_bytes).collect();
    tokens[100] = b"\xf0\x9f".to_vec();
    let token = Variant::of(LLAMA).set("tokenizer.ggml.tokens", Value::Array(Array::Bytes(tokens)));
    let (name, token) = (name.write(&[], marked), token.path());
    let text = thermocline(&["inspect", &name]).ok();
    assert!(text.contains("name          caf\u{fffd}\n"), "{text}");
    assert_eq!(thermocline(&["inspect", &name, "--json"]).json()["metadata"]["general.name"], "caf\u{fffd}");
    let shown = thermocline(&["inspect", &token, "--json"]).json();
    assert_eq!((&shown["tokenizer"]["usable"], &shown["problem"]), (&true.into(), &().into()));
    for path in [&name, &token] {
        let ran = thermocline(&["run", "-m", path, "--raw", "-p", "abc", "--temp", "0", "-n", "4", "--json"]).json();
        assert_eq!(ran["tokens"].as_array().unwrap().len(), 4, "{path}");
    }
}

#[test]
fn files_that_go_with_a_model_are_named_for_what_they_are() {
    for (architecture, said) in
        [("clip", "a vision tower"), ("gemma4-assistant", "an assistant of gemma4"), ("dflash", "a drafter: ")]
    {
        let file = Variant::of(LLAMA).text("general.architecture", architecture);
        let shown = thermocline(&["inspect", &file.path(), "--json"]).json();
        let problem = shown["problem"].as_str().unwrap();
        assert!(problem.contains(said) && problem.contains("not a model by itself"), "{problem}");
        let text = thermocline(&["inspect", &file.path()]).ok();
        assert!(text.contains(&format!("architecture  {architecture}")), "{text}");
        let error = thermocline(&["run", "-m", &file.path(), "-p", "x"]).refusal();
        assert!(error.contains(said) && error.contains("copy.gguf"), "{error}");
        assert_eq!(error.contains("with this file as its draft model (--draft)"), architecture.ends_with("assistant"));
    }
}

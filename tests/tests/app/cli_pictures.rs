//! `logits`, `run` and `chat` with pictures.

#![allow(clippy::unwrap_used)]

use std::{fs, path::Path};

use thermocline_engine::{
    model::convert,
    pictures::Picture,
    quant::TensorType,
    session::{ChatOptions, Engine, EngineOptions, Message, Prompt, Role},
};
use thermocline_tests::{
    golden::Expected,
    pictured::{PICTURE, tower_fixture, with_pictures},
    terminal::{thermocline, with_input},
};

/// Computes logits on the CPU and returns them with the greedy continuation.
fn logits(model: &Path, tokens: &[u32], more: &[&str]) -> (Vec<f32>, Vec<u32>) {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("logits.safetensors");
    let tokens = tokens.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let args = ["logits", "-m", model.to_str().unwrap(), "--tokens", &tokens, "--device", "cpu", "--out"];
    assert_eq!(thermocline(&[&args[..], &[out.to_str().unwrap()], more].concat()).ok(), "");
    let written = Expected::read(&out);
    let greedy = if more.contains(&"--greedy") { written.ids("greedy_ids") } else { Vec::new() };
    (written.f32("logits"), greedy)
}

#[test]
fn logits_of_pictures_match_the_reference_in_folders_and_pairs_of_files() {
    let scratch = tempfile::tempdir().unwrap();
    for name in [
        "qwen3-vl",
        "qwen3_5",
        "qwen2_5-vl",
        "gemma3",
        "gemma4",
        "gemma4-unified",
        "pixtral",
        "minicpm-v2_6",
        "minicpm-v4_6",
    ] {
        let folder = tower_fixture(name);
        let expected = Expected::read(&folder.join("expected.safetensors"));
        let (tokens, wanted) = (expected.ids("tokens"), expected.f32("logits"));
        let [whole, resized] = ["whole.png", "resized.png"].map(|file| folder.join(file).to_str().unwrap().to_owned());
        let images = ["--image", &whole, "--image", &resized];
        let pair = scratch.path().join(name);
        fs::create_dir(&pair).unwrap();
        let file = pair.join("model.gguf");
        let tower = convert(&folder, &file, TensorType::F32, &mut |_, _| ()).unwrap().tower.unwrap().path;
        let elsewhere = scratch.path().join(format!("{name}-tower.gguf"));
        let vocab = wanted.len() / tokens.len();
        // The program resizes the second picture. Its samples may differ by one step.
        let second = tokens.iter().rposition(|id| *id == 9).unwrap();
        let range = wanted.iter().copied().fold(0.0f32, |most, it| most.max(it.abs()));
        for at in 0..3 {
            let (model, more) = match at {
                0 => (&folder, vec![]),
                1 => (&file, vec![]),
                // The tower is named.
                _ => {
                    fs::rename(&tower, &elsewhere).unwrap();
                    (&file, vec!["--mmproj", elsewhere.to_str().unwrap()])
                }
            };
            let (got, _) = logits(model, &tokens, &[&images[..], &more].concat());
            assert_eq!(got.len(), wanted.len(), "{name}");
            for (token, (got, wanted)) in got.chunks(vocab).zip(wanted.chunks(vocab)).enumerate() {
                let off = got.iter().zip(wanted).fold(0.0f32, |most, (a, b)| most.max((a - b).abs())) / range;
                let most = if token <= second { 2e-3 } else { 0.1 };
                assert!(off < most, "{name}, way {at}, token {token}: {off}");
            }
        }
    }
}

#[test]
fn pictures_that_do_not_fit_their_tokens_are_refused() {
    let folder = tower_fixture("qwen3-vl");
    let whole = folder.join("whole.png");
    let (model, whole) = (folder.to_str().unwrap(), whole.to_str().unwrap());
    let refused = |model: &str, tokens: &str, more: &[&str]| {
        let args = ["logits", "-m", model, "--tokens", tokens, "--device", "cpu", "--out", "/tmp/none.safetensors"];
        thermocline(&[&args[..], more].concat()).refusal()
    };
    let image = &["--image", whole];
    for (tokens, said) in [
        ("5,380,380,380,7", "expected 6 image tokens 380, got 3"),
        ("5,7", "expected 6 image tokens 380, got 0"),
        ("5,380,380,380,380,380,380,7,380,380", "expected 6 image tokens 380 for the pictures, got 2 more"),
    ] {
        let error = refused(model, tokens, image);
        assert!(error.contains(said), "{error}");
    }
    let error = refused(model, "5", &["--image", folder.join("config.json").to_str().unwrap()]);
    assert!(error.contains("config.json") && error.contains("picture format"), "{error}");
    let text = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/models/qwen3");
    let error = refused(text.to_str().unwrap(), "5", image);
    assert!(error.contains("expected a model with a vision tower"), "{error}");
    let error = refused(text.to_str().unwrap(), "5", &[&image[..], &["--mmproj", model]].concat());
    assert!(error.contains("vision tower: expected one of a model of architecture qwen3"), "{error}");
}

#[test]
fn run_and_chat_answer_about_pictures() {
    let folder = tempfile::tempdir().unwrap();
    with_pictures("qwen3-vl", folder.path());
    let model = folder.path().to_str().unwrap();
    let [whole, resized] = ["whole.png", "resized.png"].map(|name| folder.path().join(name));
    let [a, b] = [&whole, &resized].map(|path| path.to_str().unwrap());
    let common = ["-m", model, "--device", "cpu", "--kv-type", "f32", "--temp", "0", "-n", "8"];
    let run = |more: &[&str]| thermocline(&[&["run", "-p", "Look.", "--json"], &common[..], more].concat());
    let both = run(&["--image", a, "--image", b]).json();
    assert_eq!((&both["stats"]["computed_pictures"], &both["stats"]["device_pictures"]), (&2.into(), &0.into()));

    let engine = Engine::open(folder.path(), EngineOptions::default()).unwrap();
    let pictures = [&whole, &resized].map(|path| Picture::open(path).unwrap());
    let message = Message { pictures: pictures.to_vec(), ..Message::new(Role::User, "Look.") };
    let tokens = engine.prompt_tokens(Prompt::Chat(vec![message]), &ChatOptions::default()).unwrap();
    assert!(tokens.iter().filter(|id| **id == PICTURE).count() == 18);
    let (_, greedy) = logits(folder.path(), &tokens, &["--image", a, "--image", b, "--greedy", "8"]);
    let said: Vec<u64> = both["tokens"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect();
    assert!(!said.is_empty());
    assert!(greedy.iter().map(|id| u64::from(*id)).collect::<Vec<_>>().starts_with(&said), "{said:?} {greedy:?}");
    assert_ne!(run(&["--image", b, "--image", a]).json()["text"], both["text"]);

    let input = format!("/image {a}\n/image {b}\nLook.\n/stats\n");
    let chat = with_input(&[&["chat", "--no-history"], &common[..]].concat(), input.as_bytes()).ok();
    assert!(chat.contains("whole.png, 6 tokens, goes with the next message"), "{chat}");
    // A terminal gets no control characters.
    let shown = |text: &str| text.chars().filter(|letter| !letter.is_control()).collect::<String>();
    assert!(shown(&chat).contains(&shown(both["text"].as_str().unwrap())), "{chat}");
}

#[test]
fn saved_conversations_keep_their_pictures() {
    let folder = tempfile::tempdir().unwrap();
    with_pictures("qwen3-vl", folder.path());
    let whole = folder.path().join("whole.png");
    let files = ["chat.json", "chat.md", "again.json", "again.md"].map(|name| folder.path().join(name));
    let [json, markdown, from_json, from_markdown] = files.each_ref().map(|path| path.to_str().unwrap());
    let args = ["chat", "--no-history", "-m", folder.path().to_str().unwrap(), "--device", "cpu", "--temp", "0"];
    let chat = |lines: &str| with_input(&[&args[..], &["-n", "8"]].concat(), lines.as_bytes());
    let picture = whole.to_str().unwrap();
    chat(&format!("/system Be brief.\n/image {picture}\nLook.\n/save {json}\n/save {markdown}\n")).ok();
    let read = |path: &str| -> serde_json::Value { serde_json::from_slice(&fs::read(path).unwrap()).unwrap() };
    let parts = &read(json)["messages"][1]["content"];
    assert_eq!(parts[1]["text"], "Look.");
    let url = parts[0]["image_url"]["url"].as_str().unwrap();
    assert_eq!(Picture::from_base64(url).unwrap(), Picture::open(&whole).unwrap());

    // The loaded chat has the same messages, and goes on in the same way.
    let more = "And now?\n/save";
    let continued = chat(&format!("/load {json}\n{more} {from_json}\n")).ok();
    assert!(continued.contains("(2 messages from "), "{continued}");
    chat(&format!("/load {markdown}\n{more} {from_markdown}\n/load {from_markdown}\n/stats\n")).ok();
    let again = read(from_json);
    assert_eq!(again["messages"].as_array().unwrap()[..3], read(json)["messages"].as_array().unwrap()[..]);
    assert_eq!(again["messages"].as_array().unwrap().len(), 5);
    let text = fs::read_to_string(from_markdown).unwrap();
    let before = fs::read_to_string(markdown).unwrap();
    assert!(text.starts_with(before.trim_end()), "{text}");
    let answer = again["messages"][4]["content"].as_str().unwrap();
    assert!(!answer.is_empty() && text.contains(answer), "{text}");

    let broken = folder.path().join("broken.json");
    fs::write(&broken, "{\"messages\": [{\"role\": \"user\", \"content\": 7}]}").unwrap();
    let error = chat(&format!("/load {}\n", broken.display())).refusal();
    assert!(error.contains("broken.json: content of message 0"), "{error}");
}

#[test]
fn inspect_and_plan_count_the_tower() {
    let folder = tower_fixture("gemma3");
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("model.gguf");
    convert(&folder, &file, TensorType::F32, &mut |_, _| ()).unwrap();
    for model in [&folder, &file] {
        let model = model.to_str().unwrap();
        let shown = thermocline(&["inspect", model, "--json"]).json();
        assert_eq!(
            (&shown["vision_tower"]["projector"], &shown["vision_tower"]["most_tokens"]),
            (&"gemma3".into(), &4.into())
        );
        assert_eq!(shown["unused"]["tensors"], 0, "{shown}");
        let tower = &shown["vision_tower"];
        assert!(tower["picture_bytes"].as_u64() > Some(0) && tower["picture_gpu_bytes"].as_u64() > Some(0), "{tower}");
        let text = thermocline(&["inspect", model]).ok();
        assert!(text.contains("up to 4 tokens for a picture") && text.contains("if a GPU computes it"), "{text}");
        let plan = |vram: &str, more: &[&str]| {
            let args = ["plan", "-m", model, "--machine", "rtx4090-i9", "--vram", vram];
            thermocline(&[&args[..], more].concat())
        };
        let roomy = plan("1GiB", &["--json"]).json();
        for purpose in ["weights of the vision tower", "scratch of the vision tower"] {
            assert!(roomy["ram_by_purpose"][purpose].as_u64() > Some(0), "{purpose}: {roomy}");
        }
        assert_eq!(roomy["vision_tower"]["fits"], true, "{roomy}");
        let narrow = plan("1MiB", &["--json"]).json();
        assert_eq!(narrow["vision_tower"]["bytes"], roomy["vision_tower"]["bytes"]);
        assert_eq!(narrow["vision_tower"]["fits"], false, "{narrow}");
        for (vram, said) in
            [("1GiB", "while it computes the largest picture"), ("1MiB", "the CPU computes large pictures")]
        {
            let text = plan(vram, &[]).ok();
            assert!(text.contains(said), "{text}");
        }
        assert!(plan("0", &["--json"]).json()["vision_tower"].is_null());
    }
}

#[test]
fn a_folder_of_models_takes_no_tower() {
    let folder = tempfile::tempdir().unwrap();
    let error = thermocline(&["serve", folder.path().to_str().unwrap(), "--mmproj", "mmproj-a.gguf"]).refusal();
    assert!(error.contains("--mmproj: expected one model"), "{error}");
}

#[test]
fn models_without_a_tower_refuse_pictures_before_they_compute() {
    let whole = tower_fixture("qwen3-vl").join("whole.png");
    let error = thermocline(&["run", "-p", "Look.", "--image", whole.to_str().unwrap()]);
    assert!(error.stdout.is_empty() && error.stderr.contains("has no vision tower"), "{error:?}");
    assert_ne!(error.code, Some(0));
}

//! Chats with pictures.

use std::{fs, path::Path, sync::Arc};

use serde_json::{Value, json};
use thermocline_engine::{
    model::{LoadOptions, Model, PictureGrid},
    pictures::PictureHash,
    runtime::{CallInputs, Outputs, PlacedPicture},
    session::{ChatOptions, PromptPicture},
};
use thermocline_tests::golden::{Setup, argmax, forward};

use super::*;

/// The token in whose place pictures are: `</s>`, which the template writes.
const PICTURE: u32 = 1;
const TEMPLATE: &str = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in \
                        m.content %}{{ eos_token if p.type == 'image' else p.text }}{% endfor %}{% endif %}\n{% endfor %}";
const GRID: PictureGrid = PictureGrid { rows: 3, cols: 5 };

/// Copies a model to `to`, with a token for pictures and a template for their messages.
fn with_pictures(name: &str, to: &Path) {
    for file in fs::read_dir(model(name)).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
    for (file, key, value) in
        [("config.json", "image_token_id", json!(PICTURE)), ("tokenizer_config.json", "chat_template", json!(TEMPLATE))]
    {
        let path = to.join(file);
        let mut values: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        values[key] = value;
        fs::write(path, values.to_string()).unwrap();
    }
}

fn picture(model: &Model, name: u8, deepstack: usize) -> Arc<PromptPicture> {
    let mut seed = u64::from(name);
    let mut rows = || {
        let mut number = |_| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((seed >> 40) as f32 / (1 << 23) as f32 - 1.0) * 1.7
        };
        (0..GRID.tokens() * model.config.d_model).map(&mut number).collect::<Vec<f32>>()
    };
    let embeddings = rows();
    let deepstack = (0..deepstack).map(|_| rows()).collect();
    Arc::new(PromptPicture { hash: PictureHash([name; 32]), grid: GRID, embeddings, deepstack })
}

fn asked(text: &str, pictures: &[&Arc<PromptPicture>]) -> Message {
    Message { pictures: pictures.iter().map(|it| Arc::clone(it)).collect(), ..Message::new(Role::User, text) }
}

fn chat(messages: &[Message]) -> Request {
    Request { prompt: Prompt::Chat(messages.to_vec()), ..greedy(&[], 8) }
}

/// The most likely continuation of `tokens`, in which pictures are runs of [`PICTURE`].
fn continued(model: &Arc<Model>, tokens: &[u32], pictures: &[&Arc<PromptPicture>]) -> Vec<u32> {
    let mut forward = forward(model, Setup::default());
    let mut kv = forward.kv_cache(tokens.len() + 8, KvType::F32).unwrap();
    let starts: Vec<usize> = (0..tokens.len()).filter(|at| tokens[*at] == PICTURE).step_by(GRID.tokens()).collect();
    assert_eq!(starts.len(), pictures.len());
    let placed: Vec<PlacedPicture<'_>> = starts
        .into_iter()
        .zip(pictures)
        .map(|(start, of)| PlacedPicture { start, grid: GRID, embeddings: &of.embeddings, deepstack: &of.deepstack })
        .collect();
    let inputs = CallInputs::with_pictures(tokens, &placed);
    let mut ids = vec![argmax(forward.run(inputs, &mut kv, Outputs::Last, &mut ()).unwrap())];
    while ids.len() < 8 {
        let last = ids[ids.len() - 1];
        ids.push(argmax(forward.run(&[last], &mut kv, Outputs::Last, &mut ()).unwrap()));
    }
    ids
}

#[test]
fn later_turns_reuse_pictures_and_other_pictures_are_noticed() {
    for (name, deepstack) in [("qwen2_5-vl", 0), ("qwen3-vl", 2), ("gemma3", 0)] {
        let folder = tempfile::tempdir().unwrap();
        with_pictures(name, folder.path());
        let model = Arc::new(Model::open(folder.path(), &LoadOptions::default()).unwrap());
        let [a, b, c] = [1, 2, 3].map(|of| picture(&model, of, deepstack));
        for chunk in [512, 4] {
            let engine = Engine::open(folder.path(), EngineOptions { chunk, ..options() }).unwrap();
            let session = session_of(&engine, 160);
            let tokens = |messages: &[Message]| {
                engine.prompt_tokens(Prompt::Chat(messages.to_vec()), &ChatOptions::default()).unwrap()
            };
            let first = [asked("Look at this.", &[&a])];
            let one = generate(&session, chat(&first));
            assert_eq!(one.stats.prompt_tokens, tokens(&first).len());
            assert_eq!(one.ids, continued(&model, &tokens(&first), &[&a]), "{name}, chunks of {chunk}");
            // The answer may be cut into other tokens, so only the question is surely reused.
            let said = Message::new(Role::Assistant, "I see.");
            let second = [first[0].clone(), said.clone(), asked("And these two?", &[&b, &a])];
            let two = generate(&session, chat(&second));
            assert!(two.stats.reused_tokens >= GRID.tokens(), "{name}: {:?}", two.stats.reused_tokens);
            assert_eq!(two.ids, continued(&model, &tokens(&second), &[&a, &b, &a]), "{name}, chunks of {chunk}");
            // Another picture of the same size.
            let other = [first[0].clone(), said.clone(), asked("And these two?", &[&c, &a])];
            let three = generate(&session, chat(&other));
            assert!(three.stats.reused_tokens < two.stats.prompt_tokens - 2 * GRID.tokens());
            assert_eq!(three.ids, continued(&model, &tokens(&other), &[&a, &c, &a]), "{name}, chunks of {chunk}");
            let four = generate(&session, chat(&[asked("Look at this.", &[&b])]));
            assert_eq!(four.stats.reused_tokens, 0, "{name}");
        }
    }
}

#[test]
fn chats_with_pictures_forget_whole_turns() {
    let folder = tempfile::tempdir().unwrap();
    with_pictures("qwen2_5-vl", folder.path());
    let model = Arc::new(Model::open(folder.path(), &LoadOptions::default()).unwrap());
    let engine = Engine::open(folder.path(), options()).unwrap();
    let session = session_of(&engine, 100);
    let [a, b] = [1, 2].map(|of| picture(&model, of, 0));
    let all = [
        asked("Look at this picture, and at these words too.", &[&a]),
        Message::new(Role::Assistant, "I see a number of things in it."),
        asked("And what is in this one?", &[&b]),
    ];
    let request = Request { on_full: ContextPolicy::Shift { keep: 0 }, max_tokens: Some(70), ..chat(&all) };
    let long = generate(&session, request);
    assert_eq!(long.ids.len(), 70);
    assert!(long.stats.forgotten_turns > 0, "{:?}", long.stats);
}

#[test]
fn a_template_without_pictures_is_refused() {
    let engine = Engine::open(&model("qwen2_5-vl"), options()).unwrap();
    let of = Model::open(&model("qwen2_5-vl"), &LoadOptions::default()).unwrap();
    let error = answer(session_of(&engine, 160).generate(chat(&[asked("Look.", &[&picture(&of, 1, 0)])])));
    let error = error.unwrap_err().to_string();
    assert!(error.contains("1 pictures in the text"), "{error}");
}

//! Chats with pictures.

use std::{fs, sync::Arc};

use serde_json::json;
use thermocline_engine::{
    cpu::Cpu,
    format::ReadMode,
    gpu::{AdapterChoice, GpuOptions},
    model::{LoadOptions, Model, PicturePart, Tower},
    pictures::Picture,
    placement::Machine,
    runtime::{CallInputs, Outputs, PictureEmbeddings, PlacedPicture, TowerProcessor},
    session::{ChatOptions, DeviceChoice, DeviceStatus, LogprobsRequest},
};
use thermocline_tests::{
    golden::{Setup, argmax, forward},
    pictured::{PICTURE, pictures, set_json, tower_fixture, with_pictures},
};

use super::*;

fn asked(text: &str, pictures: &[&Picture]) -> Message {
    Message { pictures: pictures.iter().map(|it| (*it).clone()).collect(), ..Message::new(Role::User, text) }
}

fn chat(messages: &[Message]) -> Request {
    Request { prompt: Prompt::Chat(messages.to_vec()), ..greedy(&[], 8) }
}

/// The most likely continuation of `tokens`, in which pictures are runs of [`PICTURE`].
fn continued(model: &Arc<Model>, tokens: &[u32], pictures: &[&Picture]) -> Vec<u32> {
    let mut forward = forward(model, Setup::default());
    let mut kv = forward.kv_cache(tokens.len() + 8, KvType::F32).unwrap();
    let tower = Arc::new(Tower::open(&model.checkpoint.path, ReadMode::Map).unwrap());
    let mut processor = TowerProcessor::new(Arc::clone(&tower), Cpu::new(&CpuOptions::default()).unwrap());
    let made: Vec<_> = pictures.iter().map(|picture| processor.embed(picture, &mut ()).unwrap()).collect();
    let (mut placed, mut at, d_model) = (Vec::new(), 0, model.config.d_model);
    for (of, picture) in made.iter().zip(pictures) {
        let PictureEmbeddings { embeddings, deepstack, .. } = of;
        let mut first = 0;
        for PicturePart { grid, .. } in tower.parts(picture.width(), picture.height()).unwrap() {
            let start = (at..tokens.len()).find(|at| tokens[*at] == PICTURE).unwrap();
            let embeddings = &embeddings[first * d_model..][..grid.tokens() * d_model];
            let text_positions = tower.has_text_positions();
            placed.push(PlacedPicture { start, grid, embeddings, deepstack, text_positions });
            (at, first) = (start + grid.tokens(), first + grid.tokens());
        }
    }
    assert_eq!(
        tokens.iter().filter(|id| **id == PICTURE).count(),
        made.iter().map(|of| of.grid.tokens()).sum::<usize>()
    );
    let inputs = CallInputs::with_pictures(tokens, &placed);
    let mut ids = vec![argmax(forward.run(inputs, &mut kv, Outputs::Last, &mut ()).unwrap())];
    while ids.len() < 8 {
        let last = ids[ids.len() - 1];
        ids.push(argmax(forward.run(&[last], &mut kv, Outputs::Last, &mut ()).unwrap()));
    }
    ids
}

#[test]
fn later_turns_compute_no_picture_again_and_notice_other_pictures() {
    for name in ["qwen2_5-vl", "qwen3-vl", "qwen3_5", "gemma3", "gemma4", "minicpm-v2_6", "minicpm-v4_6"] {
        let folder = tempfile::tempdir().unwrap();
        with_pictures(name, folder.path());
        let model = Arc::new(Model::open(folder.path(), &LoadOptions::default()).unwrap());
        let [a, b, c] = pictures(folder.path());
        for chunk in [512, 4] {
            let engine = Engine::open(folder.path(), EngineOptions { chunk, ..options() }).unwrap();
            let session = session_of(&engine, 360);
            let tokens = |messages: &[Message]| {
                engine.prompt_tokens(Prompt::Chat(messages.to_vec()), &ChatOptions::default()).unwrap()
            };
            let of_a = engine.picture_tokens(&a).unwrap();
            let first = [asked("Look at this.", &[&a])];
            let one = generate(&session, chat(&first));
            assert_eq!((one.stats.prompt_tokens, one.stats.computed_pictures), (tokens(&first).len(), 1), "{name}");
            assert_eq!(one.ids, continued(&model, &tokens(&first), &[&a]), "{name}, chunks of {chunk}");
            // The answer may be cut into other tokens, so only the question is surely reused.
            let said = Message::new(Role::Assistant, "I see.");
            let second = [first[0].clone(), said.clone(), asked("And these two?", &[&b, &a])];
            let two = generate(&session, chat(&second));
            assert_eq!(two.stats.computed_pictures, 1, "{name}: the first picture is known");
            if !engine.config().is_recurrent() {
                assert!(two.stats.reused_tokens >= of_a, "{name}: {:?}", two.stats.reused_tokens);
            }
            assert_eq!(two.ids, continued(&model, &tokens(&second), &[&a, &b, &a]), "{name}, chunks of {chunk}");
            // Another picture of the same size.
            let other = [first[0].clone(), said.clone(), asked("And these two?", &[&c, &a])];
            let three = generate(&session, chat(&other));
            assert!(three.stats.reused_tokens < two.stats.prompt_tokens - of_a);
            assert_eq!(three.stats.computed_pictures, 1, "{name}");
            assert_eq!(three.ids, continued(&model, &tokens(&other), &[&a, &c, &a]), "{name}, chunks of {chunk}");
            let four = generate(&session, chat(&[asked("Look at this.", &[&b])]));
            assert_eq!((four.stats.reused_tokens, four.stats.computed_pictures), (0, 1), "{name}");
        }
    }
}

#[test]
fn pictures_in_files_are_decoded_only_to_be_computed() {
    let folder = tempfile::tempdir().unwrap();
    with_pictures("qwen3-vl", folder.path());
    let engine = Engine::open(folder.path(), options()).unwrap();
    let session = session_of(&engine, 240);
    let [a, b, _] = pictures(folder.path());
    let files = [&a, &b].map(|picture| Picture::deferred(&picture.file().unwrap().bytes).unwrap());
    let whole = generate(&session, chat(&[asked("Look.", &[&a, &b])]));
    let deferred = generate(&session, chat(&[asked("Look.", &[&files[0], &files[1]])]));
    assert_eq!((deferred.ids, deferred.stats.computed_pictures), (whole.ids, 0));

    // Damage behind the header does not matter to those who count tokens.
    let bytes = a.file().unwrap().bytes;
    let cut = Picture::deferred(&bytes[..bytes.len() - 40]).unwrap();
    let tokens = |picture: &Picture| {
        let messages = vec![asked("Look.", &[picture])];
        engine.prompt_tokens(Prompt::Chat(messages), &ChatOptions::default()).unwrap()
    };
    assert_eq!((tokens(&cut), engine.picture_tokens(&cut).unwrap()), (tokens(&a), engine.picture_tokens(&a).unwrap()));
    let error = answer(session.generate(chat(&[asked("Look.", &[&cut])]))).err().unwrap().to_string();
    assert!(error.contains("a whole PNG file"), "{error}");
    assert!(!generate(&session, chat(&[asked("Look.", &[&a])])).ids.is_empty());
}

#[test]
fn a_chunk_on_a_gpu_is_as_long_as_a_whole_picture() {
    let folder = tempfile::tempdir().unwrap();
    with_pictures("gemma4", folder.path());
    let config = folder.path().join("config.json");
    let text = fs::read_to_string(&config).unwrap();
    let [null, vision] = ["null", "\"vision\""].map(|of| format!("\"use_bidirectional_attention\":{of}"));
    assert!(text.contains(&null));
    fs::write(&config, text.replace(&null, &vision)).unwrap();
    let model = Arc::new(Model::open(folder.path(), &LoadOptions::default()).unwrap());
    let [a, b, _] = pictures(folder.path());
    let device = DeviceChoice::Gpu(GpuOptions { adapter: AdapterChoice::Index(0), ..GpuOptions::default() });
    let engine = Engine::open(folder.path(), EngineOptions { device, chunk: 16, ..options() }).unwrap();
    assert!(matches!(engine.wait_for_device(LONGEST), DeviceStatus::Gpu(_)));
    assert_eq!(engine.device_chunk(), engine.tower().unwrap().most_tokens());
    let request = chat(&[asked("Look at these two.", &[&a, &b])]);
    let tokens = engine.prompt_tokens(request.prompt.clone(), &request.chat).unwrap();
    let said = generate(&session_of(&engine, 200), request);
    assert!(matches!(engine.wait_for_device(LONGEST), DeviceStatus::Gpu(_)));
    assert_eq!(said.ids, continued(&model, &tokens, &[&a, &b]));
}

/// The device computes a picture beside the model, unless the budget has no room for the tower.
#[test]
fn a_gpu_with_room_beside_the_model_computes_pictures() {
    let folder = tempfile::tempdir().unwrap();
    with_pictures("qwen3-vl", folder.path());
    let model = Arc::new(Model::open(folder.path(), &LoadOptions::default()).unwrap());
    let [a, b, _] = pictures(folder.path());
    let device = DeviceChoice::Gpu(GpuOptions { adapter: AdapterChoice::Index(0), ..GpuOptions::default() });
    let mut machine = Machine::typical();
    machine.cpu.prompts.values_mut().for_each(|rate| *rate = 1.0);
    let engine = Engine::open(folder.path(), EngineOptions { device, machine: Some(machine), ..options() }).unwrap();
    let DeviceStatus::Gpu(loaded) = engine.wait_for_device(LONGEST) else { panic!("no GPU") };
    let session = session_of(&engine, 200);
    let ask = |picture| {
        let request = chat(&[asked("Look at this.", &[picture])]);
        let tokens = engine.prompt_tokens(request.prompt.clone(), &request.chat).unwrap();
        let said = generate(&session, request);
        assert_eq!(said.ids, continued(&model, &tokens, &[picture]));
        (said.stats.computed_pictures, said.stats.device_pictures)
    };
    assert_eq!(ask(&a), (1, 1));
    // The tower needs more than the smallest buffers of an upload.
    let narrow = loaded.accounted + (1 << 20);
    engine.set_vram_budget(narrow).unwrap();
    let in_force = || matches!(engine.device(), DeviceStatus::Gpu(it) if it.budget == Some(narrow));
    eventually("the budget is in force", in_force);
    assert_eq!(ask(&b), (1, 0));
    assert!(matches!(engine.device(), DeviceStatus::Gpu(it) if it.accounted <= narrow));
}

#[test]
fn sessions_share_the_embeddings_of_a_picture() {
    let folder = tempfile::tempdir().unwrap();
    with_pictures("qwen3-vl", folder.path());
    let engine = Engine::open(folder.path(), options()).unwrap();
    let [a, ..] = pictures(folder.path());
    let (first, second) = (session_of(&engine, 160), session_of(&engine, 160));
    let one = generate(&first, chat(&[asked("Look at this.", &[&a])]));
    let two = generate(&second, chat(&[Message::new(Role::System, "Be brief."), asked("Or this?", &[&a])]));
    assert_eq!((one.stats.computed_pictures, two.stats.computed_pictures), (1, 0));
}

#[test]
fn chats_with_pictures_forget_whole_turns() {
    let folder = tempfile::tempdir().unwrap();
    with_pictures("qwen2_5-vl", folder.path());
    let engine = Engine::open(folder.path(), options()).unwrap();
    let session = session_of(&engine, 100);
    let [a, b, _] = pictures(folder.path());
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
fn log_probabilities_of_a_prompt_name_tokens_of_the_vocabulary() {
    let folder = tempfile::tempdir().unwrap();
    with_pictures("qwen3-vl", folder.path());
    let engine = Engine::open(folder.path(), options()).unwrap();
    let [a, ..] = pictures(folder.path());
    let request = Request {
        logprobs: Some(LogprobsRequest { prompt: true, top: 0 }),
        max_tokens: Some(1),
        ..chat(&[asked("Look.", &[&a])])
    };
    let tokens = engine.prompt_tokens(request.prompt.clone(), &request.chat).unwrap();
    let mut scored = Vec::new();
    for event in session_of(&engine, 160).generate(request) {
        match event {
            Event::PromptLogprobs(all) => scored.extend(all.iter().map(|it| it.id)),
            Event::Error(error) => panic!("{error}"),
            _ => {}
        }
    }
    assert_eq!(scored, tokens);
}

#[test]
fn templates_without_pictures_get_their_marks_in_the_text() {
    let folder = tempfile::tempdir().unwrap();
    with_pictures("qwen3-vl", folder.path());
    for (template, text) in [
        ("{% for m in messages %}{{ m.content }}\n{% endfor %}", "Look.\n"),
        ("{{ messages[0].content + '' }}", "Look."),
    ] {
        set_json(&folder.path().join("tokenizer_config.json"), "chat_template", json!(template));
        let engine = Engine::open(folder.path(), options()).unwrap();
        let [a, ..] = pictures(folder.path());
        let of = |prompt| engine.prompt_tokens(prompt, &ChatOptions::default()).unwrap();
        let prompt = of(Prompt::Chat(vec![asked("Look.", &[&a])]));
        let text = of(Prompt::Text(text.to_owned()));
        assert_eq!(prompt, [&vec![PICTURE; engine.picture_tokens(&a).unwrap()], &text[..]].concat());
    }
}

#[test]
fn pictures_for_models_without_a_tower_are_refused() {
    let engine = Engine::open(&model("qwen2"), options()).unwrap();
    assert!(engine.tower().is_none());
    let picture = Picture::from_rgb(64, 64, vec![9; 64 * 64 * 3]).unwrap();
    let error = answer(session_of(&engine, 160).generate(chat(&[asked("Look.", &[&picture])])));
    let error = error.unwrap_err().to_string();
    assert!(error.contains("has no vision tower"), "{error}");
    let folder = tempfile::tempdir().unwrap();
    with_pictures("qwen3-vl", folder.path());
    // One that lies elsewhere and belongs to another model is refused by name.
    let mmproj = Some(tower_fixture("gemma3"));
    let error = Engine::open(folder.path(), EngineOptions { mmproj, ..options() }).unwrap_err().to_string();
    assert!(error.contains("vision tower: expected one of a model of architecture qwen3vl"), "{error}");
    let engine = Engine::open(folder.path(), options()).unwrap();
    let narrow = Picture::from_rgb(1, 201, vec![9; 201 * 3]).unwrap();
    let error = answer(session_of(&engine, 160).generate(chat(&[asked("Look.", &[&narrow])])));
    assert!(error.unwrap_err().to_string().contains("ratio"));
}

//! Tests of the panel with the built-in model.

use std::sync::Arc;

use egui_kittest::{
    Harness,
    kittest::{NodeT, Queryable},
};
use thermocline_engine::{
    cpu::{Cpu, CpuOptions},
    model::{Activation, NeuronIndex, mask},
    runtime::Sparsity,
    session::{
        DeviceChoice, EngineOptions, Event, Prompt, Request, Sampling, SessionOptions, SparsityChoice, SpeculationMode,
    },
    telemetry::neurons::Watch,
};

use super::{NeuronsPanel, animation::MOST_BYTES, export::Export, facts::quoted, saving::rate};
use crate::{command::Command, shell::Shell};
use thermocline_chats::{
    chat::NeuronWords,
    store::{MessageState, StreamingMessage},
};
use thermocline_host::{answer_stats::AnswerStats, folders::Folders, library::ModelId, testing::eventually};
use thermocline_rich_text::{fonts, theme};

struct State {
    panel: NeuronsPanel,
    shell: Option<Shell>,
    /// True if the panel's column is hidden.
    hidden: bool,
    // Declared after the shell, which writes into it.
    folder: tempfile::TempDir,
}

fn harness() -> Harness<'static, State> {
    let folder = tempfile::tempdir().unwrap();
    let state = State { panel: NeuronsPanel::default(), shell: None, hidden: false, folder };
    let show = |ui: &mut egui::Ui, state: &mut State| {
        if state.shell.is_none() {
            theme::install(ui);
            state.shell = Shell::new(ui, Folders::below(state.folder.path())).ok();
            // New fonts are available in the next frame.
            return;
        }
        if let Some(shell) = &mut state.shell {
            if !state.hidden {
                egui::ScrollArea::vertical().show(ui, |ui| state.panel.show(ui, shell));
            }
            state.panel.show_detached(ui, shell);
        }
    };
    let mut harness =
        Harness::builder().with_size([460.0, 1200.0]).with_step_dt(1.0 / 60.0).build_ui_state(show, state);
    harness.step();
    harness
}

fn shell<'a>(harness: &'a mut Harness<'static, State>) -> &'a mut Shell {
    harness.state_mut().shell.as_mut().unwrap()
}

fn click(harness: &mut Harness<'static, State>, name: &str) {
    harness.get_by_label(name).click();
    harness.run_steps(3);
}

/// Opens the built-in model on the CPU and lets it write a few words.
fn answered() -> Harness<'static, State> {
    let mut harness = harness();
    open(&mut harness, ModelId::Builtin, None);
    harness.step();
    generate(&mut harness, 12);
    harness
}

/// Opens a model on the CPU.
fn open(harness: &mut Harness<'static, State>, model: ModelId, activation: Option<Activation>) {
    open_with(harness, model, EngineOptions { device: DeviceChoice::Cpu, activation, ..EngineOptions::default() });
}

fn open_with(harness: &mut Harness<'static, State>, model: ModelId, options: EngineOptions) {
    let engine_handle = shell(harness).engine_handle.clone();
    engine_handle.open(model, options);
    eventually("a model", || engine_handle.engine().is_some());
}

fn generate(harness: &mut Harness<'static, State>, tokens: usize) {
    let session = Arc::new(shell(harness).engine_handle.session(SessionOptions::default()).unwrap());
    let prompt = Prompt::Text("Once upon a time".to_owned());
    let request = Request { sampling: Sampling::greedy(), max_tokens: Some(tokens), ..Request::new(prompt) };
    for event in session.generate(request) {
        assert!(!matches!(event, Event::Error(_)), "{event:?}");
    }
    harness.run_steps(4);
}

fn map<'a>(harness: &'a mut Harness<'static, State>) -> &'a super::map::Map {
    &harness.state_mut().panel.watched.as_ref().unwrap().map
}

/// Clicks on a neuron's dot, wherever it is.
fn click_neuron(harness: &mut Harness<'static, State>, layer: usize, neuron: usize) {
    let State { panel, shell, .. } = harness.state_mut();
    let (watched, shell) = (panel.watched.as_mut().unwrap(), shell.as_mut().unwrap());
    watched.click(shell, NeuronIndex { layer, neuron });
    harness.run_steps(3);
}

#[test]
fn panel_without_a_model_has_a_button_to_open_one() {
    let mut harness = harness();
    harness.step();
    harness.get_by_label("Open a model").click();
    harness.step();
    assert!(matches!(shell(&mut harness).take_commands()[..], [Command::Show(_)]));
}

#[test]
fn map_follows_the_latest_token_holds_and_steps() {
    let mut harness = answered();
    let board = Arc::clone(shell(&mut harness).engine_handle.engine().unwrap().neurons());
    let latest = board.latest().unwrap().index;
    let map = harness.get_by_label_contains("Map of neurons, Fired:");
    let summary = map.accesskit_node().label().unwrap_or_default();
    assert!(summary.contains(&format!("token {latest}:")), "{summary}");
    click(&mut harness, "Hold this token");
    click(&mut harness, "Token before");
    generate(&mut harness, 3);
    assert!(harness.query_by_label_contains(&format!("token {}:", latest - 1)).is_some(), "it is held");
    click(&mut harness, "Compare");
    assert!(harness.query_by_label("fires only now").is_some());
    click(&mut harness, "Live");
    let now = board.latest().unwrap().index;
    assert!(now > latest && harness.query_by_label_contains(&format!("token {now}:")).is_some());
    click(&mut harness, &format!("Compared with token {}", latest - 2));
    assert!(harness.query_by_label("fires only now").is_none());
}

/// The map, the figures and the tooltips name experts.
#[test]
fn map_and_figures_of_moe_layers_name_experts() {
    let mut harness = harness();
    open(&mut harness, ModelId::Path("../../tests/fixtures/models/mixtral".into()), Some(Activation::Relu));
    // Before the panel is shown, so that it sorts experts by these tokens.
    generate(&mut harness, 12);
    let board = Arc::clone(shell(&mut harness).engine_handle.engine().unwrap().neurons());
    let (shape, token) = (board.shape().clone(), board.latest().unwrap());
    let map = harness.get_by_label_contains("Map of neurons, Experts:");
    let (rect, summary) = (map.rect(), map.accesskit_node().label().unwrap_or_default());
    assert!(summary.contains(": 4 of 8 experts chosen, "), "{summary}");
    assert!(
        harness.query_by_label_contains("Layer 1: ").is_some_and(|bar| {
            bar.accesskit_node().label().unwrap_or_default().ends_with(" active, 2 of 4 experts")
        })
    );
    // The experts from left to right, the most frequently chosen first.
    let chosen = |layer: usize, expert: usize| board.tally(layer).chosen[expert];
    let mut seen = Vec::new();
    for step in 0..40 {
        let at = egui::pos2(rect.left() + 33.0 + (rect.width() - 34.0) * step as f32 / 40.0, rect.top() + 20.0);
        harness.event(egui::Event::PointerMoved(at));
        harness.run_steps(2);
        if step == 0 {
            // The first tooltip appears after a delay.
            harness.run_steps(60);
        }
        let title = harness.get_by_label_contains("Layer 0, expert ").accesskit_node();
        let title = title.value().or(title.label()).unwrap_or_default();
        let mut numbers = title.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse::<usize>().ok());
        let (expert, neuron) = (numbers.nth(1).unwrap(), numbers.next().unwrap());
        let at = expert * 160 + neuron;
        let fires = mask::contains(token.fired(&shape, 0).unwrap(), at);
        let passed_over = !mask::contains(token.chosen(&shape, 0).unwrap(), expert);
        let value = match (fires, passed_over) {
            (true, _) => "Fires for this token",
            (false, true) => "Silent: this token did not choose its expert",
            (false, false) => "Silent for this token",
        };
        assert!(harness.query_by_label(value).is_some(), "{title}: {value}");
        assert!(harness.query_by_label_contains("Its expert is chosen for ").is_some());
        assert!(harness.query_by_label("In RAM").is_none(), "nothing is placed anywhere");
        if seen.last() != Some(&expert) {
            seen.push(expert);
        }
    }
    assert_eq!(seen.len(), 4, "each expert is in one place: {seen:?}");
    assert!(seen.windows(2).all(|two| chosen(0, two[0]) >= chosen(0, two[1])), "{seen:?}");
}

#[test]
fn map_is_updated_in_its_own_window() {
    let mut harness = answered();
    click(&mut harness, "Show the map in its own window");
    assert!(harness.query_by_label("The map is in its own window.").is_some());
    generate(&mut harness, 3);
    let latest = shell(&mut harness).engine_handle.engine().unwrap().neurons().latest().unwrap().index;
    assert!(harness.query_by_label_contains(&format!("token {latest}:")).is_some());
    // The detached window covers the button here.
    harness.get_by_label("Move it back here").click_accesskit();
    harness.run_steps(3);
    assert!(harness.query_by_label("The map is in its own window.").is_none());
    assert!(harness.query_by_label_contains(&format!("token {latest}:")).is_some());
}

/// The map of a model that is larger than its RAM names the disk: in the legend, below the map, in
/// the map's accessible name and at a neuron.
#[cfg(target_os = "linux")]
#[test]
fn map_of_a_model_larger_than_its_ram_shows_the_disk() {
    let mut harness = harness();
    let options = EngineOptions { device: DeviceChoice::Cpu, ram: Some(1 << 16), ..EngineOptions::default() };
    open_with(&mut harness, ModelId::Path("../../tests/fixtures/models/llama-relu".into()), options);
    harness.step();
    generate(&mut harness, 12);
    let engine = shell(&mut harness).engine_handle.engine().unwrap();
    let figures = engine.model().pager().unwrap().figures();
    assert!(figures.present < figures.weights, "{figures:?}");
    assert!(harness.query_by_label("only on disk").is_none(), "the mode of firings");
    click(&mut harness, "Placement");
    harness.run_steps(20);
    for (label, count) in [("in VRAM", 1), ("in RAM", 1), ("only on disk", 1)] {
        assert_eq!(harness.query_all_by_label(label).count(), count, "{label}");
    }
    let places = format!("Map of neurons, Placement: {}", super::facts::tiers(&map(&mut harness).atlas).unwrap());
    assert!(places.ends_with(" only on disk"), "{places}");
    assert!(harness.query_by_label(&places).is_some(), "{places}");

    let shape = engine.neurons().shape().clone();
    let neurons = (0..shape.layers()).flat_map(|layer| (0..shape.neurons(layer)).map(move |neuron| (layer, neuron)));
    let (layer, neuron) = neurons.into_iter().find(|at| engine.model().is_in_ram(at.0, at.1) == Some(false)).unwrap();
    let in_ram = engine.model().in_ram(layer).unwrap();
    assert!(!mask::contains(&in_ram, neuron) && engine.model().in_ram(99).is_none());
    assert_eq!(engine.model().is_in_ram(layer, shape.neurons(layer)), None, "no such neuron");
    click_neuron(&mut harness, layer, neuron);
    assert!(harness.query_by_label("Only on disk").is_some(), "the card of the neuron");
    assert_eq!(harness.query_all_by_label("only on disk").count(), 2, "the legend and the list of pins");
}

#[test]
fn map_mode_selects_the_boards_watch_while_shown() {
    let mut harness = answered();
    let board = Arc::clone(shell(&mut harness).engine_handle.engine().unwrap().neurons());
    for (button, mode) in
        [("Strength", "strength"), ("Frequency", "frequency"), ("Predictor", "predictor"), ("Recency", "recency")]
    {
        click(&mut harness, button);
        assert_eq!(shell(&mut harness).settings.heatmap.mode, mode);
        assert_eq!(board.watch(), if mode == "strength" { Watch::Strength } else { Watch::Firing });
        assert!(harness.query_by_label_contains(&format!("Map of neurons, {button}:")).is_some());
    }
    harness.get_by_label("Strength").click();
    assert!(harness.query_by_label("Placement").is_none(), "the CPU computes everything");
    for (hidden, watch) in [(false, Watch::Strength), (true, Watch::Firing), (false, Watch::Strength)] {
        harness.state_mut().hidden = hidden;
        harness.run_steps(3);
        assert_eq!(board.watch(), watch, "only while the map is shown");
    }
    harness.get_by_label("Recency").click();
    click(&mut harness, "Stop recording neurons");
    assert_eq!(board.watch(), Watch::Off);
    assert!(harness.query_by_label_contains("Map of neurons").is_none());
    let cost = "Neurons are not recorded. Recording takes ";
    assert!(harness.query_by_label_contains(cost).is_some());
    generate(&mut harness, 12);
    assert!(harness.query_by_label_contains("tokens/s with recording,").is_some());
    click(&mut harness, "Record neurons");
    assert_eq!(board.watch(), Watch::Firing);
    harness.get_by_label("Stop recording neurons").hover();
    harness.run_steps(60);
    assert!(harness.query_by_label_contains("tokens/s with recording,").is_some());
}

#[test]
fn click_pins_a_neuron_and_double_click_shows_its_layer() {
    let mut harness = answered();
    let rect = harness.get_by_label_contains("Map of neurons").rect();
    let at = rect.left_top() + egui::vec2(60.0, 20.0);
    let press = |harness: &mut Harness<'static, State>| {
        for pressed in [true, false] {
            harness.event(egui::Event::PointerMoved(at));
            harness.event(crate::testing::button(at, pressed));
            harness.step();
        }
    };
    press(&mut harness);
    harness.run_steps(2);
    assert!(harness.query_by_label_contains("Unpin layer 0, neuron").is_some());
    assert!(harness.query_by_label_contains("Unpin: Layer 0, neuron").is_some(), "a card at the neuron");
    harness.get_by_label_contains("Unpin layer 0, neuron").click();
    // Enough frames for the next clicks not to count as a triple click.
    harness.run_steps(40);
    assert!(harness.query_by_label_contains("Unpin").is_none());
    press(&mut harness);
    press(&mut harness);
    harness.run_steps(2);
    assert!(harness.query_by_label_contains("Unpin").is_none(), "two clicks pin nothing");
    click(&mut harness, "Layer below");
    assert!(harness.query_by_label("Layer 1").is_some());
    click(&mut harness, "Whole map");
    assert!(harness.query_by_label("Whole map").is_none());
}

/// The card and the list show the words that a pinned neuron raises, equal to those computed from
/// the weights.
#[test]
fn pinned_neuron_lists_the_words_it_speaks_for_and_against() {
    let mut harness = answered();
    let engine = shell(&mut harness).engine_handle.engine().unwrap();
    let cpu = Cpu::new(&CpuOptions::default()).unwrap();
    for (layer, neuron) in [(0, 3), (4, 7)] {
        click_neuron(&mut harness, layer, neuron);
        let words = NeuronWords::of(&engine, &cpu, NeuronIndex { layer, neuron }).unwrap();
        assert_eq!((words.raised.len(), words.lowered.len()), (5, 5));
        assert_ne!(words.raised, words.lowered);
        let quoted = |words: &[String]| words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join("  ");
        for sentence in [format!("Raises {}", quoted(&words.raised)), format!("Lowers {}", quoted(&words.lowered))] {
            eventually("a sentence on the card and in the list", || {
                harness.step();
                harness.query_all_by_label(&sentence).count() == 2
            });
        }
        click_neuron(&mut harness, layer, neuron);
        assert!(harness.query_by_label_contains("Raises").is_none(), "it was let go");
    }
}

/// In `exact`, drafts are computed and rejected. The answer is still found among the tokens, and
/// tinted at firings of a pinned neuron.
#[test]
fn pinned_neuron_tints_an_answer_with_rejected_drafts() {
    let mut harness = harness();
    let options = EngineOptions {
        device: DeviceChoice::Cpu,
        sparsity: SparsityChoice::Mode(Sparsity::Exact),
        ..EngineOptions::default()
    };
    open_with(&mut harness, ModelId::Builtin, options);
    harness.step();
    let engine = shell(&mut harness).engine_handle.engine().unwrap();
    assert_eq!(engine.sparsity().mode, Sparsity::Exact);
    let session = Arc::new(shell(&mut harness).engine_handle.session(SessionOptions::default()).unwrap());
    let said = "Tim saw a red ball. Lily saw a red ball. Tim ran to the red ball. Lily ran to the red ball. Tim saw a";
    let sampling = Sampling { seed: Some(5), ..Sampling::default() };
    let prompt = Prompt::Text(said.to_owned());
    let speculation = SpeculationMode::Always;
    let request = Request { sampling, max_tokens: Some(160), speculation, ..Request::new(prompt) };
    let (mut answer, mut rejected) = (String::new(), 0);
    for event in session.generate(request) {
        match event {
            Event::Token { text, .. } => answer += &text,
            Event::Done { stats, .. } => rejected = stats.drafted_tokens() - stats.accepted_tokens(),
            _ => {}
        }
    }
    assert!(rejected > 0, "no draft was rejected in {answer:?}");
    // A neuron that fires now and then.
    let tally = engine.neurons().tally(0);
    let neuron = tally.counts.iter().position(|count| (10..80).contains(count)).unwrap();
    harness.run_steps(2);
    click_neuron(&mut harness, 0, neuron);
    // The last token was sampled but not computed.
    let known = answer.trim_end().rsplit_once(' ').unwrap().0.to_owned();
    let tint = shell(&mut harness).marks.tint.clone().unwrap();
    let pieces = tint.marks(&known).unwrap();
    assert!(pieces.len() > 30 && pieces.iter().any(|(_, strength)| *strength == 0.0), "{pieces:?}");
}

/// A SwiGLU model begins with strengths. A neuron fires if it helps to carry a fraction of the
/// output mass, which the user can change.
#[test]
fn smooth_model_begins_with_strength_and_fires_by_output_mass() {
    let mut harness = harness();
    open(&mut harness, ModelId::Path("../../tests/fixtures/models/llama-silu-gqa".into()), None);
    harness.step();
    generate(&mut harness, 12);
    let board = Arc::clone(shell(&mut harness).engine_handle.engine().unwrap().neurons());
    assert!(harness.query_by_label_contains("Map of neurons, Strength:").is_some());
    assert!(harness.query_by_label_contains("ever exactly zero").is_some(), "a sentence why");
    assert!(harness.query_by_label_contains("of the neurons carry 90 % of the output").is_some());
    assert!(harness.query_by_label("every neuron is computed").is_some());
    for word in ["fired", "fire a little", "spared", "skipped"] {
        assert!(
            harness.query_all_by_label_contains(word).next().is_none(),
            "{word}: all are computed and none is silent"
        );
    }
    assert_eq!((board.watch(), board.mass()), (Watch::Strength, Some(0.9)));
    click(&mut harness, "Fired");
    let fired = |harness: &mut Harness<'static, State>| {
        generate(harness, 8);
        let token = board.latest().unwrap();
        f64::from(token.total().fired) / board.shape().total() as f64
    };
    let ninety = fired(&mut harness);
    assert!(ninety > 0.05 && ninety < 0.95, "{ninety}: one colour says nothing");
    assert_eq!(harness.query_all_by_label_contains("of the layer's output mass").count(), 1, "said once");
    shell(&mut harness).settings.heatmap.mass_percent = 60;
    harness.run_steps(3);
    let sixty = fired(&mut harness);
    assert!(sixty < 0.8 * ninety, "{sixty} and {ninety}");
    for button in ["Frequency", "Recency"] {
        click(&mut harness, button);
        let recent = board.tally(0).recent;
        let (least, most) = recent.iter().fold((1.0f32, 0.0f32), |(least, most), it| (least.min(*it), most.max(*it)));
        assert!(most - least > 0.3, "{button} has more than one colour: {least} to {most}");
    }
}

#[test]
fn card_of_a_chat_from_before_the_start_has_the_speed_of_its_last_answer() {
    let mut harness = harness();
    open(&mut harness, ModelId::Builtin, None);
    let shell = shell(&mut harness);
    let engine = shell.engine_handle.engine().unwrap();
    let chat = shell.store.add_chat(None, "").unwrap();
    shell.shown = Some(chat.number());
    assert_eq!(rate(shell, &engine), None, "nothing was answered");
    let mut parent = None;
    for (model, decode_tokens_per_second) in [("Storyteller", 41.5), ("Bigger 70B", 1.5)] {
        let stats = AnswerStats { decode_tokens_per_second, ..AnswerStats::default() };
        let mut answer = StreamingMessage::begin(&mut shell.store, chat, parent, Some(model)).unwrap();
        answer.append("Once.");
        let stats = serde_json::to_string(&stats).unwrap();
        answer.finish(&mut shell.store, MessageState::Complete, Some(&stats)).unwrap();
        parent = Some(answer.id());
    }
    assert_eq!(rate(shell, &engine), Some(41.5), "another model wrote the last answer");
    shell.shown = None;
    assert_eq!(rate(shell, &engine), None, "a new chat");
}

/// A picture shows the current token, an animation the last tokens. Both have the model's name and
/// speed.
#[test]
fn picture_and_animation_are_saved_as_the_map_shows_them() {
    let mut harness = answered();
    // Enough tokens to measure a speed.
    generate(&mut harness, 24);
    click(&mut harness, "Save");
    for button in ["Save picture", "Save animation", "Save as CSV"] {
        harness.get_by_label(button);
    }
    let fonts = fonts::loaded(&harness.ctx);
    let State { panel, shell, folder, .. } = harness.state_mut();
    let (watched, shell) = (panel.watched.as_ref().unwrap(), shell.as_ref().unwrap());
    let engine = shell.engine_handle.engine().unwrap();
    let read = |path: &std::path::Path| {
        let file = std::io::BufReader::new(std::fs::File::open(path).unwrap());
        png::Decoder::new(file).read_info().unwrap().info().clone()
    };

    let card = watched.picture_card(shell, &engine).unwrap();
    assert_eq!(card.words.model, "Storyteller");
    assert!(card.words.rate.as_ref().is_some_and(|rate| rate.ends_with("tok/s")), "{:?}", card.words);
    assert!(!card.words.sentence.token.is_empty(), "{:?}", card.words);
    let path = folder.path().join("card.png");
    Export::Picture(Box::new(card)).write(&path, fonts.clone()).unwrap();
    assert_eq!(read(&path).width, 1600);

    let animation = watched.animation(shell, &engine).unwrap();
    let tokens = engine.neurons().kept().masks;
    assert_eq!(animation.tokens.len() as u64, tokens.end - tokens.start);
    assert_eq!(animation.tokens.last().map(|token| token.index), Some(tokens.end - 1));
    let path = folder.path().join("tokens.png");
    Export::Animation(Box::new(animation)).write(&path, fonts).unwrap();
    let frames = read(&path).animation_control.unwrap().num_frames;
    assert_eq!(u64::from(frames), tokens.end - tokens.start);
    assert!(path.metadata().unwrap().len() <= MOST_BYTES as u64);
}

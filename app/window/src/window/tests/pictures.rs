//! Neurons and pictures: a pinned neuron tints patches, and a chosen patch shows its neurons.

use egui::{Color32, Key, Shape};
use egui_kittest::kittest::Queryable;

use super::{
    attachments::{attach, vision_model},
    names,
    neurons::click_a_dot,
};
use crate::{command::Command, testing::TestWindow};
use thermocline_engine::{
    model::{NeuronIndex, PictureGrid, mask},
    session::Engine,
    telemetry::neurons::TokenTrace,
};
use thermocline_host::library::ModelId;
use thermocline_rich_text::theme::Palette;

/// A window in which a vision model has answered about a picture. The folder is the model's.
struct SeeingWindow {
    stage: TestWindow,
    model: ModelId,
    _folder: tempfile::TempDir,
}

impl SeeingWindow {
    fn answered() -> Self {
        SeeingWindow::answered_by("qwen3-vl", "whole.png")
    }

    /// A model that has answered about one of its pictures.
    fn answered_by(name: &str, picture: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let model = vision_model(name, folder.path());
        let mut stage = TestWindow::opened([1440.0, 1000.0]);
        stage.shell().model_settings(&model).device = Some(String::new());
        stage.command(Command::OpenModel(model.clone()));
        stage.until_open(&model);
        attach(&mut stage, &folder.path().join(picture));
        stage.ask("Look.");
        stage.appears(&format!("The picture {picture}"));
        SeeingWindow { stage, model, _folder: folder }
    }

    fn engine(&mut self) -> Engine {
        self.stage.shell().engine_handle.engine().unwrap()
    }

    /// The recorded tokens of the picture.
    fn patches(&mut self) -> Vec<TokenTrace> {
        let mut tokens = self.engine().neurons().tokens(0..u64::MAX);
        tokens.retain(|token| token.patch.is_some());
        tokens
    }

    fn grid(&mut self) -> PictureGrid {
        let patch = self.patches()[0].patch.unwrap();
        PictureGrid { rows: patch.rows as usize, cols: patch.cols as usize }
    }

    /// Opens the picture.
    fn open(&mut self) {
        let thumbnail = self.stage.it.get_by_label_contains("The picture whole.png").rect().center();
        self.stage.tap(thumbnail);
        self.stage.appears("whole.png, large");
    }
}

fn each_rect(shape: &Shape, see: &mut impl FnMut(Color32)) {
    match shape {
        Shape::Vec(shapes) => shapes.iter().for_each(|shape| each_rect(shape, see)),
        Shape::Rect(drawn) => see(drawn.fill),
        _ => {}
    }
}

/// Number of rectangles in the previous frame that have the colour of a neuron in RAM, of any
/// strength.
fn rects(stage: &TestWindow) -> usize {
    let cold = Palette::DARK.cold;
    let colours: Vec<Color32> = (1..=255).map(|of| cold.gamma_multiply(0.2 + 0.4 * of as f32 / 255.0)).collect();
    let mut count = 0;
    let mut see = |fill| count += usize::from(colours.contains(&fill));
    stage.it.output().shapes.iter().for_each(|drawn| each_rect(&drawn.shape, &mut see));
    count
}

#[test]
fn pinned_neuron_tints_the_patches_at_which_it_fires() {
    let mut window = SeeingWindow::answered();
    assert!(!window.stage.shows("fires at"));
    click_a_dot(&mut window.stage);
    let (patches, engine) = (window.patches(), window.engine());
    assert_eq!(patches.len(), window.grid().tokens());
    let pinned = window.stage.texts().into_iter().find_map(|text| {
        let name = text.strip_prefix("Unpin layer 0, neuron ")?;
        name.parse().ok().map(|neuron| NeuronIndex { layer: 0, neuron })
    });
    let neuron = pinned.expect("a pinned neuron").neuron;
    let fires = |token: &&TokenTrace| mask::contains(token.fired(engine.neurons().shape(), 0).unwrap(), neuron);
    let fired = patches.iter().filter(fires).count();
    let name = format!("The picture whole.png, fires at {fired} of {} patches", patches.len());
    assert!(window.stage.shows(&name), "{name} in {:?}", window.stage.texts());
    assert_eq!(rects(&window.stage), fired);
    window.open();
    assert_eq!(rects(&window.stage), 2 * fired, "in the thumbnail and in the large picture");
    let sentence = format!("Layer 0, neuron {neuron} fires at {fired} of {} patches.", patches.len());
    assert!(window.stage.shows(&sentence), "{sentence} in {:?}", window.stage.texts());
    names::check(&window.stage, "a large picture");
}

#[test]
fn patch_of_a_picture_shows_the_neurons_that_fire_there() {
    let mut window = SeeingWindow::answered();
    let (patches, PictureGrid { rows, cols }) = (window.patches(), window.grid());
    window.open();
    assert!(window.stage.shows("Click a patch"));
    let picture = window.stage.it.get_by_label_contains("whole.png, large").rect();
    // The last patch.
    window.stage.tap(picture.max - picture.size() / 40.0);
    let engine = window.engine();
    let says = |index: usize| {
        let shape = engine.neurons().shape();
        let fired =
            |layer| patches[index].fired(shape, layer).unwrap().iter().map(|word| word.count_ones()).sum::<u32>();
        let fired: u32 = (0..shape.layers()).map(fired).sum();
        format!("row {}, column {} of {rows} × {cols}: {fired} neurons fire", index / cols + 1, index % cols + 1)
    };
    window.stage.appears(&says(rows * cols - 1));
    window.stage.appears("Circled: the neurons that work most at the chosen patch");
    window.stage.until("the words of its neurons", |window| {
        let shown = window.conversation.opened_picture();
        shown.is_some_and(|picture| picture.has_all_words())
    });
    window.stage.click("Patch before");
    window.stage.appears(&says(rows * cols - 2));
    window.stage.press(Key::ArrowUp);
    window.stage.appears(&says(rows * cols - 2 - cols));
    window.stage.press(Key::Escape);
    assert!(!window.stage.shows("whole.png, large") && !window.stage.shows("Circled:"));
}

/// Five tokens see the overview, and five see each of 3 x 3 slices.
#[test]
fn slices_are_clicked_and_tinted_by_area() {
    let mut window = SeeingWindow::answered_by("minicpm-v2_6", "resized.png");
    let patches = window.patches();
    assert_eq!(patches.len(), 50);
    click_a_dot(&mut window.stage);
    let pinned = window.stage.texts().into_iter().find_map(|text| {
        let name = text.strip_prefix("Unpin layer 0, neuron ")?;
        name.parse::<usize>().ok()
    });
    let (neuron, engine) = (pinned.expect("a pinned neuron"), window.engine());
    let fires = |token: &TokenTrace| mask::contains(token.fired(engine.neurons().shape(), 0).unwrap(), neuron);
    let fired = patches.iter().filter(|token| fires(token)).count();
    let areas = patches.chunks(5).filter(|of_part| of_part.iter().any(fires)).count();
    let name = format!("The picture resized.png, fires at {fired} of 50 tokens of the overview and slices");
    assert!(window.stage.shows(&name), "{name} in {:?}", window.stage.texts());
    assert_eq!(rects(&window.stage), areas);
    let thumbnail = window.stage.it.get_by_label_contains("The picture resized.png").rect().center();
    window.stage.tap(thumbnail);
    window.stage.appears("resized.png, large");
    let corner = |window: &SeeingWindow| {
        let picture = window.stage.it.get_by_label_contains("resized.png, large").rect();
        picture.max - picture.size() / 40.0
    };
    let says = |at: usize, place: &str| {
        let shape = engine.neurons().shape();
        let of_layer =
            |layer| patches[at].fired(shape, layer).unwrap().iter().map(|word| word.count_ones()).sum::<u32>();
        let fired: u32 = (0..shape.layers()).map(of_layer).sum();
        format!("{place}: {fired} neurons fire")
    };
    let at = corner(&window);
    window.stage.tap(at);
    window.stage.appears(&says(45, "row 3, column 3 of 3 × 3, token 1 of 5"));
    window.stage.press(Key::ArrowUp);
    window.stage.appears(&says(30, "row 2, column 3 of 3 × 3, token 1 of 5"));
    window.stage.click("Patch before");
    window.stage.appears(&says(29, "row 2, column 2 of 3 × 3, token 5 of 5"));
    // The overview comes behind the tokens of the slice.
    for _ in 0..6 {
        let at = corner(&window);
        window.stage.tap(at);
    }
    window.stage.appears(&says(0, "row 1, column 1 of 1 × 1 of the overview, token 1 of 5"));
}

#[test]
fn picture_without_a_model_that_sees_says_why_its_patches_have_no_neurons() {
    let mut window = SeeingWindow::answered();
    window.open();
    window.stage.click("Patch after");
    window.stage.appears("row 1, column 1 of");
    window.stage.command(Command::OpenModel(ModelId::Builtin));
    window.stage.until_open(&ModelId::Builtin);
    assert!(window.stage.shows("Open a model that sees pictures"), "{:?}", window.stage.texts());
    let texts = window.stage.texts();
    let tells = |what: &str| texts.iter().any(|text| text.contains(what));
    assert!(!tells("The patch in") && !tells("Patch after"), "{texts:?}");
    let model = window.model.clone();
    window.stage.command(Command::OpenModel(model.clone()));
    window.stage.until_open(&model);
    window.stage.click("Patch after");
    window.stage.appears("row 1, column 1 of");
    window.stage.click("Close the picture");
    assert!(!window.stage.shows("whole.png, large"));
}

#[test]
fn words_of_an_answer_about_a_picture_are_explained() {
    let mut window = SeeingWindow::answered();
    window.stage.click("Which neurons made these words?");
    window.stage.click("Word after");
    window.stage.appears("”: probability");
    window.stage.appears("Without these neurons");
    assert!(window.stage.shows("Circled: the neurons that contribute most to"), "{:?}", window.stage.texts());
}

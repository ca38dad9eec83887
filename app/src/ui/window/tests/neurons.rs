//! Neurons and the words of the chat: a neuron that is clicked is in the text, a word that is chosen is on the map.

use egui::{Color32, Key, Shape, vec2};
use egui_kittest::kittest::Queryable;

use crate::ui::{neurons::map::RING, testing::TestWindow, theme::Palette};

/// A window with an answer in it.
fn answered() -> TestWindow {
    let mut stage = TestWindow::new([1440.0, 900.0]);
    stage.ready();
    stage.write("Message", "Tell me a story about a dog.");
    stage.press(Key::Enter);
    stage.answered();
    stage
}

/// Clicks a dot of the map's first layer.
fn click_a_dot(stage: &mut TestWindow) {
    let map = stage.it.get_by_label_contains("Map of neurons").rect();
    stage.tap(map.left_top() + vec2(80.0, 12.0));
}

fn each_circle(shape: &Shape, circle: &mut impl FnMut(f32, Color32)) {
    match shape {
        Shape::Vec(shapes) => shapes.iter().for_each(|shape| each_circle(shape, circle)),
        Shape::Circle(drawn) => circle(drawn.radius, drawn.stroke.color),
        _ => {}
    }
}

/// Rings around a word's neurons that the last frame drew.
fn rings(stage: &TestWindow) -> usize {
    let mut rings = 0;
    let mut count = |radius: f32, colour| rings += usize::from(radius == RING && colour == Palette::DARK.amber);
    stage.it.output().shapes.iter().for_each(|drawn| each_circle(&drawn.shape, &mut count));
    rings
}

#[test]
fn click_on_a_neuron_tints_the_chat_at_once_and_lists_its_words() {
    let mut stage = answered();
    assert!(!stage.shows("Coloured where"));
    click_a_dot(&mut stage);
    assert!(stage.shows("Coloured where layer 0, neuron"), "{:?}", stage.texts());
    assert!(stage.shows("Not in the text: Layer 0, neuron"), "the card has the switch: {:?}", stage.texts());
    stage.appears("Speaks for");
    stage.appears("Against");
    // Long enough for the next click to be no double click.
    stage.it.run_steps(40);
    click_a_dot(&mut stage);
    assert!(!stage.shows("Coloured where"), "it was let go");
}

#[test]
fn chosen_word_rings_its_neurons_and_leaves_pinned_ones() {
    let mut stage = answered();
    click_a_dot(&mut stage);
    stage.click("Close this card; the neuron stays pinned");
    assert_eq!((rings(&stage), stage.shows("Ringed:")), (0, false));
    stage.click("Which neurons made these words?");
    for _ in 0..3 {
        stage.click("Word after");
    }
    stage.appears("Ringed: the neurons that count most for");
    stage.step();
    assert_eq!(rings(&stage), 8);
    assert!(stage.shows("Unpin layer 0, neuron"), "pinned ones stay");
    stage.click("Back to the answer");
    assert_eq!((rings(&stage), stage.shows("Ringed:")), (0, false));
}

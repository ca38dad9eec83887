//! Neurons and the chat's words: a clicked neuron tints the text, and a chosen word has rings on
//! the map.

use egui::{Color32, Key, Shape, vec2};
use egui_kittest::kittest::{NodeT, Queryable};

use crate::{
    command::{Command, Page},
    neurons::map::RING,
    testing::{TestWindow, button},
};
use thermocline_rich_text::theme::Palette;

/// Opens a window with an answer.
pub(super) fn answered() -> TestWindow {
    let mut stage = TestWindow::opened([1440.0, 900.0]);
    stage.ask("Tell me a story about a dog.");
    stage
}

/// Clicks a dot in the map's first layer.
pub(super) fn click_a_dot(stage: &mut TestWindow) {
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

/// Number of rings around a word's neurons in the previous frame.
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
    assert!(stage.shows("Hide in text: Layer 0, neuron"), "the card has the switch: {:?}", stage.texts());
    stage.appears("Raises");
    stage.appears("Lowers");
    // Enough frames for the next click not to count as a double click.
    stage.it.run_steps(40);
    click_a_dot(&mut stage);
    assert!(!stage.shows("Coloured where"), "it was let go");
}

#[test]
fn words_at_the_pointer_do_not_cover_the_card_of_their_neuron() {
    let mut stage = answered();
    click_a_dot(&mut stage);
    let map = stage.it.get_by_label_contains("Map of neurons").rect();
    let told = |stage: &mut TestWindow, at: egui::Pos2| {
        stage.it.input_mut().events.push(egui::Event::PointerMoved(at));
        stage.it.run_steps(60);
        stage.texts().into_iter().filter(|text| text.starts_with("Layer 0, neuron ")).count()
    };
    let away = told(&mut stage, map.center_bottom());
    let dot = map.left_top() + vec2(80.0, 12.0);
    assert_eq!(told(&mut stage, dot), away, "its card says it: {:?}", stage.texts());
    assert_eq!(told(&mut stage, dot - vec2(40.0, 0.0)), away + 1, "another one has none: {:?}", stage.texts());
}

#[test]
fn chosen_word_rings_its_neurons_and_leaves_pinned_ones() {
    let mut stage = answered();
    click_a_dot(&mut stage);
    stage.click("Close this card; the neuron stays pinned");
    assert_eq!((rings(&stage), stage.shows("Circled:")), (0, false));
    stage.click("Which neurons made these words?");
    for _ in 0..3 {
        stage.click("Word after");
    }
    stage.appears("Circled: the neurons that contribute most to");
    stage.step();
    assert_eq!(rings(&stage), 8);
    assert!(stage.shows("Unpin layer 0, neuron"), "pinned ones stay");
    stage.click("Back to the answer");
    assert_eq!((rings(&stage), stage.shows("Circled:")), (0, false));
}

#[test]
fn answer_is_written_again_without_a_pinned_neuron_beside_the_whole_models() {
    let mut stage = answered();
    click_a_dot(&mut stage);
    let card = stage.texts().into_iter().find(|text| text.starts_with("Answer again without it: ")).unwrap();
    stage.click(&card);
    stage.appears("Whole model");
    stage.appears("Without layer 0, neuron");
    let over = ["Marked: the first word that differs", "No word differs."];
    stage.until("both answers", |window| window.conversation.is_compared());
    assert!(over.iter().any(|sentence| stage.shows(sentence)), "{:?}", stage.texts());
    // The whole model repeats its answer, because the seed is the same.
    let said = stage.branch()[1].content.clone();
    let begins: String = said.trim().chars().take(40).collect();
    let count = stage.texts().iter().filter(|text| text.contains(&begins)).count();
    assert!(count >= 2, "{begins:?} in {:?}", stage.texts());
    stage.click("Close the comparison");
    assert!(!stage.shows("Whole model"));
}

#[test]
fn race_of_two_modes_shows_both_answers_with_speed_and_bytes() {
    let mut stage = answered();
    stage.click("exact");
    stage.click("Race against Dense");
    stage.until("both answers", |window| window.conversation.is_compared());
    assert!(stage.shows("No word differs."), "these modes compute the same: {:?}", stage.texts());
    let mut lines = stage.texts();
    lines.retain(|text| text.starts_with("Per token "));
    let count = |end: &str| lines.iter().filter(|line| line.ends_with(end)).count();
    assert!(count(" % of the neurons skipped") >= 2, "the answer and the first side: {lines:?}");
    // All neurons are computed. Zeros are skipped in the product with the down projection.
    assert_eq!(count("(rows multiplied by zero were skipped)"), 1, "{lines:?}");
}

/// By keyboard alone: a word, its neurons, and a pinned neuron. The focused row has a ring around
/// its dot.
#[test]
fn neurons_are_searched_by_a_word_with_the_keyboard() {
    let mut stage = answered();
    let shift = egui::Modifiers::COMMAND.plus(egui::Modifiers::SHIFT);
    stage.press_with(shift, Key::K);
    stage.types("dog");
    stage.appears("fires for it ");
    let rows = |stage: &TestWindow| stage.texts().into_iter().filter(|text| text.contains(" raises ")).count();
    assert_eq!((rows(&stage), rings(&stage)), (12, 0), "{:?}", stage.texts());
    let first = stage.texts().into_iter().find(|text| text.contains("fires for it ")).unwrap();
    stage.press(Key::Tab);
    assert_eq!(rings(&stage), 1, "the row with the keyboard");
    stage.press(Key::Enter);
    let name = first.split(':').next().unwrap().to_lowercase();
    assert!(stage.shows(&format!("Unpin {name}")), "{first}: {:?}", stage.texts());
    assert!(stage.shows("Close this card; the neuron stays pinned"));
    stage.press(Key::Enter);
    assert!(stage.shows(&format!("Unpin {name}")), "a neuron that is chosen again stays pinned");

    stage.erase("Search neurons");
    assert_eq!(rows(&stage), 0);
    stage.press(Key::F1);
    assert!(stage.shows("Search neurons by a word"));
}

/// Off by default. When on, a neuron's card shows its words, a search begins with them, and a
/// button deletes them.
#[test]
fn words_of_neurons_are_kept_across_chats_only_if_that_is_switched_on() {
    let mut stage = answered();
    assert!(!stage.shell().settings.keep_neuron_words && !stage.shell().store.has_kept_words().unwrap());
    click_a_dot(&mut stage);
    stage.appears("Raises");
    assert!(!stage.shows("Across chats"));

    stage.command(Command::Show(Page::Preferences));
    let delete = "Delete the recorded words";
    assert!(stage.control(delete).accesskit_node().is_disabled());
    stage.click("Record which words make neurons fire, across chats");
    stage.command(Command::NewChat);
    stage.ask("Tell me a story about a cat.");
    stage.until("words", |window| window.shell.store.has_kept_words().unwrap());
    stage.appears("Across chats:");

    let said = stage.branch()[1].content.to_lowercase();
    let word = said.split(|c: char| !c.is_alphabetic()).find(|word| word.len() > 3).unwrap().to_owned();
    stage.write("Search neurons", &word);
    stage.appears("across chats; ");

    stage.command(Command::Show(Page::Preferences));
    stage.click(delete);
    assert!(!stage.shell().store.has_kept_words().unwrap());
    assert!(stage.control(delete).accesskit_node().is_disabled());
}

#[test]
fn layer_is_switched_off_by_half_where_nothing_is_placed() {
    let mut stage = answered();
    let map = stage.it.get_by_label_contains("Map of neurons").rect();
    let at = map.left_top() + vec2(80.0, 12.0);
    for pressed in [true, false, true, false] {
        stage.it.input_mut().events.extend([egui::Event::PointerMoved(at), button(at, pressed)]);
        stage.it.step();
    }
    stage.step();
    stage.click("Answer again without the half that fires least");
    stage.until("both answers", |window| window.conversation.is_compared());
    assert!(stage.shows("Without the half that fires least (layer 0)"), "{:?}", stage.texts());
}

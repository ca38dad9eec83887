use std::time::Duration;

use cpu_time::ThreadTime;
use egui_kittest::{Harness, kittest::Queryable};

use super::*;
use thermocline_rich_text::{
    markdown::{coloured_bytes, layouts},
    theme,
};

const TEXT: &str = "<think>\nHm, 火?\n</think>\n\nFirst *words*,\nand more.\n\n1. one\n\n2. two\n   more\n\n```rust\nfn main() {}\n\n// end\n```\nLast\n~~~\ncode";

fn all(blocks: &MessageBlocks) -> Vec<(MessageBlockKind, String)> {
    blocks.closed.iter().chain(&blocks.open).map(|it| (it.kind.clone(), it.text.trim().to_owned())).collect()
}

#[test]
fn blocks_of_streamed_text_equal_those_of_the_whole_text() {
    let mut whole = MessageBlocks::default();
    whole.update(TEXT, true);
    let want = [
        (MessageBlockKind::Thought, "Hm, 火?"),
        (MessageBlockKind::Text, "First *words*,\nand more."),
        (MessageBlockKind::Text, "1. one\n\n2. two\n   more"),
        (MessageBlockKind::Code("rust".to_owned()), "fn main() {}\n\n// end"),
        (MessageBlockKind::Text, "Last"),
        (MessageBlockKind::Code(String::new()), "code"),
    ];
    assert_eq!(all(&whole), want.map(|(kind, text)| (kind, text.to_owned())));
    assert!(whole.open.is_none());

    let mut grown = MessageBlocks::default();
    let mut closed = 0;
    for (end, c) in TEXT.char_indices() {
        grown.update(&TEXT[..end + c.len_utf8()], false);
        assert!(grown.closed.len() >= closed, "closed pieces stay");
        closed = grown.closed.len();
    }
    assert_eq!(closed, 5);
    assert!(grown.open.is_some(), "the end is open");
    grown.update(TEXT, true);
    assert_eq!(all(&grown), all(&whole));
}

#[test]
fn code_in_a_list_stays_in_the_list() {
    let list = "1. Do this:\n\n   ```sh\n   cd a\n\n     ls\n   ```\n\n2. Then that:\n```\nx\n```\n3. Done.";
    let text = format!("{list}\n\nNo list.\n\n```\ny\n```\n");
    let (mut whole, mut grown) = (MessageBlocks::default(), MessageBlocks::default());
    whole.update(&text, true);
    let (of_text, of_code) = (
        |text: &str| (MessageBlockKind::Text, text.to_owned()),
        |text: &str| (MessageBlockKind::Code(String::new()), text.to_owned()),
    );
    assert_eq!(all(&whole), [of_text(list), of_text("No list."), of_code("y")]);
    for (end, c) in text.char_indices() {
        grown.update(&text[..end + c.len_utf8()], false);
        assert!(grown.closed.iter().zip(&whole.closed).all(|(one, other)| one.text == other.text), "at byte {end}");
    }
    grown.update(&text, true);
    assert_eq!(all(&grown), all(&whole));
    let parted = "- a\n\n```\ny\n```\n";
    let mut blocks = MessageBlocks::default();
    blocks.update(parted, true);
    assert_eq!(all(&blocks), [of_text("- a"), of_code("y")], "code at the left after a blank line ends a list");
}

#[test]
fn blocks_update_parses_the_open_end_only() {
    let mut blocks = MessageBlocks::default();
    let text = "word word\n\n".repeat(1000);
    blocks.update(&(text.clone() + "the tail"), false);
    let (closed, read) = (blocks.closed.len(), blocks.read);
    blocks.update(&(text.clone() + "the tail grows"), false);
    assert_eq!((blocks.closed.len(), blocks.read), (closed, read));
    assert_eq!(blocks.open.as_ref().map(|it| it.text.trim()), Some("the tail grows"));
    blocks.update("other", true);
    assert_eq!(all(&blocks), [(MessageBlockKind::Text, "other".to_owned())]);
}

#[test]
fn links_are_known_that_a_later_piece_defines() {
    let mut blocks = MessageBlocks::default();
    let ui = |ui: &mut Ui, (blocks, installed): &mut (MessageBlocks, bool)| {
        if !std::mem::replace(installed, true) {
            return theme::install(ui);
        }
        blocks.show(ui);
    };
    blocks.update("See [the page][1].\n\nMore", false);
    let mut it = Harness::builder().with_max_steps(4).build_ui_state(ui, (blocks, false));
    it.run_steps(3);
    assert!(it.query_by_label("See [the page][1].").is_some());
    it.state_mut().0.update("See [the page][1].\n\nMore\n\n[1]: https://example.org/a", true);
    it.run_steps(3);
    it.get_by_role_and_label(egui::accesskit::Role::Link, "the page");
}

/// About 100 kB of typical model output.
fn long_answer() -> String {
    let part = |at: usize| {
        format!(
            "## Part {at}\n\nSome **bold** words, *slanted* ones, `code` and [a link](https://example.org/{at}), so long that they wrap \
            more than once where there is not much room for them.\n\n1. first\n2. second with \\(x_{at}^2\\)\n\n| name | value |\n|---|--:|\n\
            | a | {at} |\n\n$$\\sum_{{i=1}}^{{{at}}} \\frac{{1}}{{i}}$$\n\n```rust\nfn part_{at}() -> u32 {{ {at} }}\n```\n\n"
        )
    };
    let mut text: String = (0..185).map(part).collect();
    let code: String = (0..900).map(|line| format!("    let x{line} = {line} + 1;\n")).collect();
    text.push_str(&format!("```rust\nfn long() {{\n{code}}}\n```\n\n"));
    text.push_str(&"One paragraph that does not end. ".repeat(500));
    text
}

/// Bytes of code that may be highlighted within one frame: the most that a frame may close.
const SHORT_CODE: usize = 2048;

/// Bytes that arrive between two frames from a fast model.
const ARRIVES: usize = 320;

/// The cost of one frame while a text is written.
struct FrameCost {
    /// Bytes of the text so far.
    end: usize,
    /// Paragraphs laid out in this frame.
    laid_out: usize,
    /// Bytes of code highlighted in this frame.
    coloured: usize,
    time: Duration,
}

/// Shows `text` as it is written. Returns the cost of each frame.
fn streamed(text: &str) -> Vec<FrameCost> {
    let ui = |ui: &mut Ui, (blocks, installed): &mut (MessageBlocks, bool)| {
        if !std::mem::replace(installed, true) {
            return theme::install(ui);
        }
        egui::ScrollArea::vertical().stick_to_bottom(true).auto_shrink(false).show(ui, |ui| blocks.show(ui));
    };
    let state = (MessageBlocks::default(), false);
    let mut it = Harness::builder().with_size([760.0, 800.0]).with_max_steps(4).build_ui_state(ui, state);
    it.run_steps(2);
    let (mut frames, mut end) = (Vec::new(), 0);
    while end < text.len() {
        end = text.ceil_char_boundary((end + ARRIVES).min(text.len()));
        let (layouts_before, coloured_before, began) = (layouts(), coloured_bytes(), ThreadTime::now());
        it.state_mut().0.update(&text[..end], false);
        it.step();
        let output = it.output();
        it.ctx.tessellate(output.shapes.clone(), output.pixels_per_point);
        let (laid_out, coloured) = (layouts() - layouts_before, coloured_bytes() - coloured_before);
        frames.push(FrameCost { end, laid_out, coloured, time: began.elapsed() });
    }
    frames
}

/// Asserts that a frame's cost depends on the new text, not on the answer's length. Times are
/// printed but not judged, because this build is not optimised.
fn assert_frames_cost_what_is_new(name: &str, text: &str, most: usize) {
    let mut frames = streamed(text);
    let laid_out = frames.iter().map(|frame| frame.laid_out).max().unwrap_or_default();
    let coloured = frames.iter().map(|frame| frame.coloured).max().unwrap_or_default();
    frames.sort_unstable_by_key(|frame| frame.time);
    println!(
        "{name}: {} frames, median {:?}, {laid_out} paragraphs at most",
        frames.len(),
        frames[frames.len() / 2].time
    );
    for frame in frames.iter().rev().take(5) {
        let FrameCost { end, laid_out, coloured, time } = frame;
        println!("    {time:?} at byte {end}: {laid_out} paragraphs, colours of {coloured} bytes");
    }
    assert!(coloured <= SHORT_CODE, "{name}: colours of {coloured} bytes were found for one frame");
    assert!(laid_out <= most, "{name}: {laid_out} paragraphs were laid out for one frame");
}

#[test]
fn answer_of_100_kilobytes_streams_and_only_its_end_is_laid_out() {
    let text = long_answer();
    assert!(text.len() > 95_000, "{}", text.len());
    assert_frames_cost_what_is_new("answer", &text, 60);
}

#[test]
fn one_list_of_100_kilobytes_streams_and_only_its_end_is_laid_out() {
    let item = |at: usize| format!("{at}. An item with **bold** words, `code` and $x_{{{at}}}$, of some length.\n\n");
    let text: String = (1..1500).map(item).collect();
    assert!(text.len() > 95_000, "{}", text.len());
    // All visible items may be laid out again when a number gains a digit.
    assert_frames_cost_what_is_new("list", &text, 60);
}

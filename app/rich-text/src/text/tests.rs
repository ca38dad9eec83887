use std::sync::Arc;

use egui::{
    Event, FontData, FontFamily, FontId, FontInsert, FontPriority, Galley, Id, ImeEvent, Key, Modifiers, PointerButton,
    Pos2, Rect, Shape, TextStyle, Theme, Ui, Vec2,
    accesskit::TextDirection,
    epaint::text::InsertFontFamily,
    text::{CCursor, CCursorRange},
    text_edit::TextEditState,
};
use egui_kittest::{Harness, SnapshotResults, kittest::NodeT};

use super::TextField;
use crate::theme;

/// A font with right-to-left letters.
const LETTERS: &[u8] = include_bytes!("../../tests/fonts/DejaVuSans-subset.ttf");

/// A field of several lines with this text and the keyboard focus, in a window of this width.
fn field(text: &str, width: f32, theme: Theme) -> Harness<'static, String> {
    shown(TextField::lines, text, width, theme)
}

/// A one-line field, like [`field`].
fn line(text: &str, width: f32) -> Harness<'static, String> {
    shown(TextField::line, text, width, Theme::Dark)
}

fn shown(field: fn(Id, FontId) -> TextField, text: &str, width: f32, theme: Theme) -> Harness<'static, String> {
    let setup = |ctx: &egui::Context| {
        theme::install(ctx);
        let families = vec![InsertFontFamily { family: FontFamily::Proportional, priority: FontPriority::Lowest }];
        ctx.add_font(FontInsert::new("letters to the left", FontData::from_static(LETTERS), families));
    };
    let ui = move |ui: &mut Ui, text: &mut String| {
        ui.set_theme(theme);
        let font = TextStyle::Body.resolve(ui.style());
        let field = field(id(), font).show(ui, text, |field| field.desired_width(f32::INFINITY));
        field.widget_info(|| egui::WidgetInfo::labeled(egui::Role::MultilineTextInput, true, "Text"));
    };
    let builder = Harness::builder().with_size([width, 240.0]).with_step_dt(0.25).with_max_steps(8);
    let builder = builder.with_theme(theme).with_context_setup(setup).allow_missing_glyphs();
    let mut it = builder.build_ui_state(ui, text.to_owned());
    it.ctx.memory_mut(|memory| memory.request_focus(id()));
    it.run_steps(3);
    it
}

fn id() -> Id {
    Id::unique("field of a test")
}

/// The drawn text of the field, its position, and the rectangles marked below it.
fn drawn(it: &Harness<'_, String>) -> (Arc<Galley>, Vec2, Vec<Rect>) {
    let is_text = |shape: &Shape| match shape {
        Shape::Text(text) if text.galley.text() == it.state() => Some((Arc::clone(&text.galley), text.pos.to_vec2())),
        _ => None,
    };
    let found = it.output().shapes.iter().find_map(|clipped| match &clipped.shape {
        Shape::Vec(shapes) => {
            let marked = shapes.iter().filter_map(|shape| match shape {
                Shape::Rect(rect) => Some(rect.rect),
                _ => None,
            });
            shapes.iter().find_map(is_text).map(|(galley, at)| (galley, at, marked.collect()))
        }
        shape => is_text(shape).map(|(galley, at)| (galley, at, Vec::new())),
    });
    found.unwrap_or_else(|| panic!("{:?} is not drawn", it.state()))
}

/// The position of the cursor at each place in the text.
fn carets(it: &Harness<'_, String>) -> Vec<Pos2> {
    let (galley, at, _) = drawn(it);
    let place = |index| galley.pos_from_cursor(CCursor::new(index)).center() + at;
    (0..=it.state().chars().count()).map(place).collect()
}

fn selection(it: &Harness<'_, String>) -> CCursorRange {
    TextEditState::load(&it.ctx, id()).unwrap().cursor.char_range().unwrap()
}

fn cursor(it: &Harness<'_, String>) -> usize {
    selection(it).primary.index.0
}

fn at(it: &mut Harness<'_, String>, index: usize) {
    let mut state = TextEditState::load(&it.ctx, id()).unwrap();
    state.cursor.set_char_range(Some(CCursorRange::one(CCursor::new(index))));
    state.store(&it.ctx, id());
    it.run_steps(2);
}

fn press(it: &mut Harness<'_, String>, modifiers: Modifiers, key: Key) -> usize {
    it.key_press_modifiers(modifiers, key);
    it.run_steps(2);
    cursor(it)
}

fn button(it: &mut Harness<'_, String>, pos: Pos2, pressed: bool) {
    it.event(Event::PointerMoved(pos));
    it.event(Event::PointerButton { pos, button: PointerButton::Primary, pressed, modifiers: Modifiers::NONE });
    it.step();
}

/// Clicks here, long after the previous click, and returns the position of the cursor.
fn click(it: &mut Harness<'_, String>, pos: Pos2) -> usize {
    button(it, pos, true);
    button(it, pos, false);
    it.run_steps(3);
    cursor(it)
}

#[test]
fn lines_begin_at_the_side_of_their_first_letter() {
    let it = field("אבג\nabc אב\n12 אב\n\nab", 300.0, Theme::Dark);
    let places = carets(&it);
    let (left, right) = (places[4].x, places[0].x);
    assert!(right - left > 240.0, "{left} {right}");
    assert!(places[..3].is_sorted_by(|one, next| one.x > next.x), "to the left: {places:?}");
    assert!(places[4..8].is_sorted_by(|one, next| one.x < next.x), "to the right: {places:?}");
    // "12" is on the right and reads left to right. The first letter of the text decides for the
    // line.
    assert!(places[11].x < places[12].x && places[12].x < places[13].x, "{places:?}");
    assert!((places[13].x - right).abs() < 1.5 && places[16].x < places[11].x, "{places:?}");
    assert!(
        (places[17].x - right).abs() < 1.5 && places[18].x == left,
        "an empty line goes on where the one before began: {places:?}"
    );
}

#[test]
fn brackets_and_numbers_are_where_they_are_read() {
    let it = field("אב (12) גד", 300.0, Theme::Dark);
    let (galley, ..) = drawn(&it);
    let glyphs = &galley.rows[0].glyphs;
    let written: String = glyphs.iter().map(|glyph| glyph.chr).collect();
    assert_eq!(&written, it.state(), "screen readers read it as it is written");
    let places = carets(&it);
    // The opening bracket is to the right of the number, which reads left to right.
    assert!(places[3].x > places[4].x && places[5].x < places[6].x, "{places:?}");
    let (first, last) = (places[5].x, places[7].x);
    assert!(places[8].x < first && last < places[3].x, "{places:?}");
}

#[test]
fn the_cursor_moves_to_the_right_within_a_number() {
    for (text, number) in [("رقم ٢٠١٣ عدد", 4..8), ("رقم ۱۴۰۴", 4..8), ("٢٠١٣", 0..4), ("ab ۱۴۰۴ cd", 3..7)]
    {
        let it = field(text, 300.0, Theme::Dark);
        let (galley, ..) = drawn(&it);
        let glyphs = &galley.rows[0].glyphs[number.clone()];
        let written: String = text.chars().skip(number.start).take(number.len()).collect();
        assert_eq!(glyphs.iter().map(|glyph| glyph.chr).collect::<String>(), written);
        let places = carets(&it);
        let within = &places[number.start + 1..=number.end];
        assert!(within.is_sorted_by(|one, next| one.x < next.x), "{text}: {places:?}");
    }
}

#[test]
fn joined_letters_have_a_part_of_their_sign_each() {
    for text in ["حلال", "مرحبا", "ابًا", "لا"] {
        let it = field(text, 300.0, Theme::Dark);
        let places = carets(&it);
        let steps: Vec<f32> = places.windows(2).map(|pair| pair[0].x - pair[1].x).collect();
        for (step, letter) in steps.iter().zip(text.chars()) {
            assert_eq!(*step > 1.0, letter != '\u{64b}', "{text} {letter}: {steps:?}");
        }
    }
}

#[test]
fn what_is_typed_is_seen_at_the_cursor() {
    let mut it = field("", 300.0, Theme::Dark);
    let typed = "שלום abc, 12 مرحبا!";
    for (nth, letter) in typed.chars().enumerate() {
        it.event(Event::Text(letter.to_string()));
        it.run_steps(2);
        assert_eq!(cursor(&it), nth + 1);
    }
    assert_eq!(it.state(), typed);
    at(&mut it, 4);
    it.event(Event::Text("ים".to_owned()));
    it.run_steps(2);
    press(&mut it, Modifiers::NONE, Key::Backspace);
    assert_eq!(it.state(), "שלוםי abc, 12 مرحبا!");
    for _ in 0..9 {
        it.key_press_modifiers(Modifiers::COMMAND, Key::Z);
        it.run_steps(2);
    }
    let left = it.state();
    assert!(left.chars().count() < typed.chars().count() && typed.starts_with(left.as_str()), "taken back: {left}");
}

#[test]
fn the_cursor_stands_where_was_clicked() {
    for text in ["שלום עולם", "ab אבג (12) גד cd", "חד abc 12, הו", "حلال مرحبا abc", "رقم ٢٠١٣ عدد", "ab ١٢٣ אב ۴۵"]
    {
        let mut it = field(text, 300.0, Theme::Dark);
        let (galley, from, _) = drawn(&it);
        let y = carets(&it)[0].y;
        let left = from.x + galley.rows[0].visuals.mesh_bounds.left();
        let right = from.x + galley.rows[0].visuals.mesh_bounds.right();
        let mut found = Vec::new();
        let mut x = left - 3.0;
        while x < right + 3.0 {
            found.push(click(&mut it, Pos2::new(x, y)));
            // The cursor as drawn, because its index alone is ambiguous where directions meet.
            let (galley, from, _) = drawn(&it);
            let caret = galley.pos_from_cursor(selection(&it).primary).center().x + from.x;
            assert!((caret - x).abs() < 9.0, "{text}: clicked {x}, cursor {caret} at {}", cursor(&it));
            x += 2.0;
        }
        found.sort_unstable();
        found.dedup();
        let count = text.chars().count();
        assert!(found.len() + 2 >= count && found.contains(&0) && found.contains(&count), "{text}: {found:?}");
    }
}

#[test]
fn arrows_go_in_the_direction_of_the_line() {
    let mut it = field("אבג abc", 300.0, Theme::Dark);
    assert_eq!(press(&mut it, Modifiers::NONE, Key::Home), 0);
    let way: Vec<usize> = (0..7).map(|_| press(&mut it, Modifiers::NONE, Key::ArrowLeft)).collect();
    assert_eq!(way, [1, 2, 3, 4, 5, 6, 7], "each place is reached");
    assert_eq!(press(&mut it, Modifiers::NONE, Key::ArrowRight), 6);
    assert_eq!(press(&mut it, Modifiers::CTRL, Key::ArrowRight), 4, "a word");
    assert_eq!(press(&mut it, Modifiers::NONE, Key::End), 7);
    assert_eq!(press(&mut it, Modifiers::SHIFT, Key::ArrowRight), 6);
    assert_eq!(selection(&it).secondary.index.0, 7);
    assert_eq!(press(&mut it, Modifiers::NONE, Key::ArrowLeft), 7, "to the end of the selection");

    let mut it = field("abc אבג", 300.0, Theme::Dark);
    press(&mut it, Modifiers::NONE, Key::Home);
    let way: Vec<usize> = (0..7).map(|_| press(&mut it, Modifiers::NONE, Key::ArrowRight)).collect();
    assert_eq!(way, [1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn a_selection_is_marked_where_it_is_seen() {
    let mut it = field("ab אבג cd", 300.0, Theme::Dark);
    at(&mut it, 1);
    // "b", the space, and the first right-to-left letter, which is the last one on the line.
    for _ in 0..3 {
        press(&mut it, Modifiers::SHIFT, Key::ArrowRight);
    }
    let (_, _, marked) = drawn(&it);
    let places = carets(&it);
    assert_eq!(marked.len(), 2, "{marked:?}");
    assert!((marked[0].left() - places[1].x).abs() < 1.0 && (marked[0].right() - places[3].x).abs() < 1.0);
    assert!((marked[1].left() - places[4].x).abs() < 1.0 && (marked[1].right() - places[7].x).abs() > 1.0);
    it.event(Event::Copy);
    it.step();
    let commands = &it.output().platform_output.commands;
    let copied = commands.iter().any(|it| matches!(it, egui::OutputCommand::CopyText(text) if text == "b א"));
    assert!(copied, "{commands:?}");
    press(&mut it, Modifiers::NONE, Key::Home);
    assert!(drawn(&it).2.is_empty());
}

#[test]
fn the_pointer_selects_what_it_is_drawn_over() {
    let mut it = field("אבגד הוזח", 300.0, Theme::Dark);
    let places = carets(&it);
    button(&mut it, places[1], true);
    it.event(Event::PointerMoved(places[3]));
    it.step();
    button(&mut it, places[3], false);
    let range = selection(&it).as_sorted_char_range();
    assert_eq!((range.start.0, range.end.0), (1, 3));
    let (_, _, marked) = drawn(&it);
    let shown = marked.iter().fold(Rect::NOTHING, |all, rect| all | *rect);
    assert!((shown.right() - places[1].x).abs() < 1.0 && (shown.left() - places[3].x).abs() < 1.0, "{shown:?}");
    it.run_steps(3);
    // Selects a word with a double click.
    let pos = places[6] + Vec2::new(1.0, 0.0);
    it.event(Event::PointerMoved(pos));
    for pressed in [true, false, true, false] {
        it.event(Event::PointerButton { pos, button: PointerButton::Primary, pressed, modifiers: Modifiers::NONE });
    }
    it.step();
    let range = selection(&it).as_sorted_char_range();
    assert_eq!((range.start.0, range.end.0), (5, 9));
    assert!(it.ctx.memory(|memory| memory.has_focus(id())), "the keys stay here");
    it.event(Event::MiddleClickPaste { pos: places[2], text: "xy".to_owned() });
    it.run_steps(2);
    assert_eq!(it.state(), "אבxyגד הוזח");
}

#[test]
fn long_lines_are_divided_and_reached() {
    let mut it = field(&"שלום עולם abc ".repeat(6), 200.0, Theme::Dark);
    let places = carets(&it);
    let (galley, from, _) = drawn(&it);
    assert!(galley.rows.len() >= 3, "{}", galley.rows.len());
    for row in &galley.rows {
        let ink = row.visuals.mesh_bounds;
        assert!(ink.right() <= galley.rect.right() + 1.0 && ink.left() >= -1.0, "{ink:?} {:?}", galley.rect);
        assert!(ink.right() > galley.rect.right() - 4.0, "at the right: {ink:?} {:?}", galley.rect);
    }
    assert!(galley.rect.right() + from.x < 200.0);
    at(&mut it, 2);
    let start = places[2];
    let down = press(&mut it, Modifiers::NONE, Key::ArrowDown);
    assert!(carets(&it)[down].y > start.y && (carets(&it)[down].x - start.x).abs() < 9.0, "{down}");
    assert_eq!(press(&mut it, Modifiers::SHIFT, Key::ArrowUp), 2);
    assert_eq!(selection(&it).secondary.index.0, down);
    let end = it.state().chars().count();
    for _ in 0..galley.rows.len() {
        press(&mut it, Modifiers::NONE, Key::ArrowDown);
    }
    assert_eq!(cursor(&it), end);
}

#[test]
fn an_input_method_writes_at_the_cursor() {
    let mut it = field("אב גד", 300.0, Theme::Dark);
    at(&mut it, 2);
    let preedit = |text: &str| ImeEvent::Preedit { text: text.to_owned(), active_range_chars: None };
    it.event(Event::Ime(preedit("הו")));
    it.run_steps(2);
    assert_eq!(it.state(), "אבהו גד");
    // Underlined, not selected. On Windows, where input methods do not report their position, it is
    // marked like a selection.
    assert_eq!(drawn(&it).2.is_empty(), !cfg!(windows));
    let ime = it.output().platform_output.ime.unwrap();
    assert!((ime.cursor_rect.center().x - carets(&it)[4].x).abs() < 2.0, "{ime:?}");
    it.event(Event::Ime(ImeEvent::Commit("ה".to_owned())));
    it.run_steps(2);
    assert_eq!((it.state().as_str(), cursor(&it)), ("אבה גד", 3));
}

#[test]
fn screen_readers_are_told_the_direction_of_a_line() {
    let it = field("אבג\nabc", 300.0, Theme::Dark);
    let nodes = it.root().children_recursive();
    let runs: Vec<_> = nodes
        .filter_map(|node| {
            let data = node.accesskit_node().data().clone();
            let positions = data.character_positions()?.to_vec();
            Some((data.value()?.to_owned(), data.text_direction()?, positions, data.bounds()?))
        })
        .collect();
    assert_eq!(runs.len(), 2, "{runs:?}");
    assert_eq!((runs[0].0.as_str(), runs[0].1), ("אבג\n", TextDirection::RightToLeft));
    assert_eq!((runs[1].0.as_str(), runs[1].1), ("abc", TextDirection::LeftToRight));
    assert!(runs[0].2.is_sorted() && runs[0].2[0] == 0.0 && runs[0].2.len() == 4, "{runs:?}");
    assert!(runs[0].3.x0 < runs[0].3.x1 && runs[0].3.x0 > 200.0, "{runs:?}");
}

#[test]
fn every_character_has_its_place_in_any_text() {
    let odd =
        ["\r", "\n", "\u{2029}", "\u{200f}", "\u{200d}", "\u{202d}", "\u{202e}", "\u{2067}", "\u{301}", "\t", "🚀"];
    let mut it = field("", 60.0, Theme::Dark);
    for (one, other) in odd.into_iter().flat_map(|one| odd.map(|other| (one, other))) {
        let text = format!("{one}{other}אב{one}{other}c{other} (ג{one}{one}");
        it.state_mut().clone_from(&text);
        it.step();
        assert_eq!(drawn(&it).0.end().index.0, text.chars().count(), "{text:?}");
        for modifiers in [Modifiers::NONE, Modifiers::SHIFT] {
            for key in [Key::ArrowUp, Key::Home, Key::ArrowLeft, Key::ArrowDown, Key::End, Key::ArrowRight] {
                it.key_press_modifiers(modifiers, key);
            }
            it.step();
        }
        assert_eq!(drawn(&it).0.end().index.0, text.chars().count(), "{text:?}");
    }
}

#[test]
fn one_line_begins_at_the_side_of_its_first_letter_and_is_edited_as_several_are() {
    let mut it = line("אבג (12)", 300.0);
    let places = carets(&it);
    assert!(places[0].x > 240.0 && places[..3].is_sorted_by(|one, next| one.x > next.x), "{places:?}");
    assert!(places[6].x < places[7].x, "the number is read to the right: {places:?}");
    for (nth, place) in places.iter().enumerate().take(4) {
        assert_eq!(click(&mut it, *place), nth);
    }
    assert_eq!(press(&mut it, Modifiers::NONE, Key::Home), 0);
    assert_eq!(press(&mut it, Modifiers::NONE, Key::ArrowLeft), 1);
    assert_eq!(press(&mut it, Modifiers::SHIFT, Key::ArrowLeft), 2);
    let marked = drawn(&it).2;
    assert!((marked[0].right() - places[1].x).abs() < 1.0 && (marked[0].left() - places[2].x).abs() < 1.0);
    it.event(Event::Paste("ד\nה".to_owned()));
    it.run_steps(2);
    assert_eq!((it.state().as_str(), cursor(&it)), ("אד הג (12)", 4), "a line end is a space in one line");
    let left = line("abc אבג", 300.0);
    assert!(carets(&left)[0].x < 40.0);
}

#[test]
fn one_line_moves_sideways_to_its_cursor() {
    let mut it = line(&"שלום עולם abc ".repeat(12), 200.0);
    let seen = |it: &Harness<'_, String>| {
        let x = carets(it)[cursor(it)].x;
        assert!((0.0..=200.0).contains(&x), "{} at {x}", cursor(it));
        x
    };
    press(&mut it, Modifiers::NONE, Key::End);
    let end = seen(&it);
    assert_eq!(drawn(&it).0.rows.len(), 1, "nothing wraps");
    press(&mut it, Modifiers::NONE, Key::Home);
    assert!(seen(&it) > end, "the beginning is at the right");
    for _ in 0..60 {
        press(&mut it, Modifiers::NONE, Key::ArrowLeft);
        seen(&it);
    }
    assert_eq!(cursor(&it), 60);
    // A click finds the letter shown there.
    let place = carets(&it)[58];
    assert_eq!(click(&mut it, place), 58);
}

#[test]
fn enter_leaves_one_line() {
    let mut it = line("אבג", 300.0);
    assert!(it.ctx.memory(|memory| memory.has_focus(id())));
    it.key_press(Key::Enter);
    it.run_steps(2);
    assert!(!it.ctx.memory(|memory| memory.has_focus(id())));
    assert_eq!(it.state(), "אבג");
}

#[test]
fn letters_of_a_secret_are_not_seen() {
    let mut it = shown(TextField::secret, "שלום", 300.0, Theme::Dark);
    let written = |it: &Harness<'_, String>| -> Vec<String> {
        let text = |shape: &Shape| match shape {
            Shape::Text(text) => Some(text.galley.text().to_owned()),
            _ => None,
        };
        let shapes = it.output().shapes.iter();
        shapes
            .flat_map(|clipped| match &clipped.shape {
                Shape::Vec(shapes) => shapes.iter().filter_map(text).collect::<Vec<_>>(),
                shape => text(shape).into_iter().collect(),
            })
            .collect()
    };
    assert!(written(&it).contains(&"••••".to_owned()), "{:?}", written(&it));
    press(&mut it, Modifiers::NONE, Key::Home);
    it.event(Event::Text("ה".to_owned()));
    it.run_steps(2);
    assert_eq!((it.state().as_str(), cursor(&it)), ("השלום", 1));
    assert!(written(&it).contains(&"•••••".to_owned()) && !written(&it).iter().any(|text| text.contains('ש')));
}

#[test]
fn a_field_matches_its_pictures() {
    let mut looks = SnapshotResults::new();
    for (theme, colours) in [(Theme::Dark, "dark"), (Theme::Light, "light")] {
        let text = "مرحبا، (12) abc.\nab אבג (12) cd\nשלום עולם, this is a line that is too long.";
        let mut it = field(text, 280.0, theme);
        at(&mut it, 3);
        for _ in 0..2 {
            it.key_press_modifiers(Modifiers::SHIFT, Key::ArrowDown);
        }
        it.run_steps(2);
        it.snapshot(format!("field-{colours}"));
        looks.extend_harness(&mut it);
    }
}

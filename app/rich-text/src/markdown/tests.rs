use std::{collections::HashMap, sync::Arc};

use egui::{Color32, FontData, FontFamily, FontInsert, FontPriority, Rect, Vec2, epaint::text::InsertFontFamily};
use egui_kittest::{Harness, kittest::Queryable};

use super::{MarkdownDocument, Targets, document::Block, layouts};
use crate::{
    fonts,
    theme::{self, Palette},
};

/// A font with right-to-left letters.
const LETTERS: &[u8] = include_bytes!("../../tests/fonts/DejaVuSans-subset.ttf");

/// A font with Chinese letters.
const WIDE: &[u8] = include_bytes!("../../tests/fonts/DroidSansFallback-subset.ttf");

fn read(text: &str) -> MarkdownDocument {
    let mut document = MarkdownDocument::default();
    document.read(text, &Targets::new());
    document
}

/// Shows the text in a window of this width.
fn shown(text: &str, width: f32) -> Harness<'static, MarkdownDocument> {
    shown_with(read(text), width, |ui, document| document.show(ui, true))
}

fn shown_with(
    document: MarkdownDocument,
    width: f32,
    mut show: impl FnMut(&mut egui::Ui, &mut MarkdownDocument) + 'static,
) -> Harness<'static, MarkdownDocument> {
    let mut installed = false;
    let ui = move |ui: &mut egui::Ui, document: &mut MarkdownDocument| {
        if !std::mem::replace(&mut installed, true) {
            theme::install(ui);
            ui.set_theme(egui::Theme::Dark);
            let family = |family| InsertFontFamily { family, priority: FontPriority::Lowest };
            let families =
                vec![family(FontFamily::Proportional), family(FontFamily::Monospace), family(fonts::strong())];
            for (name, font) in [("letters to the left", LETTERS), ("wide letters", WIDE)] {
                ui.add_font(FontInsert::new(name, FontData::from_static(font), families.clone()));
            }
        } else {
            show(ui, document);
        }
    };
    let mut it = Harness::builder()
        .with_size([width, 600.0])
        .with_max_steps(4)
        .allow_missing_glyphs()
        .build_ui_state(ui, document);
    it.run_steps(3);
    it
}

fn place(it: &Harness<'_, MarkdownDocument>, words: &str) -> Rect {
    it.get_by_label(words).rect()
}

/// Presses or releases a pointer button at a position, and runs one frame.
fn press(it: &mut Harness<'_, MarkdownDocument>, pos: egui::Pos2, button: egui::PointerButton, pressed: bool) {
    it.event(egui::Event::PointerMoved(pos));
    it.event(egui::Event::PointerButton { pos, button, pressed, modifiers: egui::Modifiers::NONE });
    it.step();
}

/// The text that reaches the clipboard within a few frames.
fn copied(it: &mut Harness<'_, MarkdownDocument>) -> Option<String> {
    (0..4).find_map(|_| {
        it.step();
        it.output().platform_output.commands.iter().find_map(|command| match command {
            egui::OutputCommand::CopyText(text) => Some(text.clone()),
            _ => None,
        })
    })
}

/// Selects the text between two positions and copies it.
fn selected(it: &mut Harness<'_, MarkdownDocument>, from: egui::Pos2, to: egui::Pos2) -> String {
    press(it, from, egui::PointerButton::Primary, true);
    it.event(egui::Event::PointerMoved(to));
    it.step();
    press(it, to, egui::PointerButton::Primary, false);
    it.event(egui::Event::Copy);
    copied(it).unwrap_or_default()
}

/// Painted letters, each with its font, colour and slant.
fn letters(it: &Harness<'_, MarkdownDocument>) -> Vec<(String, FontFamily, Color32, bool)> {
    let mut letters = Vec::new();
    for shape in &it.output().shapes {
        if let egui::Shape::Text(text) = &shape.shape {
            let job = &text.galley.job;
            letters.extend(job.sections.iter().map(|section| {
                let format = &section.format;
                let range = section.byte_range.start.0..section.byte_range.end.0;
                (job.text[range].to_owned(), format.font_id.family.clone(), format.color, format.italics)
            }));
        }
    }
    letters
}

#[test]
fn words_have_their_face_and_links_their_colour() {
    let it = shown("Plain **bold** *slanted* `code` [a link](https://example.org).", 600.0);
    let letters = letters(&it);
    let of =
        |words: &str| letters.iter().find(|(text, ..)| text == words).unwrap_or_else(|| panic!("{words}: {letters:?}"));
    assert_eq!(of("bold").1, FontFamily::Name("strong".into()));
    assert!(of("slanted").3 && of("code").1 == FontFamily::Monospace);
    assert_eq!((of("Plain ").2, of("a link").2), (Palette::DARK.text, Palette::DARK.cold));
}

#[test]
fn links_are_reached_by_the_keyboard_and_opened() {
    let mut it = shown("See [the page](https://example.org/a) and [a file](file:///etc/passwd).", 600.0);
    for (words, target) in [("the page", Some("https://example.org/a")), ("a file", None)] {
        it.get_by_role_and_label(egui::accesskit::Role::Link, words).focus();
        it.step();
        it.input_mut().events.push(egui::Event::Key {
            key: egui::Key::Enter,
            physical_key: None,
            pressed: true,
            repeat: false,
            modifiers: egui::Modifiers::NONE,
        });
        it.step();
        let opened = it.output().platform_output.commands.iter().find_map(|command| match command {
            egui::OutputCommand::OpenUrl(open) => Some(open.url.clone()),
            _ => None,
        });
        assert_eq!(opened.as_deref(), target, "{words}");
    }
}

#[test]
fn numbers_of_lists_stand_on_the_line_of_their_words() {
    let it = shown("9. nine\n10. ten\n    - within\n\n- a\n- b", 600.0);
    for (mark, words) in [("9.", "nine"), ("10.", "ten")] {
        let (mark, words) = (place(&it, mark), place(&it, words));
        assert!((mark.center().y - words.center().y).abs() < 4.0, "{mark:?} {words:?}");
        assert!(mark.right() < words.left() && words.left() - mark.right() < 12.0, "{mark:?} {words:?}");
    }
    assert_eq!(place(&it, "nine").left(), place(&it, "ten").left(), "words begin below each other");
    assert!(place(&it, "within").left() > place(&it, "ten").left());
}

#[test]
fn line_breaks_images_and_notes_are_shown() {
    let it = shown(
        "one\ntwo  \nthree<br>four\n\n![A cat](https://x.org/cat.png) ![](b/dog.png)\n\nSaid[^1].\n\n[^1]: By him.",
        600.0,
    );
    assert!(place(&it, "one\ntwo\nthree\nfour").height() > 4.0 * 15.0);
    place(&it, "🖼 A cat 🖼 dog.png");
    it.get_by_role_and_label(egui::accesskit::Role::Link, "🖼 A cat");
    place(&it, "Said[1].");
    let (mark, words) = (place(&it, "[1]"), place(&it, "By him."));
    assert!((mark.center().y - words.center().y).abs() < 4.0);
}

#[test]
fn cells_of_tables_are_aligned_and_wrap() {
    let text = "| a | b | c |\n|:--|:-:|--:|\n| left | mid | right |\n| a much longer left cell | the middle of it all | 1 |\n";
    let it = shown(text, 700.0);
    let (left, right, one) = (place(&it, "left"), place(&it, "right"), place(&it, "1"));
    assert_eq!(left.left(), place(&it, "a much longer left cell").left());
    assert!(right.left() < one.left(), "at the right: {right:?} {one:?}");
    let (mid, middle) = (place(&it, "mid"), place(&it, "the middle of it all"));
    assert!(mid.left() > middle.left() + 10.0, "in the middle: {mid:?} {middle:?}");
    let narrow = shown(&text.replace("longer left cell", &"longer left cell ".repeat(12)), 420.0);
    let cell = narrow.get_by_label_contains("a much longer").rect();
    assert!(cell.height() > 30.0 && cell.right() < 420.0, "{cell:?}");
}

#[test]
fn paragraphs_to_the_left_stand_at_the_right() {
    let it = shown("שלום עולם, this is 12.\n\nplain", 500.0);
    let row = it.get_by_label("שלום עולם, this is 12.").rect();
    let texts = it.output().shapes.iter().filter_map(|shape| match &shape.shape {
        egui::Shape::Text(text) => Some((text.galley.job.text.clone(), text.visual_bounding_rect())),
        _ => None,
    });
    let (seen, ink) = texts.into_iter().find(|(text, _)| text.contains("this")).unwrap();
    assert_eq!(seen, ".this is 12 ,עולם שלום", "as it is seen, words turned by the painter");
    assert!(row.right() - ink.right() < 4.0 && ink.left() > 200.0, "{row:?} {ink:?}");
    assert!(ink.right() <= row.right() + 0.5, "{row:?} {ink:?}");
}

#[test]
fn a_word_to_the_left_with_two_styles_is_in_order() {
    let mut it = shown("אבג**דהו** זח 👨‍👩‍👧 ט", 500.0);
    let line = it.get_by_label("אבגדהו זח 👨‍👩‍👧 ט").rect();
    let text = it.output().shapes.iter().find_map(|shape| match &shape.shape {
        egui::Shape::Text(text) if text.galley.text().contains("אבג") => Some(text.galley.clone()),
        _ => None,
    });
    let galley = text.unwrap();
    assert_eq!(galley.text(), "ט 👨‍👩‍👧 זח דהואבג", "the bold half is at the left, joined emoji are whole");
    let glyphs = &galley.rows[0].glyphs;
    let word: Vec<_> = glyphs[glyphs.len() - 6..].iter().map(|glyph| (glyph.chr, glyph.advance_width)).collect();
    assert_eq!(word.iter().map(|(letter, _)| *letter).collect::<String>(), "והדגבא");
    assert!(word.iter().all(|(_, width)| (2.0..14.0).contains(width)), "each as wide as a letter: {word:?}");
    let first = line.right_center() - Vec2::new(1.0, 0.0);
    let half = selected(&mut it, first - Vec2::new(word[4].1 + word[5].1, 0.0), first);
    assert_eq!(half, "אב");
}

#[test]
fn formulas_are_drawn_and_copied_as_source() {
    let mut it = shown(
        "So \\(\\frac{a}{b}\\) holds, and\n\n$$\\sum_{i=1}^n i^2$$\n\nbut $\\nonsense{$ not, and $5 and $10 are money.",
        600.0,
    );
    place(&it, "So \\frac{a}{b} holds, and");
    place(&it, "\\sum_{i=1}^n i^2");
    assert!(it.query_by_label_contains("$5 and $10 are money.").is_some());
    let faces: Vec<String> = letters(&it).iter().map(|(_, family, ..)| format!("{family:?}")).collect();
    assert!(faces.iter().any(|face| face.contains("Math-Italic")), "{faces:?}");
    // The context menu of the sum.
    let at = it.get_by_label("\\sum_{i=1}^n i^2").rect().left_center() + Vec2::new(12.0, 0.0);
    for pressed in [true, false] {
        press(&mut it, at, egui::PointerButton::Secondary, pressed);
    }
    it.run_steps(2);
    it.get_by_label("Copy as LaTeX").click();
    assert_eq!(copied(&mut it).as_deref(), Some("$$\\sum_{i=1}^n i^2$$"));
}

#[test]
fn selected_words_are_copied_as_they_were_written() {
    let text = "So $x^2$ and **bold** are\n\n- שלום עולם (12)\n- one";
    let mut it = shown(text, 600.0);
    let (first, last) = (place(&it, "So x^2 and bold are"), place(&it, "one"));
    let whole = selected(&mut it, first.left_top(), last.right_bottom());
    for part in ["So $x^2$ and bold are", "שלום עולם (12)", "one"] {
        assert!(whole.contains(part), "{part}: {whole:?}");
    }
    let words = place(&it, "So x^2 and bold are");
    let half = selected(&mut it, words.left_top(), egui::pos2(words.left() + 24.0, words.center().y));
    assert!("So $x^2$ and bold are".starts_with(&half) && half.starts_with("So"), "{half:?}");
    // The first word is on the right.
    let line = it.get_by_label("שלום עולם (12)").rect();
    let word = selected(&mut it, line.right_center() - Vec2::new(26.0, 0.0), line.right_center() - Vec2::new(1.0, 0.0));
    assert!(!word.is_empty() && "שלום".starts_with(&*word), "{word:?}");
}

#[test]
fn marks_of_html_within_lines_are_known() {
    let it = shown("H<sub>2</sub>O, x<sup>2</sup>, <b>bold</b>, <kbd>Ctrl</kbd>, <span>as it is</span>", 600.0);
    place(&it, "H2O, x2, bold, Ctrl, <span>as it is</span>");
    let letters = letters(&it);
    let family = |words: &str| letters.iter().find(|(text, ..)| text == words).map(|it| it.1.clone());
    assert_eq!(family("bold"), Some(FontFamily::Name("strong".into())));
    assert_eq!(family("Ctrl"), Some(FontFamily::Monospace));
}

/// A closed element is shown completely, including marks that would otherwise be Markdown or HTML.
/// An unclosed element is text.
#[test]
fn scripts_at_the_start_of_a_line_are_text() {
    let script = "<script>\nlet a = b*c*d;\n<b>\n</b>\n\nlet e = `f`;\n</script>";
    let it = shown(&format!("Before\n{script}\n\nand **after**"), 600.0);
    for words in ["Before", script, "and after"] {
        place(&it, words);
    }
    let it = shown("Write\n<script> in **bold**.\n\n- an item", 600.0);
    for words in ["Write\n<script> in bold.", "an item"] {
        place(&it, words);
    }
    let code = read("```html\n<script>\n```");
    assert!(matches!(&code.blocks[..], [Block::Code(_, code, _)] if code.contains("<script>")), "{:?}", code.blocks);
}

#[test]
fn single_tildes_are_left_alone() {
    let it = shown("About ~5~ of ~/a and ~/b~, (~one *two*~), not ~~three~~.", 600.0);
    place(&it, "About ~5~ of ~/a and ~/b~, (~one two~), not three.");
    let mut lines = Vec::new();
    for shape in &it.output().shapes {
        if let egui::Shape::Text(text) = &shape.shape {
            let struck = text.galley.job.sections.iter().filter(|section| section.format.strikethrough.width > 0.0);
            let range = |at: &std::ops::Range<egui::text::ByteIndex>| at.start.0..at.end.0;
            lines.extend(struck.map(|section| text.galley.job.text[range(&section.byte_range)].to_owned()));
        }
    }
    assert_eq!(lines, ["three"]);
}

#[test]
fn emoji_have_a_font_of_their_own() {
    let it = shown("A rocket 🚀, **a family 👨‍👩‍👧** and ✔.", 600.0);
    let letters = letters(&it);
    for emoji in ["🚀", "👨‍👩‍👧"] {
        assert!(letters.iter().any(|(text, family, ..)| text == emoji && *family == fonts::emoji()), "{letters:?}");
    }
}

#[test]
fn formulas_that_are_too_wide_scroll_or_shrink() {
    let long = "x_1 + ".repeat(40) + "y";
    let it = shown(&format!("$${long}$$\n\nand ${long}$ within"), 400.0);
    assert!(it.get_by_label(&long).rect().width() > 400.0, "it scrolls");
    assert!(it.get_by_label(&format!("and {long} within")).rect().right() <= 400.0, "it shrinks");
}

#[test]
fn long_paragraphs_are_laid_out_in_parts() {
    let mut document = read(&"a word ".repeat(2000));
    assert!(document.blocks.len() > 3);
    let before = layouts();
    document.read(&("a word ".repeat(2000) + "more"), &Targets::new());
    assert_eq!(layouts(), before);
}

#[test]
fn a_paragraph_is_made_ready_once_for_a_width() {
    let mut it = shown("one\n\n# two\n\n- three\n\n| a |\n|---|\n| b |", 500.0);
    let before = layouts();
    it.run_steps(5);
    assert_eq!(layouts(), before, "nothing has changed");
    it.set_size(Vec2::new(400.0, 600.0));
    it.run_steps(2);
    assert!(layouts() > before);
}

#[test]
fn what_is_added_leaves_the_layout_before_it() {
    let part = |at: usize| {
        format!("{at}. item with *words*, `code` and $x_{at}$\n\n   | a | b |\n   |---|--:|\n   | 1 | {at} |\n\n")
    };
    let mut text: String = (1..60).map(part).collect();
    let mut it = shown(&text, 500.0);
    for more in ["The", " end", ".\n\n# A", " heading"] {
        text.push_str(more);
        let before = layouts();
        it.state_mut().read(&text, &Targets::new());
        it.run_steps(2);
        assert!(layouts() - before <= 4, "{} paragraphs were laid out again", layouts() - before);
    }
}

/// All drawn texts and their positions.
fn texts(it: &Harness<'_, MarkdownDocument>) -> Vec<(Arc<egui::Galley>, Vec2)> {
    let text = |shape: &egui::epaint::ClippedShape| match &shape.shape {
        egui::Shape::Text(text) => Some((Arc::clone(&text.galley), text.pos.to_vec2())),
        _ => None,
    };
    it.output().shapes.iter().filter_map(text).collect()
}

/// Upper left corner of a picture in the font texture.
type Corner = [u32; 2];

/// The pictures of these letters, each painted alone at any fraction of a pixel.
fn pictures(it: &Harness<'_, MarkdownDocument>, letters: &str) -> HashMap<Corner, char> {
    let sections = texts(it).into_iter().flat_map(|(galley, _)| galley.job.sections.clone());
    let mut fonts: Vec<egui::FontId> = Vec::new();
    for font in sections.map(|section| section.format.font_id) {
        if !fonts.contains(&font) {
            fonts.push(font);
        }
    }
    let mut pictures = HashMap::new();
    for (font, letter, part) in fonts
        .iter()
        .flat_map(|font| letters.chars().map(move |letter| (font, letter)))
        .flat_map(|(font, letter)| (0..8).map(move |part| (font, letter, part as f32 / 8.0)))
    {
        let mut job = egui::text::LayoutJob::simple_singleline(letter.to_string(), font.clone(), Color32::WHITE);
        job.sections[0].leading_space = part;
        let galley = it.ctx.fonts_mut(|fonts| fonts.layout_job(job));
        let corner = galley.rows[0].glyphs[0].uv_rect.min.map(u32::from);
        pictures.insert(corner, letter);
    }
    pictures
}

/// The painted letters among `letters`, from top to bottom and from left to right.
fn painted(it: &Harness<'_, MarkdownDocument>, letters: &str) -> String {
    let pictures = pictures(it, letters);
    let mut found: Vec<(i32, i32, char)> = Vec::new();
    for (galley, at) in texts(it) {
        for row in &galley.rows {
            let visuals = &row.row.visuals;
            for corners in visuals.mesh.vertices[visuals.glyph_vertex_range.clone()].chunks_exact(4) {
                let corner = [corners[0].uv.x.round() as u32, corners[0].uv.y.round() as u32];
                let place = corners[0].pos + row.pos.to_vec2() + at;
                let line = (row.pos.y + at.y).round() as i32;
                found.extend(pictures.get(&corner).map(|letter| (line, (place.x * 4.0).round() as i32, *letter)));
            }
        }
    }
    found.sort_unstable();
    found.into_iter().map(|(.., letter)| letter).collect()
}

/// Numbers read left to right in every script, also between right-to-left words.
#[test]
fn numbers_are_painted_as_they_are_read() {
    let digits = "٠١٢٣٤٥٦٧٨٩۰۱۲۳۴۵۶۷۸۹";
    for (text, seen) in [
        ("٢٥", "٢٥"),
        ("۱۴۰۴", "۱۴۰۴"),
        ("رقم ٢٠١٣ عدد ٤٥", "٤٥٢٠١٣"),
        ("رقم ۱۴۰۴ عدد ۲۵", "۲۵۱۴۰۴"),
        ("Alone: ٢٥ and ۱۴ in 25 words", "٢٥۱۴"),
        ("رقم (١٬٢٣٤٫٥)", "١٢٣٤٥"),
        ("- رقم ٢٤\n- ٢٥", "٢٤٢٥"),
        ("| رقم | a |\n|---|---|\n| ١٢٣ | ٤٥ |", "١٢٣٤٥"),
        ("`٢٥` and *۱۴*", "٢٥۱۴"),
        ("```\nx = ٢٥ # رقم ١٢\n```", "٢٥١٢"),
        ("# ٢٥", "٢٥"),
    ] {
        let it = shown(text, 600.0);
        let twice = painted(&it, digits);
        // Bold letters are painted twice.
        let mut letters: Vec<char> = twice.chars().collect();
        if text.starts_with('#') {
            letters = letters.chunks(2).map(|pair| pair[0]).collect();
        }
        assert_eq!(letters.into_iter().collect::<String>(), seen, "{text}");
    }
}

/// Labels, buttons and hints, which egui lays out itself.
#[test]
fn numbers_of_widgets_are_painted_as_they_are_read() {
    let mut it = shown_with(MarkdownDocument::default(), 400.0, |ui, _| {
        ui.label("٢٠١٣ and ۱۴");
        _ = ui.button("رقم ٤٥");
    });
    it.run_steps(2);
    assert_eq!(painted(&it, "٠١٢٣٤٥۱۴"), "٢٠١٣۱۴٤٥");
}

#[test]
fn words_of_widgets_are_in_the_order_in_which_they_are_read() {
    let mut it = shown_with(MarkdownDocument::default(), 400.0, |ui, _| {
        ui.label("שלום עולם (12)");
        _ = ui.button("ab אבג דהו");
        ui.scope(|ui| {
            ui.set_max_width(60.0);
            ui.add(egui::Label::new("אבג דהו זחט אבג דהו").truncate());
        });
    });
    it.run_steps(2);
    let words: Vec<String> = texts(&it).into_iter().map(|(galley, _)| galley.job.text.clone()).collect();
    assert_eq!(words[..2], ["(12) עולם שלום", "ab דהו אבג"]);
    assert!(words[2].starts_with('…') && words[2].ends_with("אבג"), "the first words are kept: {words:?}");
    let (galley, _) = texts(&it).into_iter().nth(2).unwrap();
    assert!(galley.size().x <= 60.0, "{}", galley.size().x);
    it.get_by_label("שלום עולם (12)");
}

/// Number of vertices of the letters in the text that contains these words.
fn vertices(it: &Harness<'_, MarkdownDocument>, words: &str) -> usize {
    let found = texts(it).into_iter().find(|(galley, _)| galley.text().contains(words));
    found.map_or(0, |(galley, _)| galley.rows.iter().map(|row| row.row.visuals.glyph_vertex_range.len()).sum())
}

#[test]
fn letters_without_a_bold_face_are_bold() {
    for words in ["火水", "שלום", "مرحبا", "٢٥"] {
        let plain = vertices(&shown(words, 400.0), words);
        let mut it = shown(&format!("**{words}**"), 400.0);
        assert_eq!(vertices(&it, words), 2 * plain, "{words}");
        assert_eq!(vertices(&shown(&format!("# {words}"), 400.0), words), 2 * plain, "{words} as a heading");
        let place = place(&it, words);
        assert_eq!(selected(&mut it, place.left_top(), place.right_bottom()), words);
    }
    assert_eq!(vertices(&shown("**bold é**", 400.0), "bold"), vertices(&shown("bold é", 400.0), "bold"));
    assert_eq!(vertices(&shown("**bold** 火 שלום", 400.0), "火"), vertices(&shown("bold 火 שלום", 400.0), "火"));
}

/// Words in bold, struck through or italic, in the order of painting.
fn marked(it: &Harness<'_, MarkdownDocument>) -> Vec<String> {
    let mut marked = Vec::new();
    for (galley, _) in texts(it) {
        for section in &galley.job.sections {
            let format = &section.format;
            let is_marked =
                format.font_id.family == fonts::strong() || format.italics || format.strikethrough.width > 0.0;
            if is_marked && format.line_height.is_none() {
                marked.push(galley.job.text[section.byte_range.start.0..section.byte_range.end.0].to_owned());
            }
        }
    }
    marked
}

#[test]
fn marks_beside_scripts_without_spaces_are_read() {
    for (text, plain, words) in [
        ("含**「重点」**内容。", "含「重点」内容。", vec!["「重点」"]),
        (
            "**注意：**请先保存。这是**“专有名词”**的意思，**不变。**后面",
            "注意：请先保存。这是“专有名词”的意思，不变。后面",
            vec!["注意：", "“专有名词”", "不变。"],
        ),
        ("これは**「大切」**です。**重要！**次へ。", "これは「大切」です。重要！次へ。", vec!["「大切」", "重要！"]),
        ("- **第一步：**打开文件", "第一步：打开文件", vec!["第一步："]),
        ("한국어**\"중요\"**라고", "한국어\"중요\"라고", vec!["\"중요\""]),
        ("含*（重点）*内容~~（旧）~~的", "含（重点）内容（旧）的", vec!["（重点）", "（旧）"]),
        ("用**`码`**吧", "用码吧", vec![]),
        ("用**（$x$）**吧", "用（x）吧", vec!["（", "）"]),
        ("| 名 |\n|---|\n| 含**「点」**的 |", "含「点」的", vec!["名", "「点」"]),
    ] {
        let it = shown(text, 900.0);
        place(&it, plain);
        assert_eq!(marked(&it), words, "{text}");
    }
    let it = shown("Controls: a**b**c, snake_case_name, 2*3*4, 5 * 3 * 2, **bold**, \\*not\\*, *$*alpha.", 900.0);
    place(&it, "Controls: abc, snake_case_name, 234, 5 * 3 * 2, bold, *not*, *$*alpha.");
    assert_eq!(marked(&it), ["b", "3", "bold"]);
}

#[test]
fn marks_between_amounts_of_money_are_read() {
    let it = shown("so both are $9.50; **$3** off [the page](https://a.org) for `x` at $5, and $x$.", 700.0);
    place(&it, "so both are $9.50; $3 off the page for x at $5, and x.");
    assert_eq!(marked(&it), ["$3"]);
    it.get_by_role_and_label(egui::accesskit::Role::Link, "the page");
}

#[test]
fn bare_addresses_are_links_and_environments_formulas() {
    let it = shown(
        "See https://example.org/a_b_c, or `https://c.org`.\n\n\\begin{align}\na &= b \\\\\n&= c\n\\end{align}",
        700.0,
    );
    it.get_by_role_and_label(egui::accesskit::Role::Link, "https://example.org/a_b_c");
    assert_eq!(it.query_all_by_role(egui::accesskit::Role::Link).count(), 1);
    place(&it, "\\begin{align} a &= b \\\\ &= c \\end{align}");
}

#[test]
fn marks_of_lists_are_at_the_side_where_their_words_begin() {
    let it = shown("1. رقم\n2. שלום\n\n> שלום\n\n- רגיל\n- 12", 500.0);
    for (mark, words) in [("1.", "رقم"), ("2.", "שלום")] {
        let (mark, words) = (place(&it, mark), it.get_all_by_label(words).next().unwrap().rect());
        assert!(mark.left() >= words.right() && mark.left() - words.right() < 12.0, "{mark:?} {words:?}");
        assert!((mark.center().y - words.center().y).abs() < 4.0, "{mark:?} {words:?}");
    }
    let marks: Vec<f32> = it.get_all_by_label("•").map(|mark| mark.rect().left()).collect();
    assert!(marks[0] > 400.0 && marks[1] < 100.0, "a number alone begins at the left: {marks:?}");
    let bar = it.output().shapes.iter().find_map(|shape| match &shape.shape {
        egui::Shape::LineSegment { points, .. } => Some(points[0].x),
        _ => None,
    });
    assert!(bar.is_some_and(|x| x > 400.0), "{bar:?}");
}

#[test]
fn tables_divide_lines_between_words() {
    let cell = "antidisestablishmentarianism is one long word";
    let row = format!("|{}\n", format!(" {cell} |").repeat(8));
    let it = shown(&format!("{row}|{}\n{row}", "---|".repeat(8)), 1000.0);
    let mut lines = 0;
    for (galley, _) in texts(&it) {
        for pair in galley.rows.windows(2) {
            lines += 1;
            let last = pair[0].row.glyphs.last().map(|glyph| glyph.chr);
            assert!(last.is_some_and(char::is_whitespace), "{:?} ends within a word", pair[0].row.text());
        }
    }
    assert!(lines > 0, "cells have several lines");
    let it =
        shown("| a | b |\n|---|--:|\n| x | words that are so many that they need more than one line here |", 300.0);
    let (galley, _) = texts(&it).into_iter().find(|(galley, _)| galley.rows.len() > 1).unwrap();
    let ink = |row: &egui::epaint::text::PlacedRow| row.pos.x + row.row.visuals.mesh_bounds.right();
    let rights: Vec<f32> = galley.rows.iter().map(ink).collect();
    assert!(rights.iter().all(|right| (right - rights[0]).abs() < 2.5), "all end at the right: {rights:?}");
}

#[test]
fn a_bar_shows_that_code_goes_on() {
    let bars = |text: &str| {
        let it = shown(text, 300.0);
        let is_bar = |shape: &egui::Shape| match shape {
            egui::Shape::Rect(rect) => rect.rect.height() < 12.0 && rect.fill.a() > 60,
            _ => false,
        };
        it.output().shapes.iter().filter(|clipped| is_bar(&clipped.shape)).count()
    };
    let long = "word ".repeat(60);
    assert_eq!((bars("```\nshort\n```"), bars(&format!("```\n{long}\n```"))), (0, 1));
}

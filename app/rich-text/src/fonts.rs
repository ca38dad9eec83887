//! Fonts of text, code and formulas. Emoji use the system's font if it has coloured glyphs.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use egui::{
    Context, FontData, FontDefinitions, FontFamily, FontInsert, FontPriority,
    epaint::text::{FontsView, InsertFontFamily},
};
use fontique::{
    Collection, CollectionOptions, GenericFamily, QueryFamily, QueryStatus, SourceCache, SourceCacheOptions,
};

/// Fonts of formulas, from KaTeX.
const FORMULA: &str = "\
    AMS-Regular Caligraphic-Regular Fraktur-Bold Fraktur-Regular Main-Bold Main-BoldItalic Main-Italic Main-Regular \
    Math-BoldItalic Math-Italic SansSerif-Bold SansSerif-Italic SansSerif-Regular Script-Regular Size1-Regular \
    Size2-Regular Size3-Regular Size4-Regular Typewriter-Regular";

/// The font of code.
const MONOSPACE: &[u8] = include_bytes!("../../../assets/fonts/JetBrainsMono-Regular.ttf");

/// Tag of the feature that joins letters of code, and an unused tag that keeps the tags sorted.
const LIGATURES: &[u8; 4] = b"calt";
const UNUSED: &[u8; 4] = b"calx";

/// Tables of coloured glyphs. One of them suffices.
const COLOURS: [&[u8]; 3] = [b"COLR", b"CBDT", b"sbix"];

/// Set when emoji use the system's font.
static SYSTEM_EMOJI: AtomicBool = AtomicBool::new(false);

/// The font family of headings, bold words and primary buttons.
pub fn strong() -> FontFamily {
    FontFamily::Name("strong".into())
}

/// The family with only our bold face. Letters that it lacks have no bold form.
fn bold() -> FontFamily {
    FontFamily::Name("bold".into())
}

/// True for letters without a bold form in the family [`strong`]. They come from another face with
/// normal weight.
pub fn is_thin(fonts: &mut FontsView<'_>, letter: char) -> bool {
    !letter.is_ascii() && !fonts.characters(&bold()).contains_key(&letter)
}

/// The font family of emoji.
pub fn emoji() -> FontFamily {
    FontFamily::Name("emoji".into())
}

/// The family of a formula font such as `Math-Italic`.
pub fn formula(font: &str) -> FontFamily {
    let known = FORMULA.split(' ').any(|name| name == font);
    if known { FontFamily::Name(format!("formula {font}").into()) } else { FontFamily::Proportional }
}

/// All fonts included in the program.
pub fn definitions() -> FontDefinitions {
    let mut fonts = FontDefinitions::default();
    for (name, bytes) in [
        ("Inter", &include_bytes!("../../../assets/fonts/Inter-Regular.otf")[..]),
        ("Inter SemiBold", include_bytes!("../../../assets/fonts/Inter-SemiBold.otf")),
    ] {
        fonts.font_data.insert(name.to_owned(), Arc::new(FontData::from_static(bytes)));
    }
    fonts.font_data.insert("JetBrains Mono".to_owned(), Arc::new(FontData::from_owned(without_ligatures(MONOSPACE))));
    let fallback = fonts.families.get(&FontFamily::Proportional).cloned().unwrap_or_default();
    let chain = |first: &str| [vec![first.to_owned()], fallback.clone()].concat();
    fonts.families.insert(strong(), chain("Inter SemiBold"));
    fonts.families.insert(bold(), vec!["Inter SemiBold".to_owned()]);
    fonts.families.insert(FontFamily::Proportional, chain("Inter"));
    fonts.families.insert(FontFamily::Monospace, chain("JetBrains Mono"));
    fonts.families.insert(emoji(), fallback.clone());
    for font in FORMULA.split(' ') {
        let Some(bytes) = ratex_katex_fonts::ttf_bytes(&format!("KaTeX_{font}.ttf")) else { continue };
        let name = format!("KaTeX {font}");
        fonts.font_data.insert(name.clone(), Arc::new(FontData::from_owned(bytes.into_owned())));
        fonts.families.insert(formula(font), chain(&name));
    }
    fonts
}

/// All fonts of a window, including system fonts found so far.
pub fn loaded(ctx: &Context) -> FontDefinitions {
    ctx.fonts(|fonts| {
        let mut loaded = fonts.definitions().clone();
        for FontInsert { name, data, families } in fonts.discovered_fonts() {
            loaded.font_data.insert(name.clone(), Arc::new(data.clone()));
            for InsertFontFamily { family, .. } in families {
                loaded.families.entry(family.clone()).or_default().push(name.clone());
            }
        }
        loaded
    })
}

/// A font without the feature that joins `->` or `!=` into one sign, so that code is shown as
/// written.
fn without_ligatures(font: &[u8]) -> Vec<u8> {
    let mut font = font.to_vec();
    for at in feature_tags(&font, LIGATURES).unwrap_or_default() {
        if let Some(tag) = font.get_mut(at..at + UNUSED.len()) {
            tag.copy_from_slice(UNUSED);
        }
    }
    font
}

/// Positions of a feature's tag in the substitution table of a font file (OpenType, "GSUB",
/// "Feature List table").
fn feature_tags(font: &[u8], tag: &[u8; 4]) -> Option<Vec<usize>> {
    let bytes = |at: usize| font.get(at..at.checked_add(4)?);
    let number = |at: usize| Some(usize::from(u16::from_be_bytes(bytes(at)?.first_chunk().copied()?)));
    let record = (0..number(4)?).map(|table| 12 + 16 * table).find(|at| bytes(*at) == Some(b"GSUB"))?;
    let table = u32::from_be_bytes(bytes(record + 8)?.try_into().ok()?) as usize;
    let list = table.checked_add(number(table.checked_add(6)?)?)?;
    let records = (0..number(list)?).map(|feature| list + 2 + 6 * feature);
    Some(records.filter(|at| bytes(*at) == Some(tag)).collect())
}

/// Loads the system's emoji font on a thread, because finding it takes longer than a frame. It then
/// comes before other emoji fonts.
pub fn load_emoji(ctx: &Context) {
    let ctx = ctx.clone();
    let work = move || {
        if let Some(data) = system_emoji() {
            let families = vec![InsertFontFamily { family: emoji(), priority: FontPriority::Highest }];
            ctx.add_font(FontInsert { name: "system emoji".to_owned(), data, families });
            SYSTEM_EMOJI.store(true, Ordering::Relaxed);
            ctx.request_repaint();
        }
    };
    // Without a thread, emoji have no colours.
    let _ = thread::Builder::new().name("emoji".to_owned()).spawn(work);
}

/// True after [`load_emoji`] has found a font. Emoji then have the widths of that font.
pub fn has_system_emoji() -> bool {
    SYSTEM_EMOJI.load(Ordering::Relaxed)
}

/// The system's emoji font, if it has coloured glyphs.
fn system_emoji() -> Option<FontData> {
    let mut fonts = Collection::new(CollectionOptions { shared: false, system_fonts: true });
    let mut cache = SourceCache::new(SourceCacheOptions::default());
    let mut query = fonts.query(&mut cache);
    query.set_families([QueryFamily::Generic(GenericFamily::Emoji)]);
    let mut found = None;
    query.matches_with(|font| {
        if !has_colours(font.blob.as_ref(), font.index) {
            return QueryStatus::Continue;
        }
        found = Some(FontData::from_blob(font.blob.clone().into_raw_parts().0, font.index));
        QueryStatus::Stop
    });
    found
}

/// True if the face at this index of a font file (OpenType, "Organization of an OpenType font") has
/// a table of coloured glyphs.
fn has_colours(file: &[u8], index: u32) -> bool {
    tables(file, index).is_some_and(|found| COLOURS.iter().any(|name| found.contains(name)))
}

/// Names of a face's tables.
fn tables(file: &[u8], index: u32) -> Option<Vec<&[u8]>> {
    let bytes = |range: Range<usize>| file.get(range);
    let number = |at: usize| Some(u32::from_be_bytes(bytes(at..at.checked_add(4)?)?.try_into().ok()?) as usize);
    let collection = file.starts_with(b"ttcf");
    if collection && number(8)? <= index as usize {
        return None;
    }
    let start = if collection { number((index as usize).checked_mul(4)?.checked_add(12)?)? } else { 0 };
    let count = u16::from_be_bytes(bytes(start.checked_add(4)?..start.checked_add(6)?)?.try_into().ok()?);
    Some((0..usize::from(count)).filter_map(|table| bytes(start + 12 + 16 * table..start + 16 + 16 * table)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_font_of_formulas_is_there() {
        let fonts = definitions();
        for font in FORMULA.split(' ') {
            assert!(fonts.families[&formula(font)][0].starts_with("KaTeX"), "{font}");
        }
        assert_eq!(formula("Unknown"), FontFamily::Proportional);
    }

    #[test]
    fn fonts_with_colours_are_known_by_their_tables() {
        let font = |names: &[&[u8; 4]], start: u32| {
            let mut file = vec![0, 1, 0, 0, 0, u8::try_from(names.len()).unwrap(), 0, 0, 0, 0, 0, 0];
            names.iter().for_each(|name| file.extend([&name[..], &[0; 12]].concat()));
            if start > 0 { [&b"ttcf\0\x02\0\0\0\0\0\x01\0\0\0\x10"[..], &file].concat() } else { file }
        };
        assert!(has_colours(&font(&[b"cmap", b"COLR"], 0), 0) && has_colours(&font(&[b"sbix"], 0), 0));
        assert!(!has_colours(&font(&[b"cmap", b"glyf"], 0), 0));
        let collection = font(&[b"CBDT"], 16);
        assert!(has_colours(&collection, 0) && !has_colours(&collection, 7));
        let whole = font(&[b"cmap", b"COLR"], 0);
        assert!((0..32).all(|end| !has_colours(&whole[..end.min(whole.len())], 0)), "nor is one that ends early");
    }

    #[test]
    fn letters_of_code_are_not_joined() {
        let plain = without_ligatures(MONOSPACE);
        let found = |font: &[u8], tag| feature_tags(font, tag).map(|places| places.len());
        assert_eq!((found(MONOSPACE, LIGATURES), found(&plain, LIGATURES)), (Some(1), Some(0)));
        assert_eq!(found(&plain, UNUSED), Some(1));
        assert!((0..400).all(|end| feature_tags(&MONOSPACE[..end], LIGATURES).is_none()), "one that ends early");

        let (mut fonts, joined) = (definitions(), FontFamily::Name("joined".into()));
        fonts.font_data.insert("joined".to_owned(), Arc::new(FontData::from_static(MONOSPACE)));
        fonts.families.insert(joined.clone(), vec!["joined".to_owned()]);
        let mut it = egui_kittest::Harness::new_ui(|_| ());
        it.ctx.set_fonts(fonts);
        it.run_steps(2);
        let glyphs = |text: &str, family: &FontFamily| {
            // Letters are 12 whole pixels wide. A letter that begins inside a pixel would have a
            // picture of its own.
            let font = egui::FontId::new(20.0, family.clone());
            let galley = it.ctx.fonts_mut(|fonts| fonts.layout_no_wrap(text.to_owned(), font, egui::Color32::WHITE));
            let glyphs = galley.rows.iter().flat_map(|row| row.glyphs.clone());
            glyphs.map(|glyph| (glyph.chr, glyph.uv_rect.min, glyph.uv_rect.max)).collect::<Vec<_>>()
        };
        for pair in ["->", "!=", "=>", "<="] {
            let are_apart = |family: &FontFamily| {
                let apart: Vec<_> = pair.chars().flat_map(|letter| glyphs(&letter.to_string(), family)).collect();
                glyphs(pair, family) == apart
            };
            assert!(are_apart(&FontFamily::Monospace) && !are_apart(&joined), "{pair}");
        }
    }
}

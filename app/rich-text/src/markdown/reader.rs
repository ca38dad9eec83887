//! Reads Markdown into blocks: CommonMark with GitHub's tables, footnotes, tasks and strikethrough,
//! LaTeX formulas, and the few inline HTML tags that models write.

use std::collections::{BTreeMap, HashMap};

use pulldown_cmark::{Alignment, BrokenLink, CodeBlockKind, Event, Options, Parser, Tag, TagEnd, TextMergeStream};

use super::{
    code_colours::CodeColours,
    document::{Block, Item, texts},
    emphasis::parted,
    formula::Formula,
    list_code::indented,
    math_text::dollars,
    paragraph::{Paragraph, Style},
    raw_html,
    stand_in::restored,
    table::Table,
    web_address::addresses,
};

/// Laid-out formulas, by source and by whether they are on a line of their own.
pub type Formulas = HashMap<(String, bool), Formula>;

/// Targets of links defined elsewhere, by label in lower case.
pub type Targets = BTreeMap<String, String>;

/// Longest name of an image that is shown, in characters.
const NAME: usize = 80;

/// The label and target of a link defined by this line.
pub fn definition(line: &str) -> Option<(String, String)> {
    let (label, target) = line.trim_start().strip_prefix('[')?.split_once("]:")?;
    let target = target.split_whitespace().next()?.trim_start_matches('<').trim_end_matches('>');
    (!label.trim().is_empty() && !label.starts_with('^')).then(|| (label.trim().to_lowercase(), target.to_owned()))
}

/// Reads a text. Reuses `known` formulas, and resolves links by `targets` from other texts. Line
/// breaks are kept, because models mean them; Markdown would join the lines.
pub fn read(text: &str, known: &Formulas, targets: &Targets) -> (Vec<Block>, Formulas) {
    let options = Options::ENABLE_TABLES
        | Options::ENABLE_STRIKETHROUGH
        // Otherwise single tildes, as in paths, would strike text through. They are shown as
        // written.
        | Options::ENABLE_SUBSCRIPT
        | Options::ENABLE_TASKLISTS
        | Options::ENABLE_OLD_FOOTNOTES
        | Options::ENABLE_MATH;
    let text = indented(text);
    let text = dollars(&text);
    let text = parted(&text);
    let text = raw_html::ended(&text);
    let mut reader = Reader {
        known,
        formulas: Formulas::new(),
        blocks: vec![Vec::new()],
        lists: Vec::new(),
        paragraph: None,
        level: None,
        code: None,
        table: None,
        notes: Vec::new(),
        styles: Vec::new(),
        image: None,
        raw: false,
    };
    let target = |link: BrokenLink<'_>| {
        let target = targets.get(&restored(&link.reference).trim().to_lowercase())?;
        Some((target.clone().into(), "".into()))
    };
    for event in TextMergeStream::new(Parser::new_with_broken_link_callback(&text, options, Some(target))) {
        reader.read(event);
    }
    reader.finish();
    (reader.blocks.into_iter().flatten().collect(), reader.formulas)
}

/// State of the reader: the open blocks.
struct Reader<'a> {
    known: &'a Formulas,
    formulas: Formulas,
    /// Blocks of each open container, outermost first.
    blocks: Vec<Vec<Block>>,
    lists: Vec<(Option<u64>, Vec<Item>)>,
    paragraph: Option<Paragraph>,
    level: Option<u8>,
    code: Option<(String, String)>,
    table: Option<Table>,
    /// Names of the open footnotes.
    notes: Vec<String>,
    /// Styles of the open marks, innermost last. Each includes the styles around it.
    styles: Vec<(Mark, Style)>,
    /// Target and name of an image.
    image: Option<(String, String)>,
    /// True inside an HTML element whose content is shown as written.
    raw: bool,
}

/// An inline mark with a beginning and an end.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Mark {
    Markdown,
    Html(String),
}

impl Reader<'_> {
    fn add(&mut self, block: Block) {
        if let Some(blocks) = self.blocks.last_mut() {
            blocks.push(block);
        }
    }

    /// Ends the open paragraph if it has text.
    fn finish(&mut self) {
        let Some(mut paragraph) = self.paragraph.take() else { return };
        paragraph.trim_end();
        if !paragraph.is_empty() {
            texts(self.level, paragraph).into_iter().for_each(|block| self.add(block));
        }
    }

    fn open(&mut self) {
        self.finish();
        self.blocks.push(Vec::new());
    }

    fn close(&mut self) -> Vec<Block> {
        self.finish();
        self.blocks.pop().unwrap_or_default()
    }

    fn style(&self) -> Style {
        self.styles.last().map_or_else(Style::default, |(_, style)| *style)
    }

    fn text(&mut self, words: &str) {
        let words = restored(words);
        let style = self.style();
        match (&mut self.code, &mut self.image) {
            (Some((_, code)), _) => code.push_str(&words),
            (None, Some((_, name))) => name.push_str(&words),
            (None, None) => self.linked(&words, style),
        }
    }

    /// Appends text, with links for its addresses.
    fn linked(&mut self, words: &str, style: Style) {
        let mut written = 0;
        let found = if style.link.is_none() { addresses(words) } else { Vec::new() };
        for address in found {
            let paragraph = self.words();
            paragraph.push(&words[written..address.start], style);
            written = address.end;
            let link = Some(paragraph.add_link(&words[address.clone()]));
            paragraph.push(&words[address], Style { link, ..style });
        }
        self.words().push(&words[written..], style);
    }

    /// The open paragraph. In lists, text arrives without a paragraph event.
    fn words(&mut self) -> &mut Paragraph {
        self.paragraph.get_or_insert_with(Paragraph::default)
    }

    /// Appends a line end, except at the beginning of a paragraph.
    fn line_end(&mut self) {
        if self.code.is_some() || self.image.is_some() || self.paragraph.as_ref().is_some_and(|it| !it.is_empty()) {
            self.text("\n");
        }
    }

    fn formula(&mut self, source: &str, display: bool) {
        let source = &*restored(source);
        if let Some((_, name)) = &mut self.image {
            return name.push_str(source);
        }
        let key = (source.to_owned(), display);
        let laid_out = self.known.get(&key).cloned();
        let formula =
            self.formulas.entry(key).or_insert_with(|| laid_out.unwrap_or_else(|| Formula::new(source, display)));
        let formula = formula.clone();
        let style = self.style();
        if !display || self.table.is_some() || formula.size().is_none() {
            return self.words().push_formula(formula, style);
        }
        self.finish();
        let mut paragraph = Paragraph::default();
        paragraph.push_formula(formula, Style::default());
        self.add(Block::Formula(paragraph));
    }

    fn read(&mut self, event: Event<'_>) {
        match event {
            Event::Start(tag) => self.start(tag),
            Event::End(tag) => self.end(tag),
            Event::Text(words) => self.text(&words),
            Event::Code(words) => match &mut self.image {
                Some((_, name)) => name.push_str(&restored(&words)),
                None => {
                    let style = Style { code: true, ..self.style() };
                    self.words().push(&restored(&words), style);
                }
            },
            Event::InlineMath(source) => self.formula(&source, false),
            Event::DisplayMath(source) => self.formula(&source, true),
            Event::Html(words) if self.raw || raw_html::opens(&words) => {
                self.raw = true;
                self.text(&words);
            }
            Event::Html(words) | Event::InlineHtml(words) => self.html(&restored(&words)),
            Event::FootnoteReference(name) => {
                let style = Style { raised: true, ..self.style() };
                self.words().push(&format!("[{}]", restored(&name)), style);
            }
            Event::SoftBreak | Event::HardBreak => self.line_end(),
            Event::Rule => {
                self.finish();
                self.add(Block::Rule);
            }
            Event::TaskListMarker(done) => self.text(if done { "☑ " } else { "☐ " }),
        }
    }

    /// Applies an inline HTML tag. Unknown tags are shown as written.
    fn html(&mut self, written: &str) {
        let name = written.trim().trim_start_matches('<').trim_end_matches(['>', '/', ' ']).to_ascii_lowercase();
        if name == "br" {
            return self.text("\n");
        }
        if let Some(name) = name.strip_prefix('/')
            && let Some(at) = self.styles.iter().rposition(|(mark, _)| *mark == Mark::Html(name.to_owned()))
        {
            self.styles.remove(at);
            return;
        }
        let style = self.style();
        let style = match name.as_str() {
            "b" | "strong" => Style { strong: true, ..style },
            "i" | "em" => Style { italic: true, ..style },
            "u" | "ins" => Style { underlined: true, ..style },
            "s" | "del" => Style { struck: true, ..style },
            "code" | "kbd" => Style { code: true, ..style },
            "sup" => Style { raised: true, ..style },
            "sub" => Style { lowered: true, ..style },
            _ => return self.text(written),
        };
        self.styles.push((Mark::Html(name), style));
    }

    fn mark(&mut self, style: Style) {
        self.styles.push((Mark::Markdown, style));
    }

    fn start(&mut self, tag: Tag<'_>) {
        let style = self.style();
        match tag {
            Tag::Paragraph | Tag::HtmlBlock => self.finish(),
            Tag::Heading { level, .. } => {
                self.finish();
                self.level = Some(level as u8);
            }
            Tag::BlockQuote(_) => self.open(),
            Tag::CodeBlock(kind) => {
                self.finish();
                let language = match &kind {
                    CodeBlockKind::Fenced(info) => info.split_whitespace().next().unwrap_or_default(),
                    CodeBlockKind::Indented => "",
                };
                self.code = Some((restored(language).into_owned(), String::new()));
            }
            Tag::List(first) => {
                self.finish();
                self.lists.push((first, Vec::new()));
            }
            Tag::Item => self.open(),
            Tag::FootnoteDefinition(name) => {
                self.open();
                self.notes.push(restored(&name).into_owned());
            }
            Tag::Table(columns) => {
                self.finish();
                let align = |alignment: &Alignment| match alignment {
                    Alignment::Right => egui::Align::RIGHT,
                    Alignment::Center => egui::Align::Center,
                    Alignment::Left | Alignment::None => egui::Align::LEFT,
                };
                self.table = Some(Table::new(columns.iter().map(align).collect()));
            }
            Tag::TableHead | Tag::TableRow => {
                if let Some(table) = &mut self.table {
                    table.begin_row();
                }
            }
            Tag::TableCell => self.paragraph = Some(Paragraph::default()),
            Tag::Emphasis => self.mark(Style { italic: true, ..style }),
            Tag::Strong => self.mark(Style { strong: true, ..style }),
            Tag::Subscript => self.text("~"),
            Tag::Strikethrough => self.mark(Style { struck: true, ..style }),
            Tag::Link { dest_url, .. } => {
                let link = Some(self.words().add_link(&restored(&dest_url)));
                self.mark(Style { link, ..style });
            }
            Tag::Image { dest_url, .. } => self.image = Some((restored(&dest_url).into_owned(), String::new())),
            _ => {}
        }
    }

    fn end(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Paragraph | TagEnd::Heading(_) | TagEnd::HtmlBlock => {
                self.finish();
                self.level = None;
                self.raw = false;
                self.styles.clear();
            }
            TagEnd::BlockQuote(_) => {
                let blocks = self.close();
                self.add(Block::Quote(blocks));
            }
            TagEnd::CodeBlock => {
                if let Some((language, code)) = self.code.take() {
                    self.add(Block::Code(language, code, CodeColours::default()));
                }
            }
            TagEnd::Item => {
                let blocks = self.close();
                if let Some((_, items)) = self.lists.last_mut() {
                    items.push(Item { blocks, size: None });
                }
            }
            TagEnd::List(_) => {
                if let Some((first, items)) = self.lists.pop() {
                    self.add(Block::List(first, items));
                }
            }
            TagEnd::FootnoteDefinition => {
                let blocks = self.close();
                if let Some(name) = self.notes.pop() {
                    self.add(Block::Note(name, blocks));
                }
            }
            TagEnd::TableCell => {
                let cell = self.paragraph.take().unwrap_or_default();
                if let Some(table) = &mut self.table {
                    table.add_cell(cell);
                }
                self.styles.clear();
            }
            TagEnd::Table => {
                if let Some(table) = self.table.take() {
                    self.add(Block::Table(table));
                }
            }
            TagEnd::Emphasis | TagEnd::Strong | TagEnd::Strikethrough | TagEnd::Link => {
                if let Some(at) = self.styles.iter().rposition(|(mark, _)| *mark == Mark::Markdown) {
                    self.styles.truncate(at);
                }
            }
            TagEnd::Subscript => self.text("~"),
            TagEnd::Image => self.end_image(),
            _ => {}
        }
    }

    /// Shows an image as its name. Reading a text never fetches anything.
    fn end_image(&mut self) {
        let Some((url, name)) = self.image.take() else { return };
        let style = self.style();
        let file = url.rsplit('/').next().filter(|file| !file.is_empty() && !url.starts_with("data:"));
        let name = if name.trim().is_empty() { file.unwrap_or("image") } else { name.trim() };
        let name: String = name.chars().take(NAME).collect();
        let link = (!url.starts_with("data:")).then(|| self.words().add_link(&url));
        self.words().push(&format!("🖼 {name}"), Style { link: link.or(style.link), ..style });
    }
}

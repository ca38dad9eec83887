//! A text in Markdown, as blocks.

use egui::{TextStyle, Ui};

use super::{
    code_colours::CodeColours,
    paragraph::{Paragraph, Style},
    reader::{self, Formulas, Targets},
    table::Table,
};

/// A block.
#[derive(Debug)]
pub enum Block {
    /// Text.
    Text {
        /// Level of a heading, from 1 to 6.
        level: Option<u8>,
        /// The words.
        paragraph: Paragraph,
        /// True if the next block goes on with it.
        goes_on: bool,
    },
    /// A formula on a line of its own.
    Formula(Paragraph),
    /// Items, numbered from the first number if there is one.
    List(Option<u64>, Vec<Item>),
    /// A quotation.
    Quote(Vec<Block>),
    /// Code: its language, which may be empty, the text, and its colours.
    Code(String, String, CodeColours),
    /// A table.
    Table(Table),
    /// A note and its name.
    Note(String, Vec<Block>),
    /// A line across.
    Rule,
}

/// An item of a list.
#[derive(Debug)]
pub struct Item {
    /// From top to bottom.
    pub blocks: Vec<Block>,
    /// Width it was laid out for, and its height then.
    pub size: Option<(f32, f32)>,
}

impl Item {
    /// True if it begins at the right; `None` if it has no text.
    pub fn begins_right(&self) -> Option<bool> {
        self.blocks.iter().find_map(Block::begins_right)
    }
}

/// The blocks of a text.
#[derive(Debug, Default)]
pub struct MarkdownDocument {
    /// From top to bottom.
    pub(super) blocks: Vec<Block>,
    formulas: Formulas,
}

impl MarkdownDocument {
    /// Reads what the text has become: blocks that are as before keep their layout. `targets` are those of links that are defined
    /// elsewhere.
    pub fn read(&mut self, text: &str, targets: &Targets) {
        let before = std::mem::take(&mut self.blocks);
        (self.blocks, self.formulas) = reader::read(text, &self.formulas, targets);
        adopt(&mut self.blocks, before);
    }

    /// A text without marks: what people write is shown as they wrote it.
    pub fn plain(text: &str) -> Self {
        let mut paragraph = Paragraph::default();
        paragraph.push(text, Style::default());
        MarkdownDocument { blocks: texts(None, paragraph), ..MarkdownDocument::default() }
    }

    /// Width where no line is too long, of a text without marks.
    pub fn natural_width(&mut self, ui: &Ui) -> f32 {
        let size = TextStyle::Body.resolve(ui.style()).size;
        let width = |block: &mut Block| match block {
            Block::Text { paragraph, .. } => paragraph.natural_width(ui, size, false).line,
            _ => f32::INFINITY,
        };
        self.blocks.iter_mut().map(width).fold(0.0, f32::max)
    }
}

/// Blocks of one text, which may be long.
pub fn texts(level: Option<u8>, paragraph: Paragraph) -> Vec<Block> {
    let parts = paragraph.parts();
    let last = parts.len().saturating_sub(1);
    let block = |(at, paragraph)| Block::Text { level, paragraph, goes_on: at < last };
    parts.into_iter().enumerate().map(block).collect()
}

/// Gives blocks the layouts of those before them that look the same; true if all do.
fn adopt(blocks: &mut [Block], before: Vec<Block>) -> bool {
    let mut same = blocks.len() == before.len();
    for (block, before) in blocks.iter_mut().zip(before) {
        same &= block.adopt(before);
    }
    same
}

impl Block {
    /// True if it begins at the right; `None` if it has no text.
    pub fn begins_right(&self) -> Option<bool> {
        match self {
            Block::Text { paragraph, .. } => Some(paragraph.begins_right()),
            Block::List(_, items) => items.iter().find_map(Item::begins_right),
            Block::Quote(blocks) | Block::Note(_, blocks) => blocks.iter().find_map(Block::begins_right),
            Block::Formula(_) | Block::Code(..) | Block::Table(_) | Block::Rule => None,
        }
    }

    fn adopt(&mut self, before: Block) -> bool {
        match (self, before) {
            (
                Block::Text { level, paragraph, goes_on },
                Block::Text { level: level_before, paragraph: before, goes_on: went_on },
            ) => paragraph.adopt(before) && *level == level_before && *goes_on == went_on,
            (Block::Formula(paragraph), Block::Formula(before)) => paragraph.adopt(before),
            (Block::List(first, items), Block::List(first_before, before)) => {
                let mut same = *first == first_before && items.len() == before.len();
                for (item, before) in items.iter_mut().zip(before) {
                    let adopted = adopt(&mut item.blocks, before.blocks);
                    item.size = before.size.filter(|_| adopted);
                    same &= adopted;
                }
                same
            }
            (Block::Quote(blocks), Block::Quote(before)) => adopt(blocks, before),
            (Block::Code(language, text, colours), Block::Code(language_before, before, colours_before)) => {
                let same = (&*language, &*text) == (&language_before, &before);
                if same {
                    *colours = colours_before;
                }
                same
            }
            (Block::Table(table), Block::Table(before)) => table.adopt(before),
            (Block::Note(name, blocks), Block::Note(name_before, before)) => {
                adopt(blocks, before) && *name == name_before
            }
            (Block::Rule, Block::Rule) => true,
            _ => false,
        }
    }
}

//! A Markdown text as blocks.

use egui::{TextStyle, Ui};

use super::{
    code_colours::CodeColours,
    paragraph::{Paragraph, Style},
    reader::{self, Formulas, Targets},
    table::Table,
};

/// A block of a document.
#[derive(Debug)]
pub enum Block {
    /// Text.
    Text {
        /// Level of a heading, from 1 to 6.
        level: Option<u8>,
        /// The text.
        paragraph: Paragraph,
        /// True if the next block continues this text.
        goes_on: bool,
    },
    /// A formula on its own line.
    Formula(Paragraph),
    /// List items, numbered from the given number, or bullets.
    List(Option<u64>, Vec<Item>),
    /// A quotation.
    Quote(Vec<Block>),
    /// Code: its language (may be empty), its text, and its colours.
    Code(String, String, CodeColours),
    /// A table.
    Table(Table),
    /// A footnote and its name.
    Note(String, Vec<Block>),
    /// A horizontal rule.
    Rule,
}

/// A list item.
#[derive(Debug)]
pub struct Item {
    /// Blocks from top to bottom.
    pub blocks: Vec<Block>,
    /// Width that it was laid out for, and its resulting height.
    pub size: Option<(f32, f32)>,
}

impl Item {
    /// True if the item begins on the right; `None` if it has no text.
    pub fn begins_right(&self) -> Option<bool> {
        self.blocks.iter().find_map(Block::begins_right)
    }
}

/// A document: the blocks of a text.
#[derive(Debug, Default)]
pub struct MarkdownDocument {
    /// Blocks from top to bottom.
    pub(super) blocks: Vec<Block>,
    formulas: Formulas,
}

impl MarkdownDocument {
    /// Reads the new state of the text. Unchanged blocks keep their layout. `targets` are the
    /// targets of links defined in other texts.
    pub fn read(&mut self, text: &str, targets: &Targets) {
        let before = std::mem::take(&mut self.blocks);
        (self.blocks, self.formulas) = reader::read(text, &self.formulas, targets);
        adopt(&mut self.blocks, before);
    }

    /// A document of plain text, without Markdown. User messages are shown as written.
    pub fn plain(text: &str) -> Self {
        let mut paragraph = Paragraph::default();
        paragraph.push(text, Style::default());
        MarkdownDocument { blocks: texts(None, paragraph), ..MarkdownDocument::default() }
    }

    /// Width of the longest line of a plain text, in points.
    pub fn natural_width(&mut self, ui: &Ui) -> f32 {
        let size = TextStyle::Body.resolve(ui.style()).size;
        let width = |block: &mut Block| match block {
            Block::Text { paragraph, .. } => paragraph.natural_width(ui, size, false).line,
            _ => f32::INFINITY,
        };
        self.blocks.iter_mut().map(width).fold(0.0, f32::max)
    }
}

/// Splits one text, which may be long, into blocks.
pub fn texts(level: Option<u8>, paragraph: Paragraph) -> Vec<Block> {
    let parts = paragraph.parts();
    let last = parts.len().saturating_sub(1);
    let block = |(at, paragraph)| Block::Text { level, paragraph, goes_on: at < last };
    parts.into_iter().enumerate().map(block).collect()
}

/// Moves the layouts of `before` to equal blocks. Returns true if all blocks are equal.
fn adopt(blocks: &mut [Block], before: Vec<Block>) -> bool {
    let mut same = blocks.len() == before.len();
    for (block, before) in blocks.iter_mut().zip(before) {
        same &= block.adopt(before);
    }
    same
}

impl Block {
    /// True if the block begins on the right; `None` if it has no text.
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

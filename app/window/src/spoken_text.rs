//! Texts for screen readers.

use egui::{Context, FullOutput, Plugin, accesskit::Node};

/// The one character that the accessibility bus refuses. The bus disconnects a program that sends
/// it, and screen readers then lose the whole window.
const REFUSED: char = '\0';

/// Filters all texts of a frame for screen readers: replaces the [refused character](REFUSED),
/// which a model or a file may contain, with a space. A space also has one byte, so character
/// lengths stay correct.
#[derive(Debug)]
pub struct SpokenText;

impl Plugin for SpokenText {
    fn debug_name(&self) -> &'static str {
        "texts for screen readers"
    }

    fn output_hook(&mut self, _: &Context, output: &mut FullOutput) {
        if let Some(update) = &mut output.platform_output.accesskit_update {
            update.nodes.iter_mut().for_each(|(_, node)| purge(node));
        }
    }
}

fn purge(node: &mut Node) {
    let purged = |text: Option<&str>| text.filter(|text| text.contains(REFUSED)).map(|text| text.replace(REFUSED, " "));
    macro_rules! purge {
        ($($get:ident $set:ident),*) => {
            $(if let Some(text) = purged(node.$get()) {
                node.$set(text);
            })*
        };
    }
    purge!(label set_label, value set_value, description set_description);
    purge!(placeholder set_placeholder, tooltip set_tooltip, url set_url);
}

//! Texts as screen readers are told of them.

use egui::{Context, FullOutput, Plugin, accesskit::Node};

/// The one character that no text on the bus of screen readers may have. A program that sends it is cut off from the bus, and all of
/// its window is gone for them.
const REFUSED: char = '\0';

/// A filter of all texts of a frame on their way to screen readers: it gives a space for the [refused character](REFUSED), which a
/// model may say and a file may have. A space has one byte, too, so that the lengths of characters stay right.
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

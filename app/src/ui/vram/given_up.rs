//! Parts of GPUs that are done without, in a sentence each, and the way back.

use egui::Ui;
use thermocline_engine::session::{AdapterId, AdapterReport, Fallback, FallbackPart};

use crate::ui::{shell::Shell, widgets};

/// Label of the button that forgets them.
pub const TRY_AGAIN: &str = "Try again";

/// Those of the adapters that there are; of any as long as no driver has answered.
fn shown(all: Vec<Fallback>, adapters: Option<&[AdapterReport]>) -> Vec<Fallback> {
    let is_there = |it: &Fallback| {
        it.part == FallbackPart::Backend
            || adapters.is_none_or(|adapters| adapters.iter().any(|adapter| AdapterId::of(adapter) == it.adapter))
    };
    all.into_iter().filter(is_there).collect()
}

/// Says what is done without, if anything is.
pub fn show(ui: &mut Ui, shell: &mut Shell) {
    let fallbacks = shell.adapters.fallbacks();
    let shown = shown(fallbacks.all(), shell.adapters.list().as_deref());
    for fallback in &shown {
        widgets::muted(ui, format!("{fallback}."));
    }
    let hint = "Forgets what the driver has failed with, and loads the model anew";
    if !shown.is_empty() && ui.button(TRY_AGAIN).on_hover_text(hint).clicked() {
        shell.adapters.fallbacks().clear();
        shell.reload_device();
    }
}

#[cfg(test)]
mod tests {
    use thermocline_engine::session::{Fallbacks, adapters};

    use super::*;

    #[test]
    fn fallbacks_of_adapters_that_are_gone_are_not_shown() {
        let here = adapters(&Fallbacks::default());
        let adapter = AdapterId::of(&here[0]);
        let gone = AdapterId { driver: "another".to_owned(), ..adapter.clone() };
        let all = || [&adapter, &gone].map(|it| Fallback::new(it.clone(), FallbackPart::Adapter, "lost")).to_vec();
        assert_eq!(shown(all(), None).len(), 2);
        let shown = shown(all(), Some(&here));
        assert!(shown.len() == 1 && shown[0].adapter == adapter, "{shown:?}");
    }
}

//! Parts of GPUs that are done without, in a sentence each, and the way back.

use egui::Ui;
use thermocline_engine::session::{AdapterId, AdapterReport, Fallback, FallbackPart, Fallbacks};

use crate::ui::{shell::Shell, widgets};

/// Label of the button that forgets them.
pub const TRY_AGAIN: &str = "Try again";

/// Those of the adapters that there are; all that were seen here as long as no driver has answered.
fn shown(fallbacks: &Fallbacks, adapters: Option<&[AdapterReport]>) -> Vec<Fallback> {
    let all = fallbacks.all();
    let Some(adapters) = adapters else { return all };
    let backends = all.into_iter().filter(|it| it.part == FallbackPart::Backend);
    backends.chain(adapters.iter().flat_map(|adapter| fallbacks.of(&AdapterId::of(adapter)))).collect()
}

/// Says what is done without, if anything is.
pub fn show(ui: &mut Ui, shell: &mut Shell) {
    let fallbacks = shell.adapters.fallbacks();
    let shown = shown(fallbacks, shell.adapters.list().as_deref());
    for fallback in &shown {
        let said = widgets::muted(ui, format!("{fallback}."));
        if fallback.is_known() {
            said.on_hover_text("Known of this driver; `thermocline devices --try-again --force` uses it all the same");
        }
    }
    let hint = "Forgets what the driver has failed with, and loads the model anew";
    if shown.iter().any(|it| !it.is_known()) && ui.button(TRY_AGAIN).on_hover_text(hint).clicked() {
        shell.adapters.fallbacks().clear();
        shell.reload_device();
    }
}

#[cfg(test)]
mod tests {
    use thermocline_engine::session::adapters;

    use super::*;

    #[test]
    fn fallbacks_of_adapters_that_are_gone_are_not_shown() {
        let here = adapters(&Fallbacks::default());
        let adapter = AdapterId::of(&here[0]);
        let gone = AdapterId { driver: "another".to_owned(), ..adapter.clone() };
        let all = Fallbacks::default();
        // Of other places on the bus: those of one place with another driver would go.
        let gone = AdapterId { pci_bus_id: "another".to_owned(), ..gone };
        for it in [&adapter, &gone] {
            all.add(Fallback::new(it.clone(), FallbackPart::Adapter, "lost"));
        }
        assert_eq!(shown(&all, None).len(), 2);
        let shown = shown(&all, Some(&here));
        assert!(shown.len() == 1 && shown[0].adapter == adapter, "{shown:?}");
    }
}

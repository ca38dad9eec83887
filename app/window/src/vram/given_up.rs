//! Shows the disabled features of GPUs, a sentence each, with a button that enables them again.

use egui::Ui;
use thermocline_engine::session::{AdapterId, AdapterReport, Fallback, FallbackPart, Fallbacks};

use crate::shell::Shell;
use thermocline_rich_text::widgets;

/// Label of the button that enables the features again.
pub const TRY_AGAIN: &str = "Try again";

/// The fallbacks of present adapters. All known fallbacks until the drivers have answered.
fn shown(fallbacks: &Fallbacks, adapters: Option<&[AdapterReport]>) -> Vec<Fallback> {
    let all = fallbacks.all();
    let Some(adapters) = adapters else { return all };
    let of_backend = |it: &Fallback| matches!(it.part, FallbackPart::Backend | FallbackPart::Window);
    let backends = all.into_iter().filter(of_backend);
    backends.chain(adapters.iter().flat_map(|adapter| fallbacks.of(&AdapterId::of(adapter)))).collect()
}

/// Shows the disabled features, with a button per adapter or backend that enables them again.
pub fn show(ui: &mut Ui, shell: &mut Shell) {
    let mut left = shown(&shell.adapters.fallbacks, shell.adapters.list().as_deref());
    while let Some(adapter) = left.first().map(|first| first.adapter.clone()) {
        let (its, others): (Vec<_>, Vec<_>) = left.into_iter().partition(|it| it.adapter == adapter);
        left = others;
        for fallback in Fallback::worth_telling(&its) {
            let said = widgets::muted(ui, format!("{fallback}."));
            if fallback.is_known() {
                said.on_hover_text(
                    "This driver is known to have the fault. `thermocline devices --try-again --force` uses the feature anyway.",
                );
            }
        }
        let hint = "Enables the disabled features again and reloads the model";
        if its.iter().any(|it| !it.is_known()) && ui.button(TRY_AGAIN).on_hover_text(hint).clicked() {
            shell.adapters.fallbacks.try_again(&adapter);
            shell.reload_device();
        }
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
        // At another bus address. Entries for the same address with another driver would be
        // deleted.
        let gone = AdapterId { pci_bus_id: "another".to_owned(), ..gone };
        for it in [&adapter, &gone] {
            all.add(Fallback::new(it.clone(), FallbackPart::Adapter, "lost"));
        }
        assert_eq!(shown(&all, None).len(), 2);
        let shown = shown(&all, Some(&here));
        assert!(shown.len() == 1 && shown[0].adapter == adapter, "{shown:?}");
    }
}

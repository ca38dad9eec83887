//! A model on a card.

use egui::{ProgressBar, Rect, RichText, Ui, Vec2};
use thermocline_engine::sparsity::prepare::PreparePhase;

use super::{
    memory,
    preparation::{Preparation, PreparationStage},
};
use crate::{
    engine_handle::ModelState,
    library::{ModelCard, ModelId},
    ui::{command::Command, shell::Shell, theme, theme::Palette, widgets},
    units::{bytes, parameters},
};

/// An action on a card's model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deed {
    /// Prepare it, or go on with that.
    Prepare,
    /// Stop preparing it for now.
    Pause,
    /// Take the note about its preparation away.
    Dismiss,
}

/// Shows the card; `fit` says whether the model will fit, `preparation` is under way for some model, perhaps this one. It is as
/// high as the `least` of its neighbours or higher; returned with the height that it needs.
pub fn show(
    ui: &mut Ui,
    shell: &mut Shell,
    card: &ModelCard,
    fit: &str,
    preparation: Option<&Preparation>,
    least: f32,
) -> (Option<Deed>, f32) {
    widgets::card(ui, |ui| {
        let palette = Palette::of(ui);
        let state = shell.engine_handle.state();
        let open = matches!(&state, ModelState::Ready { model, .. } if *model == card.id);
        ui.horizontal(|ui| {
            ui.label(RichText::new(&card.name).font(theme::strong(15.0)));
            if open {
                ui.label(RichText::new("open").size(12.0).color(palette.good));
            }
        });
        if let ModelId::Path(path) = &card.id {
            widgets::muted(ui, path.display().to_string());
        }
        ui.label(RichText::new(facts(card)).size(12.0));
        widgets::muted(ui, sparsity(card));
        widgets::muted(ui, fit);
        let engine = match &state {
            ModelState::Ready { engine, .. } if open => Some(engine),
            _ => None,
        };
        memory::show(ui, shell, card, engine);
        let mut deed = None;
        ui.horizontal_wrapped(|ui| {
            opening(ui, shell, card, &state);
            deed = prepare_button(ui, card, preparation);
        });
        let mine = preparation.filter(|it| card.is_at(&it.path));
        if let Some(preparation) = mine {
            deed = progress(ui, shell, &card.name, preparation, open).or(deed);
        }
        let needed = ui.min_rect();
        ui.expand_to_include_rect(Rect::from_min_size(needed.min, Vec2::new(0.0, least)));
        (deed, needed.height())
    })
}

fn facts(card: &ModelCard) -> String {
    let experts = card.experts.map(|(count, used)| format!(", {used} of {count} experts")).unwrap_or_default();
    let mut facts = format!(
        "{} · {} · {} parameters · {} · {} tokens of context · {} layers of {} neurons{experts} · {} · {}",
        card.architecture,
        card.weight_type,
        parameters(card.parameters),
        bytes(card.bytes),
        card.context,
        card.layers,
        card.neurons,
        card.activation,
        card.container,
    );
    for text in card.traits.iter().chain([&card.expected_sparsity]) {
        facts.push_str(" · ");
        facts.push_str(text);
    }
    facts
}

fn sparsity(card: &ModelCard) -> String {
    match (card.predicted, card.recall) {
        (true, Some(recall)) => format!("Prepared: its predictors find {:.1} % of what fires.", 100.0 * recall),
        (true, None) => "It has predictors; their recall has not been measured.".to_owned(),
        (false, _) if card.prepared => "Prepared: it is known how often its neurons fire.".to_owned(),
        _ if card.activation.is_sparse() => {
            "Not prepared. Most of its neurons are silent; preparing finds out which can stay in RAM.".to_owned()
        }
        _ => "Not prepared. Its neurons are never quite silent; preparing finds those that say little.".to_owned(),
    }
}

fn opening(ui: &mut Ui, shell: &mut Shell, card: &ModelCard, state: &ModelState) {
    match state {
        ModelState::Ready { model, .. } if *model == card.id => {
            let button = ui.button("Close").accessible_name(format!("Close {}", card.name));
            if button.on_hover_text(format!("Close {} and free its memory", card.name)).clicked() {
                shell.queue_command(Command::CloseModel);
            }
        }
        ModelState::Opening(opening) if opening.model == card.id => {
            ui.spinner();
            widgets::muted(ui, format!("Opening for {} s", opening.since.elapsed().as_secs()));
            let button = ui.button("Cancel").accessible_name(format!("Cancel opening {}", card.name));
            if button.on_hover_text(format!("Do not open {}", card.name)).clicked() {
                shell.queue_command(Command::CloseModel);
            }
        }
        state => {
            let name = format!("Open {}", card.name);
            if ui.button("Open").accessible_name(&name).on_hover_text(name).clicked() {
                shell.queue_command(Command::OpenModel(card.id.clone()));
            }
            if let ModelState::Failed { model, reason } = state
                && *model == card.id
            {
                widgets::trouble(ui, reason);
            }
        }
    }
}

fn prepare_button(ui: &mut Ui, card: &ModelCard, preparation: Option<&Preparation>) -> Option<Deed> {
    // The built-in model is prepared.
    let ModelId::Path(path) = &card.id else { return None };
    let stage = preparation.map(|it| (it.path == *path, it.stage()));
    let text = match &stage {
        Some((true, PreparationStage::Running(_))) => return None,
        Some((true, PreparationStage::Paused)) => "Go on preparing",
        _ if card.prepared => "Prepare again",
        _ => "Prepare",
    };
    let other = matches!(&stage, Some((false, PreparationStage::Running(_))));
    let hint =
        format!("Find out which neurons of {} fire. Takes minutes to hours; chats go on, more slowly", card.name);
    let button = ui.add_enabled(!other, egui::Button::new(text)).accessible_name(format!("{text}: {}", card.name));
    let button = button.on_hover_text(hint);
    let button = button.on_disabled_hover_text("Another model is being prepared");
    button.clicked().then_some(Deed::Prepare)
}

fn progress(ui: &mut Ui, shell: &mut Shell, name: &str, preparation: &Preparation, open: bool) -> Option<Deed> {
    match preparation.stage() {
        PreparationStage::Running(progress) => {
            let (what, fraction, left) = match progress {
                None => ("Beginning".to_owned(), 0.0, None),
                Some(at) => {
                    let what = match at.phase {
                        PreparePhase::Reading => "1 of 4: reading text".to_owned(),
                        PreparePhase::Layers => match at.layer {
                            Some(layer) => format!("2 of 4: learning what fires in layer {layer}"),
                            None => "2 of 4: learning what fires".to_owned(),
                        },
                        PreparePhase::Inputs => "3 of 4: finding small inputs".to_owned(),
                        PreparePhase::Writing => "4 of 4: writing".to_owned(),
                    };
                    (what, at.done, at.seconds_left)
                }
            };
            let left = left.map(|seconds| format!(", {} left of it", widgets::duration(seconds))).unwrap_or_default();
            ui.add(ProgressBar::new(fraction as f32).text(format!("{what}, {:.0} %{left}", fraction * 100.0)));
            if preparation.is_pausing() {
                widgets::muted(ui, "Pausing …");
                return None;
            }
            let pause = ui.button("Pause").accessible_name(format!("Pause: {name}"));
            pause.on_hover_text("What is done is kept").clicked().then_some(Deed::Pause)
        }
        PreparationStage::Paused => {
            widgets::muted(ui, "Paused. What is done is kept beside the model.");
            None
        }
        PreparationStage::Done => {
            widgets::muted(ui, "Prepared.");
            if open && ui.button("Open it again, prepared").clicked() {
                shell.queue_command(Command::ReopenModel);
                return Some(Deed::Dismiss);
            }
            None
        }
        PreparationStage::Failed(reason) => {
            widgets::trouble(ui, format!("preparing failed: {reason}"));
            None
        }
    }
}

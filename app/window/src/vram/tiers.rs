//! The bar of the places in which a model's weights are: VRAM, RAM and the disk. It is shown for
//! models that are larger than the RAM that they may use.

use egui::Ui;
use thermocline_engine::{
    format::PagerFigures,
    session::{DeviceMemory, DeviceStatus, Engine, Purpose},
};

use super::bar::{self, BarScale, BarSegment};
use thermocline_host::units::bytes;
use thermocline_rich_text::{theme::Palette, widgets};

/// Shows the bar, if a pager decides which weights are in RAM.
pub fn show(ui: &mut Ui, engine: &Engine, status: &DeviceStatus) {
    let Some(pager) = engine.model().pager() else { return };
    let in_vram = match status {
        DeviceStatus::Gpu(memory) => weights_of(memory),
        _ => 0,
    };
    ui.add_space(4.0);
    draw(ui, &pager.figures(), in_vram);
}

/// Draws the bar of the weights that `figures` describe, of which `in_vram` bytes are in VRAM.
fn draw(ui: &mut Ui, figures: &PagerFigures, in_vram: u64) {
    let palette = Palette::of(ui);
    let places =
        [("in VRAM", palette.hot), ("in RAM", palette.cold), ("only on disk", palette.muted.gamma_multiply(0.5))];
    let part = |((name, colour), amount): ((&str, _), _)| BarSegment { name: name.to_owned(), amount, colour };
    let parts: Vec<BarSegment> = places.into_iter().zip(amounts(figures, in_vram)).map(part).collect();
    let parts: Vec<BarSegment> = parts.into_iter().filter(|part| part.amount > 0).collect();
    let scale = BarScale { total: figures.weights, end: None, format: bytes };
    bar::show(ui, "Weights of the model", &parts, scale, None);
    let read = match figures.read {
        0 => String::new(),
        read => format!(" So far, {} were read.", bytes(read)),
    };
    widgets::muted(
        ui,
        format!("The model is larger than the RAM that it may use. The disk is read while it computes.{read}"),
    );
}

/// Bytes in VRAM, in RAM, and only on the disk.
fn amounts(figures: &PagerFigures, in_vram: u64) -> [u64; 3] {
    let in_vram = in_vram.min(figures.weights);
    let in_ram = figures.present.min(figures.weights - in_vram);
    [in_vram, in_ram, figures.weights - in_vram - in_ram]
}

/// Bytes of the weights in a GPU's memory.
fn weights_of(memory: &DeviceMemory) -> u64 {
    let is_weight = |purpose: Purpose| match purpose {
        Purpose::Attention | Purpose::Ffn | Purpose::Head | Purpose::Predictor => true,
        Purpose::Vectors | Purpose::Kv | Purpose::Scratch | Purpose::Staging => false,
    };
    memory.by_purpose.iter().filter(|(purpose, _)| is_weight(*purpose)).map(|(_, bytes)| bytes).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use thermocline_rich_text::theme;

    const GIB: u64 = 1 << 30;

    fn figures(present: u64) -> PagerFigures {
        PagerFigures { weights: 20 * GIB, budget: 9 * GIB, present, read: 31 * GIB, requests: 1000 }
    }

    #[test]
    fn every_weight_is_in_one_place() {
        let of = |present: u64, in_vram: u64| amounts(&figures(present * GIB), in_vram * GIB).map(|it| it / GIB);
        assert_eq!(of(9, 4), [4, 9, 7]);
        assert_eq!(of(9, 0), [0, 9, 11]);
        assert_eq!(of(9, 15), [15, 5, 0]);
        assert_eq!(of(0, 30), [20, 0, 0]);
    }

    #[test]
    fn bar_of_places_matches_its_snapshots() {
        let mut looks = egui_kittest::SnapshotResults::new();
        for (theme, colours) in [(egui::Theme::Dark, "dark"), (egui::Theme::Light, "light")] {
            let builder = egui_kittest::Harness::builder().with_size([448.0, 200.0]).with_theme(theme);
            let mut it = builder.with_context_setup(theme::install).build_ui(|ui| {
                draw(ui, &figures(9 * GIB), 4 * GIB);
                ui.add_space(8.0);
                draw(ui, &PagerFigures { read: 0, ..figures(6 * GIB) }, 0);
            });
            it.run_steps(4);
            it.snapshot(format!("weights-{colours}"));
            looks.extend_harness(&mut it);
        }
    }
}

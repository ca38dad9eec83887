//! Figures beside the map: bars per layer, plots over time, the curve of the firing inequality, and
//! pinned neurons.

use std::sync::Arc;

use egui::{Align, Color32, Layout, Pos2, Rect, RichText, Role, Sense, Stroke, Ui, Vec2, WidgetInfo};
use egui_material_icons::icons::ICON_CLOSE;
use egui_plot::{Line, Plot};
use thermocline_engine::{
    model::NeuronIndex,
    session::Engine,
    telemetry::neurons::{LayerTrace, NeuronBoard, NeuronShape, TokenTrace, curve},
};

use super::{
    atlas::Atlas,
    facts::{self, NeuronPlace, percent, quoted},
    history::{History, TokenSample},
    pin_card::PinAct,
    pins::Pin,
};
use thermocline_host::units;
use thermocline_rich_text::{
    background::Background,
    theme::{Palette, RADIUS},
};

/// Height of a layer's bar and of a plot, in points.
const ROW: f32 = 16.0;
const PLOT: f32 = 88.0;

fn small(text: impl Into<String>, colour: Color32) -> RichText {
    RichText::new(text).size(11.0).color(colour)
}

/// Shows a bar per layer: how many neurons the token fires. If a device computes (`placed`), also
/// how many of them are hot.
pub fn layers(ui: &mut Ui, shape: &NeuronShape, token: &TokenTrace, placed: bool) {
    // The column scrolls. A list that scrolls inside it would show only a row or two.
    for (layer, figures) in token.layers.iter().enumerate() {
        bar(ui, layer, shape, figures, placed);
    }
}

fn bar(ui: &mut Ui, layer: usize, shape: &NeuronShape, figures: &LayerTrace, placed: bool) {
    let (palette, neurons) = (Palette::of(ui), shape.neurons(layer));
    let (rect, response) = ui.allocate_exact_size(Vec2::new(ui.available_width(), ROW), Sense::hover());
    let of = |part: u32, all: usize| if all == 0 { 0.0 } else { f64::from(part) / all as f64 };
    let (active, hits) = (of(figures.fired, neurons), of(figures.hot, figures.fired as usize));
    let experts =
        figures.experts.map(|chosen| format!("{chosen} of {}", units::counted(shape.experts(layer), "expert")));
    let text = match &experts {
        Some(experts) => format!("{} active, {experts}", percent(active)),
        None if placed => format!("{} active, {} of them in VRAM", percent(active), percent(hits)),
        None => format!("{} active", percent(active)),
    };
    response.widget_info(|| WidgetInfo::labeled(Role::Meter, true, format!("Layer {layer}: {text}")));
    let painter = ui.painter_at(rect);
    let font = egui::FontId::proportional(11.0);
    let write = |at: Pos2, align, text: String| painter.text(at, align, text, font.clone(), palette.muted);
    write(rect.left_center(), egui::Align2::LEFT_CENTER, format!("L{layer}"));
    let left = rect.left() + 32.0;
    let track =
        Rect::from_min_max(Pos2::new(left, rect.top() + 4.0), Pos2::new(rect.right() - 164.0, rect.bottom() - 4.0));
    painter.rect_filled(track, 4.0, palette.raised);
    let width = |part: u32| track.width() * of(part, neurons) as f32;
    let part = |from: f32, to: f32| Rect::from_x_y_ranges(track.left() + from..=track.left() + to, track.y_range());
    painter.rect_filled(part(0.0, width(figures.hot)), 2.0, palette.hot);
    painter.rect_filled(part(width(figures.hot), width(figures.fired)), 2.0, palette.cold);
    write(rect.right_center(), egui::Align2::RIGHT_CENTER, text);
    response.on_hover_ui(|ui| {
        let cold = figures.fired.saturating_sub(figures.hot);
        ui.label(RichText::new(format!("Layer {layer}")).strong());
        match placed {
            true => {
                ui.label(format!("{} of {neurons} neurons fire: {} in VRAM, {cold} in RAM", figures.fired, figures.hot))
            }
            false => ui.label(format!("{} of {neurons} neurons fire", figures.fired)),
        };
        match &experts {
            Some(experts) if placed => {
                ui.label(format!("{experts} chosen, {} of the firing neurons in VRAM", percent(hits)));
            }
            Some(experts) => _ = ui.label(format!("{experts} chosen")),
            None => {}
        }
        ui.label(format!("The CPU read {} of weights", units::bytes(figures.cpu_bytes)));
        if placed {
            ui.label(format!("{} were transferred between CPU and GPU", units::bytes(figures.bus_bytes)));
        }
        if let Some(times) = times(figures) {
            ui.label(times);
        }
        if let Some(missed) = figures.missed {
            ui.label(format!("Neurons that fired without being predicted: {missed}"));
        }
    });
}

/// The measured times of a layer. The CPU's time covers the FFN. The GPU's time covers the whole
/// layer. They overlap, except for the CPU's waiting time.
fn times(figures: &LayerTrace) -> Option<String> {
    let measured = [("GPU", figures.gpu_ns), ("CPU", figures.cpu_ns), ("waiting for the GPU", figures.wait_ns)];
    let words =
        measured.iter().filter(|(_, ns)| *ns > 0).map(|(what, ns)| format!("{what} {:.0} µs", *ns as f64 / 1e3));
    let words: Vec<_> = words.collect();
    (!words.is_empty()).then(|| words.join(", "))
}

/// Plots the speed, the hits (if a device computes) and the times of the latest tokens.
pub fn over_time(ui: &mut Ui, history: &History, placed: bool) {
    let palette = Palette::of(ui);
    plot(ui, "Tokens per second", None, &[("", palette.amber, history.points(|sample| sample.rate))]);
    if placed {
        plot(ui, "Firings in VRAM, %", Some(100.0), &[("", palette.hot, history.points(TokenSample::hits))]);
    }
    let ms = |ns: fn(&LayerTrace) -> u64| history.points(|sample| Some(ns(&sample.total) as f64 / 1e6));
    let gpu = ("GPU", palette.hot, ms(|total| total.gpu_ns));
    let mut lines =
        vec![("CPU", palette.cold, ms(|total| total.cpu_ns)), ("waiting", palette.muted, ms(|total| total.wait_ns))];
    // Without a device, or without timestamps on it, there are no GPU times to draw.
    if gpu.2.iter().any(|[_, ms]| *ms > 0.0) {
        lines.insert(0, gpu);
    }
    plot(ui, "Milliseconds per token", None, &lines);
}

fn plot(ui: &mut Ui, title: &str, top: Option<f64>, lines: &[(&str, Color32, Vec<[f64; 2]>)]) {
    let palette = Palette::of(ui);
    ui.horizontal(|ui| {
        ui.label(small(title, palette.muted));
        ui.with_layout(Layout::right_to_left(Align::Center), |ui| {
            for (name, colour, points) in lines {
                if let Some([_, value]) = points.last() {
                    ui.label(small(format!("{name} {value:.1}"), *colour));
                }
            }
        });
    });
    if lines.iter().all(|(.., points)| points.is_empty()) {
        ui.label(small("Nothing measured yet", palette.muted));
        return;
    }
    let mut plot = quiet(title).include_y(0.0);
    if let Some(top) = top {
        plot = plot.include_y(top);
    }
    plot.show(ui, |plot| {
        for (name, colour, points) in lines {
            plot.line(Line::new(*name, points.clone()).color(*colour).width(1.5));
        }
    });
}

/// A plot without zoom, drag or scroll.
fn quiet<'a>(id: &str) -> Plot<'a> {
    Plot::new(id)
        .height(PLOT)
        .show_x(false)
        .sense(Sense::hover())
        .allow_zoom(false)
        .allow_drag(false)
        .allow_scroll(false)
        .allow_boxed_zoom(false)
        .show_axes([false, true])
        .show_background(false)
}

/// How unequally the neurons of one layer (or of all) fire. A background thread computes it.
#[derive(Debug, Default)]
pub struct Inequality {
    of: Option<(Option<usize>, u64)>,
    work: Background<(Vec<[f64; 2]>, f64)>,
    curve: Vec<[f64; 2]>,
    /// Fraction of the neurons that make 80 % of the firings.
    eighty: f64,
}

/// Number of new tokens after which the curve is computed again.
const AGAIN: u64 = 32;

impl Inequality {
    /// Shows the curve for `layer`, or for all layers.
    pub fn show(&mut self, ui: &mut Ui, board: &Arc<NeuronBoard>, layer: Option<usize>) {
        let palette = Palette::of(ui);
        let token = board.latest().map_or(0, |token| token.index + 1);
        let old = self.of.is_none_or(|(of, at)| of != layer || token >= at + AGAIN || token < at);
        if token > 0 && old && !self.work.is_busy() {
            self.begin(ui, board, layer, token);
        }
        if let Some(found) = self.work.take() {
            (self.curve, self.eighty) = found;
        }
        if self.curve.is_empty() {
            ui.label(small("Nothing has fired yet", palette.muted));
            return;
        }
        let whose = layer.map_or("of all layers".to_owned(), |layer| format!("of layer {layer}"));
        let sentence = format!("{} of the neurons {whose} cause 80 % of the firings", percent(self.eighty));
        ui.label(RichText::new(sentence).size(12.0));
        quiet("inequality").include_x(0.0).include_x(100.0).include_y(0.0).include_y(100.0).show(ui, |plot| {
            plot.line(Line::new("firings", self.curve.clone()).color(palette.hot).width(1.5));
        });
        ui.label(small("From left to right: neurons, most frequent first. Up: % of all firings", palette.muted));
    }

    fn begin(&mut self, ui: &Ui, board: &Arc<NeuronBoard>, layer: Option<usize>, token: u64) {
        let board = Arc::clone(board);
        let work = move || {
            let layers = layer.map_or(0..board.shape().layers(), |layer| layer..layer + 1);
            let counts: Vec<u32> = layers.flat_map(|layer| board.tally(layer).counts).collect();
            let curve = curve::lorenz(&counts, 100);
            let curve = curve.into_iter().map(|(x, y)| [100.0 * x, 100.0 * y]).collect();
            let eighty = curve::neurons_for(&counts, 0.8) as f64 / counts.len().max(1) as f64;
            (curve, eighty)
        };
        if self.work.start(ui, work).is_ok() {
            self.of = Some((layer, token));
        }
    }
}

/// Shows a pinned neuron: its latest activations, its favourite words, its frequency according to
/// `atlas`, and its `place`. `tints` means that its firings tint the words of the chat.
pub fn pinned(
    ui: &mut Ui,
    engine: &Engine,
    pin: &Pin,
    atlas: &Atlas,
    place: Option<NeuronPlace>,
    tints: bool,
) -> Option<PinAct> {
    let NeuronIndex { layer, neuron } = pin.place;
    let palette = Palette::of(ui);
    let mut act = None;
    ui.horizontal(|ui| {
        let title = facts::title(engine.neurons().shape(), pin.place);
        ui.label(RichText::new(title).size(12.0).strong());
        if let Some(place) = place {
            ui.label(small(place.words(), place.colour(&palette)));
        }
        if let Some(frequency) = atlas.frequency(layer, neuron) {
            ui.label(small(percent(frequency.into()), palette.muted))
                .on_hover_text("Fraction of the tokens for which this neuron fires");
        }
        ui.with_layout(Layout::right_to_left(Align::Center), |ui| {
            let name = format!("Unpin {}", pin.name);
            if thermocline_rich_text::widgets::framed_icon_button(ui, ICON_CLOSE, &name).clicked() {
                act = Some(PinAct::Unpin);
            }
            let words = ui.selectable_label(tints, RichText::new("Show in text").size(12.0));
            let name = format!("Colour the chat's words for which {} fires", pin.name);
            words.widget_info(|| WidgetInfo::selected(Role::Button, true, tints, &name));
            if words.on_hover_text(name).clicked() {
                act = Some(PinAct::Tint);
            }
        });
    });
    sparkline(ui, pin, if place == Some(NeuronPlace::Vram) { palette.hot } else { palette.cold });
    ui.label(small(favourites(engine, pin), palette.muted));
    pin.lens.show(ui);
    act
}

/// The words at which a pinned neuron fires most.
pub fn favourites(engine: &Engine, pin: &Pin) -> String {
    let top = pin.top(5);
    let words = |(token, times): &(u32, u32)| {
        let text = engine.tokenizer().decode(&[*token], false);
        match times {
            1 => format!("{} (once)", quoted(&text)),
            times => format!("{} ({times} times)", quoted(&text)),
        }
    };
    let of_text = (!top.is_empty()).then(|| top.iter().map(words).collect::<Vec<_>>().join(", "));
    let patches = match pin.fired_patches {
        0 => None,
        1 => Some("1 patch of a picture".to_owned()),
        patches => Some(format!("{patches} patches of pictures")),
    };
    match (of_text, patches) {
        (None, None) => "Has not fired for any recorded token".to_owned(),
        (Some(words), None) => format!("Fires most often on {words}"),
        (None, Some(patches)) => format!("Fires on {patches}"),
        (Some(words), Some(patches)) => format!("Fires most often on {words}; also on {patches}"),
    }
}

fn sparkline(ui: &mut Ui, pin: &Pin, colour: Color32) {
    let palette = Palette::of(ui);
    let (rect, response) = ui.allocate_exact_size(Vec2::new(ui.available_width(), 24.0), Sense::hover());
    let shown = (rect.width() / 2.0) as usize;
    let skip = pin.series.len().saturating_sub(shown);
    let fired = pin.series.iter().skip(skip).filter(|value| **value > 0.0).count();
    let text = format!("Fired for {fired} of the last {}", units::counted(pin.series.len() - skip, "token"));
    response.widget_info(|| WidgetInfo::labeled(Role::Image, true, &text));
    let painter = ui.painter_at(rect);
    painter.rect_filled(rect, f32::from(RADIUS) / 2.0, palette.raised);
    for (at, value) in pin.series.iter().skip(skip).enumerate().filter(|(_, value)| **value > 0.0) {
        let x = rect.left() + 2.0 * at as f32 + 1.0;
        let top = rect.bottom() - rect.height() * value.clamp(0.1, 1.0);
        painter.vline(x, top..=rect.bottom(), Stroke::new(1.5, colour));
    }
    response.on_hover_text(text);
}

#[cfg(test)]
mod tests {
    use egui_kittest::{Harness, kittest::Queryable};
    use thermocline_engine::telemetry::neurons::LayerFiring;

    use super::*;

    /// A token with these times for each of its two layers, in microseconds.
    fn token(gpu: u64, cpu: u64, wait: u64) -> (History, TokenTrace) {
        let (board, mut recorder) = NeuronBoard::new(NeuronShape::new([32, 32]));
        let mut history = History::default();
        history.update(&board, 1.0);
        recorder.begin(0, 0, &[1], true);
        let [gpu_ns, cpu_ns, wait_ns] = [gpu, cpu, wait].map(|us| us * 1000);
        for layer in 0..2 {
            let firing = LayerFiring { layer, tokens: 1, fired: &[1], ..LayerFiring::default() };
            recorder.layer(&LayerFiring { gpu_ns, cpu_ns, wait_ns, ..firing });
        }
        recorder.end();
        history.update(&board, 1.0);
        (history, board.latest().unwrap())
    }

    #[test]
    fn layer_times_name_measured_processors_only() {
        for ((gpu, cpu, wait), shown) in [
            ((400, 250, 50), Some("GPU 400 µs, CPU 250 µs, waiting for the GPU 50 µs")),
            ((400, 0, 0), Some("GPU 400 µs")),
            ((0, 250, 0), Some("CPU 250 µs")),
            ((0, 0, 0), None),
        ] {
            assert_eq!(times(&token(gpu, cpu, wait).1.layers[0]).as_deref(), shown);
        }
    }

    #[test]
    fn time_plot_has_a_gpu_line_only_with_gpu_times() {
        let (both, alone) = (token(400, 250, 50).0, token(0, 250, 50).0);
        let on_gpu = Harness::builder().with_size([400.0, 600.0]).build_ui(move |ui| over_time(ui, &both, true));
        let on_cpu = Harness::builder().with_size([400.0, 600.0]).build_ui(move |ui| over_time(ui, &alone, false));
        // The times of both layers together, in milliseconds.
        assert!(["GPU 0.8", "CPU 0.5", "waiting 0.1"].iter().all(|text| on_gpu.query_by_label(text).is_some()));
        assert!(on_cpu.query_by_label("CPU 0.5").is_some() && on_cpu.query_by_label_contains("GPU").is_none());
    }
}

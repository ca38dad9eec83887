//! The search for neurons by a word: a field above the map, and a short list of results. The search
//! runs on a background thread.

use std::{
    ops::ControlFlow,
    sync::Arc,
    time::{Duration, Instant},
};

use egui::{Button, Key, Role, ScrollArea, TextStyle, Ui, WidgetInfo, vec2};
use thermocline_engine::{model::NeuronIndex, session::Engine, telemetry::neurons::NeuronShape};

use super::facts::{self, percent, quoted};
use thermocline_chats::chat::{FoundNeuron, NeuronQuery};
use thermocline_host::engine_handle::error_message;
use thermocline_rich_text::{
    background::Background,
    text::TextField,
    theme::Palette,
    widgets::{muted, small, trouble},
};

/// Delay between the last typed letter and the search.
const REST: Duration = Duration::from_millis(300);

/// Number of visible rows, space between two rows, and minimum height of a row, both in points.
const ROWS: f32 = 6.0;
const BETWEEN: f32 = 2.0;
const ROW: f32 = 24.0;

/// A row of the list.
#[derive(Debug)]
struct FoundRow {
    place: NeuronIndex,
    /// Name and words of the neuron, in one line.
    text: String,
}

impl FoundRow {
    fn new(shape: &NeuronShape, found: &FoundNeuron) -> Self {
        let title = facts::title(shape, found.place);
        let kept = match found.kept {
            0 => String::new(),
            times => format!(" fired for it {times}\u{d7} across chats;"),
        };
        let fired = match found.fired {
            0 if found.kept > 0 => kept,
            0 => format!(" its weights match the word, similarity {:.2};", found.cosine.abs()),
            times => {
                let elsewhere = percent(found.elsewhere.into());
                format!("{kept} fires for it {times} of {} times, for other words {elsewhere};", found.of)
            }
        };
        let words = found.words.raised.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ");
        FoundRow { place: found.place, text: format!("{title}:{fired} raises {words}") }
    }
}

/// The user's choices in the list in this frame.
#[derive(Debug, Default)]
pub struct SearchResponse {
    /// The chosen neuron.
    pub chosen: Option<NeuronIndex>,
    /// The neuron under the pointer, or with the keyboard focus.
    pub pointed: Option<NeuronIndex>,
}

/// The field and its list. Dropping it, or another word, ends the search.
#[derive(Debug, Default)]
pub struct SearchField {
    text: String,
    typed: Option<Instant>,
    work: Background<Result<Vec<FoundRow>, String>>,
    /// Dropping this ends the running search.
    wanted: Arc<()>,
    found: Option<Result<Vec<FoundRow>, String>>,
    /// True if the field should get the keyboard focus when it is next shown.
    pub focus: bool,
}

impl SearchField {
    /// Shows the field and the list. `query` makes a query from a word.
    pub fn show(&mut self, ui: &mut Ui, engine: &Engine, query: impl FnOnce(String) -> NeuronQuery) -> SearchResponse {
        self.field(ui);
        if let Some(found) = self.work.take() {
            self.found = Some(found);
        }
        if let Some(since) = self.typed {
            if since.elapsed() >= REST {
                self.typed = None;
                self.begin(ui, engine, query(self.text.trim().to_owned()));
            } else {
                ui.request_repaint_after(REST);
            }
        }
        self.list(ui)
    }

    fn field(&mut self, ui: &mut Ui) {
        let id = ui.make_persistent_id("search of neurons");
        if std::mem::take(&mut self.focus) {
            // Before the field is shown, so that it receives the letters of this frame.
            ui.memory_mut(|memory| memory.request_focus(id));
        }
        let field = TextField::line(id, TextStyle::Body.resolve(ui.style()));
        let field = field.show(ui, &mut self.text, |field| {
            field.desired_width(f32::INFINITY).hint_text("Search neurons by a word   Ctrl+Shift+K")
        });
        field.widget_info(|| WidgetInfo::labeled(Role::SearchInput, true, "Search neurons"));
        let left = field.lost_focus() && ui.input(|input| input.key_pressed(Key::Escape));
        if left {
            self.text.clear();
        }
        if field.changed() || left {
            self.wanted = Arc::default();
            (self.work, self.found) = (Background::default(), None);
            self.typed = (!self.text.trim().is_empty()).then(Instant::now);
        }
    }

    fn begin(&mut self, ui: &Ui, engine: &Engine, query: NeuronQuery) {
        let (engine, wanted) = (engine.clone(), Arc::downgrade(&self.wanted));
        let work = move || {
            let is_dropped = || wanted.strong_count() == 0;
            let mut proceed = || if is_dropped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
            let found = FoundNeuron::search(&engine, &query, &mut proceed).map_err(|error| error_message(&error))?;
            let shape = engine.neurons().shape();
            Ok(found.iter().map(|found| FoundRow::new(shape, found)).collect())
        };
        if let Err(error) = self.work.start(ui, work) {
            self.found = Some(Err(error));
        }
    }

    fn list(&self, ui: &mut Ui) -> SearchResponse {
        let mut response = SearchResponse::default();
        match &self.found {
            None if self.work.is_busy() => _ = muted(ui, "Searching the neurons …"),
            None => {}
            Some(Err(error)) => _ = trouble(ui, error),
            Some(Ok(rows)) if rows.is_empty() => _ = muted(ui, "No neuron was found."),
            Some(Ok(rows)) => {
                let height = ROW.max(ui.spacing().interact_size.y);
                // A multiple of whole rows, so that no row is cut.
                let tallest = ROWS * (height + BETWEEN) - BETWEEN;
                let area =
                    ScrollArea::vertical().id_salt("found neurons").max_height(tallest).min_scrolled_height(tallest);
                area.show(ui, |ui| {
                    ui.spacing_mut().item_spacing.y = BETWEEN;
                    for row in rows {
                        let text = small(&row.text, Palette::of(ui).text);
                        let button =
                            Button::new(text).truncate().frame_when_inactive(false).min_size(vec2(0.0, height));
                        let button = ui.add(button);
                        button.widget_info(|| WidgetInfo::labeled(Role::Button, true, &row.text));
                        if button.hovered() || button.has_focus() {
                            response.pointed = Some(row.place);
                        }
                        if button.on_hover_text(&row.text).clicked() {
                            response.chosen = Some(row.place);
                        }
                    }
                });
            }
        }
        response
    }
}

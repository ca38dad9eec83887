//! Pointer and arrow keys in a field with right-to-left text.

use egui::{Event, Id, Key, Pos2, Ui, text::CCursorRange, text_edit::TextEditState};

use super::edited::{EditedText, Leading};

/// The state of a field that user input applies to.
pub struct FieldTarget<'a> {
    /// Id of egui's field.
    pub id: Id,
    /// Id of the area above it that receives the pointer.
    pub over: Id,
    /// Its text, laid out.
    pub edited: &'a EditedText,
    /// Position at which its text begins.
    pub at: Pos2,
}

/// Original events of a frame in which egui's field gets changed events.
pub struct Events {
    told: Option<Vec<Event>>,
    /// True if the pointer is over the field.
    pub pointed: bool,
}

impl Events {
    /// Restores the original events for everything that is shown after the field.
    pub fn restore(self, ui: &Ui) {
        if let Some(events) = self.told {
            ui.input_mut(|input| input.events = events);
        }
    }
}

impl FieldTarget<'_> {
    /// Moves the cursor to a click, and passes changed key events to the field.
    pub fn control(&self, ui: &Ui, leading: &mut Leading) -> Events {
        let mut state = TextEditState::load(ui.ctx(), self.id).unwrap_or_default();
        let pointed = self.point(ui, &mut state, leading);
        let pasted = self.paste(ui, &mut state, pointed);
        let told = if ui.memory(|memory| memory.has_focus(self.id)) || pasted {
            let events = ui.input(|input| input.events.clone());
            let told = self.tell(&events, &mut state, leading);
            ui.input_mut(|input| input.events = told);
            Some(events)
        } else {
            None
        };
        state.store(ui.ctx(), self.id);
        Events { told, pointed }
    }

    /// Handles the pointer. Returns true if it is over the field.
    fn point(&self, ui: &Ui, state: &mut TextEditState, leading: &mut Leading) -> bool {
        let Some(response) = ui.ctx().read_response(self.over) else { return false };
        let Some(pos) = response.interact_pointer_pos() else { return response.contains_pointer() };
        let (cursor, beside) = self.edited.cursor_at(pos - self.at);
        let dragged = ui.ctx().is_being_dragged(self.over);
        let chosen = state.cursor.pointer_interaction(ui, &response, cursor, &self.edited.galley, dragged);
        if chosen || response.clicked() {
            *leading = beside;
            ui.memory_mut(|memory| memory.request_focus(self.id));
        }
        true
    }

    /// Puts the cursor where a middle click pastes. Returns true if there was one.
    fn paste(&self, ui: &Ui, state: &mut TextEditState, pointed: bool) -> bool {
        let pos = ui.input(|input| {
            input.events.iter().find_map(|event| match event {
                Event::MiddleClickPaste { pos, .. } => Some(*pos),
                _ => None,
            })
        });
        let Some(pos) = pos.filter(|_| pointed) else { return false };
        let (cursor, _) = self.edited.cursor_at(pos - self.at);
        state.cursor.set_char_range(Some(CCursorRange::one(cursor)));
        ui.memory_mut(|memory| memory.request_focus(self.id));
        true
    }

    /// The events passed to egui's field. Left and right arrows move through the text in logical
    /// order. Up and down are handled here.
    fn tell(&self, events: &[Event], state: &mut TextEditState, leading: &mut Leading) -> Vec<Event> {
        let mut told = Vec::with_capacity(events.len());
        for event in events {
            let mut event = event.clone();
            match &mut event {
                Event::Key { key: key @ (Key::ArrowLeft | Key::ArrowRight), .. } => {
                    let range = state.cursor.range(&self.edited.galley);
                    if range.is_some_and(|range| self.edited.begins_right(range.primary)) {
                        *key = if *key == Key::ArrowLeft { Key::ArrowRight } else { Key::ArrowLeft };
                    }
                }
                Event::Key { key: key @ (Key::ArrowUp | Key::ArrowDown), pressed: true, modifiers, .. }
                    if !modifiers.command =>
                {
                    if let Some(mut range) = state.cursor.range(&self.edited.galley) {
                        let up = *key == Key::ArrowUp;
                        (range.primary, *leading, range.h_pos) = self.edited.line_away(range.primary, up, range.h_pos);
                        if !modifiers.shift {
                            range.secondary = range.primary;
                        }
                        state.cursor.set_char_range(Some(range));
                    }
                    continue;
                }
                Event::MiddleClickPaste { text, .. } => event = Event::Paste(std::mem::take(text)),
                _ => {}
            }
            told.push(event);
        }
        told
    }
}

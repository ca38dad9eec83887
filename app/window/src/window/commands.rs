//! Handles commands of panels and keys, and moves the keyboard focus between areas.

use egui::Context;

use super::{
    Window,
    columns::{Rooms, SideColumn},
};
use crate::{
    areas::WindowArea,
    command::{Command, Page},
};
use thermocline_host::engine_handle::ModelState;

impl Window {
    /// The visible areas, from left to right.
    pub(super) fn areas(&self, rooms: Rooms) -> Vec<WindowArea> {
        let panels = self.shell.settings.panels;
        let chats =
            if rooms.chats { panels.chats && !rooms.neurons_instead } else { self.over == Some(SideColumn::Chats) };
        let neurons = if rooms.neurons { panels.neurons } else { self.over == Some(SideColumn::Neurons) };
        let neurons = neurons && self.has_neurons();
        let all = [
            (chats, WindowArea::Chats),
            (true, WindowArea::Middle),
            (self.page == Page::Chat, WindowArea::Composer),
            (neurons, WindowArea::Neurons),
        ];
        all.into_iter().filter(|(seen, _)| *seen).map(|(_, area)| area).collect()
    }

    /// Moves the keyboard focus to an area.
    pub(super) fn lead(&mut self, ctx: &Context, area: WindowArea) {
        match area {
            WindowArea::Chats => self.chats.focus_list(),
            WindowArea::Composer => self.conversation.handle_command(&Command::Compose, &mut self.shell),
            WindowArea::Middle | WindowArea::Neurons => ctx.memory_mut(|memory| memory.request_focus(area.id())),
        }
        ctx.request_repaint();
    }

    /// Shows the column of chats.
    pub(super) fn show_chats(&mut self, rooms: Rooms) {
        if rooms.chats {
            self.shell.settings.panels.chats = true;
            self.over = self.over.filter(|_| !rooms.neurons_instead);
        } else {
            self.over = Some(SideColumn::Chats);
        }
    }

    pub(super) fn handle_command(&mut self, command: Command, rooms: Rooms) {
        let has_neurons = self.has_neurons();
        let panels = &mut self.shell.settings.panels;
        // A column that replaces the chats hides nothing of the page, so it stays.
        let kept = self.over.filter(|_| rooms.neurons_instead);
        let switch = |over: &mut Option<SideColumn>, side| *over = if *over == Some(side) { None } else { Some(side) };
        match command {
            Command::NewChat
            | Command::OpenChat(_)
            | Command::OpenMessage(..)
            | Command::Compose
            | Command::Compare(_)
            | Command::Attach => {
                (self.page, self.over) = (Page::Chat, kept);
                self.conversation.handle_command(&command, &mut self.shell);
            }
            Command::Stop | Command::Regenerate | Command::CopyAnswer | Command::ToEnd => {
                self.conversation.handle_command(&command, &mut self.shell);
            }
            Command::Search => {
                self.show_chats(rooms);
                self.chats.focus = true;
            }
            Command::OpenModel(model) => self.shell.open_model(model),
            Command::ReopenModel => {
                let state = self.shell.engine_handle.state();
                if let Some(model) = state.model().filter(|_| !matches!(state, ModelState::Opening(_))) {
                    self.shell.open_model(model);
                }
            }
            Command::CloseModel => self.shell.engine_handle.close(),
            Command::Show(page) => (self.page, self.over) = (if self.page == page { Page::Chat } else { page }, kept),
            Command::ToggleChats if rooms.neurons_instead => self.show_chats(rooms),
            Command::ToggleChats if rooms.chats => panels.chats = !panels.chats,
            Command::ToggleChats => switch(&mut self.over, SideColumn::Chats),
            Command::ToggleNeurons | Command::ShowMap | Command::SearchNeurons if !has_neurons => {
                let server = self.shell.engine_handle.state().model().map(|model| model.to_string());
                let server = server.unwrap_or_default();
                self.shell.toasts.info(format!("A server runs {server}, so its neurons cannot be shown here."));
            }
            Command::ToggleNeurons if rooms.neurons => panels.neurons = !panels.neurons,
            Command::ToggleNeurons => switch(&mut self.over, SideColumn::Neurons),
            Command::ShowMap | Command::SearchNeurons => {
                if rooms.neurons {
                    panels.neurons = true;
                } else {
                    self.over = Some(SideColumn::Neurons);
                }
                match command {
                    Command::SearchNeurons => self.neurons.searching = true,
                    _ => self.neurons.whole = true,
                }
            }
            Command::CheatSheet => self.keys = !self.keys,
            // These commands are handled elsewhere, because they depend on the keyboard focus.
            Command::NextArea | Command::PreviousArea => {}
            Command::NextChat | Command::PreviousChat | Command::RenameChat | Command::DeleteChat => {}
        }
    }
}

//! Commands of the window, sent by keys and by panels.

use egui::{Context, Key, KeyboardShortcut, Modifiers};

use crate::keyboard;
use thermocline_chats::{
    chat::Side,
    store::{ChatId, MessageId},
};
use thermocline_host::library::ModelId;

/// The view in the middle of the window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Page {
    /// The conversation.
    #[default]
    Chat,
    /// The library and the downloads.
    Models,
    /// The settings.
    Preferences,
}

/// A command for the window.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Show an empty conversation.
    NewChat,
    /// Show this conversation.
    OpenChat(ChatId),
    /// Show this message of a conversation.
    OpenMessage(ChatId, MessageId),
    /// Show the next chat in the list.
    NextChat,
    /// Show the previous chat in the list.
    PreviousChat,
    /// Rename the chat that has the keyboard focus in the list, otherwise the chat that is shown.
    RenameChat,
    /// Delete that chat. It can be restored.
    DeleteChat,
    /// Move the keyboard focus to the next area of the window.
    NextArea,
    /// Move the keyboard focus to the previous area.
    PreviousArea,
    /// Focus the search field of the chats.
    Search,
    /// Focus the composer.
    Compose,
    /// Scroll to the end of the conversation.
    ToEnd,
    /// Choose files to attach to the draft.
    Attach,
    /// Stop the answer that is being written.
    Stop,
    /// Generate another version of the last answer.
    Regenerate,
    /// Copy the last answer.
    CopyAnswer,
    /// Open a model in place of the open one.
    OpenModel(ModelId),
    /// Reopen the open model, because its settings have changed.
    ReopenModel,
    /// Close the model.
    CloseModel,
    /// Show a page.
    Show(Page),
    /// Show or hide the column of chats.
    ToggleChats,
    /// Show or hide the column of neurons.
    ToggleNeurons,
    /// Let both sides repeat the last answer.
    Compare([Side; 2]),
    /// Show the whole map of neurons.
    ShowMap,
    /// Focus the field that searches neurons by a word.
    SearchNeurons,
    /// Show or hide the list of keys.
    CheatSheet,
}

const fn ctrl(key: Key) -> KeyboardShortcut {
    KeyboardShortcut::new(Modifiers::COMMAND, key)
}

const fn ctrl_shift(key: Key) -> KeyboardShortcut {
    KeyboardShortcut::new(Modifiers::COMMAND.plus(Modifiers::SHIFT), key)
}

/// The keys of the window, and a description of each. Each panel describes its own keys.
pub const SHORTCUTS: &[(Command, KeyboardShortcut, &str)] = &[
    (Command::NewChat, ctrl(Key::N), "New chat"),
    (Command::NextChat, ctrl(Key::PageDown), "Next chat"),
    (Command::PreviousChat, ctrl(Key::PageUp), "Previous chat"),
    (Command::RenameChat, KeyboardShortcut::new(Modifiers::NONE, Key::F2), "Rename the chat"),
    (Command::DeleteChat, ctrl_shift(Key::Delete), "Delete the chat"),
    // Listed before the same key without Shift, which would otherwise match it.
    (Command::SearchNeurons, ctrl_shift(Key::K), "Search neurons by a word"),
    (Command::Search, ctrl(Key::K), "Search all chats"),
    (Command::Compose, ctrl(Key::L), "Write a message"),
    (Command::Attach, ctrl(Key::O), "Attach files"),
    (Command::Regenerate, ctrl(Key::R), "Answer again"),
    (Command::CopyAnswer, ctrl_shift(Key::C), "Copy the last answer"),
    (Command::ToEnd, ctrl(Key::End), "Go to the end of the chat"),
    (Command::ToggleChats, ctrl(Key::B), "Show or hide the chats"),
    (Command::ToggleNeurons, ctrl(Key::J), "Show or hide the neurons"),
    (Command::Show(Page::Models), ctrl(Key::M), "Models"),
    (Command::Show(Page::Preferences), ctrl(Key::Comma), "Settings"),
    // Listed before the same key without Shift, which would otherwise match it.
    (Command::PreviousArea, KeyboardShortcut::new(Modifiers::SHIFT, Key::F6), "Previous area"),
    (Command::NextArea, KeyboardShortcut::new(Modifiers::NONE, Key::F6), "Next area"),
    (Command::CheatSheet, KeyboardShortcut::new(Modifiers::NONE, Key::F1), "Show these keys"),
];

/// Commands typed since the previous frame.
pub fn typed(ctx: &Context) -> Vec<Command> {
    let pressed = |command: &Command, shortcut: &KeyboardShortcut| {
        match command {
            // In a focused text field the same key moves the cursor to the end of the field.
            Command::ToEnd => keyboard::pressed(ctx, shortcut.modifiers, shortcut.logical_key),
            _ => ctx.input_mut(|input| input.consume_shortcut(shortcut)),
        }
    };
    let typed = SHORTCUTS.iter().filter(|(command, shortcut, _)| pressed(command, shortcut));
    typed.map(|(command, ..)| command.clone()).collect()
}

//! Commands of the window, from the keyboard or from a panel.

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
    /// Library and downloads.
    Models,
    /// The settings.
    Preferences,
}

/// A command.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// An empty conversation.
    NewChat,
    /// This conversation.
    OpenChat(ChatId),
    /// This message of a conversation.
    OpenMessage(ChatId, MessageId),
    /// The chat below the one that is shown, in the list.
    NextChat,
    /// The chat above it.
    PreviousChat,
    /// Change the name of the chat that has the keyboard in the list, or else is shown.
    RenameChat,
    /// Delete that chat; it can be brought back.
    DeleteChat,
    /// Lead the keyboard to the next area of the window.
    NextArea,
    /// Lead it to the area before.
    PreviousArea,
    /// Put the cursor where chats are searched.
    Search,
    /// Put the cursor where messages are written.
    Compose,
    /// Show the end of the conversation.
    ToEnd,
    /// Choose files that go with the message being written.
    Attach,
    /// End the answer that is being written.
    Stop,
    /// Another version of the last answer.
    Regenerate,
    /// Copy the last answer.
    CopyAnswer,
    /// Open a model in place of the one that is open.
    OpenModel(ModelId),
    /// Open the model again that is open: its settings have changed.
    ReopenModel,
    /// Close the model.
    CloseModel,
    /// Show a page.
    Show(Page),
    /// Show or hide the column of chats.
    ToggleChats,
    /// Show or hide the column of neurons.
    ToggleNeurons,
    /// Have the last answer written once more by both sides.
    Compare([Side; 2]),
    /// Show the whole map of neurons.
    ShowMap,
    /// Put the cursor where neurons are searched by a word.
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

/// Keys of the window, with what they do in words. Keys that belong to one panel are described by it.
pub const SHORTCUTS: &[(Command, KeyboardShortcut, &str)] = &[
    (Command::NewChat, ctrl(Key::N), "New chat"),
    (Command::NextChat, ctrl(Key::PageDown), "Next chat"),
    (Command::PreviousChat, ctrl(Key::PageUp), "Previous chat"),
    (Command::RenameChat, KeyboardShortcut::new(Modifiers::NONE, Key::F2), "Rename the chat"),
    (Command::DeleteChat, ctrl_shift(Key::Delete), "Delete the chat"),
    // Before the same key without Shift, which that would be taken for.
    (Command::SearchNeurons, ctrl_shift(Key::K), "Search neurons by a word"),
    (Command::Search, ctrl(Key::K), "Search all chats"),
    (Command::Compose, ctrl(Key::L), "Write a message"),
    (Command::Attach, ctrl(Key::O), "Attach files"),
    (Command::Regenerate, ctrl(Key::R), "Answer again"),
    (Command::CopyAnswer, ctrl_shift(Key::C), "Copy the last answer"),
    (Command::ToEnd, ctrl(Key::End), "To the end of the chat"),
    (Command::ToggleChats, ctrl(Key::B), "Show or hide the chats"),
    (Command::ToggleNeurons, ctrl(Key::J), "Show or hide the neurons"),
    (Command::Show(Page::Models), ctrl(Key::M), "Models"),
    (Command::Show(Page::Preferences), ctrl(Key::Comma), "Settings"),
    // Before the same key without Shift, which that would be taken for.
    (Command::PreviousArea, KeyboardShortcut::new(Modifiers::SHIFT, Key::F6), "Previous area"),
    (Command::NextArea, KeyboardShortcut::new(Modifiers::NONE, Key::F6), "Next area"),
    (Command::CheatSheet, KeyboardShortcut::new(Modifiers::NONE, Key::F1), "These keys"),
];

/// Commands typed since the last frame.
pub fn typed(ctx: &Context) -> Vec<Command> {
    let pressed = |command: &Command, shortcut: &KeyboardShortcut| {
        match command {
            // A field that is written in goes to its own end with the same key.
            Command::ToEnd => keyboard::pressed(ctx, shortcut.modifiers, shortcut.logical_key),
            _ => ctx.input_mut(|input| input.consume_shortcut(shortcut)),
        }
    };
    let typed = SHORTCUTS.iter().filter(|(command, shortcut, _)| pressed(command, shortcut));
    typed.map(|(command, ..)| command.clone()).collect()
}

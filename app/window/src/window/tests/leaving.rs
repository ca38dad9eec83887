//! A question protects running answers and files that are being read.

use std::{io::Write, thread, time::Duration};

use egui::{Key, ViewportCommand, ViewportEvent, ViewportId};

use super::names;
use crate::{
    command::Command,
    testing::{TestWindow, add_chat},
};
use thermocline_chats::store::MessageState;
use thermocline_host::{
    engine_handle::ModelState,
    library::ModelId,
    remote::RemoteModel,
    testing::{replies, scripted_by_request},
};

const SIZE: [f32; 2] = [1440.0, 900.0];

/// Opens a window in which a remote model says one word and never ends.
fn answering() -> TestWindow {
    let (server, _) = scripted_by_request(|request, stream| {
        if request.starts_with("GET") {
            return replies("200 OK", "application/json", "{\"data\":[{\"id\":\"far\"}]}")(stream);
        }
        replies("200 OK", "text/event-stream", "data: {\"choices\":[{\"delta\":{\"content\":\"Once\"}}]}\n\n")(stream);
        while stream.write_all(b": still there\n\n").is_ok() {
            thread::sleep(Duration::from_millis(20));
        }
    });
    let model = RemoteModel { server: server.clone(), name: "far".to_owned() };
    let mut stage = TestWindow::with(SIZE, |_, settings| {
        settings.remote_servers.push(server);
        settings.recent.push(model.key());
    });
    stage.until("the model", |window| matches!(window.shell.engine_handle.state(), ModelState::Remote { .. }));
    stage.types("Tell me a story that never ends.");
    stage.press(Key::Enter);
    stage.appears("Once");
    assert!(stage.shell().chat_controller.is_busy());
    stage
}

/// Presses the close button of the window's frame. Returns the window's viewport commands.
fn close(stage: &mut TestWindow) -> Vec<ViewportCommand> {
    let viewport = stage.it.input_mut().viewports.get_mut(&ViewportId::ROOT).unwrap();
    viewport.events.push(ViewportEvent::Close);
    stage.it.step();
    stage.it.output().viewport_output[&ViewportId::ROOT].commands.clone()
}

/// Attaches a file, `notes.md`, in a folder of its own.
fn attach_notes(stage: &mut TestWindow) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notes.md");
    std::fs::write(&path, "A cat has a boat.").unwrap();
    stage.it.state_mut().conversation.attach(path);
    folder
}

#[test]
fn another_model_waits_for_a_decision_while_an_answer_is_written() {
    let mut stage = answering();
    stage.command(Command::OpenModel(ModelId::Builtin));
    assert!(stage.shows("Open Storyteller?") && stage.shows("An answer is being written."), "{:?}", stage.texts());
    names::check(&stage, "the question before another model");
    // The keyboard focus is on the button that loses nothing.
    assert!(stage.control("Cancel").is_focused());
    stage.press(Key::Enter);
    assert!(!stage.shows("Open Storyteller?") && stage.shell().chat_controller.is_busy());
    stage.command(Command::CloseModel);
    assert!(stage.shows("Close far"), "{:?}", stage.texts());
    stage.press(Key::Escape);
    assert!(!stage.shows("Close far") && stage.shell().chat_controller.is_busy());
    stage.command(Command::OpenModel(ModelId::Builtin));
    stage.click("Open anyway");
    assert!(stage.shows("The answer stopped because its model was closed"), "{:?}", stage.texts());
    stage.ready();
    let said = stage.branch();
    assert_eq!((&*said[1].content, said[1].state), ("Once", MessageState::Stopped));
    assert!(stage.shows("stopped: the model was closed"), "{:?}", stage.texts());
    // Without a running answer there is no question.
    stage.command(Command::OpenModel(ModelId::Builtin));
    assert!(!stage.shows("Open Storyteller?"));
}

#[test]
fn closing_waits_for_a_decision_while_an_answer_is_written() {
    let mut stage = answering();
    assert!(close(&mut stage).contains(&ViewportCommand::CancelClose));
    stage.step();
    assert!(stage.shows("Close Thermocline?") && stage.shows("An answer is being written."), "{:?}", stage.texts());
    stage.press(Key::Escape);
    assert!(!stage.shows("Close Thermocline?") && stage.shell().chat_controller.is_busy());
    assert!(close(&mut stage).contains(&ViewportCommand::CancelClose), "it is asked again");
    stage.step();
    stage.click("Close anyway");
    assert!(!close(&mut stage).contains(&ViewportCommand::CancelClose), "it is not asked twice");
}

#[test]
fn closing_waits_while_a_file_is_read_or_a_message_is_changed() {
    let mut stage = TestWindow::opened_with(SIZE, |folders, settings| {
        settings.last_chat = Some(add_chat(folders, "", &["Tell me about a cat.", "Cats sleep."]).number());
    });
    assert!(!close(&mut stage).contains(&ViewportCommand::CancelClose), "nothing is lost");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notes.md");
    std::fs::write(&path, "A cat has a boat.").unwrap();
    // Reading begins in the frame of the close button.
    stage.it.state_mut().conversation.attach(path);
    assert!(close(&mut stage).contains(&ViewportCommand::CancelClose));
    stage.appears("Close Thermocline?");
    stage.click("Cancel");
    stage.appears("Remove notes.md");
    assert!(!close(&mut stage).contains(&ViewportCommand::CancelClose), "the file is kept with its chat");
    stage.click("Edit message");
    stage.types(" And the boat.");
    assert!(close(&mut stage).contains(&ViewportCommand::CancelClose));
    stage.appears("Your change to a message is not saved yet.");
}

#[test]
fn file_that_is_read_goes_to_the_chat_it_was_chosen_for() {
    let mut stage = TestWindow::opened(SIZE);
    let _folder = attach_notes(&mut stage);
    stage.shell().queue_command(Command::NewChat);
    let found = |window: &mut crate::Window| {
        let chats = window.shell.store.chats().unwrap();
        chats.iter().find(|chat| !window.shell.store.attachments(chat.id).unwrap().is_empty()).map(|chat| chat.id)
    };
    // The command is handled after the frame that begins to read.
    stage.until("the file", |window| found(window).is_some());
    assert!(!stage.shows("Remove notes.md"), "another chat is shown");
    let chat = found(stage.it.state_mut()).unwrap();
    stage.shell().queue_command(Command::OpenChat(chat));
    stage.appears("Remove notes.md");
}

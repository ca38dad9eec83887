//! Tools in a chat, by keyboard alone. The model of a scripted server calls them.

use egui::Key;
use egui_kittest::kittest::Queryable;

use super::names;
use crate::testing::TestWindow;
use thermocline_chats::{
    store::{Speaker, ToolOutcome},
    tools::{Consent, builtin::Builtin},
};
use thermocline_host::{
    engine_handle::ModelState,
    testing::{replies, scripted_by_request},
};

const SIZE: [f32; 2] = [1440.0, 900.0];

/// Starts a server whose model calls the calculator `calls` times and then ends its answer. Returns
/// the server and its requests.
fn calling_server(calls: usize) -> (thermocline_host::remote::ServerAddress, std::sync::mpsc::Receiver<String>) {
    scripted_by_request(move |request, stream| {
        let (kind, body) = match request.starts_with("GET") {
            true => ("application/json", "{\"data\":[{\"id\":\"far\"}]}".to_owned()),
            false => {
                let chunk = |delta: &str| format!("data: {{\"choices\":[{delta}]}}\n\n");
                let results = request.matches("\"role\":\"tool\"").count();
                let call = "{\"delta\":{\"content\":\"Let me see.\",\"tool_calls\":[{\"index\":0,\"id\":\"x\",\"function\":\
                            {\"name\":\"calculator\",\"arguments\":\"{\\\"expression\\\": \\\"6*7\\\"}\"}}]}}";
                let text = if results < calls && request.contains("\"tools\"") {
                    chunk(call) + &chunk("{\"delta\":{},\"finish_reason\":\"tool_calls\"}")
                } else {
                    chunk("{\"delta\":{\"content\":\"That is all.\"}}")
                        + &chunk("{\"delta\":{},\"finish_reason\":\"stop\"}")
                };
                ("text/event-stream", text)
            }
        };
        replies("200 OK", kind, &body)(stream);
    })
}

/// Opens a window with that server's model. The calculator needs consent.
fn stage(calls: usize) -> (TestWindow, std::sync::mpsc::Receiver<String>) {
    let (server, requests) = calling_server(calls);
    let model = thermocline_host::remote::RemoteModel { server: server.clone(), name: "far".to_owned() };
    let mut stage = TestWindow::with(SIZE, |_, settings| {
        settings.remote_servers.push(server);
        settings.recent.push(model.key());
        settings.tools.consents.set(None, &Builtin::Calculator.tool(), Consent::Ask);
    });
    stage.shell().open_model(thermocline_host::library::ModelId::Remote(model));
    stage.until("the model", |window| matches!(window.shell.engine_handle.state(), ModelState::Remote { .. }));
    (stage, requests)
}

/// Asks a question with tools switched on, and waits for the card.
fn ask(stage: &mut TestWindow) {
    stage.focus("Tools");
    stage.press(Key::Space);
    stage.focus("Message");
    stage.types("What is six times seven?");
    stage.press(Key::Enter);
    stage.appears("May the model use calculator?");
    stage.step();
}

#[test]
fn consent_is_given_by_the_keyboard_and_the_answer_goes_on() {
    let (mut stage, requests) = stage(1);
    ask(&mut stage);
    assert!(stage.shell().chat_controller.is_busy() && stage.shows("expression: 6*7"));
    assert!(stage.control("Deny").is_focused(), "the keyboard is at the card, where nothing is allowed by accident");
    names::check(&stage, "a card of a tool");
    stage.press(Key::Tab);
    assert!(stage.control("Allow once").is_focused());
    stage.press(Key::Enter);
    stage.answered();
    let said = stage.branch();
    let speakers: Vec<Speaker> = said.iter().map(|message| message.speaker).collect();
    assert_eq!(speakers, [Speaker::User, Speaker::Assistant, Speaker::Tool, Speaker::Assistant]);
    let result = said[2].result().unwrap();
    assert_eq!((&*said[2].content, result.outcome, &*said[1].content), ("42", ToolOutcome::Done, "Let me see."));
    assert_eq!(said[3].content, "That is all.");
    let sent: Vec<String> = requests.try_iter().filter(|request| request.starts_with("POST")).collect();
    assert!(sent.len() == 2 && sent[0].contains("\"name\":\"clock\""), "{sent:?}");
    assert!(sent[1].contains("\"content\":\"42\"") && sent[1].contains(&result.call.id), "{}", sent[1]);

    // The composer has the keyboard focus again.
    assert!(stage.control("Message").is_focused());
    // The result is folded until it is clicked.
    assert!(stage.shows("Used calculator") && !stage.shows("Copy result"));
    stage.it.get_by(|node| node.label().as_deref() == Some("Used calculator")).click();
    stage.step();
    assert!(stage.shows("Copy result") && stage.shows("42"));
    names::check(&stage, "a result of a tool");
}

#[test]
fn denial_is_told_to_the_model_and_always_asks_no_more() {
    let (mut stage, requests) = stage(3);
    ask(&mut stage);
    stage.press(Key::Enter);
    stage.until("the next card", |window| {
        let chat = window.shell.settings.last_chat.and_then(|chat| window.shell.store.find_chat(chat).unwrap());
        let messages = chat.map_or(0, |chat| window.shell.store.branch(chat.id).unwrap().len());
        messages == 4 && window.shell.chat_controller.is_busy()
    });
    let said = stage.branch();
    assert_eq!(said[2].result().unwrap().outcome, ToolOutcome::Denied);
    assert!(stage.shows("calculator was not allowed"));
    stage.appears("Always allow");
    stage.step();
    stage.click("Always allow");
    stage.answered();
    assert_eq!(stage.shell().settings.tools.consents.get(None, &Builtin::Calculator.tool()), Consent::Always);
    let said = stage.branch();
    let outcomes: Vec<_> = said.iter().filter_map(|message| Some(message.result()?.outcome)).collect();
    assert_eq!(outcomes, [ToolOutcome::Denied, ToolOutcome::Done, ToolOutcome::Done]);
    let sent: Vec<String> = requests.try_iter().filter(|request| request.starts_with("POST")).collect();
    assert!(sent[1].contains("The user did not allow this call."), "{}", sent[1]);
}

#[test]
fn a_model_that_calls_without_end_is_stopped_after_some_rounds() {
    let (mut stage, requests) = stage(usize::MAX);
    stage.shell().settings.tools.consents.set(None, &Builtin::Calculator.tool(), Consent::Always);
    stage.step();
    stage.click("Tools");
    stage.ask("Go on.");
    let said = stage.branch();
    assert_eq!(said.last().unwrap().content, "That is all.", "it was told of no tools any more");
    assert_eq!(said.iter().filter(|message| message.speaker == Speaker::Tool).count(), 8);
    assert_eq!(requests.try_iter().filter(|request| request.contains("\"tools\"")).count(), 8);
}

#[test]
fn escape_stops_an_answer_that_waits_for_consent() {
    let (mut stage, requests) = stage(1);
    ask(&mut stage);
    stage.press(Key::Escape);
    stage.answered();
    assert!(
        !stage.shows("May the model use") && stage.shows("Stopped before these tool calls were complete: calculator")
    );
    // The chat continues, and the model reads that the call was stopped.
    stage.ask("Never mind.");
    assert_eq!(stage.branch().len(), 4);
    assert!(requests.try_iter().any(|request| request.contains("The user stopped this call.")));
}

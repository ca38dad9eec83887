//! Servers with models: added, asked for a key, opened.

use super::*;
use thermocline_host::remote::RemoteModel;

#[test]
fn server_that_wants_a_key_is_seen_and_takes_it_on_its_card() {
    let (server, requests) = scripted_by_request(|request, stream| {
        let (status, body) = match request.contains("Bearer sk-right") {
            true => ("200 OK", "{\"data\":[{\"id\":\"far/model\"}]}"),
            false => ("401 Unauthorized", "{\"error\":{\"message\":\"no key was given\"}}"),
        };
        replies(status, "application/json", body)(stream);
    });
    let host = server.host().to_owned();
    let mut stage = TestWindow::new(SIZE);
    page(&mut stage);
    stage.write(
        "Any OpenAI-compatible server, such as vLLM, SGLang, llama-server or another Thermocline",
        &format!("http://{host}"),
    );
    stage.click("Add server");
    stage.appears("This server needs an API key.");
    // The page scrolls within a few frames.
    (0..20).for_each(|_| stage.step());
    let shown = stage.control(&format!("Remove {host}")).rect();
    let screen = stage.it.ctx.content_rect();
    assert!(screen.contains_rect(shown), "the page has scrolled to the card: {shown:?} in {screen:?}");
    for (key, said) in [("sk-wrong", "This server does not accept the API key."), ("sk-right", "Open far/model")] {
        stage.write("API key", key);
        stage.click(&format!("Use the API key of {host}"));
        stage.appears(said);
    }
    assert!(!stage.shows(&format!("Use the API key of {host}")));
    assert!(requests.try_iter().any(|request| request.contains("Bearer sk-wrong")));
}

#[test]
fn model_of_a_server_answers_in_the_window_and_its_key_stays_out_of_files() {
    let key = "sk-of-the-window";
    let (server, requests) = scripted_by_request(|request, stream| {
        let (kind, body) = match request.starts_with("GET /v1/models") {
            true => ("application/json", "{\"data\":[{\"id\":\"far/model\"}]}".to_owned()),
            false => {
                let chunk = |delta: &str| format!("data: {{\"choices\":[{delta}]}}\n\n");
                let text = chunk("{\"delta\":{\"content\":\"From far away.\"}}");
                ("text/event-stream", text + &chunk("{\"delta\":{},\"finish_reason\":\"stop\"}"))
            }
        };
        replies("200 OK", kind, &body)(stream);
    });
    let host = server.host().to_owned();
    let mut stage = TestWindow::new(SIZE);
    page(&mut stage);
    let field = "Any OpenAI-compatible server, such as vLLM, SGLang, llama-server or another Thermocline";
    stage.write(field, "ftp://nowhere");
    stage.click("Add server");
    assert!(stage.shows("expected http:// or https://"));
    stage.erase(field);
    stage.write(field, &format!("http://{host}"));
    stage.write("API key of the server", key);
    stage.click("Add server");
    stage.appears("Open far/model");
    assert_eq!(stage.shell().settings.remote_servers, std::slice::from_ref(&server));
    stage.click("Open far/model");
    let model = ModelId::Remote(RemoteModel { server: server.clone(), name: "far/model".to_owned() });
    stage.until_open(&model);
    assert!(stage.shows(&format!("Messages are sent to {host}")), "a badge says where messages are sent");

    stage.command(Command::Compose);
    stage.ask("Who are you?");
    stage.appears("From far away.");
    let sent: Vec<String> = requests.try_iter().collect();
    let asked = sent.iter().find(|request| request.contains("Who are you?")).unwrap();
    assert!(asked.contains(&format!("Bearer {key}")) && asked.contains("\"far/model\""), "{asked}");

    // The server and its model are restored. The key is in its own file only.
    let mut stage = stage.again();
    stage.until_open(&model);
    for entry in fs::read_dir(&stage.folders.config).unwrap() {
        let path = entry.unwrap().path();
        let holds = fs::read(&path).is_ok_and(|bytes| bytes.windows(key.len()).any(|part| part == key.as_bytes()));
        assert_eq!(holds, path.ends_with("keys.json"), "{}", path.display());
    }
    stage.click("Models");
    stage.click(&format!("Remove {host}"));
    assert!(stage.shell().settings.remote_servers.is_empty());
    let kept = stage.shell().keys.get(&server).unwrap();
    assert_eq!(kept, None);
}

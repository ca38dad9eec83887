//! How long a server keeps a model loaded.

use thermocline_tests::wait::eventually;

use super::*;

/// Time without a request after which a model is closed.
const IDLE: Duration = Duration::from_millis(300);

#[test]
fn idle_models_are_closed_as_long_as_the_server_or_the_client_says() {
    let library = Library::new(Some(IDLE));
    library.ask("alpha");
    eventually("it is closed", || library.loaded().is_empty());
    let body =
        json!({ "model": "alpha", "prompt": "Hi", "stream": false, "keep_alive": -1, "options": { "num_predict": 2 } });
    library.client.post("/api/generate", &body).json(200);
    thread::sleep(4 * IDLE);
    assert_eq!(library.loaded(), ["alpha"]);
    library.client.post("/api/generate", &json!({ "model": "alpha", "keep_alive": 0 })).json(200);
    eventually("it is closed", || library.loaded().is_empty());
    assert_eq!(library.ask("beta")["model"], "beta", "and the server goes on");
    let error = library.client.post("/api/generate", &json!({ "model": "alpha", "keep_alive": "soon" })).json(400);
    assert!(error["error"].as_str().unwrap().contains("keep_alive: expected"), "{error}");
}

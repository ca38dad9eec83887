//! The first minute of a new user: the built-in model, its stories, and offered chat models.

use std::{
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    thread,
};

use egui_kittest::kittest::Queryable;
use sha2::{Digest, Sha256};
use thermocline_engine::session::{AdapterKind, Fallbacks, adapters};

use crate::testing::TestWindow;
use thermocline_host::{builtin, engine_handle::ModelState, library::ModelId};

const SIZE: [f32; 2] = [1440.0, 1000.0];

/// Starts a hub. Every repository has the same files, and all of them are the built-in model.
fn hub() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let answer = |stream: &mut TcpStream| -> std::io::Result<()> {
        let mut lines = BufReader::new(stream.try_clone()?).lines();
        let first = lines.next().unwrap_or(Ok(String::new()))?;
        while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
        let file = builtin::file();
        let body = if first.contains("/api/models/") {
            let sum: String = Sha256::digest(file).iter().map(|byte| format!("{byte:02x}")).collect();
            let entry = |name: &str| {
                let lfs = serde_json::json!({"oid": sum, "size": file.len()});
                serde_json::json!({"type": "file", "path": name, "size": file.len(), "lfs": lfs})
            };
            let names = ["it-Q8_0.gguf", "it-Q4_K_M.gguf", "it-Q4_0.gguf", "it-mxfp4.gguf", "it-F16.gguf"];
            serde_json::Value::from(names.map(entry).to_vec()).to_string().into_bytes()
        } else {
            file.to_vec()
        };
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len())?;
        stream.write_all(&body)
    };
    thread::spawn(move || {
        for stream in listener.incoming() {
            // A client that disconnects does not matter to the test.
            let _ = answer(&mut stream.unwrap());
        }
    });
    address
}

#[test]
fn first_screen_says_what_the_model_is_and_what_leaves_the_computer() {
    let mut stage = TestWindow::opened(SIZE);
    stage.until("the adapters", |window| window.shell().adapters.list().is_some());
    assert!(stage.shows("A demonstration with 6.4 million parameters. It can only tell children's stories"));
    assert!(stage.shows("Your data stays on this computer"));
    let only_software = adapters(&Fallbacks::default()).iter().all(|adapter| adapter.kind == AdapterKind::Software);
    let texts = stage.texts();
    let of_vram = texts.iter().filter(|text| text.contains("VRAM")).count();
    assert_eq!(of_vram == 0, only_software, "words about VRAM where there is none: {texts:?}");
    assert!(!only_software || stage.shows("only a software driver"), "{texts:?}");
    stage.click("Other stories");
    assert!(stage.shows("Tell me a story about a little girl.") && !stage.shows("Tell me a story about a little boy."));
    stage.click("Tell me a story about a little girl.");
    stage.answered();
    assert!(!stage.shows("A demonstration with"), "the chat has begun");
}

/// Labels of the download buttons, once all measurements that select the offers are complete.
/// Otherwise a clicked button might vanish with the frame.
fn offers(stage: &mut TestWindow) -> Vec<String> {
    stage.until("the memory's speed", |window| window.offers.is_measured());
    stage.until("the adapters", |window| window.shell.adapters.list().is_some());
    stage.texts().into_iter().filter(|text| text.starts_with("Download ")).collect()
}

#[test]
fn offered_model_is_downloaded_and_opened_with_a_click_each() {
    let mut stage = TestWindow::opened(SIZE);
    stage.it.state_mut().offers.hub = hub();
    stage.appears("Get a chat model");
    let offers = offers(&mut stage);
    assert_eq!(offers.len(), 3, "{offers:?}");
    let smallest = offers.last().unwrap().clone();
    let name = smallest.trim_start_matches("Download ").to_owned();
    stage.click(&smallest);
    stage.appears(&format!("Open {name}"));
    stage.click(&format!("Open {name}"));
    stage.until("the model", |window| {
        matches!(window.shell().engine_handle.state(), ModelState::Ready { model: ModelId::Path(_), .. })
    });
    let models = stage.folders.models();
    let state = stage.shell().engine_handle.state();
    let ModelState::Ready { model: ModelId::Path(path), .. } = state else { panic!("{state:?}") };
    assert!(path.starts_with(&models) && path.is_file(), "{}", path.display());
    assert!(stage.it.query_by_label_contains("Get a chat model").is_none(), "one that can is open");
}

#[test]
fn three_offers_of_the_first_screen_are_on_the_page_of_models_too() {
    let mut stage = TestWindow::opened(SIZE);
    let of_the_first_screen = offers(&mut stage);
    assert_eq!(of_the_first_screen.len(), 3);
    stage.click("Models");
    assert!(stage.shows("For this computer"));
    assert_eq!(offers(&mut stage), of_the_first_screen);
}

#[test]
fn offer_without_a_network_says_why() {
    let mut stage = TestWindow::opened(SIZE);
    stage.it.state_mut().offers.hub = "http://127.0.0.1:9".to_owned();
    let offer = offers(&mut stage).swap_remove(0);
    stage.click(&offer);
    stage.appears("127.0.0.1:9 refuses the connection");
    assert!(stage.shows(&offer), "it can be tried again");
}

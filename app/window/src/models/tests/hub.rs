//! Searches of a hub that answers, finds nothing, fails, or is slow.

use super::*;

/// Starts a hub. A search for `gemma 4` finds two repositories, the first with two quantisations. A
/// search for `nothing` finds none, a search for `slow` gets no answer, and other requests fail.
fn hub() -> String {
    let (server, _) = scripted_by_request(|request, stream| {
        let file = |name: &str, gigabytes: u64| {
            format!(r#"{{"type":"file","path":"{name}","size":{}}}"#, gigabytes * 1_000_000_000)
        };
        let (status, body) = match request.split_whitespace().nth(1).unwrap_or_default() {
            path if path.starts_with("/api/models?search=gemma%204&") => (
                "200 OK",
                r#"[{"id":"a/gemma-GGUF","downloads":1234567},{"id":"b/other-GGUF","downloads":1}]"#.to_owned(),
            ),
            path if path.starts_with("/api/models?search=nothing&") => ("200 OK", "[]".to_owned()),
            path if path.starts_with("/api/models?search=slow&") => {
                let silent = stream.try_clone().unwrap();
                std::thread::spawn(move || {
                    std::thread::sleep(thermocline_host::testing::PATIENCE);
                    drop(silent);
                });
                return;
            }
            path if path.starts_with("/api/models/a/gemma-GGUF/") => {
                let files = [file("g-Q8_0.gguf", 2), file("g-Q4_K_M.gguf", 1), file("mmproj-F16.gguf", 1)];
                ("200 OK", format!("[{}]", files.join(",")))
            }
            path if path.starts_with("/api/models/b/other-GGUF/") => ("404 No", String::new()),
            _ => ("503 Busy", String::new()),
        };
        replies(status, "application/json", &body)(stream);
    });
    format!("http://{}", server.host())
}

/// Opens the page of models with the hub, and searches for `words`.
fn searched(words: &str) -> TestWindow {
    let mut stage = TestWindow::new(SIZE);
    page(&mut stage);
    stage.it.state_mut().models.downloads.hub = hub();
    stage.write(FIELD, words);
    stage.press(egui::Key::Enter);
    stage
}

#[test]
fn search_lists_repositories_with_downloads_quantisations_size_and_fit() {
    let mut stage = searched("gemma 4");
    stage.appears("2 repositories for \"gemma 4\", the most downloaded first:");
    assert!(stage.shows("a/gemma-GGUF") && stage.shows("1.23 M downloads") && stage.shows("1 download"));
    stage.appears("Q4_K_M, Q8_0");
    stage.appears("Q4_K_M, 953.7 MiB, ");
    let fits = ["fits into memory", "fits into GPU memory", "larger than this computer's memory"];
    assert!(fits.iter().any(|fit| stage.shows(&format!("Q4_K_M, 953.7 MiB, {fit}"))), "{:?}", stage.texts());
    // The other repository no longer exists.
    stage.appears("expected status 200, got 404: this public repository does not exist");

    stage.click("All files of a/gemma-GGUF");
    stage.appears("Download g-Q8_0.gguf");
    assert!(!stage.shows("mmproj") && !stage.shows("b/other-GGUF"));
    stage.click("Back to the search: a/gemma-GGUF");
    stage.click("Download a/gemma-GGUF: g-Q4_K_M.gguf");
    stage.until("a download", |window| window.shell().downloads.list().len() == 1);
    let wanted = stage.folders.models().join("a/gemma-GGUF/g-Q4_K_M.gguf");
    assert_eq!(stage.shell().downloads.list()[0].request.to, wanted);
    stage.click("Close the search");
    assert!(!stage.shows("repositories for"));
}

#[test]
fn search_says_that_nothing_was_found_and_why_it_failed() {
    let mut stage = searched("nothing");
    stage.appears("Hugging Face has no GGUF files for \"nothing\". Try other or fewer words.");
    stage.erase(FIELD);
    stage.write(FIELD, "anything");
    stage.click("Search for models");
    stage.appears("The search for \"anything\" failed: http://127.0.0.1:");
    assert!(stage.shows("/api/models?search=anything&filter=gguf") && stage.shows("expected status 200, got 503"));
}

#[test]
fn slow_search_can_be_left_for_another() {
    let mut stage = searched("slow");
    stage.appears("Searching Hugging Face for \"slow\" …");
    stage.click("Stop the search");
    assert!(!stage.shows("Searching Hugging Face"));
    stage.erase(FIELD);
    stage.write(FIELD, "slow");
    stage.press(egui::Key::Enter);
    stage.appears("Searching Hugging Face for \"slow\" …");
    stage.erase(FIELD);
    stage.write(FIELD, "gemma 4");
    stage.press(egui::Key::Enter);
    stage.appears("2 repositories for \"gemma 4\"");
}

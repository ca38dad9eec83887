//! `chat` with its input from a pipe.

#![allow(clippy::unwrap_used)]

use std::io::Write;

use thermocline_tests::terminal::{Ran, command, wait, with_input};

fn chat(flags: &[&str], lines: &str) -> Ran {
    with_input(&[&["chat", "--temp", "0", "-n", "24"], flags].concat(), lines.as_bytes())
}

// Other systems always have a display, so the app opens there.
#[cfg(target_os = "linux")]
#[test]
fn chat_is_the_default_command() {
    let told = with_input(&[], b"Tell me a story about a dog.\n").ok();
    assert!(told.split_whitespace().count() > 20, "{told}");
    assert_eq!(with_input(&[], b"").ok(), "");
}

#[test]
fn chat_answers_every_message() {
    let one = chat(&[], "Hi\n").ok();
    assert!(one.starts_with("Once upon a time"), "{one}");
    assert_eq!(one.matches('\n').count(), 1);
    let two = chat(&[], "Hi\nTell me another story.\n").ok();
    assert_eq!(two.matches('\n').count(), 2, "{two}");
    assert!(two.starts_with(&one));
}

#[test]
fn reset_starts_a_new_conversation() {
    let one = chat(&[], "Hi\n").ok();
    let again = chat(&[], "Hi\n/reset\nHi\n").ok();
    assert_eq!(again, format!("{one}(a new conversation)\n{one}"));
}

#[test]
fn chat_system_prompt_is_set_by_flag_or_command() {
    let plain = chat(&[], "Hi\n").ok();
    let set = chat(&[], "/system You tell stories about dragons.\nHi\n").ok();
    let given = chat(&["--system", "You tell stories about dragons."], "Hi\n").ok();
    assert_eq!(set, format!("(system prompt set)\n{given}"));
    assert_ne!(given, plain);
    assert_eq!(chat(&[], "/system x\n/system\nHi\n").ok(), format!("(system prompt set)\n(no system prompt)\n{plain}"));
}

#[test]
fn regenerate_repeats_greedy_answers_and_redraws_sampled_ones() {
    let same = chat(&[], "Hi\n/regenerate\n").ok();
    let lines: Vec<&str> = same.lines().collect();
    assert_eq!(lines[0], lines[1], "greedy answers do not differ");
    let drawn = with_input(&["chat", "-n", "40", "--seed", "5"], b"Hi\n/regenerate\n").ok();
    let half = drawn.len() / 2;
    assert_ne!(drawn[..half], drawn[half..], "{drawn}");
    assert!(chat(&[], "/regenerate\n").refusal().contains("no answer"));
}

#[test]
fn chat_reuses_the_kv_cache_of_earlier_messages() {
    let stats = chat(&[], "Hi\nAnd then?\n/stats\n").ok();
    let line = stats.lines().last().unwrap();
    let reused: usize = line.split_once('(').unwrap().1.split_once(" reused").unwrap().0.parse().unwrap();
    assert!(reused > 20, "{line}");
}

#[test]
fn chat_messages_continue_by_backslash_or_fence() {
    let folded = chat(&[], "Tell me a story\\\nabout a dog.\n").ok();
    let fenced = chat(&[], "\"\"\"\nTell me a story\nabout a dog.\n\"\"\"\n").ok();
    assert_eq!(folded, fenced);
    assert_eq!(folded.matches('\n').count(), 1, "{folded}");
}

#[test]
fn chat_save_command_writes_the_conversation() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("chat.json");
    let text = folder.path().join("chat.md");
    let lines = format!("/system Be kind.\nHi\n/save {}\n/save {}\n", json.display(), text.display());
    let said = chat(&[], &lines).ok();
    let saved: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let roles: Vec<_> = saved["messages"].as_array().unwrap().iter().map(|m| m["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["system", "user", "assistant"]);
    assert!(said.contains(saved["messages"][2]["content"].as_str().unwrap()));
    assert!(std::fs::read_to_string(&text).unwrap().contains("## User\n\nHi\n"));

    let before = std::fs::read(&json).unwrap();
    assert!(chat(&[], &lines).failure(1).contains("chat.json"));
    assert_eq!(std::fs::read(&json).unwrap(), before, "an existing file is left alone");
}

#[test]
fn chat_commands_help_quit_and_unknown_ones() {
    let help = chat(&[], "/help\n/quit\nHi\n").ok();
    for word in ["/reset", "/system", "/regenerate", "/stats", "/save", "/quit"] {
        assert!(help.contains(word), "{help}");
    }
    assert!(!help.contains("Once upon"), "{help}");
    assert!(chat(&[], "/nonsense\n").refusal().contains("/nonsense"));
    assert!(chat(&[], "//etc\n").ok().len() > 5);
    assert!(with_input(&["chat"], b"\xff\n").refusal().contains("line 1"));
}

#[test]
fn chat_beyond_the_context_fails_or_shifts() {
    let lines = "Tell me a story.\n".repeat(8);
    let error = chat(&["-c", "128"], &lines);
    assert!(error.stderr.contains("hint: "), "{error:?}");
    assert!(error.refusal().contains("the context is full"));
    let shifted = chat(&["-c", "128", "--on-full", "shift"], &lines);
    assert!(shifted.stderr.contains("the oldest question and its answer"), "{shifted:?}");
    let shifted = shifted.ok();
    assert!(shifted.lines().filter(|line| !line.is_empty()).count() >= 8, "{shifted}");
}

/// `chat` answers a message as soon as it arrives, not at the end of the input.
#[test]
fn chat_answers_before_the_input_ends() {
    let mut child = command(&["chat", "--temp", "0", "-n", "8"]).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"Hi\n").unwrap();
    let mut output = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut output, &mut line).unwrap();
    assert!(line.starts_with("Once upon"), "{line}");
    drop(input);
    assert_eq!(wait(&mut child).code(), Some(0));
}

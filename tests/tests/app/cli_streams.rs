//! Standard error that nobody reads, and help pages that cannot be written. The program loses this
//! output but works as usual.

#![cfg(unix)]
#![allow(clippy::unwrap_used)]

use std::{
    fs::{File, OpenOptions},
    io::{self, BufRead, BufReader},
    process::{Child, Stdio},
};

use serde_json::json;
use thermocline_tests::{
    http::Client,
    served::{CHAT, chat},
    terminal::{command, run, wait},
};

/// Two kinds of standard error that accept no bytes: a pipe without a reader, and a full disk.
fn deaf_ends() -> [Stdio; 2] {
    let (reader, writer) = io::pipe().unwrap();
    drop(reader);
    [writer.into(), full().into()]
}

/// Opens a file on a full disk.
fn full() -> File {
    OpenOptions::new().write(true).open("/dev/full").unwrap()
}

#[test]
fn commands_do_their_work_where_standard_error_takes_nothing() {
    for (args, code, says) in [
        (&["run", "-p", "Hi", "-n", "3", "--temp", "0"][..], 0, true),
        (&["run", "-p", "Hi", "-ngl", "99", "-n", "3"], 0, true),
        (&["plan", "--vram", "8MiB"], 0, true),
        (&["tokenize", "a"], 0, true),
        (&["inspect", "nofile"], 2, false),
        (&["run", "--nonsense"], 2, false),
        (&["run", "-p", ""], 2, false),
        (&["chat", "--remote", "http://127.0.0.1:9", "-m", "x"], 1, false),
    ] {
        for stderr in deaf_ends() {
            let mut command = command(args);
            command.stderr(stderr).env("RUST_LOG", "debug");
            let ran = run(command, b"Hi\n");
            assert_eq!((ran.code, !ran.stdout.is_empty()), (Some(code), says), "{args:?}: {ran:?}");
        }
    }
}

/// Starts `thermocline serve` with this standard error.
fn serving(stderr: Stdio) -> (Child, Client) {
    let mut command = command(&["serve", "--port", "0"]);
    let mut child = command.stderr(stderr).spawn().unwrap();
    let mut greeting = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut greeting).unwrap();
    let address = greeting.trim_end().strip_suffix("/v1").and_then(|it| it.rsplit_once("http://"));
    let client = Client::new(address.unwrap_or_else(|| panic!("{greeting:?}")).1.parse().unwrap());
    (child, client)
}

/// Ends the server and checks that it ends as usual.
fn end(mut child: Child) {
    let id = child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
    assert_eq!(wait(&mut child).code(), Some(0));
}

#[test]
fn server_answers_and_ends_where_its_log_takes_nothing() {
    for stderr in deaf_ends() {
        let (child, client) = serving(stderr);
        client.get("/nowhere").error(404);
        client.post(CHAT, &chat("Hello!", json!({ "max_tokens": 3 }))).json(200);
        end(child);
    }
}

#[test]
fn server_answers_while_nobody_reads_its_log() {
    let (reader, writer) = io::pipe().unwrap();
    let (child, client) = serving(writer.into());
    // The 200 log lines are far more than a pipe holds.
    let path = format!("/{}", "x".repeat(4000));
    (0..200).for_each(|_| drop(client.get(&path).error(404)));
    client.post(CHAT, &chat("Hello!", json!({ "max_tokens": 3 }))).json(200);
    end(child);
    drop(reader);
}

#[test]
fn pages_that_cannot_be_written_are_errors() {
    for args in [&["--help"][..], &["run", "--help"], &["--version"], &["completions", "bash"], &["man"], &["devices"]]
    {
        let mut command = command(args);
        command.stdout(full());
        let ran = run(command, b"");
        assert!(ran.failure(1).contains("cannot write to standard output"), "{args:?}");
    }
    let (reader, writer) = io::pipe().unwrap();
    drop(reader);
    let mut closed = command(&["--help"]);
    closed.stdout(writer);
    assert_eq!(run(closed, b"").code, Some(0), "a reader that has gone is no error");
}

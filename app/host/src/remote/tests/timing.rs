//! Timeouts while the server is silent.

use super::*;

/// Longest time that the client waits for a sign of life.
const SILENCE: Duration = Duration::from_secs(1);

#[test]
fn slow_but_living_server_is_waited_for() {
    let (server, _requests) = scripted(|stream: &mut TcpStream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n");
        // Comments are signs of life. The server sends them for longer than the timeout.
        for _ in 0..10 {
            thread::sleep(SILENCE / 5);
            let _ = stream.write_all(b": waiting\n\n");
        }
        let _ =
            stream.write_all(b"data: {\"choices\":[{\"delta\":{\"content\":\"ok\"},\"finish_reason\":\"stop\"}]}\n\n");
    });
    let (text, ended) = answer_of(&impatient(server, SILENCE));
    assert_eq!((&*text, ended.unwrap().reason), ("ok", FinishReason::Stop));
}

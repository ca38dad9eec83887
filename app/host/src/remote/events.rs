//! Server-sent events (WHATWG HTML, section 9.2), read with limits.

use std::io::{self, BufRead, Read};

/// Longest line of a stream, in bytes.
pub(super) const LONGEST_LINE: u64 = 1 << 20;

/// Result of reading an event.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum StreamRead {
    /// The data of an event.
    Data(String),
    /// A line that is longer than [`LONGEST_LINE`] or not UTF-8, shortened to its beginning.
    Bad(String),
    /// The stream has ended.
    End,
}

/// Reads the data of the next event. Skips comments and other fields.
pub(super) fn next_event(stream: &mut impl BufRead) -> io::Result<StreamRead> {
    let mut data: Option<String> = None;
    loop {
        let mut line = Vec::new();
        let read = stream.by_ref().take(LONGEST_LINE + 1).read_until(b'\n', &mut line)?;
        if read == 0 {
            // Accept an event without its final empty line.
            return Ok(data.map_or(StreamRead::End, StreamRead::Data));
        }
        let beginning = |line: &[u8]| String::from_utf8_lossy(&line[..line.len().min(200)]).into_owned();
        if line.len() as u64 > LONGEST_LINE {
            return Ok(StreamRead::Bad(format!("a line of more than {LONGEST_LINE} bytes: {}", beginning(&line))));
        }
        while line.last().is_some_and(|byte| matches!(byte, b'\n' | b'\r')) {
            line.pop();
        }
        let Ok(line) = std::str::from_utf8(&line) else { return Ok(StreamRead::Bad(beginning(&line))) };
        if line.is_empty() {
            match data {
                Some(data) => return Ok(StreamRead::Data(data)),
                None => continue,
            }
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "data" => match &mut data {
                Some(data) if (data.len() + value.len()) as u64 > LONGEST_LINE => {
                    return Ok(StreamRead::Bad("an event of more data than a line may have".to_owned()));
                }
                Some(data) => {
                    data.push('\n');
                    data.push_str(value);
                }
                None => data = Some(value.to_owned()),
            },
            // Comments, and fields that OpenAI's protocol does not use.
            "" | "event" | "id" | "retry" => {}
            _ => return Ok(StreamRead::Bad(beginning(line.as_bytes()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(mut bytes: &[u8]) -> Vec<StreamRead> {
        let mut found = Vec::new();
        loop {
            let read = next_event(&mut bytes).unwrap();
            let last = !matches!(read, StreamRead::Data(_));
            found.push(read);
            if last {
                return found;
            }
        }
    }

    fn data(text: &str) -> StreamRead {
        StreamRead::Data(text.to_owned())
    }

    #[test]
    fn events_are_read_in_every_form_servers_send() {
        assert_eq!(
            all(b"data: a\n\ndata:b\r\n\r\n: waiting\n\ndata: [DONE]\n\n"),
            [data("a"), data("b"), data("[DONE]"), StreamRead::End]
        );
        assert_eq!(all(b"event: x\nid: 7\ndata: a\ndata: b\n\n"), [data("a\nb"), StreamRead::End]);
        assert_eq!(all(b"data: a"), [data("a"), StreamRead::End]);
        assert_eq!(all(b""), [StreamRead::End]);
    }

    #[test]
    fn lines_that_are_too_long_or_no_events_are_bad() {
        let long = [b"data: ".to_vec(), vec![b'x'; LONGEST_LINE as usize]].concat();
        for bytes in [&b"<html>\n"[..], b"\xff\xfe\n", &long] {
            assert!(matches!(all(bytes)[..], [StreamRead::Bad(_)]));
        }
        let many = b"data: 0123456789\n".repeat(100_000);
        assert!(matches!(all(&many)[..], [StreamRead::Bad(_)]), "nor may an event grow without end");
    }
}

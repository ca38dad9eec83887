//! Text, code and Markdown: anything that is letters.

use std::borrow::Cow;

/// Share of control characters above which bytes are no text.
const MOST_CONTROLS: usize = 50;

/// The text in `bytes`: UTF-8, UTF-16 with a mark, or the Western letters of old Windows. `None` if it is no text.
pub(super) fn decode(bytes: &[u8]) -> Option<Cow<'_, str>> {
    let text = match encoding_rs::Encoding::for_bom(bytes) {
        Some((encoding, mark)) => encoding.decode_without_bom_handling_and_without_replacement(&bytes[mark..])?,
        None => match str::from_utf8(bytes) {
            Ok(text) => Cow::Borrowed(text),
            Err(_) if bytes.contains(&0) => return None,
            Err(_) => encoding_rs::WINDOWS_1252.decode_without_bom_handling(bytes).0,
        },
    };
    let controls =
        text.chars().filter(|c| c.is_control() && !matches!(c, '\n' | '\r' | '\t' | '\u{c}' | '\u{1b}')).count();
    let is_text = !text.contains('\0') && controls <= text.len() / MOST_CONTROLS;
    is_text.then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decode_knows_encodings_and_refuses_what_is_no_text() {
        assert_eq!(decode("naïve 火".as_bytes()).as_deref(), Some("naïve 火"));
        assert_eq!(decode(b"\xef\xbb\xbfmarked").as_deref(), Some("marked"));
        let wide: Vec<u8> =
            [0xfeffu16].into_iter().chain("naïve 火".encode_utf16()).flat_map(u16::to_le_bytes).collect();
        assert_eq!(decode(&wide).as_deref(), Some("naïve 火"));
        assert_eq!(decode(b"na\xefve \x80 5").as_deref(), Some("naïve € 5"));
        for binary in [&b"\x7fELF\x02\x01\x01\0\0\0"[..], b"\x89PNG\r\n\x1a\n\0\0", &(0..=255).collect::<Vec<u8>>()] {
            assert_eq!(decode(binary), None);
        }
        assert_eq!(decode(b"GIF\x01\x02\x03\x04\x05\x06\x07\x08\xff"), None, "mostly controls");
    }
}

//! GPT-2's byte alphabet, which maps every byte to a printable character, so that a byte-level
//! vocabulary is text.

/// The character for `byte` in GPT-2's byte alphabet: the byte itself if it is printable Latin-1,
/// otherwise a character from U+0100 upwards.
pub fn byte_char(byte: u8) -> char {
    let offset = match byte {
        b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => return char::from(byte),
        0..=b' ' => u32::from(byte),
        0x7f..=0xa0 => u32::from(byte) - 0x7f + 33,
        0xad => 67,
    };
    char::from_u32(0x100 + offset).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// The byte for `character`, if it is in the alphabet.
pub fn byte_of(character: char) -> Option<u8> {
    Some(match u32::from(character) {
        code @ (0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) => code as u8,
        code @ 0x100..=0x120 => (code - 0x100) as u8,
        code @ 0x121..=0x142 => (code - 0x121 + 0x7f) as u8,
        0x143 => 0xad,
        _ => return None,
    })
}

/// Appends the bytes of a token of a byte-level vocabulary. Characters outside the alphabet stand
/// for themselves.
pub fn decode(token: &str, bytes: &mut Vec<u8>) {
    let start = bytes.len();
    for character in token.chars() {
        match byte_of(character) {
            Some(byte) => bytes.push(byte),
            None => {
                bytes.truncate(start);
                bytes.extend_from_slice(token.as_bytes());
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alphabet_is_a_bijection() {
        for byte in 0..=255 {
            assert_eq!(byte_of(byte_char(byte)), Some(byte));
        }
        assert_eq!((0..=0x2000).filter_map(char::from_u32).filter(|&c| byte_of(c).is_some()).count(), 256);
        assert_eq!((byte_char(b' '), byte_char(b'\n'), byte_char(b'a')), ('Ġ', 'Ċ', 'a'));
    }

    #[test]
    fn text_outside_the_alphabet_is_literal() {
        let mut bytes = vec![];
        decode("Ġa", &mut bytes);
        decode("a b", &mut bytes);
        assert_eq!(bytes, b" aa b");
    }
}

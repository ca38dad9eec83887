//! Decoding of text files: any form of Unicode, or an older encoding recognised by its letters.

use std::{borrow::Cow, collections::HashSet};

use chardetng::{EncodingDetector, Iso2022JpDetection, Utf8Detection};
use encoding_rs::{Encoding, GB18030, GBK, ISO_2022_JP, UTF_16BE, UTF_16LE, WINDOWS_1252};

/// Bytes are not text if more than one in this many is a control character.
const MOST_CONTROLS: usize = 50;

/// Number of non-ASCII letters that UTF-8 text must have for each invalid byte.
const LETTERS_FOR_A_FAULT: usize = 4;

/// UTF-16 text must have at least one familiar character in this many: a space, an ASCII character
/// or East Asian punctuation.
const FAMILIAR: usize = 20;

/// Number of different non-ASCII bytes needed to tell the encodings of Latin letters apart.
const TELLING_LETTERS: usize = 3;

/// Bytes that cannot be read as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotText {
    /// They are not text.
    #[error("not text")]
    Binary,
    /// They are text in an encoding that cannot be recognised for sure.
    #[error("the text is not UTF-8, and its encoding cannot be recognised; save it as UTF-8")]
    UnknownEncoding,
}

/// Decodes `bytes` as text: UTF-8 or UTF-16, with or without a byte order mark, or an older
/// encoding of one alphabet.
///
/// # Errors
/// [`NotText`] if the bytes are not text, or if the encoding is uncertain.
pub fn decode(bytes: &[u8]) -> Result<Cow<'_, str>, NotText> {
    let text = match Encoding::for_bom(bytes) {
        Some((encoding, mark)) => strictly(encoding, &bytes[mark..]).ok_or(NotText::Binary)?,
        None if bytes.contains(&0) => utf16(bytes).ok_or(NotText::Binary)?,
        None => match str::from_utf8(bytes) {
            Ok(text) => switched(text).unwrap_or(Cow::Borrowed(text)),
            Err(_) if is_nearly_utf8(bytes) => String::from_utf8_lossy(bytes),
            Err(_) => older(bytes)?,
        },
    };
    let controls =
        text.chars().filter(|c| c.is_control() && !matches!(c, '\n' | '\r' | '\t' | '\u{c}' | '\u{1b}')).count();
    let is_text = !text.contains('\0') && controls <= text.len() / MOST_CONTROLS;
    is_text.then_some(text).ok_or(NotText::Binary)
}

/// Decodes `bytes`; `None` if any byte is invalid in this encoding.
fn strictly<'a>(encoding: &'static Encoding, bytes: &'a [u8]) -> Option<Cow<'a, str>> {
    encoding.decode_without_bom_handling_and_without_replacement(bytes)
}

/// Decodes ISO-2022-JP: Japanese written in ASCII bytes after escape sequences.
fn switched(text: &str) -> Option<Cow<'_, str>> {
    let is_switched = text.is_ascii() && (text.contains("\u{1b}$B") || text.contains("\u{1b}$@"));
    is_switched.then(|| strictly(ISO_2022_JP, text.as_bytes())).flatten()
}

/// Decodes UTF-16 without a byte order mark, in the byte order that gives more familiar characters.
fn utf16(bytes: &[u8]) -> Option<Cow<'_, str>> {
    let familiar = |text: &str| text.chars().filter(|c| is_familiar(*c)).count();
    let texts = [UTF_16LE, UTF_16BE].into_iter().filter_map(|encoding| strictly(encoding, bytes));
    let text = texts.max_by_key(|text| familiar(text))?;
    (familiar(&text) * FAMILIAR >= text.chars().count()).then_some(text)
}

fn is_familiar(c: char) -> bool {
    // No other characters of these blocks: frequent Cyrillic letters become such characters if
    // their bytes are swapped.
    c.is_ascii_graphic() || matches!(c, ' ' | '\n' | '\r' | '\t' | '\u{3000}' | '、' | '。' | '「' | '」' | '！'..='～')
}

/// True for UTF-8 with a few broken bytes, such as a character that was cut.
fn is_nearly_utf8(bytes: &[u8]) -> bool {
    let (mut letters, mut faults) = (0, 0);
    for chunk in bytes.utf8_chunks() {
        letters += chunk.valid().chars().filter(|c| !c.is_ascii()).count();
        faults += usize::from(!chunk.invalid().is_empty());
    }
    letters >= faults * LETTERS_FOR_A_FAULT
}

/// Decodes text in an encoding older than Unicode.
fn older(bytes: &[u8]) -> Result<Cow<'_, str>, NotText> {
    let mut detector = EncodingDetector::new(Iso2022JpDetection::Deny);
    detector.feed(bytes, true);
    let encoding = detector.guess(None, Utf8Detection::Deny);
    // GB18030 contains all of GBK.
    let encoding = if encoding == GBK { GB18030 } else { encoding };
    let text = strictly(encoding, bytes).ok_or(NotText::UnknownEncoding)?;
    if !text.chars().filter(|c| !c.is_ascii() && c.is_alphabetic()).all(is_latin) {
        return Ok(text);
    }
    let different: HashSet<u8> = bytes.iter().copied().filter(|byte| !byte.is_ascii()).collect();
    let western = WINDOWS_1252.decode_without_bom_handling(bytes).0;
    let text = if different.len() < TELLING_LETTERS { western } else { text };
    if is_of_another_alphabet(&text) { Err(NotText::UnknownEncoding) } else { Ok(text) }
}

fn is_latin(c: char) -> bool {
    matches!(c, 'ª' | 'º' | 'À'..='ɏ' | 'Ḁ'..='ỿ')
}

/// True if words with non-ASCII letters have no ASCII letters. Words of Latin languages mix the
/// two.
fn is_of_another_alphabet(text: &str) -> bool {
    let (mut pure, mut mixed) = (false, false);
    for word in text.split(|c: char| !c.is_alphabetic()) {
        let ascii = word.chars().filter(char::is_ascii).count();
        match word.chars().count() - ascii {
            0 => {}
            1 if ascii == 0 => {}
            _ if ascii == 0 => pure = true,
            _ => mixed = true,
        }
    }
    pure && !mixed
}

#[cfg(test)]
mod tests {
    use encoding_rs::{
        BIG5, EUC_JP, EUC_KR, ISO_8859_2, KOI8_U, SHIFT_JIS, WINDOWS_1250, WINDOWS_1251, WINDOWS_1253, WINDOWS_1254,
        WINDOWS_1255, WINDOWS_1256,
    };

    use super::*;

    fn text(bytes: &[u8]) -> Result<String, NotText> {
        decode(bytes).map(Cow::into_owned)
    }

    #[test]
    fn decode_knows_unicode_with_and_without_marks() {
        assert_eq!(text("naïve 火".as_bytes()).as_deref(), Ok("naïve 火"));
        assert_eq!(text(b"\xef\xbb\xbfmarked").as_deref(), Ok("marked"));
        let german = "Vertrag: 250 Euro, gültig ab Juni.";
        for line in ["naïve 火", "plain text", german, "合同金额为二百五十元，自六月一日起生效。\n", "Сумма договора"]
        {
            let units: Vec<u16> = line.encode_utf16().collect();
            let little: Vec<u8> = units.iter().flat_map(|unit| unit.to_le_bytes()).collect();
            let big: Vec<u8> = units.iter().flat_map(|unit| unit.to_be_bytes()).collect();
            for (mark, bytes) in [(b"\xff\xfe", &little), (b"\xfe\xff", &big)] {
                assert_eq!(text(&[&mark[..], bytes].concat()).as_deref(), Ok(line));
                assert_eq!(text(bytes).as_deref(), Ok(line), "without a mark");
            }
        }
        let truncated = [german.repeat(4).as_bytes(), b" \xe7\x81"].concat();
        assert_eq!(text(&truncated), Ok(german.repeat(4) + " \u{fffd}"), "one letter was cut");
    }

    #[test]
    fn decode_knows_older_encodings_by_their_letters() {
        for (encoding, line) in [
            (GB18030, "合同金额为二百五十元，自六月一日起生效。"),
            (BIG5, "合約金額為二百五十元，自六月一日起生效。"),
            (SHIFT_JIS, "契約金額は二百五十円です。"),
            (EUC_JP, "契約金額は二百五十円です。"),
            (ISO_2022_JP, "契約金額は二百五十円です。"),
            (EUC_KR, "계약 금액은 이백오십 원입니다."),
            (WINDOWS_1251, "Сумма договора — двести пятьдесят рублей."),
            (KOI8_U, "Сумма договора двести пятьдесят рублей."),
            (WINDOWS_1253, "Η τιμή είναι διακόσια πενήντα ευρώ."),
            (WINDOWS_1255, "מחיר החוזה הוא מאתיים וחמישים"),
            (WINDOWS_1256, "قيمة العقد مئتان وخمسون يورو"),
            (WINDOWS_1250, "Smlouva platí od června, částka dvě stě padesát."),
            (ISO_8859_2, "Zażółć gęślą jaźń"),
            (WINDOWS_1254, "Sözleşme bedeli iki yüz elli liradır"),
            (WINDOWS_1252, "naïve € 5"),
            (WINDOWS_1252, "price: £5, £10 or £20"),
            (WINDOWS_1252, "“Quoted” – it’s déjà vu, où ça? Müller & Söhne, København, El niño"),
        ] {
            assert_eq!(text(&encoding.encode(line).0).as_deref(), Ok(line), "{}", encoding.name());
        }
    }

    #[test]
    fn decode_refuses_letters_that_may_be_others() {
        assert_eq!(text(&WINDOWS_1251.encode("Да").0), Err(NotText::UnknownEncoding));
    }

    #[test]
    fn decode_refuses_what_is_no_text() {
        for binary in [&b"\x7fELF\x02\x01\x01\0\0\0"[..], b"\x89PNG\r\n\x1a\n\0\0", &(0..=255).collect::<Vec<u8>>()] {
            assert_eq!(text(binary), Err(NotText::Binary));
        }
        let controls = text(b"GIF\x01\x02\x03\x04\x05\x06\x07\x08\xff");
        assert!(controls.is_err(), "mostly controls: {controls:?}");
    }
}

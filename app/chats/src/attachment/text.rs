//! The letters in bytes: Unicode in any of its forms, or an older encoding that is recognised by the letters themselves.

use std::{borrow::Cow, collections::HashSet};

use chardetng::{EncodingDetector, Iso2022JpDetection, Utf8Detection};
use encoding_rs::{Encoding, GB18030, GBK, ISO_2022_JP, UTF_16BE, UTF_16LE, WINDOWS_1252};

/// Share of control characters above which bytes are no text.
const MOST_CONTROLS: usize = 50;

/// A text in UTF-8 has this many letters beyond ASCII for each byte that is out of place.
const LETTERS_FOR_A_FAULT: usize = 4;

/// One character in so many of a text in UTF-16 is a space, an ASCII character or the punctuation of East Asia.
const FAMILIAR: usize = 20;

/// So many different letters beyond ASCII tell one encoding of Latin letters from another.
const TELLING_LETTERS: usize = 3;

/// Bytes that cannot be read as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotText {
    /// They are something else.
    #[error("not text")]
    Binary,
    /// They are letters of an encoding that cannot be told for sure.
    #[error("the text is not UTF-8, and its encoding cannot be recognised; save it as UTF-8")]
    UnknownEncoding,
}

/// The text in `bytes`: UTF-8 or UTF-16, with or without a mark, or an older encoding of one alphabet.
///
/// # Errors
/// [`NotText`] if it is no text, or if its letters may be others.
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

/// The text, if every byte of it is of this encoding.
fn strictly<'a>(encoding: &'static Encoding, bytes: &'a [u8]) -> Option<Cow<'a, str>> {
    encoding.decode_without_bom_handling_and_without_replacement(bytes)
}

/// Japanese whose letters are ASCII, after escapes that switch to them.
fn switched(text: &str) -> Option<Cow<'_, str>> {
    let is_switched = text.is_ascii() && (text.contains("\u{1b}$B") || text.contains("\u{1b}$@"));
    is_switched.then(|| strictly(ISO_2022_JP, text.as_bytes())).flatten()
}

/// UTF-16 without a mark, in the order of bytes that gives more familiar characters.
fn utf16(bytes: &[u8]) -> Option<Cow<'_, str>> {
    let familiar = |text: &str| text.chars().filter(|c| is_familiar(*c)).count();
    let texts = [UTF_16LE, UTF_16BE].into_iter().filter_map(|encoding| strictly(encoding, bytes));
    let text = texts.max_by_key(|text| familiar(text))?;
    (familiar(&text) * FAMILIAR >= text.chars().count()).then_some(text)
}

fn is_familiar(c: char) -> bool {
    // No others of these blocks: with their bytes exchanged, frequent letters of Cyrillic are such characters.
    c.is_ascii_graphic() || matches!(c, ' ' | '\n' | '\r' | '\t' | '\u{3000}' | '、' | '。' | '「' | '」' | '！'..='～')
}

/// True for UTF-8 in which a few bytes are broken, such as a character that was cut.
fn is_nearly_utf8(bytes: &[u8]) -> bool {
    let (mut letters, mut faults) = (0, 0);
    for chunk in bytes.utf8_chunks() {
        letters += chunk.valid().chars().filter(|c| !c.is_ascii()).count();
        faults += usize::from(!chunk.invalid().is_empty());
    }
    letters >= faults * LETTERS_FOR_A_FAULT
}

/// Text of the time before Unicode.
fn older(bytes: &[u8]) -> Result<Cow<'_, str>, NotText> {
    let mut detector = EncodingDetector::new(Iso2022JpDetection::Deny);
    detector.feed(bytes, true);
    let encoding = detector.guess(None, Utf8Detection::Deny);
    // GB18030 has all letters of GBK.
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

/// True if every word with letters beyond ASCII has no others: Latin words mix them.
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

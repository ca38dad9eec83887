//! Limits the digits of JSON numbers. Grammars set no limit, and models that have started a
//! fraction may never end it.

/// Largest number of digits before the point, after it, and in an exponent, as in llama.cpp. A
/// 64-bit number has only a few more significant digits.
const MOST_DIGITS: usize = 16;

/// Digits of the number at the end of a JSON text.
#[derive(Debug, Clone, Default)]
pub(super) struct NumberLength {
    in_string: bool,
    escaped: bool,
    digits: usize,
}

impl NumberLength {
    /// Reads the next bytes of the text.
    pub fn push(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if self.in_string {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => self.in_string = false,
                    _ => {}
                }
                continue;
            }
            self.in_string = byte == b'"';
            self.digits = if byte.is_ascii_digit() { self.digits + 1 } else { 0 };
        }
    }

    /// True if `more` further digits are within the limit.
    pub fn allows(&self, more: usize) -> bool {
        self.in_string || self.digits == 0 || self.digits + more <= MOST_DIGITS
    }
}

/// Number of digits at the start of a token.
pub(super) fn leading_digits(bytes: &[u8]) -> usize {
    bytes.iter().take_while(|byte| byte.is_ascii_digit()).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(text: &str) -> NumberLength {
        let mut length = NumberLength::default();
        length.push(text.as_bytes());
        length
    }

    #[test]
    fn each_part_of_a_number_has_a_limit_of_its_own() {
        let sixteen = "1234567890123456";
        for full in
            [sixteen.to_owned(), format!("[1, -{sixteen}"), format!("{sixteen}.{sixteen}"), format!("1e-{sixteen}")]
        {
            assert!(!after(&full).allows(1) && after(&full).allows(0), "{full}");
            assert!(after(&full[..full.len() - 1]).allows(1) && !after(&full[..full.len() - 1]).allows(2), "{full}");
        }
        for free in
            [format!("{sixteen}."), format!("\"{sixteen}"), format!("\"\\\"{sixteen}"), format!("\"{sixteen}\": ")]
        {
            assert!(after(&free).allows(1), "{free}");
        }
        assert_eq!((leading_digits(b"12a3"), leading_digits(b"-1")), (2, 0));
    }
}

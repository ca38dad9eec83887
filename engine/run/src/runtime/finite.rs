//! Checks of a model's results.

use thermocline_base::error::{Error, Result};

/// Returns [`Error::NotFinite`] if one of `logits [n_vocab]` is NaN or infinite, or if all tokens
/// are banned.
///
/// A model may ban a token with the logit `-inf`. Any other non-finite logit would silently make
/// the result meaningless.
pub fn check_logits(logits: &[f32]) -> Result<()> {
    let wrong = logits.iter().enumerate().find(|(_, logit)| logit.is_nan() || **logit == f32::INFINITY);
    match wrong {
        Some((id, logit)) => Err(not_finite(format!("{logit} for token {id}"))),
        None if logits.iter().all(|logit| *logit == f32::NEG_INFINITY) => Err(not_finite("-inf for every token")),
        None => Ok(()),
    }
}

/// Returns [`Error::NotFinite`] for the model's `what` if one of `values` is NaN or infinite.
pub(crate) fn check_finite(what: &'static str, values: &[f32]) -> Result<()> {
    match values.iter().find(|value| !value.is_finite()) {
        Some(value) => Err(Error::NotFinite { what, got: value.to_string() }),
        None => Ok(()),
    }
}

fn not_finite(got: impl Into<String>) -> Error {
    Error::NotFinite { what: "logits", got: got.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logits_that_are_no_numbers_are_an_error() {
        for wrong in [&[1.0, f32::NAN][..], &[f32::INFINITY, 0.0], &[f32::NEG_INFINITY; 2], &[f32::NAN; 3], &[]] {
            let error = check_logits(wrong).unwrap_err().to_string();
            assert!(error.starts_with("the model's logits: expected finite numbers, got "), "{error}");
        }
        assert!(check_logits(&[f32::NEG_INFINITY, -1e30]).is_ok());
    }
}

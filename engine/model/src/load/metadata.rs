//! Metadata by key suffix. Every number is checked against the range that the engine can work with.

use std::ops::RangeInclusive;

use super::Loader;
use thermocline_base::error::{Error, Result};
use thermocline_formats::format::Array;

impl<'a> Loader<'a> {
    /// Returns the integer under a key that may hold one number, or equal numbers for all layers.
    pub fn size(&self, suffix: &str, range: RangeInclusive<usize>) -> Result<Option<usize>> {
        let key = self.key(suffix);
        let value = match self.metadata().get(&key) {
            Some(thermocline_formats::format::Value::Array(array)) => {
                let numbers = integers(array).ok_or_else(|| {
                    self.key_error(suffix, "an unsigned integer or an array of unsigned integers", "another array")
                })?;
                let numbers = self.of_layers(&numbers)?;
                let Some(&first) = numbers.first() else {
                    return Err(self.key_error(suffix, "one number per layer", "an empty array"));
                };
                if numbers.iter().any(|&number| number != first) {
                    return Err(Error::unsupported(
                        "model shape",
                        format!("{key} differs between layers"),
                        "one value for all layers",
                    ));
                }
                Some(usize::try_from(first).unwrap_or(usize::MAX))
            }
            _ => self.metadata().usize(&key)?,
        };
        match value {
            Some(value) if !range.contains(&value) => {
                Err(self.key_error(suffix, format!("a number from {} to {}", range.start(), range.end()), value))
            }
            other => Ok(other),
        }
    }

    /// Returns the integer under a required key.
    pub fn required_size(&self, suffix: &str, range: RangeInclusive<usize>) -> Result<usize> {
        let expected = format!("a number from {} to {}", range.start(), range.end());
        self.size(suffix, range)?.ok_or_else(|| self.metadata().missing(&self.key(suffix), &expected))
    }

    /// Returns the integers under a key that holds one number for all layers, or an array of one
    /// per layer. A single number is in `range`. In an array some numbers, but not all, may be 0,
    /// for layers without the part.
    pub fn per_layer(&self, suffix: &str, range: RangeInclusive<usize>, n_layer: usize) -> Result<Option<Vec<usize>>> {
        let Some(thermocline_formats::format::Value::Array(array)) = self.metadata().get(&self.key(suffix)) else {
            return Ok(self.size(suffix, range)?.map(|size| vec![size; n_layer]));
        };
        let expected = || format!("{n_layer} numbers, one per layer");
        let all = integers(array).ok_or_else(|| self.key_error(suffix, expected(), "another array"))?;
        let numbers = self.of_layers(&all)?;
        if numbers.len() != n_layer {
            return Err(self.key_error(suffix, expected(), all.len()));
        }
        let sizes: Vec<usize> = numbers.iter().map(|number| usize::try_from(*number).unwrap_or(usize::MAX)).collect();
        let expected = || format!("numbers from {} to {}", range.start(), range.end());
        let most = sizes.iter().copied().max().unwrap_or(0);
        match sizes.iter().find(|size| **size != 0 && !range.contains(size)) {
            Some(size) => Err(self.key_error(suffix, expected(), size)),
            None if !range.contains(&most) => Err(self.key_error(suffix, expected(), most)),
            None => Ok(Some(sizes)),
        }
    }

    /// Reads an array of one flag (or number, 0 or not) per layer; `None` for anything but an
    /// array.
    pub fn layer_flags(&self, suffix: &str, n_layer: usize) -> Result<Option<Vec<bool>>> {
        let Some(thermocline_formats::format::Value::Array(array)) = self.metadata().get(&self.key(suffix)) else {
            return Ok(None);
        };
        let flags = match array {
            Array::Bool(flags) => Some(flags.clone()),
            other => integers(other).map(|numbers| numbers.iter().map(|&number| number != 0).collect()),
        };
        let expected = || format!("{n_layer} flags, one per layer");
        let flags: Vec<bool> = flags.ok_or_else(|| self.key_error(suffix, expected(), "another array"))?;
        match self.of_layers(&flags)? {
            of_layers if of_layers.len() == n_layer => Ok(Some(of_layers.to_vec())),
            _ => Err(self.key_error(suffix, expected(), flags.len())),
        }
    }

    /// Reads an array of `len` numbers, for instance one per layer; NaN is refused.
    pub fn floats(&self, suffix: &str, len: usize) -> Result<Option<Vec<f32>>> {
        let key = self.key(suffix);
        let expected = || format!("{len} numbers");
        match self.metadata().get(&key) {
            None => Ok(None),
            Some(thermocline_formats::format::Value::Array(Array::F32(all))) if !all.iter().any(|x| x.is_nan()) => {
                let all = if all.len() == len { all } else { self.of_layers(all)? };
                match all.len() == len {
                    true => Ok(Some(all.to_vec())),
                    false => Err(self.key_error(suffix, expected(), format!("{} numbers", all.len()))),
                }
            }
            Some(_) => Err(self.key_error(suffix, expected(), "another value")),
        }
    }

    /// Reads a number of at least 0 per layer: an array, or one number for all layers.
    pub fn layer_floats(&self, suffix: &str, n_layer: usize) -> Result<Option<Vec<f32>>> {
        let all = match self.metadata().get(&self.key(suffix)) {
            Some(thermocline_formats::format::Value::Array(_)) => self.floats(suffix, n_layer)?,
            _ => self.metadata().f32(&self.key(suffix))?.map(|value| vec![value; n_layer]),
        };
        match all.iter().flatten().find(|value| !(value.is_finite() && **value >= 0.0)) {
            Some(value) => Err(self.key_error(suffix, "numbers of at least 0", value)),
            None => Ok(all),
        }
    }

    /// Reads a finite float above zero.
    pub fn positive(&self, suffix: &str) -> Result<Option<f32>> {
        match self.metadata().f32(&self.key(suffix))? {
            Some(value) if value <= 0.0 => Err(self.key_error(suffix, "a float above 0", value)),
            other => Ok(other),
        }
    }

    /// Reads a finite float; a missing value and 0 both mean "off".
    pub fn switchable(&self, suffix: &str) -> Result<Option<f32>> {
        match self.metadata().f32(&self.key(suffix))? {
            Some(value) if value < 0.0 => Err(self.key_error(suffix, "a float of at least 0", value)),
            other => Ok(other.filter(|&value| value != 0.0)),
        }
    }

    /// True if the key has a value.
    pub fn has_key(&self, suffix: &str) -> bool {
        self.metadata().get(&self.key(suffix)).is_some()
    }

    pub fn flag(&self, suffix: &str) -> Result<Option<bool>> {
        self.metadata().bool(&self.key(suffix))
    }

    pub fn text(&self, suffix: &str) -> Result<Option<&'a str>> {
        self.metadata().str(&self.key(suffix))
    }

    /// Reads the epsilon of a norm.
    pub fn norm_eps(&self, suffix: &str) -> Result<f32> {
        let key = self.key(suffix);
        let eps = self.metadata().f32(&key)?.ok_or_else(|| self.metadata().missing(&key, "a small float"))?;
        if !(0.0..1.0).contains(&eps) {
            return Err(self.key_error(suffix, "a float from 0 to 1", eps));
        }
        Ok(eps)
    }
}

/// Returns the elements of an array of non-negative integers; `None` for other arrays.
pub(crate) fn integers(array: &Array) -> Option<Vec<u64>> {
    match array {
        Array::U8(v) => Some(v.iter().map(|&v| v.into()).collect()),
        Array::U16(v) => Some(v.iter().map(|&v| v.into()).collect()),
        Array::U32(v) => Some(v.iter().map(|&v| v.into()).collect()),
        Array::U64(v) => Some(v.clone()),
        Array::I8(v) => v.iter().map(|&v| v.try_into().ok()).collect(),
        Array::I16(v) => v.iter().map(|&v| v.try_into().ok()).collect(),
        Array::I32(v) => v.iter().map(|&v| v.try_into().ok()).collect(),
        Array::I64(v) => v.iter().map(|&v| v.try_into().ok()).collect(),
        _ => None,
    }
}

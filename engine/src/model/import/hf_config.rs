//! Typed access to `config.json`, in its older and newer spellings.

use std::{
    fmt::Display,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value};

use crate::error::{Error, Location, Result};

/// Names under which folders count the layers behind the last one that predict further tokens.
const TAILS: [&str; 6] = [
    "num_nextn_predict_layers",
    "mtp_num_hidden_layers",
    "num_mtp_layers",
    "mtp_num_layers",
    "num_mtp_modules",
    "n_mtp_layers",
];

/// A parsed `config.json`; for multi-modal wrappers, that of the language model inside.
#[derive(Debug)]
pub(in crate::model) struct HfConfig {
    path: PathBuf,
    model_type: String,
    values: Map<String, Value>,
}

impl HfConfig {
    /// `path` is the folder, for errors.
    pub(super) fn new(path: &Path, config: Value) -> Result<Self> {
        let error = |key: &str, expected: &str, got: &str| {
            Err(Error::malformed(path.join("config.json"), Location::Key(key.to_owned()), expected, got))
        };
        let Value::Object(mut values) = config else { return error("", "an object", "another JSON value") };
        if let Some(Value::Object(inner)) = values.remove("text_config") {
            values.extend(inner);
        }
        let Some(model_type) = values.get("model_type").and_then(Value::as_str).map(str::to_owned) else {
            return error("model_type", "a string", "nothing");
        };
        Ok(HfConfig { path: path.to_owned(), model_type, values })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(in crate::model) fn model_type(&self) -> &str {
        &self.model_type
    }

    /// Fills in what published files leave to the library's defaults.
    pub(in crate::model) fn or_default(&self, names: &[&str], default: usize) -> Result<usize> {
        Ok(self.usize(names)?.unwrap_or(default))
    }

    pub(in crate::model) fn error(&self, key: &str, expected: impl Into<String>, got: impl Display) -> Error {
        Error::malformed(self.path.join("config.json"), Location::Key(key.to_owned()), expected, got)
    }

    /// The error for a variant of a known family that the engine does not run.
    pub(in crate::model) fn unsupported(&self, what: &'static str, key: &str, value: impl Display) -> Error {
        Error::Unsupported { what, got: format!("{key} = {value}"), supported: "the family's usual form".to_owned() }
    }

    /// The first of `names` that is present and not null.
    fn get<'n>(&self, names: &[&'n str]) -> Option<(&'n str, &Value)> {
        names.iter().find_map(|name| Some((*name, self.values.get(*name).filter(|value| !value.is_null())?)))
    }

    fn typed<'a, T>(
        &'a self,
        names: &[&str],
        expected: &str,
        convert: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some((name, value)) = self.get(names) else { return Ok(None) };
        convert(value).map(Some).ok_or_else(|| self.error(name, expected, value))
    }

    pub(in crate::model) fn usize(&self, names: &[&str]) -> Result<Option<usize>> {
        self.typed(names, "an unsigned integer", |value| value.as_u64()?.try_into().ok())
    }

    /// A size that must be there and at least 1.
    pub(in crate::model) fn size(&self, names: &[&str]) -> Result<usize> {
        match self.usize(names)? {
            Some(0) => Err(self.error(names[0], "at least 1", 0)),
            Some(value) => Ok(value),
            None => Err(self.error(names[0], "an unsigned integer", "nothing: the key is missing")),
        }
    }

    /// The elements of the layers that run, of a list that may have elements for layers behind the last one, too.
    pub(in crate::model) fn of_layers<'v, T>(&self, values: &'v [T], n_layer: usize) -> Result<&'v [T]> {
        let tail = TAILS.iter().map(|name| self.or_default(&[name], 0)).collect::<Result<Vec<_>>>()?;
        let tail = tail.into_iter().max().unwrap_or(0);
        let further = values.len().checked_sub(n_layer).is_some_and(|further| further <= tail);
        Ok(if further { &values[..n_layer] } else { values })
    }

    pub(in crate::model) fn f32(&self, names: &[&str]) -> Result<Option<f32>> {
        self.typed(names, "a finite number", finite)
    }

    pub(in crate::model) fn bool(&self, names: &[&str]) -> Result<Option<bool>> {
        self.typed(names, "true or false", Value::as_bool)
    }

    pub(in crate::model) fn str(&self, names: &[&str]) -> Result<Option<&str>> {
        self.typed(names, "a string", Value::as_str)
    }

    /// An error if `name` is present and not `wanted`; `what` names the variant that is not supported.
    pub(in crate::model) fn refuse_unless(&self, name: &str, wanted: bool, what: &'static str) -> Result<()> {
        match self.bool(&[name])? {
            Some(value) if value != wanted => Err(self.unsupported(what, name, value)),
            _ => Ok(()),
        }
    }

    /// Ids under `name`: one, or a list.
    pub(super) fn token_ids(value: Option<&Value>) -> Vec<u32> {
        let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        match value {
            Some(Value::Array(values)) => values.iter().filter_map(id).collect(),
            Some(value) => id(value).into_iter().collect(),
            None => Vec::new(),
        }
    }

    /// The raw value of `name`.
    pub(super) fn value(&self, name: &str) -> Option<&Value> {
        self.values.get(name).filter(|value| !value.is_null())
    }

    /// Per layer, whether `layer_types` says it slides; `None` without that key.
    pub(in crate::model) fn sliding_layers(&self, n_layer: usize) -> Result<Option<Vec<bool>>> {
        self.layers_of_type("sliding_attention", &["full_attention"], n_layer)
    }

    /// Per layer, whether `layer_types` says it is of type `wanted` rather than one of `others`; `None` without that key.
    pub(in crate::model) fn layers_of_type(
        &self,
        wanted: &str,
        others: &[&str],
        n_layer: usize,
    ) -> Result<Option<Vec<bool>>> {
        let name = "layer_types";
        let Some(types) = self.typed(&[name], "a list", Value::as_array)? else { return Ok(None) };
        let types = self.of_layers(types, n_layer)?;
        if types.len() != n_layer {
            return Err(self.error(name, format!("{n_layer} entries, one per layer"), types.len()));
        }
        let is_wanted = |value: &Value| match value.as_str() {
            Some(ty) if ty == wanted => Ok(true),
            Some(ty) if others.contains(&ty) => Ok(false),
            _ => Err(self.error(name, format!("`{wanted}` or `{}`", others.join("`, `")), value)),
        };
        types.iter().map(is_wanted).collect::<Result<_>>().map(Some)
    }

    /// The same, where without that key all layers slide but the last of every `interval`.
    pub(in crate::model) fn sliding_layers_or(&self, n_layer: usize, interval: usize) -> Result<Vec<bool>> {
        let slides = |n: usize| interval == 0 || !n.is_multiple_of(interval);
        Ok(self.sliding_layers(n_layer)?.unwrap_or_else(|| (1..=n_layer).map(slides).collect()))
    }

    /// True if `layer_types` names `kind`.
    pub(in crate::model) fn has_layer(&self, kind: &str) -> bool {
        let types = self.value("layer_types").and_then(Value::as_array);
        types.is_some_and(|types| types.iter().any(|layer| layer.as_str() == Some(kind)))
    }

    /// One or more numbers of at least 1: a number or a list.
    pub(in crate::model) fn numbers(&self, name: &str) -> Result<Vec<usize>> {
        let number = |value: &Value| value.as_u64().filter(|value| *value > 0)?.try_into().ok();
        let numbers = self.typed(&[name], "a number of at least 1, or a list of them", |value| match value {
            Value::Array(all) if !all.is_empty() => all.iter().map(number).collect(),
            value => Some(vec![number(value)?]),
        })?;
        numbers
            .ok_or_else(|| self.error(name, "a number of at least 1, or a list of them", "nothing: the key is missing"))
    }

    /// A fraction per layer, below 1: a list, or one for all.
    pub(in crate::model) fn fractions(&self, name: &str, n_layer: usize) -> Result<Option<Vec<f32>>> {
        let fraction = |value: &Value| finite(value).filter(|value| (0.0..1.0).contains(value));
        let expected = format!("{n_layer} fractions from 0 to below 1, one per layer, or one for all");
        self.typed(&[name], &expected, |value| match value {
            Value::Array(all) => {
                let of_layers = self.of_layers(all, n_layer).ok().filter(|all| all.len() == n_layer)?;
                of_layers.iter().map(fraction).collect()
            }
            value => Some(vec![fraction(value)?; n_layer]),
        })
    }

    /// A list of strings.
    pub(in crate::model) fn strings(&self, name: &str) -> Result<Option<Vec<&str>>> {
        self.typed(&[name], "a list of strings", |value| value.as_array()?.iter().map(Value::as_str).collect())
    }

    /// A list of unsigned integers.
    pub(in crate::model) fn sizes(&self, name: &str) -> Result<Option<Vec<usize>>> {
        let size = |value: &Value| value.as_u64()?.try_into().ok();
        self.typed(&[name], "a list of unsigned integers", |value| value.as_array()?.iter().map(size).collect())
    }

    /// Two numbers under `name`, the second of which may be infinite, as Python writes it.
    pub(in crate::model) fn limits(&self, name: &str) -> Result<Option<[f32; 2]>> {
        let Some(list) = self.typed(&[name], "a list", Value::as_array)? else { return Ok(None) };
        let limits = match &list[..] {
            [least, most] if most.as_str() == Some("Infinity") => Some([finite(least), Some(f32::INFINITY)]),
            [least, most] => Some([finite(least), finite(most)]),
            _ => None,
        };
        match limits {
            Some([Some(least), Some(most)]) if least <= most => Ok(Some([least, most])),
            _ => Err(self.error(name, "two ascending numbers", Value::Array(list.clone()))),
        }
    }

    /// A list of 0 or 1 per layer.
    pub(in crate::model) fn layer_flags(&self, name: &str, n_layer: usize) -> Result<Option<Vec<bool>>> {
        let Some(flags) = self.typed(&[name], "a list", Value::as_array)? else { return Ok(None) };
        let flags = self.of_layers(flags, n_layer)?;
        if flags.len() != n_layer {
            return Err(self.error(name, format!("{n_layer} entries, one per layer"), flags.len()));
        }
        let flag = |value: &Value| match value.as_u64() {
            Some(flag @ 0..=1) => Ok(flag == 1),
            _ => Err(self.error(name, "0 or 1", value)),
        };
        flags.iter().map(flag).collect::<Result<_>>().map(Some)
    }

    /// A list of one size per layer, each from 1 to 2^16.
    pub(in crate::model) fn layer_sizes(&self, name: &str, n_layer: usize) -> Result<Option<Vec<u32>>> {
        let Some(sizes) = self.typed(&[name], "a list", Value::as_array)? else { return Ok(None) };
        let sizes = self.of_layers(sizes, n_layer)?;
        if sizes.len() != n_layer {
            return Err(self.error(name, format!("{n_layer} entries, one per layer"), sizes.len()));
        }
        let size = |value: &Value| match value.as_u64() {
            Some(size @ 1..=0x1_0000) => Ok(size as u32),
            _ => Err(self.error(name, "numbers from 1 to 65536", value)),
        };
        sizes.iter().map(size).collect::<Result<_>>().map(Some)
    }

    /// Rotary parameters of layers of `kind` (`full_attention` or `sliding_attention`): the newer `rope_parameters`,
    /// possibly by kind, or the older `rope_scaling`.
    pub(super) fn rope(&self, kind: &str) -> HfRope<'_> {
        let object = |name: &str| self.value(name).and_then(Value::as_object);
        let parameters = object("rope_parameters");
        let by_kind = parameters.and_then(|parameters| parameters.get(kind)).and_then(Value::as_object);
        HfRope { config: self, values: by_kind.or(parameters).or_else(|| object("rope_scaling")) }
    }

    /// Factor of YaRN scaling, and the weights of its logarithm in the magnitude of rotations and in that of all elements, where the
    /// file names the latter.
    pub(in crate::model) fn yarn_scales(&self) -> Result<Option<(f32, f32, f32)>> {
        let rope = self.rope("full_attention");
        let all = rope.f32("mscale_all_dim")?.filter(|all| *all != 0.0);
        let (Some(all), "yarn", Some(factor)) = (all, rope.kind(), rope.f32("factor")?) else { return Ok(None) };
        Ok(Some((factor, rope.f32("mscale")?.unwrap_or(1.0), all)))
    }

    /// Fraction of a head's elements that are rotated, if the file says.
    pub(in crate::model) fn rotary_fraction(&self) -> Result<Option<f32>> {
        let fraction = match self.f32(&["partial_rotary_factor"])? {
            None => self.rope("full_attention").f32("partial_rotary_factor")?,
            fraction => fraction,
        };
        match fraction {
            Some(fraction) if !(0.0..=1.0).contains(&fraction) => {
                Err(self.error("partial_rotary_factor", "a fraction from 0 to 1", fraction))
            }
            fraction => Ok(fraction),
        }
    }

    /// Fraction of a head's elements that sliding layers rotate, where they have their own.
    pub(in crate::model) fn local_rotary_fraction(&self) -> Result<Option<f32>> {
        match self.rope("sliding_attention").f32("partial_rotary_factor")? {
            Some(fraction) if !(0.0..=1.0).contains(&fraction) => {
                Err(self.error("rope_parameters.sliding_attention", "a fraction from 0 to 1", fraction))
            }
            fraction => Ok(fraction),
        }
    }

    /// Base of the rotary frequencies of sliding layers, where they have their own.
    pub(in crate::model) fn local_rope_base(&self) -> Result<Option<f32>> {
        match self.f32(&["rope_local_base_freq"])? {
            None => self.rope("sliding_attention").f32("rope_theta"),
            base => Ok(base),
        }
    }
}

/// Rotary parameters of a `config.json`.
pub(super) struct HfRope<'a> {
    config: &'a HfConfig,
    values: Option<&'a Map<String, Value>>,
}

impl<'a> HfRope<'a> {
    fn value(&self, name: &str) -> Option<&'a Value> {
        self.values?.get(name).filter(|value| !value.is_null())
    }

    /// `default`, `linear`, `llama3`, `yarn`, ...
    pub(super) fn kind(&self) -> &'a str {
        self.value("rope_type").or_else(|| self.value("type")).and_then(Value::as_str).unwrap_or("default")
    }

    pub(super) fn f32(&self, name: &str) -> Result<Option<f32>> {
        let Some(value) = self.value(name) else { return Ok(None) };
        finite(value).map(Some).ok_or_else(|| self.config.error(&format!("rope.{name}"), "a finite number", value))
    }

    pub(super) fn bool(&self, name: &str) -> Result<Option<bool>> {
        let Some(value) = self.value(name) else { return Ok(None) };
        let flag = value.as_bool();
        flag.map(Some).ok_or_else(|| self.config.error(&format!("rope.{name}"), "true or false", value))
    }

    pub(super) fn usize(&self, name: &str) -> Result<Option<usize>> {
        // Some files write lengths as floats.
        Ok(self.f32(name)?.filter(|&value| value >= 1.0).map(|value| value as usize))
    }

    /// A list of `len` positive numbers.
    pub(super) fn factors(&self, name: &str, len: usize) -> Result<Vec<f32>> {
        let values = self.value(name).and_then(Value::as_array);
        let factors: Option<Vec<f32>> =
            values.and_then(|values| values.iter().map(|value| finite(value).filter(|&value| value > 0.0)).collect());
        factors.filter(|factors| factors.len() == len).ok_or_else(|| {
            self.config.error(&format!("rope.{name}"), format!("{len} numbers above 0"), "something else")
        })
    }
}

fn finite(value: &Value) -> Option<f32> {
    value.as_f64().map(|value| value as f32).filter(|value| value.is_finite())
}

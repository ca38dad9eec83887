//! Typed access to `config.json`, with its older and newer names of keys.

use std::{
    fmt::Display,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value};

use super::{defaults, rope};
use crate::Activation;
use thermocline_base::error::{Error, Location, Result};

/// Keys for the number of layers after the last one, which predict further tokens.
const TAILS: [&str; 6] = [
    "num_nextn_predict_layers",
    "mtp_num_hidden_layers",
    "num_mtp_layers",
    "mtp_num_layers",
    "num_mtp_modules",
    "n_mtp_layers",
];

/// A parsed `config.json`. For multi-modal wrappers, the configuration of the language model
/// inside.
#[derive(Debug)]
pub(crate) struct HfConfig {
    path: PathBuf,
    model_type: String,
    values: Map<String, Value>,
}

impl HfConfig {
    /// Creates the configuration; `path` is the folder, for errors.
    pub fn new(path: &Path, config: Value) -> Result<Self> {
        let error = |key: &str, expected: &str, got: &str| {
            Err(Error::malformed(path.join("config.json"), Location::Key(key.to_owned()), expected, got))
        };
        let Value::Object(mut values) = config else { return error("", "an object", "another JSON value") };
        // The model type of an assistant is not the one of its layers.
        let own_type = values.get("model_type").filter(|ty| ty.as_str().is_some_and(|ty| ty.ends_with("_assistant")));
        let own_type = own_type.map(|ty| ("model_type".to_owned(), ty.clone()));
        if let Some(Value::Object(inner)) = values.remove("text_config") {
            values.extend(inner);
            values.extend(own_type);
        }
        let Some(model_type) = values.get("model_type").and_then(Value::as_str).map(str::to_owned) else {
            return error("model_type", "a string", "nothing");
        };
        if values.get("per_layer_config").is_some() {
            values.entry("global_head_dim").or_insert(Value::Null);
        }
        defaults::fill_in(&mut values, &model_type);
        complete(&mut values);
        rope::by_kind(&mut values);
        Ok(HfConfig { path: path.to_owned(), model_type, values })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub fn model_type(&self) -> &str {
        &self.model_type
    }

    /// Returns the number under the first of `names` that is set, or `default`. Published files
    /// omit keys that have a default in the library.
    pub fn or_default(&self, names: &[&str], default: usize) -> Result<usize> {
        Ok(self.usize(names)?.unwrap_or(default))
    }

    pub fn error(&self, key: &str, expected: impl Into<String>, got: impl Display) -> Error {
        Error::malformed(self.path.join("config.json"), Location::Key(key.to_owned()), expected, got)
    }

    /// Returns the error for a variant of a known family that the engine does not run.
    pub fn unsupported(&self, what: &'static str, key: &str, value: impl Display) -> Error {
        Error::unsupported(what, format!("{key} = {value}"), "the usual form of the family")
    }

    /// Returns the first of `names` that is present and not null, with its value.
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

    pub fn usize(&self, names: &[&str]) -> Result<Option<usize>> {
        self.typed(names, "an unsigned integer", |value| value.as_u64()?.try_into().ok())
    }

    /// Returns a required size of at least 1.
    pub fn size(&self, names: &[&str]) -> Result<usize> {
        match self.usize(names)? {
            Some(0) => Err(self.error(names[0], "at least 1", 0)),
            Some(value) => Ok(value),
            None => Err(self.error(names[0], "an unsigned integer", "nothing: the key is missing")),
        }
    }

    /// Returns the elements for the layers that run. The list may also have elements for the layers
    /// after the last one.
    pub fn of_layers<'v, T>(&self, values: &'v [T], n_layer: usize) -> Result<&'v [T]> {
        let tail = TAILS.iter().map(|name| self.or_default(&[name], 0)).collect::<Result<Vec<_>>>()?;
        let tail = tail.into_iter().max().unwrap_or(0);
        let further = values.len().checked_sub(n_layer).is_some_and(|further| further <= tail);
        Ok(if further { &values[..n_layer] } else { values })
    }

    /// Reads the list `name` of one element per layer with `read`; `None` without this key.
    fn of_each_layer<T>(
        &self,
        name: &str,
        n_layer: usize,
        read: impl Fn(&Value) -> Result<T>,
    ) -> Result<Option<Vec<T>>> {
        let Some(list) = self.typed(&[name], "a list", Value::as_array)? else { return Ok(None) };
        let list = self.of_layers(list, n_layer)?;
        if list.len() != n_layer {
            return Err(self.error(name, format!("{n_layer} entries, one per layer"), list.len()));
        }
        list.iter().map(read).collect::<Result<_>>().map(Some)
    }

    pub fn f32(&self, names: &[&str]) -> Result<Option<f32>> {
        self.typed(names, "a finite number", finite)
    }

    pub fn bool(&self, names: &[&str]) -> Result<Option<bool>> {
        self.typed(names, "true or false", Value::as_bool)
    }

    pub fn str(&self, names: &[&str]) -> Result<Option<&str>> {
        self.typed(names, "a string", Value::as_str)
    }

    /// Returns an error if `name` is present and not `wanted`; `what` names the unsupported
    /// variant.
    pub fn refuse_unless(&self, name: &str, wanted: bool, what: &'static str) -> Result<()> {
        match self.bool(&[name])? {
            Some(value) if value != wanted => Err(self.unsupported(what, name, value)),
            _ => Ok(()),
        }
    }

    /// Returns the activation under the first of `names` that is set, or `default`.
    pub fn activation(&self, names: &[&str], default: Activation) -> Result<Activation> {
        let Some((name, value)) = self.get(names) else { return Ok(default) };
        let known = value.as_str().and_then(|value| value.parse().ok());
        known.ok_or_else(|| self.error(name, Activation::ALL.map(Activation::name).join(", "), value))
    }

    /// Returns an error if `name` is an activation other than SiLU; `what` names the unsupported
    /// variant.
    pub fn silu_only(&self, name: &str, what: &'static str) -> Result<()> {
        match self.activation(&[name], Activation::Silu)? {
            Activation::Silu => Ok(()),
            other => Err(self.unsupported(what, name, other)),
        }
    }

    /// True if tokens read later tokens too, as in models that embed texts. Attention in both
    /// directions within images of a multi-modal model does not count.
    pub fn reads_both_directions(&self) -> Result<bool> {
        if self.bool(&["is_causal"])? == Some(false) {
            return Ok(true);
        }
        let name = "use_bidirectional_attention";
        match self.value(name) {
            None | Some(Value::Bool(false)) => Ok(false),
            Some(Value::Bool(true)) => Ok(true),
            Some(Value::String(of)) if of == "vision" => Ok(false),
            Some(Value::String(of)) if of == "all" => Ok(true),
            Some(value) => Err(self.error(name, "true, false, `all` or `vision`", value)),
        }
    }

    /// True if attention is in both directions within pictures.
    pub fn reads_whole_pictures(&self) -> bool {
        self.value("use_bidirectional_attention").and_then(Value::as_str) == Some("vision")
    }

    /// Reads token ids: one id, or a list.
    pub(super) fn token_ids(value: Option<&Value>) -> Vec<u32> {
        let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        match value {
            Some(Value::Array(values)) => values.iter().filter_map(id).collect(),
            Some(value) => id(value).into_iter().collect(),
            None => Vec::new(),
        }
    }

    /// Returns the value of `name`; `None` if it is missing or null.
    pub fn value(&self, name: &str) -> Option<&Value> {
        self.values.get(name).filter(|value| !value.is_null())
    }

    /// Returns, per layer, whether `layer_types` has `wanted` rather than one of `others`; `None`
    /// without this key.
    pub fn layers_of_type(&self, wanted: &str, others: &[&str], n_layer: usize) -> Result<Option<Vec<bool>>> {
        let name = "layer_types";
        self.of_each_layer(name, n_layer, |value| match value.as_str() {
            Some(ty) if ty == wanted => Ok(true),
            Some(ty) if others.contains(&ty) => Ok(false),
            _ => Err(self.error(name, format!("`{wanted}` or `{}`", others.join("`, `")), value)),
        })
    }

    /// True if `layer_types` contains `kind`.
    pub fn has_layer(&self, kind: &str) -> bool {
        let types = self.value("layer_types").and_then(Value::as_array);
        types.is_some_and(|types| types.iter().any(|layer| layer.as_str() == Some(kind)))
    }

    /// Reads one or more numbers of at least 1: a number or a list.
    pub fn numbers(&self, name: &str) -> Result<Vec<usize>> {
        let number = |value: &Value| value.as_u64().filter(|value| *value > 0)?.try_into().ok();
        let numbers =
            self.typed(&[name], "a number of at least 1, or a list of such numbers", |value| match value {
                Value::Array(all) if !all.is_empty() => all.iter().map(number).collect(),
                value => Some(vec![number(value)?]),
            })?;
        numbers.ok_or_else(|| {
            self.error(name, "a number of at least 1, or a list of such numbers", "nothing: the key is missing")
        })
    }

    /// Reads a fraction below 1 per layer: a list, or one fraction for all layers.
    pub fn fractions(&self, name: &str, n_layer: usize) -> Result<Option<Vec<f32>>> {
        let fraction = |value: &Value| finite(value).filter(|value| (0.0..1.0).contains(value));
        let expected = format!("{n_layer} fractions from 0 to below 1, one per layer, or one fraction for all layers");
        self.typed(&[name], &expected, |value| match value {
            Value::Array(all) => {
                let of_layers = self.of_layers(all, n_layer).ok().filter(|all| all.len() == n_layer)?;
                of_layers.iter().map(fraction).collect()
            }
            value => Some(vec![fraction(value)?; n_layer]),
        })
    }

    /// Reads the unsigned number `key` of each of `n_layer` layers from the object `name`, whose
    /// keys are layer numbers. `None` without this object.
    pub fn by_layer(&self, name: &str, key: &str, n_layer: usize) -> Result<Option<Vec<Option<usize>>>> {
        let Some(layers) = self.typed(&[name], "an object", Value::as_object)? else { return Ok(None) };
        let mut numbers = vec![None; n_layer];
        for (layer, values) in layers {
            let at = layer.parse().ok().and_then(|layer: usize| numbers.get_mut(layer));
            let at = at.ok_or_else(|| self.error(name, format!("numbers of layers below {n_layer}"), layer))?;
            *at = match values.get(key).filter(|value| !value.is_null()) {
                None => None,
                Some(value) => {
                    let number = value.as_u64().and_then(|value| value.try_into().ok());
                    Some(number.ok_or_else(|| self.error(name, "unsigned integers", value))?)
                }
            };
        }
        Ok(Some(numbers))
    }

    /// Reads a list of strings.
    pub fn strings(&self, name: &str) -> Result<Option<Vec<&str>>> {
        self.typed(&[name], "a list of strings", |value| value.as_array()?.iter().map(Value::as_str).collect())
    }

    /// Reads a list of unsigned integers.
    pub fn sizes(&self, name: &str) -> Result<Option<Vec<usize>>> {
        let size = |value: &Value| value.as_u64()?.try_into().ok();
        self.typed(&[name], "a list of unsigned integers", |value| value.as_array()?.iter().map(size).collect())
    }

    /// Reads a list of finite numbers.
    pub fn floats(&self, name: &str) -> Result<Option<Vec<f32>>> {
        self.typed(&[name], "a list of finite numbers", |value| value.as_array()?.iter().map(finite).collect())
    }

    /// Reads a number of at least 0 per layer; null counts as 0.
    pub fn layer_floats(&self, name: &str, n_layer: usize) -> Result<Option<Vec<f32>>> {
        let number = |value: &Value| match value {
            Value::Null => Some(0.0),
            value => finite(value).filter(|value| *value >= 0.0),
        };
        self.typed(&[name], &format!("{n_layer} numbers of at least 0 or null, one per layer"), |value| {
            let of_layers = self.of_layers(value.as_array()?, n_layer).ok().filter(|all| all.len() == n_layer)?;
            of_layers.iter().map(number).collect()
        })
    }

    /// Reads the unsigned number `key` of the object `name`, if both exist.
    pub fn size_within(&self, name: &str, key: &str) -> Result<Option<usize>> {
        let Some(object) = self.typed(&[name], "an object", Value::as_object)? else { return Ok(None) };
        let Some(value) = object.get(key).filter(|value| !value.is_null()) else { return Ok(None) };
        let size = value.as_u64().and_then(|value| value.try_into().ok());
        size.map(Some).ok_or_else(|| self.error(name, format!("an unsigned integer `{key}`"), value))
    }

    /// Returns the length of the list `key` of the object `name`, if both exist.
    pub fn length_within(&self, name: &str, key: &str) -> Result<Option<usize>> {
        let Some(object) = self.typed(&[name], "an object", Value::as_object)? else { return Ok(None) };
        let Some(value) = object.get(key).filter(|value| !value.is_null()) else { return Ok(None) };
        let list = value.as_array().ok_or_else(|| self.error(name, format!("a list `{key}`"), value))?;
        Ok(Some(list.len()))
    }

    /// Reads two numbers under `name`. The second may be infinite, in either of the forms that
    /// Python writes.
    pub fn limits(&self, name: &str) -> Result<Option<[f32; 2]>> {
        let Some(list) = self.typed(&[name], "a list", Value::as_array)? else { return Ok(None) };
        let limits = match &list[..] {
            [least, most] if most.get("__float__").unwrap_or(most).as_str() == Some("Infinity") => {
                Some([finite(least), Some(f32::INFINITY)])
            }
            [least, most] => Some([finite(least), finite(most)]),
            _ => None,
        };
        match limits {
            Some([Some(least), Some(most)]) if least <= most => Ok(Some([least, most])),
            _ => Err(self.error(name, "two ascending numbers", Value::Array(list.clone()))),
        }
    }

    /// Reads a list of one 0 or 1 per layer.
    pub fn layer_flags(&self, name: &str, n_layer: usize) -> Result<Option<Vec<bool>>> {
        self.of_each_layer(name, n_layer, |value| match value.as_u64() {
            Some(flag @ 0..=1) => Ok(flag == 1),
            _ => Err(self.error(name, "0 or 1", value)),
        })
    }

    /// Reads a list of one size per layer, each from 1 to 2^16.
    pub fn layer_sizes(&self, name: &str, n_layer: usize) -> Result<Option<Vec<u32>>> {
        self.of_each_layer(name, n_layer, |value| match value.as_u64() {
            Some(size @ 1..=0x1_0000) => Ok(size as u32),
            _ => Err(self.error(name, "numbers from 1 to 65536", value)),
        })
    }
}

/// Unifies what libraries have renamed: the kinds of layers and the key for tied heads. Sets the
/// number of layers if only the list of kinds gives it.
fn complete(values: &mut Map<String, Value>) {
    if let Some(Value::Array(kinds)) = values.get_mut("layer_types") {
        for kind in kinds {
            match kind.as_str() {
                Some("attention") => *kind = "full_attention".into(),
                Some("mamba" | "mamba2") => *kind = "linear_attention".into(),
                _ => {}
            }
        }
    }
    // LFM2's key takes precedence over the usual key.
    if let Some(tied) = values.remove("tie_embedding") {
        values.insert("tie_word_embeddings".to_owned(), tied);
    }
    let kinds = match (values.get("hybrid_override_pattern"), values.get("layers_block_type")) {
        (Some(Value::String(letters)), _) => letters.chars().count(),
        (_, Some(Value::Array(kinds))) => kinds.len(),
        _ => return,
    };
    if values.get("num_hidden_layers").is_none_or(Value::is_null) {
        values.insert("num_hidden_layers".to_owned(), kinds.into());
    }
}

/// Reads a finite number.
pub(super) fn finite(value: &Value) -> Option<f32> {
    value.as_f64().map(|value| value as f32).filter(|value| value.is_finite())
}

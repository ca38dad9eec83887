//! Defaults of keys that a `config.json` may omit, as in the configuration classes of transformers:
//! `defaults.json`, by model types. Sizes that every file names are not included. Gemma 3 is an
//! exception, because its published files omit even sizes.

use std::sync::LazyLock;

use serde_json::{Map, Value};

/// Default values by model types; the key is a list of types separated by spaces.
static DEFAULTS: LazyLock<Map<String, Value>> =
    LazyLock::new(|| serde_json::from_str(include_str!("defaults.json")).unwrap_or_default());

/// Fills in the missing keys of a configuration of `model_type`. Keys that are null stay null.
pub(super) fn fill_in(values: &mut Map<String, Value>, model_type: &str) {
    let found = DEFAULTS.iter().find(|(types, _)| types.split(' ').any(|ty| ty == model_type));
    let Some((_, Value::Object(defaults))) = found else { return };
    let names = |values: &Map<String, Value>, name: &str| values.get(name).is_some_and(|value| !value.is_null());
    let rotates = names(values, "rope_parameters") || names(values, "rope_scaling");
    for (name, value) in defaults {
        if name == "rope_parameters" {
            if !rotates {
                values.insert(name.clone(), value.clone());
            }
        } else {
            values.entry(name.clone()).or_insert_with(|| value.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_model_type_has_one_object_of_defaults() {
        assert!(DEFAULTS.len() > 50 && DEFAULTS.values().all(Value::is_object), "{:?}", DEFAULTS.keys());
        let types: Vec<&str> = DEFAULTS.keys().flat_map(|types| types.split(' ')).collect();
        assert_eq!(types.iter().collect::<BTreeSet<_>>().len(), types.len(), "{types:?}");
    }
}

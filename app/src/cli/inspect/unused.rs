//! The tensors of a file that no token needs, grouped by name, with a reason per group.

use serde::Serialize;
use serde_json::{Value as Json, json};
use thermocline_engine::{format::Checkpoint, model::ModelConfig};

use super::summary::TensorGroup;
use thermocline_host::units;

/// Parts of tensor names that belong to pictures and sound.
const SENSES: &str =
    "v a mm vision visual audio vision_tower vision_model audio_tower embed_vision embed_audio multi_modal_projector";

/// Parts of tensor names that belong to a vision tower.
const TOWER: [&str; 4] = ["visual", "vision_tower", "multi_modal_projector", "embed_vision"];

/// Reasons why tensors are unused.
const TAIL: &str = "multi-token prediction by a head that cannot be used";
const SENSE: &str = "for images or sound";
const UNKNOWN: &str = "not a part of this architecture";

/// The unused tensors of a file.
pub struct Unused {
    /// Sums over all unused tensors.
    total: TensorGroup,
    groups: Vec<UnusedGroup>,
}

/// Unused tensors with similar names.
#[derive(Serialize)]
struct UnusedGroup {
    /// Tensor names, with `*` for the parts that differ.
    names: String,
    reason: String,
}

impl Unused {
    /// Finds the unused tensors of `checkpoint`, from which a model of `config` was built. `sees`
    /// is true if its vision tower is used.
    pub fn new(checkpoint: &Checkpoint, config: Option<&ModelConfig>, sees: bool) -> Self {
        let (mut total, mut groups) = (TensorGroup::default(), Vec::<UnusedGroup>::new());
        let (layers, tail) = (config.map_or(usize::MAX, ModelConfig::n_layer), tail(checkpoint));
        let unused = checkpoint.unused().iter().filter(|tensor| !(sees && is_of_tower(&tensor.name)));
        for tensor in unused {
            total.add(tensor);
            let layer = layer(&tensor.name);
            let (names, reason) = match layer {
                Some((stem, layer, _)) if layer >= layers => {
                    let in_tail = layer - layers < tail || predicts(checkpoint, &format!("{stem}.{layer}."));
                    let behind = || format!("after the last of the {layers} layers that the file declares");
                    (format!("{stem}.{layer}.*"), if in_tail { TAIL.to_owned() } else { behind() })
                }
                Some((stem, _, rest)) => (format!("{stem}.*.{rest}"), UNKNOWN.to_owned()),
                None => outside_layers(&tensor.name),
            };
            if !groups.iter().any(|group| group.names == names) {
                groups.push(UnusedGroup { names, reason });
            }
        }
        Unused { total, groups }
    }

    /// Describes the tensors in lines for users. No lines if every tensor is used.
    pub fn lines(&self) -> Vec<String> {
        if self.groups.is_empty() {
            return Vec::new();
        }
        let mut lines =
            vec![format!("not used: {} ({})", joined(self.groups.iter()), units::parameters(self.total.parameters))];
        let mut reasons: Vec<&str> = Vec::new();
        for group in &self.groups {
            if !reasons.contains(&group.reason.as_str()) {
                reasons.push(&group.reason);
                let names = joined(self.groups.iter().filter(|other| other.reason == group.reason));
                lines.push(format!("              {names}: {}", group.reason));
            }
        }
        lines
    }

    /// Formats the tensors as JSON.
    pub fn to_json(&self) -> Json {
        let mut object = json!(self.total);
        object["groups"] = json!(self.groups);
        object
    }
}

/// Joins the names of groups.
fn joined<'g>(groups: impl Iterator<Item = &'g UnusedGroup>) -> String {
    groups.map(|group| group.names.as_str()).collect::<Vec<_>>().join(", ")
}

/// Reads the number of tail layers from the metadata.
fn tail(checkpoint: &Checkpoint) -> usize {
    let arch = checkpoint.metadata.str("general.architecture").ok().flatten().unwrap_or_default();
    checkpoint.metadata.usize(&format!("{arch}.nextn_predict_layers")).ok().flatten().unwrap_or(0)
}

/// True if the layer with the prefix `stem` has tensors for predicting further tokens.
fn predicts(checkpoint: &Checkpoint, stem: &str) -> bool {
    let names = checkpoint.unused().iter().filter_map(|tensor| tensor.name.strip_prefix(stem));
    names.into_iter().any(|name| ["nextn.", "eh_proj", "enorm", "hnorm"].iter().any(|part| name.starts_with(part)))
}

/// Splits a tensor name into the prefix of layers, the layer number and the name within the layer.
fn layer(name: &str) -> Option<(&str, usize, &str)> {
    let stem = ["blk", "model.layers", "backbone.layers", "model.language_model.layers", "language_model.model.layers"]
        .into_iter()
        .find(|stem| name.strip_prefix(stem).is_some_and(|rest| rest.starts_with('.')))?;
    let (number, rest) = name.get(stem.len() + 1..)?.split_once('.')?;
    Some((&name[..stem.len()], number.parse().ok()?, rest))
}

/// True if a tensor belongs to the vision tower of a folder.
fn is_of_tower(name: &str) -> bool {
    name.split('.').find(|part| *part != "model").is_some_and(|part| TOWER.contains(&part))
}

/// Returns the group's name and the reason for a tensor outside the layers.
fn outside_layers(name: &str) -> (String, String) {
    let parts: Vec<&str> = name.split('.').collect();
    let first = parts.iter().take_while(|part| matches!(**part, "model" | "language_model")).count();
    let Some(part) = parts.get(first).filter(|_| parts.len() > first + 2) else {
        return (name.to_owned(), UNKNOWN.to_owned());
    };
    let reason = match *part {
        "mtp" => TAIL,
        part if SENSES.split(' ').any(|name| name == part) => SENSE,
        _ => UNKNOWN,
    };
    (format!("{}.*", parts[..=first].join(".")), reason.to_owned())
}

#[cfg(test)]
mod tests {
    use thermocline_engine::{
        format::{Bytes, Container, Metadata, Tensor, TokenizerSource},
        quant::TensorType,
    };

    use super::*;

    #[test]
    fn unused_tensors_are_grouped_with_their_reasons() {
        let tensor = |name: &str| Tensor {
            name: name.to_owned(),
            ty: TensorType::F32,
            shape: vec![64, 64],
            data: Bytes::new(vec![0; 64 * 64 * 4]),
        };
        let names = ["v.patch_embd.weight", "mm.0.weight", "mtp.fc.weight", "blk.1.attn_rot_embd", "odd.weight"];
        let (path, metadata) = ("m".into(), Metadata::new("m"));
        let mut file =
            Checkpoint::new(path, Container::Gguf(3), metadata, TokenizerSource::Metadata, Vec::new()).unwrap();
        assert!(Unused::new(&file, None, false).lines().is_empty());
        file.add_unused(names.map(tensor));
        let lines = Unused::new(&file, None, false).lines();
        assert_eq!(lines[0], "not used: v.*, mm.*, mtp.*, blk.*.attn_rot_embd, odd.weight (20.5 K)");
        assert_eq!(
            lines[1..],
            [
                "              v.*, mm.*: for images or sound",
                "              mtp.*: multi-token prediction by a head that cannot be used",
                "              blk.*.attn_rot_embd, odd.weight: not a part of this architecture",
            ]
        );
        let json = Unused::new(&file, None, false).to_json();
        assert_eq!((&json["bytes"], &json["groups"][2]["names"]), (&json!(5 * 64 * 64 * 4), &json!("mtp.*")));
    }
}

//! Identity of the model that a sidecar belongs to.

use thermocline_formats::format::{Container, Tensor};
use thermocline_model::Model;

/// Bytes to hash at the beginning, the middle and the end of every tensor.
const SAMPLE: usize = 256;

/// Fingerprint of a model: sizes, the names, types and shapes of all tensors, and samples of their
/// bytes. Fine-tunes and quantisations have different fingerprints. The file's name, its metadata
/// and the order of its tensors do not matter. Computing it reads three places per tensor, which
/// takes a fraction of a second for the largest files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Architecture name in GGUF.
    pub architecture: String,
    /// Number of layers.
    pub n_layer: usize,
    /// Width of the residual stream.
    pub d_model: usize,
    /// Neurons per dense layer; 0 without dense layers.
    pub n_ff: usize,
    /// Experts per layer; 0 without experts.
    pub n_expert: usize,
    /// Number of tensors in the file.
    pub tensors: u64,
    /// Hash of the tensors' names, types and shapes.
    pub layout: u64,
    /// Hash of samples of the tensors' bytes.
    pub data: u64,
}

impl Identity {
    /// Computes the identity of `model`.
    pub fn of_model(model: &Model) -> Self {
        let config = &model.config;
        let (layout, data) = hashes(model);
        Identity {
            architecture: config.architecture.clone(),
            n_layer: config.n_layer(),
            d_model: config.d_model,
            n_ff: config.n_ff,
            n_expert: config.experts.map_or(0, |experts| experts.count),
            tensors: of_file(model).len() as u64,
            layout,
            data,
        }
    }

    /// Returns the model's fingerprint, 32 hexadecimal digits. Names of files and rows about the
    /// model contain it.
    pub fn fingerprint(&self) -> String {
        format!("{:016x}{:016x}", self.layout, self.data)
    }

    /// Describes how `model` differs; `None` if it is the same model.
    pub fn difference(&self, model: &Identity) -> Option<String> {
        let sizes = |of: &Identity| {
            let experts = if of.n_expert > 0 { format!(", {} experts", of.n_expert) } else { String::new() };
            let Identity { architecture, n_layer, d_model, n_ff, .. } = of;
            format!("{architecture}, {n_layer} layers, {d_model} wide, {n_ff} neurons{experts}")
        };
        let (ours, theirs) = (sizes(self), sizes(model));
        if ours != theirs {
            return Some(format!("it was prepared for another model ({ours}; this model: {theirs})"));
        }
        if (self.tensors, self.layout) != (model.tensors, model.layout) {
            return Some("it was prepared for a file with other tensors or tensor types".to_owned());
        }
        (self.data != model.data).then(|| "it was prepared for a model with other weights".to_owned())
    }
}

/// Returns all tensors of a file, used or not. For a folder, only the tensors of the model, without
/// its draft head.
fn of_file(model: &Model) -> Vec<&Tensor> {
    match model.checkpoint.container {
        Container::HuggingFace => model.own_tensors().collect(),
        _ => model.checkpoint.tensors().iter().chain(model.checkpoint.unused()).collect(),
    }
}

/// Computes the hashes of layout and data.
fn hashes(model: &Model) -> (u64, u64) {
    let mut tensors = of_file(model);
    tensors.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    let (mut layout, mut data) = (Fnv::default(), Fnv::default());
    for tensor in tensors {
        layout.text(&tensor.name);
        layout.text(tensor.ty.name());
        layout.number(tensor.shape.len());
        tensor.shape.iter().for_each(|&size| layout.number(size));
        let (bytes, len) = (&tensor.data, tensor.data.len());
        for start in [0, len / 2, len.saturating_sub(SAMPLE)] {
            data.bytes(&bytes[start..len.min(start + SAMPLE)]);
        }
    }
    (layout.0, data.0)
}

/// 64-bit FNV-1a. Unlike the standard library's hashes, it is the same on every machine and in
/// every version.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Fnv(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    fn bytes(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    /// Hashes the length first, so that adjacent strings are unambiguous.
    fn text(&mut self, text: &str) {
        self.number(text.len());
        self.bytes(text.as_bytes());
    }

    fn number(&mut self, number: usize) {
        self.bytes(&(number as u64).to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fnv_1a_matches_the_published_test_vectors() {
        // Test vectors by Landon Curt Noll, an author of FNV.
        for (text, hash) in
            [("", 0xcbf2_9ce4_8422_2325), ("a", 0xaf63_dc4c_8601_ec8c), ("foobar", 0x8594_4171_f739_67e8)]
        {
            let mut fnv = Fnv::default();
            fnv.bytes(text.as_bytes());
            assert_eq!(fnv.0, hash, "{text}");
        }
    }
}

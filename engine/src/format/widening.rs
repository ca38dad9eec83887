//! Weights that take more bytes on a GPU than in their file.

use std::collections::BTreeMap;

use super::Checkpoint;
use crate::quant::{TensorType, device_row_bytes, device_type, widening_reason};

/// Weights of one type that a GPU reads as another, larger one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Widening {
    /// Type in the file.
    pub ty: TensorType,
    /// Name of the type on the device.
    pub on_device: &'static str,
    /// Bytes in the file.
    pub file_bytes: u64,
    /// Bytes on the device, were all of them there.
    pub device_bytes: u64,
    /// Property of the kernels that makes it so.
    pub reason: &'static str,
}

impl Checkpoint {
    /// The weights that grow on a device, by type.
    pub fn widenings(&self) -> Vec<Widening> {
        let mut by_type: BTreeMap<TensorType, Widening> = BTreeMap::new();
        for tensor in self.tensors() {
            let (ty, Some(reason)) = (tensor.ty, widening_reason(tensor.ty)) else { continue };
            let on_device = device_type(ty).name();
            let of_type = Widening { ty, on_device, file_bytes: 0, device_bytes: 0, reason };
            let of_type = by_type.entry(ty).or_insert(of_type);
            let bytes = device_row_bytes(ty, tensor.cols()).saturating_mul(tensor.rows() as u64);
            of_type.file_bytes = of_type.file_bytes.saturating_add(tensor.data.len() as u64);
            of_type.device_bytes = of_type.device_bytes.saturating_add(bytes);
        }
        by_type.into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{Bytes, Container, Metadata, Tensor, TokenizerSource};

    #[test]
    fn widenings_are_those_of_types_without_kernels() {
        let tensor = |name: &str, ty: TensorType, rows: usize| Tensor {
            name: name.to_owned(),
            ty,
            shape: vec![rows, 512],
            data: Bytes::new(vec![0; rows * ty.row_bytes(512).unwrap()]),
        };
        let tensors = vec![
            tensor("a", TensorType::IQ2_XXS, 2),
            tensor("b", TensorType::Q2_K, 5),
            tensor("c", TensorType::TQ1_0, 1),
            tensor("e", TensorType::IQ3_S, 1),
            tensor("d", TensorType::IQ2_XXS, 1),
        ];
        let metadata = Metadata::new("none");
        let file =
            Checkpoint::new("none".into(), Container::Gguf(3), metadata, TokenizerSource::Metadata, tensors).unwrap();
        let found: Vec<_> =
            file.widenings().iter().map(|it| (it.ty, it.on_device, it.file_bytes, it.device_bytes)).collect();
        let expected = [(TensorType::IQ2_XXS, "Q8_0", 3 * 132, 3 * 544), (TensorType::IQ3_S, "Q8_0", 220, 544)];
        assert_eq!(found, expected);
    }
}

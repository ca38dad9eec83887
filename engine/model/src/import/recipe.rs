//! Construction of one GGUF tensor from a Hugging Face tensor.

use std::{path::Path, sync::Arc};

use super::{ExpertOutputs, Gather};
use thermocline_base::error::{Error, Location, Result};
use thermocline_formats::{
    format::{Bytes, Tensor, anonymous},
    quant,
    quant::TensorType,
};

/// Transformation of a Hugging Face tensor into GGUF's.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Transform {
    /// No change: the bytes are shared.
    None,
    /// Reorders the rows of `heads` heads so that halves become neighbours. The first `dims` rows
    /// of each head are rotated.
    Rope {
        /// Number of heads in the tensor.
        heads: usize,
        /// Number of rotated elements per head.
        dims: usize,
    },
    /// Reorders rows from key/value groups (queries, key, value) to all queries, all keys, all
    /// values.
    Qkv {
        /// Number of query heads.
        heads: usize,
        /// Number of key/value heads.
        kv_heads: usize,
    },
    /// Adds one to weights that are stored minus one.
    AddOne,
    /// Makes `[n]` of `[1, n]`.
    Flatten,
    /// Takes some rows, or all of them in another order.
    Rows(Arc<Gather>),
    /// Takes some columns, or all of them in another order.
    Columns(Arc<Gather>),
    /// Takes the convolution of one frame, `[outputs, channels, rows, columns]`, of a convolution
    /// over two frames, `[outputs, channels, 2, rows, columns]`.
    Frame(usize),
    /// Makes a convolution `[outputs, 3, side, side]` of a matrix whose inputs are the samples of a
    /// patch, pixel by pixel, `[outputs, side * side * 3]`.
    Patches {
        /// Side of a patch, in pixels.
        side: usize,
    },
    /// Exchanges the first two of two or three dimensions.
    Swapped,
    /// Takes elements `x` like rows, and replaces them by `-e^x`.
    Decay(Arc<Gather>),
    /// Transposes experts from `[experts, inputs, outputs]` to `[experts, outputs, inputs]`, with
    /// only these outputs.
    InputsFirst(ExpertOutputs),
    /// Makes `[experts, outputs, inputs]` of experts. The published order is
    /// `[experts, inputs, outputs]`. Libraries save them as `[experts, outputs, inputs]`. The shape
    /// determines the order, so `outputs` and `inputs` must differ.
    Experts {
        /// Number of outputs of each expert.
        outputs: usize,
        /// Number of inputs of each expert.
        inputs: usize,
    },
    /// Takes these outputs of expert vectors `[experts, outputs]`.
    ExpertVectors(ExpertOutputs),
    /// Joins MXFP4 codes `[experts, outputs, inputs / 32, 16]` and scales
    /// `[experts, outputs, inputs / 32]` to `[experts, outputs, inputs]`, with only these outputs.
    /// Each byte holds two codes, the earlier in the low nibble.
    Mxfp4(ExpertOutputs),
}

/// Channels of a picture.
const CHANNELS: usize = 3;

/// Number of samples of a patch of `side` pixels on a side.
fn samples(side: usize) -> Option<usize> {
    side.checked_mul(side)?.checked_mul(CHANNELS)
}

/// Frames of a convolution for videos.
const FRAMES: usize = 2;

/// Bytes of the codes of an MXFP4 block, in both layouts.
const CODES: usize = 16;

/// A tensor under its GGUF name that still has its Hugging Face contents.
#[derive(Debug, Clone)]
pub(crate) struct Recipe {
    pub(crate) tensor: Tensor,
    /// Scales for [`Transform::Mxfp4`].
    pub(crate) scales: Option<Tensor>,
    pub(crate) transform: Transform,
}

impl Recipe {
    /// Creates a recipe that leaves the tensor unchanged.
    pub fn plain(tensor: Tensor) -> Self {
        Recipe { tensor, scales: None, transform: Transform::None }
    }

    /// Returns the shape of the finished tensor.
    pub fn shape(&self) -> Vec<usize> {
        match (self.transform.clone(), &self.tensor.shape[..]) {
            (Transform::Flatten, _) => vec![self.tensor.len()],
            (Transform::InputsFirst(of), &[experts, inputs, outputs]) => vec![experts, of.count(outputs), inputs],
            (Transform::Experts { outputs, inputs }, &[experts, _, _]) => vec![experts, outputs, inputs],
            (Transform::ExpertVectors(of), &[experts, outputs]) => vec![experts, of.count(outputs)],
            (Transform::Mxfp4(of), &[experts, outputs, blocks, CODES]) => {
                vec![experts, of.count(outputs), blocks * TensorType::MXFP4.block_len()]
            }
            (Transform::Rows(of) | Transform::Decay(of), shape) => of.shape(shape),
            (Transform::Swapped, &[first, second, ref rest @ ..]) => [&[second, first][..], rest].concat(),
            (Transform::Patches { side }, &[outputs, _]) => vec![outputs, CHANNELS, side, side],
            (Transform::Frame(_), &[outputs, channels, FRAMES, rows, cols]) => vec![outputs, channels, rows, cols],
            (_, shape) => shape.to_vec(),
        }
    }

    /// Returns the type of the finished tensor.
    pub fn ty(&self) -> TensorType {
        match self.transform {
            Transform::Mxfp4(_) => TensorType::MXFP4,
            Transform::Decay(_) => TensorType::F32,
            _ => self.tensor.ty,
        }
    }

    /// Returns a tensor of the right type and shape but with wrong contents, for checks of sizes.
    ///
    /// # Errors
    /// [`Error::Memory`] if there is no room for blank contents.
    pub fn untransformed(&self) -> Result<Tensor> {
        let (ty, shape) = (self.ty(), self.shape());
        let data = match self.transform {
            Transform::InputsFirst(_)
            | Transform::Experts { .. }
            | Transform::ExpertVectors(_)
            | Transform::Mxfp4(_)
            | Transform::Rows(_)
            | Transform::Frame(_)
            | Transform::Patches { .. }
            | Transform::Decay(_) => {
                let rows = shape.iter().rev().skip(1).product::<usize>();
                let bytes = ty.row_bytes(shape.last().copied().unwrap_or(0)).map_or(0, |row| row.saturating_mul(rows));
                // Nothing touches these pages, so they take no memory.
                if bytes == 0 { Bytes::new(Vec::new()) } else { Bytes::new(anonymous(bytes, "outline of a tensor")?) }
            }
            _ => self.tensor.data.clone(),
        };
        Ok(Tensor { name: self.tensor.name.clone(), ty, shape, data })
    }

    /// Makes the tensor. It copies only if the transformation needs it. `path` is for errors.
    pub fn make(&self, path: &Path) -> Result<Tensor> {
        self.made().map_err(|expected| {
            let location = Location::Tensor(self.tensor.name.clone());
            Error::malformed(path, location, expected, format!("shape {:?}", self.tensor.shape))
        })
    }

    /// Makes the tensor. The error describes the expected Hugging Face form.
    fn made(&self) -> Result<Tensor, String> {
        let tensor = &self.tensor;
        let rows = tensor.shape.first().copied().unwrap_or(0);
        match &self.transform {
            Transform::None | Transform::Qkv { kv_heads: 1, .. } => Ok(tensor.clone()),
            Transform::Flatten => Ok(Tensor { shape: self.shape(), ..tensor.clone() }),
            &Transform::Rope { heads, dims } => {
                let head_dim = rows / heads.max(1);
                if head_dim == 0 || rows != heads * head_dim || dims > head_dim {
                    return Err(format!("rows of {heads} heads of at least {dims} rows each"));
                }
                Ok(self.with_rows(|row| rope_source(row, head_dim, dims)))
            }
            &Transform::Qkv { heads, kv_heads } => {
                let all = heads + 2 * kv_heads;
                let head_dim = rows / all.max(1);
                let divides = kv_heads != 0 && heads.is_multiple_of(kv_heads);
                if !divides || head_dim == 0 || rows != all * head_dim {
                    return Err(format!(
                        "rows of {heads} query heads, {kv_heads} key heads and {kv_heads} value heads"
                    ));
                }
                Ok(self.with_rows(|row| qkv_source(row / head_dim, heads, kv_heads) * head_dim + row % head_dim))
            }
            Transform::AddOne => self.with_one_added().ok_or_else(|| "a vector of floats".to_owned()),
            Transform::Rows(of) => {
                let bytes = of.rows(&tensor.data).filter(|_| rows == of.source_rows());
                let bytes = bytes.ok_or_else(|| format!("{} rows", of.source_rows()))?;
                Ok(Tensor { shape: self.shape(), data: Bytes::new(bytes), ..tensor.clone() })
            }
            &Transform::Patches { side } => match tensor.shape[..] {
                [_, inputs] if Some(inputs) == samples(side) && self.is_whole_floats() => Ok(self.patches(side)),
                _ => Err(format!("floats [outputs, {side} * {side} * {CHANNELS}]")),
            },
            &Transform::Frame(frame) => match tensor.shape[..] {
                [_, _, FRAMES, _, _] if frame < FRAMES && self.is_whole_floats() => Ok(self.frame(frame)),
                _ => Err(format!("floats [outputs, channels, {FRAMES}, rows, columns]")),
            },
            Transform::Swapped => match tensor.shape[..] {
                [first, second] | [first, second, _] if self.is_whole_floats() => Ok(self.swapped(first, second)),
                _ => Err("floats of two or three dimensions".to_owned()),
            },
            Transform::Columns(of) => self.columns(of).ok_or_else(|| format!("floats in {} columns", of.source_rows())),
            Transform::Decay(of) => {
                let vector = tensor.shape == [of.source_rows()] && tensor.ty.is_weight() && self.is_whole_floats();
                let bytes = of.rows(&tensor.data).filter(|_| vector);
                let bytes = bytes.ok_or_else(|| format!("{} floats", of.source_rows()))?;
                let mut values = vec![0.0; bytes.len() / tensor.ty.block_bytes()];
                quant::dequantise(tensor.ty, &bytes, &mut values);
                let bytes: Vec<u8> = values.iter().flat_map(|value| (-value.exp()).to_le_bytes()).collect();
                Ok(Tensor { ty: TensorType::F32, shape: self.shape(), data: Bytes::new(bytes), ..tensor.clone() })
            }
            &Transform::InputsFirst(of) => match tensor.shape[..] {
                [_, inputs, outputs] if self.is_whole_floats() => Ok(self.outputs_first(inputs, outputs, of)),
                _ => Err("floats [experts, inputs, outputs]".to_owned()),
            },
            &Transform::Experts { outputs, inputs } => self.experts(outputs, inputs).ok_or_else(|| {
                format!("floats [experts, {inputs}, {outputs}] or [experts, {outputs}, {inputs}], unequal")
            }),
            &Transform::ExpertVectors(of) => match tensor.shape[..] {
                [_, outputs] if self.is_whole_floats() => Ok(self.outputs_first(1, outputs, of)),
                _ => Err("floats [experts, outputs]".to_owned()),
            },
            &Transform::Mxfp4(of) => match (&tensor.shape[..], &self.scales) {
                (&[experts, outputs, blocks, CODES], Some(scales))
                    if scales.shape == [experts, outputs, blocks]
                        && self.is_whole()
                        && scales.data.len() == scales.len() =>
                {
                    Ok(self.mxfp4(&scales.data, outputs, blocks, of))
                }
                (_, scales) => Err(format!(
                    "bytes [experts, outputs, blocks, {CODES}] for scales {:?}",
                    scales.as_ref().map_or(&[][..], |scales| &scales.shape)
                )),
            },
        }
    }

    /// Returns the vector with one added to every element; `None` if the tensor is no vector of
    /// floats.
    fn with_one_added(&self) -> Option<Tensor> {
        let tensor = &self.tensor;
        if !tensor.ty.is_weight() || tensor.ty.row_bytes(tensor.len()) != Some(tensor.data.len()) {
            return None;
        }
        let mut values = vec![0.0; tensor.len()];
        quant::dequantise(tensor.ty, &tensor.data, &mut values);
        let bytes: Vec<u8> = values.iter().flat_map(|value| (value + 1.0).to_le_bytes()).collect();
        Some(Tensor { ty: TensorType::F32, data: Bytes::new(bytes), ..tensor.clone() })
    }

    /// True if the data are as long as shape and type require.
    fn is_whole(&self) -> bool {
        self.tensor.len().checked_mul(self.tensor.ty.block_bytes()) == Some(self.tensor.data.len())
    }

    /// True if the data are floats, and as long as shape and type require.
    fn is_whole_floats(&self) -> bool {
        self.tensor.ty.block_len() == 1 && self.is_whole()
    }

    /// Exchanges the first two dimensions.
    fn swapped(&self, first: usize, second: usize) -> Tensor {
        let row = self.tensor.data.len() / (first * second).max(1);
        let rows = (0..second).flat_map(|outer| (0..first).map(move |inner| inner * second + outer));
        let bytes: Vec<u8> = rows.flat_map(|at| self.tensor.data[at * row..][..row].iter().copied()).collect();
        Tensor { shape: self.shape(), data: Bytes::new(bytes), ..self.tensor.clone() }
    }

    /// Makes a convolution of samples pixel by pixel.
    fn patches(&self, side: usize) -> Tensor {
        let pixels = side * side;
        let element = self.tensor.ty.block_bytes();
        let mut bytes = Vec::with_capacity(self.tensor.data.len());
        for row in self.tensor.data.chunks_exact((pixels * CHANNELS * element).max(1)) {
            for at in 0..CHANNELS * pixels {
                let (channel, pixel) = (at / pixels, at % pixels);
                bytes.extend_from_slice(&row[(pixel * CHANNELS + channel) * element..][..element]);
            }
        }
        Tensor { shape: self.shape(), data: Bytes::new(bytes), ..self.tensor.clone() }
    }

    /// Takes the convolution of one frame.
    fn frame(&self, frame: usize) -> Tensor {
        let shape = self.shape();
        let bytes = shape.iter().skip(2).product::<usize>() * self.tensor.ty.block_bytes();
        let frames = self.tensor.data.chunks_exact(bytes.max(1));
        let taken = frames.skip(frame).step_by(FRAMES).collect::<Vec<_>>().concat();
        Tensor { shape, data: Bytes::new(taken), ..self.tensor.clone() }
    }

    /// Returns floats with the columns that `of` takes; `None` if the number of columns does not
    /// match.
    fn columns(&self, of: &Gather) -> Option<Tensor> {
        let tensor = &self.tensor;
        let floats = tensor.ty.block_len() == 1 && tensor.shape.last() == Some(&of.source_rows());
        let bytes = of.columns(&tensor.data, tensor.ty.block_bytes()).filter(|_| floats)?;
        Some(Tensor { data: Bytes::new(bytes), ..tensor.clone() })
    }

    /// Makes experts `[experts, outputs, inputs]` from either order, if the shape determines the
    /// order.
    fn experts(&self, outputs: usize, inputs: usize) -> Option<Tensor> {
        let &[_, rows, cols] = &self.tensor.shape[..] else { return None };
        match [rows, cols] {
            _ if outputs == inputs || !self.is_whole_floats() => None,
            of if of == [outputs, inputs] => Some(self.tensor.clone()),
            of if of == [inputs, outputs] => Some(self.outputs_first(inputs, outputs, ExpertOutputs::All)),
            _ => None,
        }
    }

    /// Transposes each expert's `[inputs, outputs]`, with only the outputs `of`.
    fn outputs_first(&self, inputs: usize, outputs: usize, of: ExpertOutputs) -> Tensor {
        let tensor = &self.tensor;
        let element = tensor.ty.block_bytes();
        let taken = of.count(outputs);
        let expert = inputs * outputs * element;
        let mut bytes = Vec::with_capacity(tensor.data.len() / outputs.max(1) * taken);
        for expert in tensor.data.chunks_exact(expert.max(1)) {
            for output in 0..taken {
                let first = of.source(output) * element;
                let row = (0..inputs).flat_map(|input| &expert[input * outputs * element + first..][..element]);
                bytes.extend(row);
            }
        }
        Tensor { shape: self.shape(), data: Bytes::new(bytes), ..tensor.clone() }
    }

    /// Makes the MXFP4 blocks of the outputs `of`: the scale, then the codes in GGUF's order.
    /// Element `j` shares a byte with element `j + 16`.
    fn mxfp4(&self, scales: &[u8], outputs: usize, blocks: usize, of: ExpertOutputs) -> Tensor {
        let shape = self.shape();
        let taken = of.count(outputs);
        let experts = shape.first().copied().unwrap_or(0);
        let mut bytes = Vec::with_capacity(experts * taken * blocks * (CODES + 1));
        let rows = (0..experts).flat_map(|expert| (0..taken).map(move |at| expert * outputs + of.source(at)));
        for row in rows {
            let codes = self.tensor.data[row * blocks * CODES..][..blocks * CODES].chunks_exact(CODES);
            for (codes, scale) in codes.zip(&scales[row * blocks..]) {
                let mut block = [*scale; 1 + CODES];
                let (first, second) = codes.split_at(CODES / 2);
                for ((out, a), b) in block[1..].as_chunks_mut::<2>().0.iter_mut().zip(first).zip(second) {
                    *out = [a & 15 | b << 4, a >> 4 | b & 0xf0];
                }
                bytes.extend_from_slice(&block);
            }
        }
        Tensor { name: self.tensor.name.clone(), ty: TensorType::MXFP4, shape, data: Bytes::new(bytes) }
    }

    /// Returns the tensor with row `i` taken from row `source(i)`; rows are the first dimension.
    fn with_rows(&self, source: impl Fn(usize) -> usize) -> Tensor {
        let rows = self.tensor.shape[0];
        let row_bytes = self.tensor.data.len() / rows;
        let mut bytes = Vec::with_capacity(self.tensor.data.len());
        for row in 0..rows {
            let start = source(row) * row_bytes;
            bytes.extend_from_slice(&self.tensor.data[start..start + row_bytes]);
        }
        Tensor { data: Bytes::new(bytes), ..self.tensor.clone() }
    }
}

/// Returns the Hugging Face row of GGUF's row `row`. Heads have `head_dim` rows, of which `dims`
/// are rotated.
fn rope_source(row: usize, head_dim: usize, dims: usize) -> usize {
    let (head, at) = (row / head_dim, row % head_dim);
    let source = if at < dims { at % 2 * (dims / 2) + at / 2 } else { at };
    head * head_dim + source
}

/// Returns the index in Hugging Face's groups of GGUF's head `head` (queries, then keys, then
/// values).
fn qkv_source(head: usize, heads: usize, kv_heads: usize) -> usize {
    let per_group = heads / kv_heads;
    if head < heads {
        head / per_group * (per_group + 2) + head % per_group
    } else if head < heads + kv_heads {
        (head - heads) * (per_group + 2) + per_group
    } else {
        (head - heads - kv_heads) * (per_group + 2) + per_group + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rope_rows_pair_the_halves() {
        let rows: Vec<_> = (0..8).map(|row| rope_source(row, 8, 8)).collect();
        assert_eq!(rows, [0, 4, 1, 5, 2, 6, 3, 7]);
        let partial: Vec<_> = (8..16).map(|row| rope_source(row, 8, 4)).collect();
        assert_eq!(partial, [8, 10, 9, 11, 12, 13, 14, 15]);
    }

    fn recipe(ty: TensorType, shape: &[usize], bytes: Vec<u8>, transform: Transform) -> Recipe {
        let data = Bytes::new(bytes);
        Recipe { tensor: Tensor { name: "x".to_owned(), ty, shape: shape.to_vec(), data }, scales: None, transform }
    }

    #[test]
    fn experts_are_transposed_and_parted() {
        let bytes = (0..2 * 3 * 4).flat_map(|x| (x as f32).to_le_bytes()).collect();
        let of = |of| Transform::InputsFirst(of);
        let all = recipe(TensorType::F32, &[2, 3, 4], bytes, of(ExpertOutputs::All));
        for (outputs, shape, first) in [
            (ExpertOutputs::All, [2, 4, 3], [0.0, 4.0, 8.0, 1.0]),
            (ExpertOutputs::Even, [2, 2, 3], [0.0, 4.0, 8.0, 2.0]),
            (ExpertOutputs::Odd, [2, 2, 3], [1.0, 5.0, 9.0, 3.0]),
        ] {
            let recipe = Recipe { transform: of(outputs), ..all.clone() };
            let made = recipe.make(Path::new("x")).unwrap();
            let blank = recipe.untransformed().unwrap();
            assert_eq!((&made.shape[..], made.data.len()), (&shape[..], made.len() * 4));
            assert_eq!((blank.ty, &blank.shape, blank.data.len()), (made.ty, &made.shape, made.data.len()));
            let floats: Vec<f32> =
                made.data.chunks_exact(4).map(|x| f32::from_le_bytes(x.try_into().unwrap())).collect();
            assert_eq!(floats[..4], first);
        }
        let flat = Recipe { tensor: Tensor { shape: vec![6, 4], ..all.tensor.clone() }, ..all };
        assert!(flat.make(Path::new("x")).unwrap_err().to_string().contains("[experts, inputs, outputs]"));
    }

    #[test]
    fn experts_come_in_either_order() {
        let bytes = |values: [f32; 6]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
        let of = Transform::Experts { outputs: 3, inputs: 2 };
        let published = recipe(TensorType::F32, &[1, 2, 3], bytes([0.0, 1.0, 2.0, 3.0, 4.0, 5.0]), of.clone());
        let saved = recipe(TensorType::F32, &[1, 3, 2], bytes([0.0, 3.0, 1.0, 4.0, 2.0, 5.0]), of);
        let [one, other] = [&published, &saved].map(|recipe| recipe.make(Path::new("x")).unwrap());
        assert_eq!((&one.shape[..], &one.data[..]), (&other.shape[..], &other.data[..]));
        assert_eq!(published.untransformed().unwrap().shape, [1, 3, 2]);
        let square = Recipe { transform: Transform::Experts { outputs: 2, inputs: 2 }, ..saved };
        assert!(square.make(Path::new("x")).unwrap_err().to_string().contains("unequal"));
    }

    #[test]
    fn mxfp4_blocks_take_their_scales_and_our_order() {
        let codes: Vec<u8> = (0..2 * 2 * 16).map(|at| (at as u8).wrapping_mul(7)).collect();
        let mut odd = recipe(TensorType::I8, &[1, 2, 2, 16], codes.clone(), Transform::Mxfp4(ExpertOutputs::Odd));
        assert!(odd.make(Path::new("x")).unwrap_err().to_string().contains("scales"));
        let scales = recipe(TensorType::I8, &[1, 2, 2], vec![120, 121, 122, 123], Transform::None).tensor;
        odd.scales = Some(scales);
        let (made, blank) = (odd.make(Path::new("x")).unwrap(), odd.untransformed().unwrap());
        assert_eq!((made.ty, &made.shape[..], made.data.len()), (TensorType::MXFP4, &[1, 1, 64][..], 34));
        assert_eq!((blank.ty, &blank.shape, blank.data.len()), (made.ty, &made.shape, made.data.len()));
        let mut values = [0.0; 64];
        quant::dequantise(TensorType::MXFP4, &made.data, &mut values);
        const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
        for (at, value) in values.iter().enumerate() {
            let code = codes[32 + at / 2] >> (4 * (at % 2)) & 15;
            let sign = if code > 7 { -1.0 } else { 1.0 };
            let scale = 2.0_f32.powi([122, 123][at / 32] - 127);
            assert_eq!(*value, sign * scale * E2M1[usize::from(code & 7)], "{at}");
        }
    }

    #[test]
    fn qkv_heads_come_out_of_their_groups() {
        let heads: Vec<_> = (0..8).map(|head| qkv_source(head, 4, 2)).collect();
        assert_eq!(heads, [0, 1, 4, 5, 2, 6, 3, 7]);
    }
}

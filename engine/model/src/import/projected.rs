//! Embeddings narrower than the residual stream (OPT 350M), with one map to the stream's width and
//! one back before the head. Each map is multiplied into the embedding. The result is a matrix as
//! wide as the stream, as in every other model.

use std::path::Path;

use thermocline_base::error::{Error, Location, Result};
use thermocline_cpu::{Cpu, CpuOptions, InputPrecision, MatmulJob};
use thermocline_formats::{
    format::{Bytes, Matrix, Tensor},
    quant::{self, TensorType},
};

/// Number of tokens of the embedding that are multiplied at a time.
const CHUNK: usize = 1024;

/// Returns the tensors of a folder with its embedding in the stream's width and a separate head.
/// Folders without such maps stay unchanged.
///
/// # Errors
/// [`Error::Malformed`] for maps and an embedding whose shapes do not match; [`Error::Memory`] if
/// the products do not fit.
pub(super) fn join(path: &Path, mut tensors: Vec<Tensor>) -> Result<Vec<Tensor>> {
    let find = |end: &str| tensors.iter().find(|tensor| tensor.name.ends_with(end)).cloned();
    let (Some(inwards), Some(outwards)) = (find("decoder.project_in.weight"), find("decoder.project_out.weight"))
    else {
        return Ok(tensors);
    };
    let Some(embedding) = find("decoder.embed_tokens.weight") else { return Ok(tensors) };
    // Without a stored head, the head is the embedding.
    let head = find("lm_head.weight").unwrap_or_else(|| embedding.clone());
    let [width, narrow] = floats(path, &inwards)?.0;
    let ([outputs, inputs], back) = floats(path, &outwards)?;
    if [outputs, inputs] != [narrow, width] {
        let expected = format!("shape {:?}", [narrow, width]);
        return Err(wrong(path, &outwards, expected));
    }
    let transposed: Vec<f32> = (0..width * narrow).map(|at| back[at % narrow * width + at / narrow]).collect();
    let cpu = Cpu::new(&CpuOptions { activations: InputPrecision::Float, ..CpuOptions::default() })?;
    let inwards = floats(path, &inwards)?.1;
    let made = [(&embedding, embedding.name.clone(), inwards), (&head, "lm_head.weight".to_owned(), transposed)]
        .into_iter()
        .map(|(rows, name, map)| product(path, &cpu, rows, [width, narrow], map).map(|made| Tensor { name, ..made }))
        .collect::<Result<Vec<_>>>()?;
    tensors.retain(|tensor| tensor.name != embedding.name && tensor.name != "lm_head.weight");
    tensors.extend(made);
    Ok(tensors)
}

fn wrong(path: &Path, tensor: &Tensor, expected: String) -> Error {
    let got = format!("{} of shape {:?}", tensor.ty, tensor.shape);
    Error::malformed(path, Location::Tensor(tensor.name.clone()), expected, got)
}

/// Returns rows and columns of a matrix of floats, and its elements.
fn floats(path: &Path, tensor: &Tensor) -> Result<([usize; 2], Vec<f32>)> {
    let &[rows, cols] = &tensor.shape[..] else { return Err(wrong(path, tensor, "a matrix".to_owned())) };
    let whole = tensor.ty.row_bytes(tensor.len()) == Some(tensor.data.len());
    if tensor.ty.block_len() != 1 || !tensor.ty.is_weight() || !whole {
        return Err(wrong(path, tensor, "floats".to_owned()));
    }
    let mut values = vec![0.0; tensor.len()];
    quant::dequantise(tensor.ty, &tensor.data, &mut values);
    Ok(([rows, cols], values))
}

/// Computes `rows map^T`, for `rows` `[n, narrow]` and `map` `[width, narrow]`.
fn product(path: &Path, cpu: &Cpu, rows: &Tensor, [width, narrow]: [usize; 2], map: Vec<f32>) -> Result<Tensor> {
    let ([count, cols], values) = floats(path, rows)?;
    let bytes: Vec<u8> = map.into_iter().flat_map(f32::to_le_bytes).collect();
    let map = Matrix::new(TensorType::F32, width, narrow, Bytes::new(bytes));
    let map = map.filter(|_| cols == narrow).ok_or_else(|| wrong(path, rows, format!("rows of {narrow}")))?;
    let size = count.checked_mul(width).filter(|size| size.checked_mul(4).is_some());
    let mut out = vec![0.0; size.ok_or_else(|| wrong(path, rows, "a number of rows that fits in memory".to_owned()))?];
    for (out, x) in out.chunks_mut(CHUNK * width).zip(values.chunks(CHUNK * narrow)) {
        cpu.matmul(&mut [MatmulJob { weight: &map, bias: None, out }], x, x.len() / narrow);
    }
    let bytes: Vec<u8> = out.into_iter().flat_map(f32::to_le_bytes).collect();
    Ok(Tensor { ty: TensorType::F32, shape: vec![count, width], data: Bytes::new(bytes), ..rows.clone() })
}

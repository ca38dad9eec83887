//! Tensors by name and expected shape, and the parts of a layer made of them.

use super::{Loader, factors::factors};
use crate::{
    error::{Error, Result},
    format::{Matrix, Tensor},
    model::{Down, FfnWeights, Linear, ModelConfig, Norm, NormKind, Predictor, PredictorInput, PredictorKind},
    quant,
};

impl<'a> Loader<'a> {
    pub(in crate::model) fn missing_tensor(&self, name: &str, expected: impl Into<String>) -> Error {
        self.tensor_error(name, expected, "nothing: the tensor is missing")
    }

    pub(in crate::model) fn find(&self, name: &str) -> Option<&'a Tensor> {
        let tensor = self.checkpoint.tensor(name)?;
        self.used.borrow_mut().insert(name.to_owned());
        Some(tensor)
    }

    /// True if there is a tensor of this name.
    pub(in crate::model) fn has(&self, name: &str) -> bool {
        self.checkpoint.tensor(name).is_some()
    }

    pub(super) fn tensor(&self, name: &str, expected: &str) -> Result<&'a Tensor> {
        self.find(name).ok_or_else(|| self.missing_tensor(name, expected))
    }

    /// Tensors no role asked for.
    pub(in crate::model) fn unused(&self) -> impl Iterator<Item = &'a str> {
        let used = self.used.take();
        self.checkpoint.tensors().iter().map(|tensor| tensor.name.as_str()).filter(move |name| !used.contains(*name))
    }

    fn as_matrix(&self, tensor: &Tensor, shape: &[usize]) -> Result<Matrix> {
        if tensor.shape != shape {
            let expected = format!("shape {shape:?}");
            return Err(self.tensor_error(&tensor.name, expected, format!("{:?}", tensor.shape)));
        }
        tensor
            .matrix()
            .ok_or_else(|| self.tensor_error(&tensor.name, "a weight type and whole blocks per row", tensor.ty))
    }

    pub(in crate::model) fn optional_matrix(&self, name: &str, rows: usize, cols: usize) -> Result<Option<Matrix>> {
        let Some(tensor) = self.find(name) else { return Ok(None) };
        let matrix = self.as_matrix(tensor, &[rows, cols])?;
        let factor = factors(self.checkpoint, tensor, 1)?.and_then(|factors| factors.first().copied());
        Ok(Some(matrix.with_factor(factor.unwrap_or(1.0))))
    }

    pub(in crate::model) fn matrix(&self, name: &str, rows: usize, cols: usize) -> Result<Matrix> {
        self.optional_matrix(name, rows, cols)?
            .ok_or_else(|| self.missing_tensor(name, format!("shape {:?}", [rows, cols])))
    }

    /// A tensor of `cols` elements as a matrix of one row, stored with or without its unit dimension.
    pub(in crate::model) fn row(&self, tensor: &Tensor, cols: usize) -> Result<Matrix> {
        let flat = Tensor { shape: vec![1, tensor.len()], ..tensor.clone() };
        self.as_matrix(&flat, &[1, cols])
    }

    /// Neurons of layer `n`'s dense FFN.
    pub(in crate::model) fn dense_width(&self, config: &ModelConfig, n: usize) -> Result<usize> {
        match config.layers.get(n).map_or(0, |layer| layer.n_ff) {
            0 => Err(self.metadata().missing(&self.key("feed_forward_length"), "the width of the FFN")),
            n_ff => Ok(n_ff),
        }
    }

    /// `[count, rows, cols]`, one matrix per expert.
    pub(in crate::model) fn stacked(
        &self,
        name: &str,
        count: usize,
        rows: usize,
        cols: usize,
    ) -> Result<Option<Vec<Matrix>>> {
        let Some(tensor) = self.find(name) else { return Ok(None) };
        let all = self.as_matrix(tensor, &[count, rows, cols])?;
        let factors = factors(self.checkpoint, tensor, count)?;
        let factor = |at: usize| factors.as_ref().map_or(1.0, |factors| factors[at]);
        let slice = |at: usize| Ok(self.slice(&all, name, at * rows, rows)?.with_factor(factor(at)));
        (0..count).map(slice).collect::<Result<_>>().map(Some)
    }

    /// Vectors of `len` elements of `count` experts, `[count, len]`.
    pub(in crate::model) fn stacked_vectors(
        &self,
        name: &str,
        count: usize,
        len: usize,
    ) -> Result<Option<Vec<Vec<f32>>>> {
        let Some(all) = self.optional_matrix(name, count, len)? else { return Ok(None) };
        let vector = |at: usize| {
            let mut values = vec![0.0; len];
            all.dequantise_row(at, &mut values);
            values
        };
        Ok(Some((0..count).map(vector).collect()))
    }

    /// `len` rows of a matrix from row `start`, sharing its data.
    pub(in crate::model) fn slice(&self, matrix: &Matrix, name: &str, start: usize, len: usize) -> Result<Matrix> {
        matrix
            .slice_rows(start..start + len)
            .ok_or_else(|| self.tensor_error(name, format!("at least {} rows", start + len), matrix.rows()))
    }

    pub(in crate::model) fn optional_vector(&self, name: &str, len: usize) -> Result<Option<Vec<f32>>> {
        let Some(tensor) = self.find(name) else { return Ok(None) };
        if tensor.shape != [len] {
            return Err(self.tensor_error(name, format!("shape {:?}", [len]), format!("{:?}", tensor.shape)));
        }
        if !tensor.ty.is_weight() || tensor.ty.row_bytes(len) != Some(tensor.data.len()) {
            return Err(self.tensor_error(name, "a weight type and whole blocks", tensor.ty));
        }
        let mut values = vec![0.0; len];
        quant::dequantise(tensor.ty, &tensor.data, &mut values);
        Ok(Some(values))
    }

    pub(in crate::model) fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>> {
        self.optional_vector(name, len)?.ok_or_else(|| self.missing_tensor(name, format!("shape {:?}", [len])))
    }

    /// A vector that files store in one of these `shapes`, of equally many elements.
    pub(in crate::model) fn vector_of_shape(&self, name: &str, shapes: &[&[usize]]) -> Result<Vec<f32>> {
        let expected = || shapes.iter().map(|shape| format!("{shape:?}")).collect::<Vec<_>>().join(" or ");
        let tensor = self.find(name).ok_or_else(|| self.missing_tensor(name, format!("shape {}", expected())))?;
        if !shapes.contains(&&tensor.shape[..]) {
            return Err(self.tensor_error(name, format!("shape {}", expected()), format!("{:?}", tensor.shape)));
        }
        let row = self.row(tensor, tensor.len())?;
        let mut values = vec![0.0; tensor.len()];
        row.dequantise_row(0, &mut values);
        Ok(values)
    }

    /// `{stem}.weight` and, where there is one, `{stem}.bias`.
    pub(in crate::model) fn linear(&self, stem: &str, rows: usize, cols: usize) -> Result<Linear> {
        let weight = self.matrix(&format!("{stem}.weight"), rows, cols)?;
        Ok(Linear { weight, bias: self.optional_vector(&format!("{stem}.bias"), rows)? })
    }

    /// The norm `{stem}`; a layer norm's bias may be absent.
    pub(in crate::model) fn norm(&self, stem: &str, kind: NormKind, len: usize) -> Result<Norm> {
        let weight = self.vector(&format!("{stem}.weight"), len)?;
        let bias = match kind {
            NormKind::Rms => None,
            NormKind::Layer => self.optional_vector(&format!("{stem}.bias"), len)?,
        };
        Ok(Norm { weight, bias })
    }

    pub(in crate::model) fn optional_norm(&self, stem: &str, kind: NormKind, len: usize) -> Result<Option<Norm>> {
        match self.checkpoint.tensor(&format!("{stem}.weight")) {
            Some(_) => self.norm(stem, kind, len).map(Some),
            None => Ok(None),
        }
    }

    /// The down projection of layer `n`, in the orientation the file has.
    pub(in crate::model) fn down(&self, n: usize, d_model: usize, n_ff: usize) -> Result<Down> {
        let transposed = format!("blk.{n}.ffn_down_t");
        if let Some(weight) = self.optional_matrix(&format!("{transposed}.weight"), n_ff, d_model)? {
            // The bias belongs to outputs; files have it under either name.
            let bias = match self.optional_vector(&format!("{transposed}.bias"), d_model)? {
                None => self.optional_vector(&format!("blk.{n}.ffn_down.bias"), d_model)?,
                bias => bias,
            };
            return Ok(Down::Neurons(Linear { weight, bias }));
        }
        self.linear(&format!("blk.{n}.ffn_down"), d_model, n_ff).map(Down::Outputs)
    }

    /// A dense FFN; `gated` says whether the architecture has a gate.
    pub(in crate::model) fn dense_ffn(&self, n: usize, config: &ModelConfig, gated: bool) -> Result<FfnWeights> {
        let (d, n_ff) = (config.d_model, self.dense_width(config, n)?);
        let gate = gated.then(|| self.linear(&format!("blk.{n}.ffn_gate"), n_ff, d)).transpose()?;
        Ok(FfnWeights { gate, up: self.linear(&format!("blk.{n}.ffn_up"), n_ff, d)?, down: self.down(n, d, n_ff)? })
    }

    /// The activation predictor of layer `n`, if the file has one.
    pub(in crate::model) fn predictor(&self, n: usize, config: &ModelConfig) -> Result<Option<Predictor>> {
        let name = format!("blk.{n}.fc1.weight");
        let Some(fc1) = self.find(&name) else { return Ok(None) };
        let rank = fc1.rows();
        let fc1 = self.as_matrix(fc1, &[rank, config.d_model])?;
        let fc2 = self.matrix(&format!("blk.{n}.fc2.weight"), self.dense_width(config, n)?, rank)?;
        let threshold = self.metadata().f32("powerinfer.sparse_threshold")?.unwrap_or(0.0);
        let (kind, input) = (PredictorKind::LowRank { fc1, fc2 }, PredictorInput::Residual);
        Ok(Some(Predictor { kind, input, threshold, quality: None, by_input: Default::default() }))
    }
}

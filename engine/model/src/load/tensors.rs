//! Tensors by name and expected shape, and the parts of a layer made from them.

use std::collections::HashSet;

use super::{
    Loader, TensorRole,
    factors::{factor_names, factors},
};
use crate::{
    Down, FfnWeights, Linear, ModelConfig, Norm, NormKind, NormSlot, Predictor, PredictorInput, PredictorKind,
};
use thermocline_base::error::{Error, Result};
use thermocline_formats::{
    format::{Matrix, Tensor},
    quant,
};

impl<'a> Loader<'a> {
    pub fn missing_tensor(&self, name: &str, expected: impl Into<String>) -> Error {
        self.tensor_error(name, expected, "nothing: the tensor is missing")
    }

    /// True if a tensor of this name exists.
    pub fn has(&self, name: &str) -> bool {
        match &self.recording {
            Some(recording) => recording.has(name),
            None => self.checkpoint.tensor(name).is_some(),
        }
    }

    /// Returns the first dimension of a tensor whose size no key determines: rows of a matrix,
    /// elements of a vector. `None` without such a tensor.
    pub fn rows(&self, name: &str) -> Option<usize> {
        match &self.recording {
            Some(recording) => recording.rows(name),
            None => self.checkpoint.tensor(name).map(|tensor| tensor.shape.first().copied().unwrap_or(0)),
        }
    }

    /// Returns the tensor `name`, which must have one of these `shapes`. A recording uses the last
    /// shape.
    fn tensor(&self, name: &str, shapes: &[&[usize]], role: TensorRole) -> Result<Tensor> {
        let expected = || {
            let shapes: Vec<String> = shapes.iter().map(|shape| format!("{shape:?}")).collect();
            format!("shape {}", shapes.join(" or "))
        };
        let tensor = match &self.recording {
            Some(recording) => recording.record(name, shapes.last().copied().unwrap_or_default(), role)?,
            None => self.checkpoint.tensor(name).cloned().ok_or_else(|| self.missing_tensor(name, expected()))?,
        };
        self.used.borrow_mut().insert(name.to_owned());
        match shapes.contains(&&tensor.shape[..]) {
            true => Ok(tensor),
            false => Err(self.tensor_error(name, expected(), format!("{:?}", tensor.shape))),
        }
    }

    /// Returns the tensor `name`, if it exists.
    fn optional(&self, name: &str, shape: &[usize], role: TensorRole) -> Result<Option<Tensor>> {
        self.has(name).then(|| self.tensor(name, &[shape], role)).transpose()
    }

    /// Returns the names of the requested tensors.
    pub fn into_used(self) -> HashSet<String> {
        self.used.into_inner()
    }

    /// Returns the factors of `weight` ([`factors`]), and marks their tensor as used.
    fn factors(&self, weight: &Tensor, count: usize) -> Result<Option<Vec<f32>>> {
        let factors = factors(self.checkpoint, weight, count)?;
        if factors.is_some() {
            let there = factor_names(&weight.name).into_iter().find(|name| self.checkpoint.tensor(name).is_some());
            self.used.borrow_mut().extend(there);
        }
        Ok(factors)
    }

    fn as_matrix(&self, tensor: &Tensor) -> Result<Matrix> {
        let matrix = tensor.matrix();
        matrix.ok_or_else(|| self.tensor_error(&tensor.name, "a weight type and whole blocks per row", tensor.ty))
    }

    /// Returns a matrix with its factor, if the file has one beside it.
    fn with_factor(&self, tensor: &Tensor) -> Result<Matrix> {
        let matrix = self.as_matrix(tensor)?;
        let factor = self.factors(tensor, 1)?.and_then(|factors| factors.first().copied());
        Ok(matrix.with_factor(factor.unwrap_or(1.0)))
    }

    /// Returns the vector `name` of any type.
    pub fn vector_tensor(&self, name: &str, len: usize) -> Result<Tensor> {
        self.tensor(name, &[&[len]], TensorRole::Vector)
    }

    /// Returns the elements of a tensor; ones in a recording.
    pub fn values(&self, tensor: &Tensor) -> Result<Vec<f32>> {
        let mut values = vec![1.0; tensor.len()];
        if self.recording.is_none() {
            if !tensor.ty.is_weight() || tensor.ty.row_bytes(tensor.len()) != Some(tensor.data.len()) {
                return Err(self.tensor_error(&tensor.name, "a weight type and whole blocks", tensor.ty));
            }
            quant::dequantise(tensor.ty, &tensor.data, &mut values);
        }
        Ok(values)
    }

    pub fn optional_matrix(&self, name: &str, rows: usize, cols: usize) -> Result<Option<Matrix>> {
        let tensor = self.optional(name, &[rows, cols], TensorRole::Matrix)?;
        tensor.map(|tensor| self.with_factor(&tensor)).transpose()
    }

    pub fn matrix(&self, name: &str, rows: usize, cols: usize) -> Result<Matrix> {
        self.with_factor(&self.tensor(name, &[&[rows, cols]], TensorRole::Matrix)?)
    }

    /// Returns a tensor of `cols` elements as a matrix of one row. Files store it with or without
    /// its unit dimension.
    pub fn optional_row(&self, name: &str, cols: usize) -> Result<Option<Matrix>> {
        if !self.has(name) {
            return Ok(None);
        }
        let tensor = self.tensor(name, &[&[1, cols], &[cols]], TensorRole::Vector)?;
        self.as_matrix(&Tensor { shape: vec![1, cols], ..tensor }).map(Some)
    }

    /// Returns the number of neurons of layer `n`'s dense FFN.
    pub fn dense_width(&self, config: &ModelConfig, n: usize) -> Result<usize> {
        match config.layers.get(n).map_or(0, |layer| layer.n_ff) {
            0 => Err(self.metadata().missing(&self.key("feed_forward_length"), "the width of the FFN")),
            n_ff => Ok(n_ff),
        }
    }

    /// Returns `[count, rows, cols]` as one matrix per expert.
    pub fn stacked(&self, name: &str, count: usize, rows: usize, cols: usize) -> Result<Option<Vec<Matrix>>> {
        let Some(tensor) = self.optional(name, &[count, rows, cols], TensorRole::Stack)? else { return Ok(None) };
        let all = self.as_matrix(&tensor)?;
        let factors = self.factors(&tensor, count)?;
        let factor = |at: usize| factors.as_ref().map_or(1.0, |factors| factors[at]);
        let slice = |at: usize| Ok(self.slice(&all, name, at * rows, rows)?.with_factor(factor(at)));
        (0..count).map(slice).collect::<Result<_>>().map(Some)
    }

    /// Returns `[count, len]` as one vector per expert.
    pub fn stacked_vectors(&self, name: &str, count: usize, len: usize) -> Result<Option<Vec<Vec<f32>>>> {
        let Some(tensor) = self.optional(name, &[count, len], TensorRole::Bias)? else { return Ok(None) };
        let all = self.with_factor(&tensor)?;
        let vector = |at: usize| {
            let mut values = vec![0.0; len];
            all.dequantise_row(at, &mut values);
            values
        };
        Ok(Some((0..count).map(vector).collect()))
    }

    /// Returns `len` rows of a matrix from row `start`, sharing its data.
    pub fn slice(&self, matrix: &Matrix, name: &str, start: usize, len: usize) -> Result<Matrix> {
        matrix
            .slice_rows(start..start + len)
            .ok_or_else(|| self.tensor_error(name, format!("at least {} rows", start + len), matrix.rows()))
    }

    pub fn optional_vector(&self, name: &str, len: usize) -> Result<Option<Vec<f32>>> {
        self.optional_values(name, len, TensorRole::Vector)
    }

    fn optional_values(&self, name: &str, len: usize, role: TensorRole) -> Result<Option<Vec<f32>>> {
        self.optional(name, &[len], role)?.map(|tensor| self.values(&tensor)).transpose()
    }

    pub fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>> {
        self.vector_of_shape(name, &[&[len]])
    }

    /// Returns a vector that files store in one of these `shapes`, all with the same number of
    /// elements.
    pub fn vector_of_shape(&self, name: &str, shapes: &[&[usize]]) -> Result<Vec<f32>> {
        self.values(&self.tensor(name, shapes, TensorRole::Vector)?)
    }

    /// Reads `{stem}.weight` and, if it exists, `{stem}.bias`.
    pub fn linear(&self, stem: &str, rows: usize, cols: usize) -> Result<Linear> {
        let weight = self.matrix(&format!("{stem}.weight"), rows, cols)?;
        Ok(Linear { weight, bias: self.optional_values(&format!("{stem}.bias"), rows, TensorRole::Bias)? })
    }

    /// Reads the norm `{stem}`; a layer norm's bias may be absent.
    pub fn norm(&self, stem: &str, kind: NormKind, len: usize) -> Result<Norm> {
        self.norm_at(None, stem, kind, len)
    }

    /// Reads the norm `{stem}`, with its place in a layer's program.
    pub fn norm_at(&self, slot: Option<NormSlot>, stem: &str, kind: NormKind, len: usize) -> Result<Norm> {
        let role = TensorRole::Norm(slot);
        let weight = self.values(&self.tensor(&format!("{stem}.weight"), &[&[len]], role)?)?;
        let bias = match kind {
            NormKind::Rms => None,
            NormKind::Layer => self.optional_values(&format!("{stem}.bias"), len, role)?,
        };
        Ok(Norm { weight, bias, own_eps: None })
    }

    pub fn optional_norm(&self, stem: &str, kind: NormKind, len: usize) -> Result<Option<Norm>> {
        self.has(&format!("{stem}.weight")).then(|| self.norm(stem, kind, len)).transpose()
    }

    /// Reads layer norms of heads, if they exist: one for all heads, `[head_dim]`, or one per head,
    /// `[heads * head_dim]`. The latter are in one tensor or in one per head.
    pub fn layer_norm_of_heads(&self, stem: &str, heads: usize, len: usize) -> Result<Option<Norm>> {
        let (one, single) = (format!("{stem}.weight"), |head: usize| format!("{stem}.{head}.weight"));
        let weight = if self.has(&one) {
            self.vector_of_shape(&one, &[&[len], &[heads, len]])?
        } else if self.has(&single(0)) {
            let all: Vec<Vec<f32>> = (0..heads).map(|head| self.vector(&single(head), len)).collect::<Result<_>>()?;
            all.concat()
        } else {
            return Ok(None);
        };
        Ok(Some(Norm { weight, bias: None, own_eps: None }))
    }

    /// Reads the down projection of layer `n` in the file's orientation.
    pub fn down(&self, n: usize, d_model: usize, n_ff: usize) -> Result<Down> {
        let transposed = format!("blk.{n}.ffn_down_t");
        if let Some(weight) = self.optional_matrix(&format!("{transposed}.weight"), n_ff, d_model)? {
            // The bias belongs to the outputs, and files use either name for it.
            let bias = match self.optional_values(&format!("{transposed}.bias"), d_model, TensorRole::Bias)? {
                None => self.optional_values(&format!("blk.{n}.ffn_down.bias"), d_model, TensorRole::Bias)?,
                bias => bias,
            };
            return Ok(Down::Neurons(Linear { weight, bias }));
        }
        self.linear(&format!("blk.{n}.ffn_down"), d_model, n_ff).map(Down::Outputs)
    }

    /// Reads a dense FFN; `gated` says whether the architecture has a gate.
    pub fn dense_ffn(&self, n: usize, config: &ModelConfig, gated: bool) -> Result<FfnWeights> {
        let (d, n_ff) = (config.d_model, self.dense_width(config, n)?);
        let gate = gated.then(|| self.linear(&format!("blk.{n}.ffn_gate"), n_ff, d)).transpose()?;
        Ok(FfnWeights {
            gate,
            up: self.linear(&format!("blk.{n}.ffn_up"), n_ff, d)?,
            down: self.down(n, d, n_ff)?,
            bundled_gate: None,
            limit: None,
            gate_scales: None,
        })
    }

    /// Reads the activation predictor of layer `n`, if the file has one.
    pub fn predictor(&self, n: usize, config: &ModelConfig) -> Result<Option<Predictor>> {
        let name = format!("blk.{n}.fc1.weight");
        let Some(rank) = self.rows(&name) else { return Ok(None) };
        let fc1 = self.matrix(&name, rank, config.d_model)?;
        let fc2 = self.matrix(&format!("blk.{n}.fc2.weight"), self.dense_width(config, n)?, rank)?;
        let threshold = self.metadata().f32("powerinfer.sparse_threshold")?.unwrap_or(0.0);
        let (kind, input) = (PredictorKind::LowRank { fc1, fc2 }, PredictorInput::Residual);
        Ok(Some(Predictor { kind, input, threshold, quality: None, by_input: Default::default() }))
    }
}

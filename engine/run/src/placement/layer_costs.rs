//! Bytes and reads of one layer, by the units that are hot.

use super::{
    LayerBytes,
    skipped_rows::{ExpectedRows, SkippedRows},
};
use thermocline_formats::{format::Matrix, quant::TensorType};
use thermocline_model::{Down, ExpertWeights, FfnWeights};

/// Number of neurons that are placed together, because kernels compute rows in groups of this size.
pub const BLOCK: usize = 64;

/// Bytes that one token's product with some weights reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadBytes {
    /// Type of the weights in the file.
    pub ty: TensorType,
    /// Bytes read by the CPU.
    pub cpu: u64,
    /// Bytes read by the device, in the device's encoding.
    pub device: u64,
}

/// Bytes and reads of one layer. Its units are the neurons of its FFN, or the experts in an MoE
/// layer.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerCosts {
    /// Device bytes of the attention matrices.
    pub attention: u64,
    /// Device bytes of norms and biases.
    pub vectors: u64,
    /// Device bytes of keys and values of all contexts.
    pub kv: u64,
    /// Device bytes of the predictor; 0 if the mode does not use it.
    pub predictor: u64,
    /// Device bytes of router and shared expert.
    pub routing: u64,
    /// Device bytes of the slot tables of a layer with cold units.
    pub split_tables: u64,
    /// Device bytes of one hot unit.
    pub unit: u64,
    /// Number of units that are placed together.
    pub block: usize,
    /// `[units]` the layer's units, most often firing first.
    pub order: Vec<u32>,
    /// `[units]` firing frequency of each unit of `order`, from 0 to 1.
    pub frequency: Vec<f32>,
    /// `[units]` fraction of tokens for which each unit of `order` is predicted; 1 if no predictor
    /// is used.
    pub predicted: Vec<f32>,
    /// Rows that decoding skips.
    pub skips: SkippedRows,
    /// Products of attention or of a recurrent mixer; read for every token.
    pub attention_reads: Vec<ReadBytes>,
    /// Keys and values, and recurrent states; read for every token.
    pub cache_reads: Vec<ReadBytes>,
    /// Products of the predictor; read for every token.
    pub predictor_reads: Vec<ReadBytes>,
    /// Products of the router, the experts' latent and the shared expert; read for every token.
    pub routing_reads: Vec<ReadBytes>,
    /// The firing row of a neuron; empty for an expert.
    pub firing_read: ReadBytes,
    /// The other rows of a firing neuron; for an expert, all its matrices.
    pub other_reads: Vec<ReadBytes>,
    /// Matrices without a row per neuron. Each side that computes any unit reads them whole.
    pub whole_reads: Vec<ReadBytes>,
    /// True if the rows of a neuron lie side by side in a file, so that one request reads all of
    /// them.
    pub bundled: bool,
    /// `[blocks + 1]` expected rows of the first 0, 1, ... blocks.
    pub(super) prefix_rows: Vec<ExpectedRows>,
}

impl LayerCosts {
    /// The costs of a layer without its FFN and its cache.
    pub(super) fn without_ffn(bytes: &LayerBytes, kv: u64, attention_reads: Vec<ReadBytes>) -> Self {
        LayerCosts {
            attention: bytes.attention,
            vectors: bytes.vectors,
            kv,
            predictor: 0,
            routing: bytes.routing,
            split_tables: bytes.split_tables,
            unit: bytes.unit,
            block: BLOCK,
            order: Vec::new(),
            frequency: Vec::new(),
            predicted: Vec::new(),
            skips: SkippedRows::Nothing,
            attention_reads,
            cache_reads: Vec::new(),
            predictor_reads: Vec::new(),
            routing_reads: Vec::new(),
            firing_read: ReadBytes { ty: TensorType::F32, cpu: 0, device: 0 },
            other_reads: Vec::new(),
            whole_reads: Vec::new(),
            bundled: false,
            prefix_rows: Vec::new(),
        }
    }

    pub(super) fn add_dense_ffn(&mut self, ffn: &FfnWeights) {
        let firing = ffn.gate.as_ref().unwrap_or(&ffn.up);
        self.firing_read = row_reads(&firing.weight);
        self.bundled = !ffn.up.weight.is_contiguous();
        self.other_reads = ffn.gate.iter().map(|_| row_reads(&ffn.up.weight)).collect();
        match &ffn.down {
            Down::Neurons(down) => self.other_reads.push(row_reads(&down.weight)),
            Down::Outputs(down) => self.whole_reads.push(matrix_reads(&down.weight)),
        }
    }

    /// Makes the device read the other rows of all `n` neurons. If the threshold that silences a
    /// gate depends on all gates, the device computes the up rows together with the gates. It
    /// multiplies the down rows of silent neurons by zero.
    pub(super) fn read_whole_on_device(&mut self, n: usize) {
        for reads in &mut self.other_reads {
            let device = n as u64 * std::mem::take(&mut reads.device);
            self.whole_reads.push(ReadBytes { cpu: 0, device, ty: reads.ty });
        }
    }

    /// Adds the costs of experts. Both sides read a routed expert's gate. The CPU reads the up rows
    /// of the fraction `fires` of its neurons, and the device does so only if there is a gate. The
    /// CPU reads the same fraction of a neuron-major down projection, and the device reads all of
    /// it.
    pub(super) fn add_experts(&mut self, experts: &ExpertWeights, fires: f64) {
        (self.skips, self.block) = (SkippedRows::NotRouted, 1);
        if let Some(expert) = experts.experts.first() {
            let gates = usize::from(expert.gate.is_some());
            let downs = if matches!(expert.down, Down::Neurons(_)) { 0 } else { 1 };
            let reads = ffn_reads(expert);
            let skipped = gates..reads.len() - downs;
            let on_device = experts.output_major(0).map(|down| matrix_reads(&down.weight).device);
            self.other_reads = reads;
            for (at, reads) in self.other_reads.iter_mut().enumerate() {
                if skipped.contains(&at) {
                    reads.cpu = (reads.cpu as f64 * fires) as u64;
                }
                if at == 1 && gates == 1 {
                    reads.device = (reads.device as f64 * fires) as u64;
                }
            }
            if let (Some(down), Some(device)) = (self.other_reads.last_mut(), on_device) {
                down.device = device;
            }
        }
        self.routing_reads = experts.always_read().map(|linear| matrix_reads(&linear.weight)).collect();
    }

    /// Sorts units by `frequency` (`[units]`, in the model's order), hottest first; equal units
    /// keep the model's order. The predictor names `excess` units per firing unit.
    pub(super) fn sort_units(&mut self, frequency: &[f32], excess: f32) {
        let of = |unit: u32| frequency[unit as usize].clamp(0.0, 1.0);
        self.order = (0..frequency.len() as u32).collect();
        self.order.sort_by(|a, b| of(*b).total_cmp(&of(*a)));
        self.frequency = self.order.iter().map(|unit| of(*unit)).collect();
        let has_predictor = self.skips == SkippedRows::NotPredicted;
        let predicted = |fires: &f32| if has_predictor { (fires * excess).clamp(0.0, 1.0) } else { 1.0 };
        self.predicted = self.frequency.iter().map(predicted).collect();
        let mut sum = ExpectedRows::default();
        self.prefix_rows = vec![sum];
        for block in 0..self.blocks() {
            let ranks = self.units_in(block)..self.units_in(block + 1);
            sum = ranks.map(|rank| self.rows_at(rank)).fold(sum, ExpectedRows::plus);
            self.prefix_rows.push(sum);
        }
    }

    /// Expected rows of the unit at `rank` in the order.
    fn rows_at(&self, rank: usize) -> ExpectedRows {
        let (fires, predicted) = (f64::from(self.frequency[rank]), f64::from(self.predicted[rank]));
        let (firing_rows, other_rows) = match self.skips {
            SkippedRows::Nothing => (1.0, 1.0),
            SkippedRows::Silent => (1.0, fires),
            SkippedRows::NotPredicted => (predicted, fires),
            SkippedRows::NotRouted => (0.0, fires),
        };
        ExpectedRows { units: 1.0, firing_rows, other_rows, fires }
    }

    /// Expected rows of the units `hot`.
    pub(super) fn rows_of(&self, hot: &[u32]) -> ExpectedRows {
        let blocks = hot.len().div_ceil(self.block);
        if self.units_in(blocks) == hot.len() && self.order.starts_with(hot) {
            return self.prefix_rows.get(blocks).copied().unwrap_or_default();
        }
        let mut is_hot = vec![false; self.units()];
        hot.iter().for_each(|unit| is_hot[*unit as usize] = true);
        let ranks = (0..self.units()).filter(|rank| is_hot[self.order[*rank] as usize]);
        ranks.map(|rank| self.rows_at(rank)).fold(ExpectedRows::default(), ExpectedRows::plus)
    }

    /// The weights that every token reads, whichever units fire.
    pub(super) fn weights_of_each_token(&self) -> impl Iterator<Item = &ReadBytes> {
        self.attention_reads.iter().chain(&self.predictor_reads).chain(&self.routing_reads)
    }

    /// Expected rows of all units.
    pub(super) fn all_rows(&self) -> ExpectedRows {
        self.prefix_rows.last().copied().unwrap_or_default()
    }

    /// Device bytes of the layer with no unit hot.
    pub fn base(&self) -> u64 {
        self.attention + self.vectors + self.kv + self.predictor + self.routing + self.split_tables
    }

    /// Device bytes of `hot` units, rounded up to whole blocks.
    pub fn hot_bytes(&self, hot: usize) -> u64 {
        hot.next_multiple_of(self.block.max(1)) as u64 * self.unit
    }

    /// Device bytes of the layer with all units hot.
    pub fn whole(&self) -> u64 {
        self.base() + self.hot_bytes(self.units())
    }

    /// Number of units: neurons, or experts.
    pub fn units(&self) -> usize {
        self.order.len()
    }

    /// Number of blocks of units. The last block may be shorter.
    pub fn blocks(&self) -> usize {
        self.units().div_ceil(self.block)
    }

    /// Number of units in the first `blocks` blocks.
    pub fn units_in(&self, blocks: usize) -> usize {
        (blocks * self.block).min(self.units())
    }
}

/// Reads of a product with all rows of `matrix`.
pub(super) fn matrix_reads(matrix: &Matrix) -> ReadBytes {
    let rows = matrix.rows() as u64;
    ReadBytes {
        cpu: matrix.byte_len() as u64,
        device: rows * matrix.ty().device_type().device_row_bytes(matrix.cols()) as u64,
        ty: matrix.ty(),
    }
}

/// Reads of a product with one row of `matrix`.
fn row_reads(matrix: &Matrix) -> ReadBytes {
    ReadBytes {
        cpu: matrix.row_bytes() as u64,
        device: matrix.ty().device_type().device_row_bytes(matrix.cols()) as u64,
        ty: matrix.ty(),
    }
}

/// Reads of the products with all matrices of `ffn`.
fn ffn_reads(ffn: &FfnWeights) -> Vec<ReadBytes> {
    ffn.linears().map(|linear| matrix_reads(&linear.weight)).collect()
}

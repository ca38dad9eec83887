//! Speeds of prompts: products with many tokens on the CPU and the GPU, and weights streamed to the
//! device.

use super::{
    cpu::{matrix_of_repeated_rows, noise},
    effort::MeasureEffort,
    gpu::{GpuEffort, transfer_rate},
    gpu_products::gpu_kernel_speed,
    measured_machine::{COLS, KeepGoing, by_encoding},
    turns::typical,
};
use crate::unless_stopped;
use thermocline_base::error::Result;
use thermocline_cpu::Cpu;
use thermocline_formats::quant::TensorType;
use thermocline_gpu::{AdapterKind, Gpu, GpuMatrix, MatrixLayout, Purpose, Recorder, RowLoad, RowStream, Usage};
use thermocline_model::{Activation, Down, FfnWeights, Linear};
use thermocline_run::{
    placement::PromptRates,
    runtime::{CpuFfn, FfnBlock, FfnTask, Sparsity},
};

/// Tokens multiplied together on the CPU, and on a device, which has larger tiles.
const CPU_TOKENS: usize = 32;
const GPU_TOKENS: usize = 128;

/// Returns how many rows of `row` bytes fit into `bytes`, limited to `least` and `most`.
fn rows(bytes: u64, row: usize, least: usize, most: usize) -> usize {
    ((bytes / row.max(1) as u64) as usize).clamp(least, most)
}

/// Measures the multiply-adds per second of an FFN that computes every other neuron, like a layer's
/// cold neurons.
pub(super) fn cpu_prompts(
    cpu: &Cpu,
    types: &[TensorType],
    effort: &MeasureEffort,
    go_on: KeepGoing<'_>,
) -> Result<PromptRates> {
    let one = |ty: &TensorType| {
        unless_stopped(go_on())?;
        let n_ff = rows(effort.cpu_bytes as u64 / 16, ty.row_bytes(COLS).unwrap_or(COLS), 64, 512);
        let weight = matrix_of_repeated_rows(*ty, n_ff, COLS)?;
        let linear = || Linear { weight: weight.clone(), bias: None };
        let ffn = FfnWeights {
            gate: Some(linear()),
            up: linear(),
            down: Down::Neurons(linear()),
            bundled_gate: None,
            limit: None,
            gate_scales: None,
        };
        let cold: Vec<u32> = (0..n_ff as u32).step_by(2).collect();
        let x = noise(CPU_TOKENS * COLS);
        let mut out = vec![0.0; x.len()];
        let task = FfnTask {
            blocks: &[FfnBlock { neurons: Some(&cold), ..FfnBlock::whole(&ffn) }],
            activation: Activation::Silu,
            sparsity: Sparsity::Dense,
            prediction: None,
            recall_check: false,
            activation_threshold: None,
            x: &x,
            tokens: CPU_TOKENS,
            observed: false,
            separate: false,
        };
        let (mut computes, mut done) = (CpuFfn::default(), Ok(()));
        let prompt = || {
            out.fill(0.0);
            if let Err(error) = computes.partial(cpu, &task, &mut out) {
                done = Err(error);
            }
        };
        let seconds = typical(effort.rounds, prompt, go_on)?;
        done?;
        Ok((ty.name().to_owned(), (3 * cold.len() * COLS * CPU_TOKENS) as f64 / seconds))
    };
    types.iter().map(one).collect()
}

/// Measures the multiply-adds per second of a product with many tokens, once for all types with the
/// same encoding on the device.
pub(super) fn gpu_prompts(
    gpu: &Gpu,
    types: &[TensorType],
    effort: &GpuEffort,
    go_on: KeepGoing<'_>,
) -> Result<PromptRates> {
    by_encoding(types, go_on, |native| {
        // Enough rows to fill a card. A software driver is busy with fewer rows.
        let most = if gpu.report().kind == AdapterKind::Software { 256 } else { 4096 };
        let rows = rows(effort.bytes / 8, native.device_type().device_row_bytes(COLS), 64, most);
        Ok(gpu_kernel_speed(gpu, native, rows, COLS, GPU_TOKENS, effort)?.macs_per_second)
    })
}

/// Measures the bytes per second (in the file's encoding) of repacking and uploading rows, in
/// back-to-back transfers.
pub(super) fn streams(
    gpu: &Gpu,
    types: &[TensorType],
    effort: &GpuEffort,
    go_on: KeepGoing<'_>,
) -> Result<PromptRates> {
    let one = |ty: &TensorType| {
        unless_stopped(go_on())?;
        let row = ty.device_type().device_row_bytes(COLS);
        let room = (effort.bytes / 8).min(gpu.arena().available() / 8);
        let rows = rows(room, row, 16, 4096);
        let weight = matrix_of_repeated_rows(*ty, rows, COLS)?;
        let bytes = GpuMatrix::bytes_of(gpu.caps(), ty.device_type(), rows, COLS)?;
        let place = gpu.arena().buffer(Purpose::Scratch, "benchmark", bytes, Usage::Storage)?;
        let layout = MatrixLayout { ty: ty.device_type(), rows, cols: COLS, rows_together: 1 };
        let matrix = GpuMatrix::within(gpu, &place, 0, layout)?;
        let mut stream = RowStream::new(gpu, RowStream::bytes_of([bytes]))?;
        let source = |row: usize| Some((&weight, row));
        let load = [RowLoad { matrix: &matrix, rows, row: &source }];
        let begin = || {
            let mut recorder = Recorder::new(gpu);
            stream.record(&mut recorder, &load, &[])?;
            let index = recorder.submit()?;
            stream.submitted();
            Ok(index)
        };
        let rate = transfer_rate(effort, weight.data().len() as u64, begin, |index| gpu.wait(index))?;
        Ok((ty.name().to_owned(), rate))
    };
    types.iter().map(one).collect()
}

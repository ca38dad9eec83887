//! Excess of gates `[rows, cols]` over a threshold of their row, in place:
//! `gate = max(gate - mean - deviations * sqrt(variance), 0)`. Padding of a row stays unchanged.

use crate::{
    Access::Write,
    Kernel,
    case::{CLOSE, CaseRequest, KernelCase, loud_noise, sizes, wide},
    params::params,
};

params! {
    /// `gate_excess`
    GateExcess {
        /// Gates of a row.
        cols: u32,
        /// Elements from one row to the next.
        pitch: u32,
        /// Rows, one workgroup each.
        rows: u32,
        /// Workgroups in one row of the grid.
        stride: u32,
        /// Standard deviations by which a gate must exceed its row's mean.
        deviations: f32,
    }
}

/// The kernel `gate_excess`.
pub(crate) const KERNEL: Kernel =
    Kernel::new::<GateExcess>("gate_excess", &[Write], include_str!("gate_excess.wgsl"), cases);

/// The excess of the gates of a row.
fn oracle(row: &[f32], deviations: f32) -> Vec<f64> {
    let (row, cols) = (wide(row), row.len() as f64);
    let mean = row.iter().sum::<f64>() / cols;
    let variance = row.iter().map(|gate| (gate - mean).powi(2)).sum::<f64>() / cols;
    let threshold = mean + f64::from(deviations) * variance.sqrt();
    row.iter().map(|gate| (gate - threshold).max(0.0)).collect()
}

/// Rows that are longer and shorter than a workgroup.
fn cases(request: &CaseRequest) -> Vec<KernelCase> {
    request.pick(&[129, 1, 50, 90], 1).iter().map(|cols| case(*cols)).collect()
}

fn case(cols: usize) -> KernelCase {
    let (rows, pitch, deviations) = (3, 160, 0.8);
    let gates: Vec<f32> = loud_noise(rows * pitch, 5, 4.0).iter().map(|gate| gate + 1.0).collect();
    let mut excess = wide(&gates);
    for (excess, gates) in excess.chunks_exact_mut(pitch).zip(gates.chunks_exact(pitch)) {
        excess[..cols].copy_from_slice(&oracle(&gates[..cols], deviations));
    }
    let [cols, pitch, rows] = sizes([cols, pitch, rows]);
    // Two rows of the grid.
    KernelCase::new("gate_excess", 64, GateExcess { cols, pitch, rows, stride: 2, deviations }, [2, 2, 1])
        .named(format!("{cols} gates"))
        .input(&gates)
        .becomes(&excess, CLOSE)
}

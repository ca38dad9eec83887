//! Products of one token on the CPU, as decoding computes them: all rows of a matrix, and some
//! rows. Products of all weight types take turns, so that no matrix is in a cache.

use std::hint::black_box;

use super::{
    cpu::{matrix_of_repeated_rows, noise},
    effort::MeasureEffort,
    measured_machine::{COLS, KeepGoing},
    turns::{TimedCall, in_turns, typical},
};
use crate::unless_stopped;
use thermocline_base::error::Result;
use thermocline_cpu::{Cpu, MatmulJob, RowsJob};
use thermocline_formats::{format::Matrix, quant::TensorType};
use thermocline_run::placement::{ProductRate, Rates};

/// Rows per row that is read to measure the rate of scattered rows.
const ROWS_PER_SCATTERED: usize = 10;
/// Total bytes of the measured matrices, in units of [`MeasureEffort::cpu_bytes`].
pub(super) const MATRICES: usize = 3;
/// Fewest matrices that take turns. With fewer types, types have several matrices.
const FEWEST: usize = 6;

/// Returns the seconds to start all workers and to wait for them.
///
/// # Errors
/// [`Error::Cancelled`](thermocline_base::error::Error::Cancelled).
pub(super) fn join(cpu: &Cpu, go_on: KeepGoing<'_>) -> Result<f64> {
    const TIMES: u32 = 20;
    let joins = || (0..TIMES).for_each(|_| cpu.pool().run(|worker| _ = black_box(worker)));
    Ok(typical(20, joins, go_on)? / f64::from(TIMES))
}

/// Measures the decoding rates of `types`, whose products take turns.
///
/// # Errors
/// [`Error::Memory`](thermocline_base::error::Error::Memory) if the matrices do not fit into RAM,
/// [`Error::Cancelled`](thermocline_base::error::Error::Cancelled).
pub(super) fn cpu_rates(
    cpu: &Cpu,
    types: &[TensorType],
    effort: &MeasureEffort,
    go_on: KeepGoing<'_>,
) -> Result<Rates> {
    let matrices = types.len().max(FEWEST);
    let products = types.iter().cycle().take(matrices).map(|ty| {
        unless_stopped(go_on())?;
        CpuProducts::new(*ty, MATRICES * effort.cpu_bytes / matrices)
    });
    let products = products.collect::<Result<Vec<_>>>()?;
    let turns = products.iter().enumerate();
    let mut calls: Vec<TimedCall<'_>> =
        turns.flat_map(|(at, of)| [of.all_rows(cpu), products[opposite(at, matrices)].some_rows(cpu)]).collect();
    let seconds = in_turns(effort.rounds, &mut calls, go_on)?;
    let rates = types.iter().zip(&products).enumerate().map(|(at, (ty, of))| {
        let [of_all, of_some] = calls_of(at, matrices).map(|call| seconds[call]);
        let sequential = of.weight.data().len() as f64 / of_all;
        let scattered = (of.some.len() * of.weight.row_bytes()) as f64 / of_some;
        // A small matrix may stay in a cache, so scattered rows may appear faster than sequential
        // rows.
        (ty.name().to_owned(), ProductRate { sequential, scattered: scattered.clamp(1e3, sequential) })
    });
    Ok(rates.collect())
}

/// The matrix whose scattered rows are multiplied directly after all rows of matrix `at`. About
/// half of the other matrices are multiplied between all rows of a matrix and some of its rows, in
/// both orders. Otherwise the rows would be in a cache.
fn opposite(at: usize, matrices: usize) -> usize {
    (at + matrices / 2) % matrices
}

/// Indices of the calls that multiply all rows and some rows of matrix `at`.
fn calls_of(at: usize, matrices: usize) -> [usize; 2] {
    [2 * at, 2 * ((at + matrices - matrices / 2) % matrices) + 1]
}

/// Products of one token with a matrix on the CPU.
struct CpuProducts {
    weight: Matrix,
    x: Vec<f32>,
    /// Rows at irregular distances.
    some: Vec<u32>,
}

impl CpuProducts {
    /// Prepares products with weights of type `ty`, of about `bytes`.
    fn new(ty: TensorType, bytes: usize) -> Result<Self> {
        let (weight, x) = matrix_and_vector(ty, bytes)?;
        let drawn = (0u32..).zip(noise(weight.rows())).filter(|(_, x)| (x + 1.0) * (ROWS_PER_SCATTERED as f32) < 2.0);
        let some = drawn.map(|(row, _)| row).collect();
        Ok(CpuProducts { weight, x, some })
    }

    fn all_rows<'a>(&'a self, cpu: &'a Cpu) -> TimedCall<'a> {
        let mut out = vec![0.0; self.weight.rows()];
        Box::new(move || cpu.matmul(&mut [MatmulJob { weight: &self.weight, bias: None, out: &mut out }], &self.x, 1))
    }

    fn some_rows<'a>(&'a self, cpu: &'a Cpu) -> TimedCall<'a> {
        let mut out = vec![0.0; self.some.len()];
        Box::new(move || {
            let rows = Some(&self.some[..]);
            cpu.matmul_rows(&mut [RowsJob { weight: &self.weight, bias: None, rows, out: &mut out }], &self.x, 1);
        })
    }
}

/// Returns a matrix of about `bytes` bytes, and a vector `[COLS]` to multiply it with.
pub(super) fn matrix_and_vector(ty: TensorType, bytes: usize) -> Result<(Matrix, Vec<f32>)> {
    let row = ty.row_bytes(COLS).unwrap_or(COLS);
    Ok((matrix_of_repeated_rows(ty, (bytes / row).max(ROWS_PER_SCATTERED), COLS)?, noise(COLS)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_matrices_are_multiplied_between_the_products_of_a_matrix() {
        for matrices in FEWEST..10 {
            for at in 0..matrices {
                let [all, some] = calls_of(at, matrices);
                assert!(all == 2 * at && some % 2 == 1, "{at} of {matrices}");
                assert_eq!(opposite(some / 2, matrices), at, "{at} of {matrices}");
                // All rows of two other matrices or more are between the two calls, in both orders.
                let between = (some + 2 * matrices - all) % (2 * matrices);
                assert!((5..=2 * matrices - 5).contains(&between), "{at} of {matrices}: {between}");
            }
        }
    }
}

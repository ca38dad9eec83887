//! Tells the [pager](thermocline_formats::format::Pager) which rows a product is about to read.
//! Only the matrices of models that are larger than their RAM budget have a pager.

use super::{RowSum, RowsJob, TokenRows, row_selection::RowSelection};
use thermocline_formats::format::{Matrix, ReadRows};

/// Announces the rows of `jobs`.
pub(super) fn of_jobs(jobs: &[RowsJob<'_>]) {
    if let Some(pager) = jobs.iter().find_map(|job| job.weight.pager()) {
        pager.read(jobs.iter().map(|RowsJob { weight, rows, .. }| ReadRows { weight, rows: *rows }));
    }
}

/// Announces the rows of `weight` that any of `tokens` reads.
pub(super) fn of_tokens(weight: &Matrix, tokens: &[TokenRows<'_>]) {
    if let Some(pager) = weight.pager() {
        pager.read(tokens.iter().map(|token| ReadRows { weight, rows: Some(token.rows) }));
    }
}

/// Announces the rows of `sums` whose activation is not zero.
pub(super) fn of_sums(sums: &[RowSum<'_>]) {
    let Some(pager) = sums.iter().find_map(|sum| sum.weight.pager()) else { return };
    let rows_of = |sum: &RowSum<'_>| {
        let selection = sum.rows.map_or(RowSelection::All, RowSelection::Listed);
        let active = sum.a.iter().enumerate().filter(|(_, a)| **a != 0.0);
        active.map(|(at, _)| selection.get(at) as u32).collect::<Vec<_>>()
    };
    let rows: Vec<Vec<u32>> = sums.iter().map(rows_of).collect();
    pager.read(sums.iter().zip(&rows).map(|(sum, rows)| ReadRows { weight: sum.weight, rows: Some(rows) }));
}

/// Announces the rows `active`, indices among the selected rows of `weight`.
pub(super) fn of_active(weight: &Matrix, selection: RowSelection<'_>, active: &[u32]) {
    if let Some(pager) = weight.pager() {
        let rows: Vec<u32> = active.iter().map(|at| selection.get(*at as usize) as u32).collect();
        pager.read(std::iter::once(ReadRows { weight, rows: Some(&rows) }));
    }
}

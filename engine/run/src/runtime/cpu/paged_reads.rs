//! Tells the [pager](thermocline_formats::format::Pager) which rows an FFN is about to read. The
//! disk then reads the matrices of an FFN together, instead of one product after the other.

use smallvec::SmallVec;

use super::FfnBlock;
use thermocline_formats::format::{Matrix, ReadRows};
use thermocline_model::{Down, FfnWeights};

/// The matrices of a few FFNs.
type Reads<'a> = SmallVec<[ReadRows<'a>; 32]>;

/// Announces the rows `rows` of `table`, of which a token reads one.
pub(super) fn of_table(table: &Matrix, rows: &[u32]) {
    if let Some(pager) = table.pager() {
        pager.read(std::iter::once(ReadRows { weight: table, rows: Some(rows) }));
    }
}

/// Announces all matrices of `blocks`.
pub(super) fn of_blocks(blocks: &[FfnBlock<'_>]) {
    if blocks.iter().any(|block| is_paged(block.ffn)) {
        announce(blocks.iter().flat_map(|block| first(block.ffn, block.neurons).chain(last(block.ffn, block.neurons))));
    }
}

/// Announces all matrices of an expert.
pub(super) fn of_expert(ffn: &FfnWeights) {
    of_blocks(&[FfnBlock::whole(ffn)]);
}

/// Announces every row of the neurons `candidates`, which probably fire.
pub(super) fn of_candidates(ffn: &FfnWeights, candidates: &[u32]) {
    if is_paged(ffn) {
        announce(first(ffn, Some(candidates)).chain(last(ffn, Some(candidates))));
    }
}

/// Announces the rows that follow the gates of `blocks`. `firing` are the neurons of each block
/// whose gates fire.
pub(super) fn of_firing<'a>(blocks: &'a [FfnBlock<'_>], firing: impl Iterator<Item = Option<&'a [u32]>>) {
    if blocks.iter().any(|block| is_paged(block.ffn)) {
        let rows = blocks.iter().zip(firing);
        announce(rows.flat_map(|(FfnBlock { ffn, .. }, list)| {
            let up = ffn.gate.is_some().then_some(ReadRows { weight: &ffn.up.weight, rows: list });
            up.into_iter().chain(last(ffn, list))
        }));
    }
}

fn is_paged(ffn: &FfnWeights) -> bool {
    ffn.up.weight.pager().is_some()
}

/// The reads of gate and up matrices.
fn first<'a>(ffn: &'a FfnWeights, rows: Option<&'a [u32]>) -> impl Iterator<Item = ReadRows<'a>> {
    ffn.gate_beside_up().into_iter().chain([&ffn.up]).map(move |linear| ReadRows { weight: &linear.weight, rows })
}

/// The read of the down projection. An output-major one is read whole.
fn last<'a>(ffn: &'a FfnWeights, rows: Option<&'a [u32]>) -> impl Iterator<Item = ReadRows<'a>> {
    let rows = if matches!(ffn.down, Down::Neurons(_)) { rows } else { None };
    std::iter::once(ReadRows { weight: &ffn.down.linear().weight, rows })
}

fn announce<'a>(reads: impl Iterator<Item = ReadRows<'a>>) {
    let reads: Reads<'a> = reads.collect();
    if let Some(pager) = reads.iter().find_map(|read| read.weight.pager()) {
        pager.read_soon(reads.iter().copied());
    }
}

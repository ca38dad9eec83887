//! Pairs of a token and one of its experts in the order of their experts:
//! `order = sort(0 .. pairs, by ids)` without the pairs whose expert is elsewhere, and tiles
//! `[tiles, 3]` of at most [`EXPERT_TILE`](crate::limits::EXPERT_TILE) pairs of one expert. A tile
//! is the expert, the index of the tile's first pair in the order, and the end of the expert's
//! pairs.

use crate::{
    Access::{Read, Write},
    Kernel,
    case::{CaseRequest, KernelCase, noise, sizes},
    limits::{EXPERT_TILE, NO_NEURON, ROUTE_EXPERTS, expert_tiles},
    params::params,
};

params! {
    /// `group_slots`
    GroupSlots {
        /// Experts to choose from, at most [`ROUTE_EXPERTS`](crate::limits::ROUTE_EXPERTS).
        experts: u32,
        /// Pairs of a token and one of its experts.
        pairs: u32,
        /// Tiles of the next kernel's grid: [`expert_tiles`](crate::limits::expert_tiles).
        tiles: u32,
    }
}

/// The kernel `group_slots`.
pub(crate) const KERNEL: Kernel =
    Kernel::new::<GroupSlots>("group_slots", &[Read, Write, Write], include_str!("group_slots.wgsl"), cases);

/// Contents of the elements that the kernel does not write.
const UNWRITTEN: u32 = 9;

/// The buffers that the kernel writes.
pub(crate) struct Groups {
    pub order: Vec<u32>,
    pub tiles: Vec<u32>,
}

/// The order of pairs with the experts `ids`, and their tiles. Unused tiles have an expert that
/// does not exist.
pub(crate) fn oracle(ids: &[u32], experts: usize) -> Groups {
    let (mut order, mut tiles) = (Vec::new(), Vec::new());
    for expert in 0..experts as u32 {
        let first = order.len() as u32;
        order.extend((0..).zip(ids).filter(|(_, id)| **id == expert).map(|(pair, _)| pair));
        let end = order.len() as u32;
        tiles.extend((first..end).step_by(EXPERT_TILE as usize).flat_map(|at| [expert, at, end]));
    }
    order.resize(ids.len(), UNWRITTEN);
    while tiles.len() < 3 * expert_tiles(ids.len(), experts) {
        tiles.extend([u32::MAX, UNWRITTEN, UNWRITTEN]);
    }
    Groups { order, tiles }
}

/// Experts of pairs. Expert 1 has the most pairs, some have none, and some are not on the device.
pub(crate) fn chosen(pairs: usize, experts: usize) -> Vec<u32> {
    let skewed = noise(pairs, pairs as u64).into_iter().map(|value| value * value * experts as f32);
    let ids = skewed.map(|value| (value as u32 + 1) % experts as u32).enumerate();
    ids.map(|(pair, id)| if pair % 7 == 3 { NO_NEURON } else { id }).collect()
}

/// Full and partial tiles, more pairs than a batch of the kernel, and the most experts.
fn cases(request: &CaseRequest) -> Vec<KernelCase> {
    let most = (2100, ROUTE_EXPERTS as usize);
    let all = [(1200, 8), (1, 1), (64, 1), (65, 1), (40, 8), (300, 8), (1200, 3), most];
    let workgroups = request.pick(&[256, 96, 64], 1);
    let shapes = request.pick(&all, 1).iter();
    shapes.flat_map(|(pairs, experts)| workgroups.iter().map(|it| case(*pairs, *experts, *it))).collect()
}

fn case(pairs: usize, experts: usize, workgroup: u32) -> KernelCase {
    let ids = chosen(pairs, experts);
    let Groups { order, tiles } = oracle(&ids, experts);
    let [pairs32, experts32, tiles32] = sizes([pairs, experts, tiles.len() / 3]);
    let params = GroupSlots { experts: experts32, pairs: pairs32, tiles: tiles32 };
    KernelCase::new("group_slots", workgroup, params, [1, 1, 1])
        .named(format!("{pairs} pairs of {experts} experts, {workgroup} invocations"))
        .input(&ids)
        .input(&vec![UNWRITTEN; pairs])
        .becomes_words(&order)
        .input(&vec![UNWRITTEN; tiles.len()])
        .becomes_words(&tiles)
}

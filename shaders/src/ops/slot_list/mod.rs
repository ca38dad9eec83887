//! Lists of the slots whose neurons are active, one list per neuron block:
//! `list = [n, slot_1, .., slot_n]` with ascending slots, for `active: [neurons]` in the bits of a
//! mask and a table of the neuron in each slot. The kernel also writes the grid of the kernel that
//! runs over a list, and sets the hidden activations of all slots to 0.

use crate::{
    Access::{Read, Write},
    Kernel,
    case::{CaseRequest, KernelCase, noise},
    limits::{NO_NEURON, SLOT_GRID},
    ops::active_mask,
    params::params,
};

params! {
    /// `slot_list`, with one workgroup per neuron block
    SlotList {
        /// Neurons per workgroup of the kernel that runs over the list.
        per_workgroup: u32,
        /// Workgroups in one row of that kernel's grid.
        stride: u32,
    }
}

/// The kernel `slot_list`.
pub(crate) const KERNEL: Kernel =
    Kernel::new::<SlotList>("slot_list", &[Read, Read, Write, Write, Write], include_str!("slot_list.wgsl"), cases);

/// The list of the slots whose neurons are active: their number, then the slots.
pub(crate) fn oracle(active: &[bool]) -> Vec<u32> {
    let listed: Vec<u32> = (0..).zip(active).filter(|(_, active)| **active).map(|(slot, _)| slot).collect();
    [vec![listed.len() as u32], listed].concat()
}

/// The grid of the kernel that runs over a list of `listed` slots.
pub(crate) fn grid(listed: u32, params: &SlotList) -> [u32; 3] {
    let workgroups = listed.div_ceil(params.per_workgroup);
    [workgroups.min(params.stride), workgroups.div_ceil(params.stride).max(1), 1]
}

/// Blocks of several sizes, with empty slots at the end, and layers with fewer blocks than the
/// table has room for. None, some or all neurons are active.
fn cases(request: &CaseRequest) -> Vec<KernelCase> {
    let all: [(&[usize], usize); 5] =
        [(&[64, 128, 192], 5), (&[64], 0), (&[512, 192], 5), (&[64, 128, 768], 64), (&[704], 4)];
    let workgroups = request.pick(&[64, 32, 96, 256], 1);
    let layers = request.pick(&all, 1).iter().flat_map(|layer| workgroups.iter().map(move |it| (layer, *it)));
    let densities = request.pick(&[0.3, 0.0, 0.1, 1.0], 1);
    layers.flat_map(|((blocks, empty), it)| densities.iter().map(move |some| case(blocks, *empty, *some, it))).collect()
}

fn case(blocks: &[usize], empty: usize, density: f32, workgroup: u32) -> KernelCase {
    const BLOCKS: usize = 3;
    let params = SlotList { per_workgroup: 3, stride: 40 };
    let active: Vec<bool> = noise(1000, 6).iter().map(|value| (value + 1.0) / 2.0 < density).collect();
    let slots: usize = blocks.iter().sum();
    let neuron_of = |slot: usize| (slot + empty < slots).then_some((slot * 7 + 3) % active.len());
    let (mut table, mut start) = (vec![0; 2 * BLOCKS], 0);
    let (mut lists, mut grids) = (vec![NO_NEURON; slots + 64 * BLOCKS], vec![NO_NEURON; SLOT_GRID as usize * BLOCKS]);
    let before = [lists.clone(), grids.clone()];
    for (at, size) in blocks.iter().enumerate() {
        table[2 * at..][..2].copy_from_slice(&[start as u32, *size as u32]);
        let neurons = (start..start + size).map(neuron_of);
        let list = oracle(&neurons.map(|neuron| neuron.is_some_and(|it| active[it])).collect::<Vec<_>>());
        lists[start + 64 * at..][..list.len()].copy_from_slice(&list);
        grids[SLOT_GRID as usize * at..][..3].copy_from_slice(&grid(list[0], &params));
        start += size;
    }
    table.extend((0..slots).map(|slot| neuron_of(slot).map_or(NO_NEURON, |neuron| neuron as u32)));
    // The activations of an earlier token must not remain. The last element is of no slot.
    let (mut stale, mut hidden) = (vec![f32::NAN; slots], vec![0.0; slots]);
    stale.push(7.0);
    hidden.push(7.0);
    KernelCase::new("slot_list", workgroup, params, [blocks.len() as u32, 1, 1])
        .named(format!("blocks of {blocks:?} slots, {empty} empty, density {density}, {workgroup} invocations"))
        .set("BLOCKS", BLOCKS as u32)
        .input(&active_mask::oracle(&active))
        .input(&table)
        .input(&before[0])
        .becomes_words(&lists)
        .input(&before[1])
        .becomes_words(&grids)
        .input(&stale)
        .becomes(&hidden, 0.0)
}

//! Cases of attention: forms of heads and of keys, each with several numbers of tokens.

use super::{
    Attention, AttentionForm, AttentionMerge, Inputs, Run,
    Run::{Decode, Prompt},
};
use crate::{
    DecodeGrid,
    case::{CaseRequest, Extent, KernelCase, UNTOUCHED, sizes},
    decode_heads, head_pitch,
    limits::{ATTENTION_OUT, ATTENTION_QUERIES, ATTENTION_TILE},
};

const PLAIN: AttentionForm = AttentionForm {
    options: "",
    heads: [2, 1, 0, 1],
    dims: [32, 32],
    position: 140,
    window: 0,
    softcap: 0.0,
    ahead: None,
    seen_start: 0,
    runs: &[],
};

/// Forms for the self-test: heads whose width does not fill a tile, a few tokens after many, and
/// prompts.
fn hard_forms() -> Vec<AttentionForm> {
    let plain = AttentionForm { options: "SINKS", heads: [6, 2, 0, 2], dims: [80, 80], ..PLAIN };
    vec![
        AttentionForm { position: 171, runs: &[Decode(2, 1, 128), Decode(2, 12, 128)], ..plain },
        AttentionForm { position: 83, window: 70, runs: &[Prompt(45)], ..plain },
        AttentionForm { options: "SINKS KV_F32", position: 5, runs: &[Prompt(33)], ..plain },
        AttentionForm { position: 83, window: 30, ahead: Some(70), runs: &[Prompt(35)], ..plain },
        AttentionForm { position: 140, seen_start: 133, ahead: Some(2), runs: &[Prompt(35)], ..plain },
    ]
}

/// Forms of heads: their sizes, groups and pages. Drivers compile the kernels again for every size,
/// so each has a purpose: parts of a unit, more than an output tile, and the largest heads of
/// models. Other forms have the common sizes.
fn head_forms() -> impl Iterator<Item = AttentionForm> {
    let runs = &[Decode(2, 0, 128), Decode(3, 1, 128), Prompt(45)];
    let plain = AttentionForm { runs, ..PLAIN };
    let of_halves = [6, 128, 256, 576].map(|dim| ("", dim)).into_iter();
    let widths = of_halves.chain([7, 256, 300].map(|dim| ("KV_F32", dim)));
    let widths =
        widths.map(move |(options, dim)| AttentionForm { options, heads: [3, 1, 0, 1], dims: [dim; 2], ..plain });
    let of_halves = [[192, 128], [20, 6], [24, 64]].map(|dims| ("SINKS", dims)).into_iter();
    let values = of_halves.chain([[12, 8], [64, 300]].map(|dims| ("SINKS KV_F32", dims)));
    let plain_values = AttentionForm { heads: [6, 2, 0, 2], window: 90, ..plain };
    let values = values.map(move |(options, dims)| AttentionForm { options, dims, ..plain_values });
    let plain = AttentionForm { runs: &[Decode(3, 1, 128), Decode(3, 0, 64), Prompt(33)], ..PLAIN };
    let groups = [[2, 2, 0, 2], [6, 2, 0, 2], [16, 2, 0, 2], [11, 1, 0, 1]];
    let groups = groups.map(|heads| AttentionForm { heads, dims: [64, 64], ..plain });
    let pages = [[6, 3, 0, 1], [6, 3, 2, 1], [10, 5, 2, 2], [10, 5, 4, 1], [4, 4, 0, 3], [4, 4, 3, 1]];
    let pages = pages.map(|heads| {
        let options = if heads[2] == 0 { "SINKS KV_F32" } else { "SINKS" };
        AttentionForm { options, heads, dims: [20, 20], window: 90, ..plain }
    });
    widths.chain(values).chain(groups).chain(pages)
}

/// Forms of keys: windows, caps of scores, rings, sinks, many keys, very different scores, and
/// parts of pictures.
fn key_forms() -> impl Iterator<Item = AttentionForm> {
    let runs = &[Decode(1, 0, 128), Decode(8, 0, 128), Decode(3, 12, 64), Prompt(1), Prompt(31), Prompt(97)];
    let plain = AttentionForm { runs, ..PLAIN };
    let windows = [(0, 0.0), (1, 0.0), (5, 2.0), (64, 0.0), (150, 20.0), (0, 3.0)].into_iter();
    let windows = windows.flat_map(move |(window, softcap)| {
        [0, 1, 63, 64, 300].map(|position| AttentionForm { window, softcap, position, ..plain })
    });
    let sinks = [([6, 2, 0, 2], 0, 300), ([8, 1, 0, 1], 40, 63), ([3, 3, 0, 3], 5, 0)];
    let sinks =
        sinks.map(|(heads, window, position)| AttentionForm { options: "SINKS", heads, window, position, ..plain });
    let plain = AttentionForm { runs: &[Decode(1, 0, 128), Decode(8, 12, 128), Prompt(97)], ..PLAIN };
    let rings = [("RING", 8), ("RING KV_F32", 64), ("RING", 100)].into_iter();
    let rings = rings.flat_map(move |(options, window)| {
        let positions = [0, 1, 63, 64, 127, 128, 150, 191, 192, 255, 256, 319, 1000];
        positions.map(|position| AttentionForm { options, window, position, ..plain })
    });
    let runs = &[Decode(1, 1, 128), Decode(1, 64, 128), Decode(1, 100_000, 128)];
    let long = AttentionForm { heads: [4, 2, 0, 2], dims: [64, 64], position: 8000, runs, ..PLAIN };
    let runs = &[Decode(4, 100, 128), Prompt(40)];
    let steep = AttentionForm { options: "STEEP", heads: [2, 2, 0, 2], position: 90, runs, ..PLAIN };
    let runs = &[Prompt(3), Prompt(64)];
    let ahead = [("", 0, 1), ("", 0, 0), ("KV_F32", 9, 130), ("RING", 8, 20), ("RING", 70, 64)].into_iter();
    let ahead = ahead.flat_map(move |(options, window, ahead)| {
        let positions = [0, 64, 150, 260];
        positions.map(|position| AttentionForm { options, window, ahead: Some(ahead), position, runs, ..PLAIN })
    });
    let parts = [("", 0, 0), ("KV_F32", 1, 9), ("", 63, 64), ("KV_F32", 150, 0), ("", 129, 70)].into_iter();
    let parts = parts.map(|(options, seen_start, ahead)| {
        let runs = &[Prompt(4), Prompt(64)];
        AttentionForm { options, seen_start, ahead: Some(ahead), position: 150, runs, ..PLAIN }
    });
    windows.chain(sinks).chain(rings).chain([long, steep]).chain(ahead).chain(parts)
}

/// Cases of the three kernels.
pub(super) fn cases(request: &CaseRequest) -> Vec<KernelCase> {
    let mut forms = hard_forms();
    if request.extent == Extent::All {
        forms.extend(head_forms().chain(key_forms()));
    }
    forms.iter().flat_map(|form| form.runs.iter().flat_map(|run| cases_of(form, *run))).collect()
}

/// The case of a prompt, or of decoding and of the merge of its splits.
fn cases_of(form: &AttentionForm, run: Run) -> Vec<KernelCase> {
    let (Prompt(tokens) | Decode(tokens, _, _)) = run;
    let inputs = Inputs::new(form, tokens);
    let params = inputs.params;
    let (n_head, [head_dim, value_dim]) = (params.n_head, sizes(form.dims));
    let Decode(_, most, lanes) = run else {
        let heads = params.kv_heads * (n_head / params.n_kv_head);
        let groups = [heads, params.tokens.div_ceil(ATTENTION_QUERIES), value_dim.div_ceil(ATTENTION_OUT)];
        return vec![inputs.case("attention_prompt", 128, params, groups)];
    };
    // At least one invocation per unit of a head.
    let workgroup = head_dim.max(value_dim).div_ceil(4).next_multiple_of(32).max(lanes);
    let heads = decode_heads(n_head, params.n_kv_head, head_dim).min(workgroup / 16);
    // The last token sees the most keys.
    let last = Attention { position: params.position + params.tokens - 1, ..params };
    let alone = DecodeGrid::alone(&last, heads, most).of_heads(&params, heads);
    let mut grid = DecodeGrid { tokens: params.tokens, ..alone };
    if most == 0 {
        grid.splits = (grid.span * grid.splits).div_ceil(ATTENTION_TILE);
        grid.span = ATTENTION_TILE;
    }
    let (splits, groups, tokens) = grid.workgroups();
    let params = Attention { span: grid.span, splits, ..params };
    let decode = inputs.case("attention_decode", workgroup, params, [splits, groups, tokens]).set("HEADS", heads);
    if splits == 1 || params.kv_heads < params.n_kv_head {
        return vec![decode];
    }
    let merged = inputs.output(&inputs.params);
    let mut partials: Vec<f32> = inputs.output(&params).into_iter().map(|x| x as f32).collect();
    let part = head_pitch(value_dim) as usize + 4;
    partials.chunks_exact_mut(part).for_each(|partial| partial[part - 2..].fill(f32::NAN));
    let merge = AttentionMerge { n_head, out_pitch: params.out_pitch, splits, row: params.row };
    let merge = KernelCase::new("attention_merge", workgroup, merge, [n_head, tokens, 1])
        .named(decode.name.clone())
        .set("VALUE_DIM", value_dim)
        .input(&partials)
        .input(&vec![UNTOUCHED; merged.len()])
        .becomes(&merged, inputs.tolerance());
    vec![decode, merge]
}

//! Tests that a token's products and attention depend neither on the number of tokens in the pass
//! nor on the instruction set.

use rand::{SeedableRng, rngs::StdRng};

use super::{
    Cpu, CpuOptions, Isa, RowsJob,
    matmul::tests::random_matrix,
    ops::{
        AttentionScratch, AttentionShape, AttentionWindow, HeadSizes, KvRows, KvType, Queries, SeenRows,
        attention::tests::PLAIN,
    },
    simd::tests::random_activations,
};
use thermocline_formats::quant::TensorType;

/// Rows of a matrix: several panels and a partial one, several groups of rows and a partial one.
const ROWS: usize = 35;
/// Most tokens of a pass: more than are multiplied one after the other, several tiles and a partial
/// one.
const TOKENS: usize = 16;

/// One CPU for each instruction set, with activations of 8 bits.
fn cpus() -> Vec<Cpu> {
    let options = Isa::available().into_iter().map(|isa| CpuOptions {
        threads: Some(2),
        isa: Some(isa),
        ..CpuOptions::default()
    });
    options.map(|options| Cpu::new(&options).unwrap()).collect()
}

/// A token's products have the same bits alone and in passes of up to sixteen tokens. This holds
/// for every weight type, for whole lines of columns and for parts of lines. With quantised weights
/// the bits are the same on all instruction sets, except for the types that AVX-512 sums in lanes.
#[test]
fn a_tokens_products_are_the_same_alone_and_among_others() {
    let rng = &mut StdRng::seed_from_u64(39);
    let cpus = cpus();
    let list: Vec<u32> = (0..ROWS as u32).filter(|row| row % 3 != 1).collect();
    for ty in TensorType::WEIGHTS {
        for cols in [32usize, 448, 512, 1344].map(|cols| cols.next_multiple_of(ty.block_len())) {
            let weight = random_matrix(ty, ROWS, cols, rng);
            let x = random_activations(TOKENS * cols, rng);
            let bias = random_activations(ROWS, rng);
            let mut first: Option<Vec<u32>> = None;
            for cpu in &cpus {
                let product = |x: &[f32], rows: Option<&[u32]>, tokens: usize| {
                    let mut out = vec![f32::NAN; tokens * rows.map_or(ROWS, <[u32]>::len)];
                    let job = RowsJob { weight: &weight, bias: Some(&bias), rows, out: &mut out };
                    cpu.matmul_rows(&mut [job], x, tokens);
                    out.into_iter().map(f32::to_bits).collect::<Vec<_>>()
                };
                let alone: Vec<_> = x.chunks_exact(cols).flat_map(|x| product(x, None, 1)).collect();
                let in_common_order = cpu.codes_of(&weight).is_some_and(|ty| !cpu.sums_in_lanes(ty));
                let most = TOKENS.min(cpu.same_bits(&weight));
                for tokens in 2..=most {
                    let together = product(&x[..tokens * cols], None, tokens);
                    assert!(together == alone[..tokens * ROWS], "{} {ty} {cols} columns, {tokens} tokens", cpu.isa());
                }
                for tokens in [1, 4, most] {
                    let some = product(&x[..tokens * cols], Some(&list), tokens);
                    let chosen = alone.chunks_exact(ROWS).flat_map(|token| list.iter().map(|row| token[*row as usize]));
                    assert!(
                        some.into_iter().eq(chosen.take(tokens * list.len())),
                        "{} {ty} {cols} columns, some rows",
                        cpu.isa()
                    );
                }
                if !in_common_order {
                    continue;
                }
                let first = first.get_or_insert_with(|| alone.clone());
                assert!(*first == alone, "{} {ty} {cols} columns", cpu.isa());
            }
        }
    }
}

/// A token's attention has the same bits alone and in a prompt: over several ranges of positions,
/// in a window, and with sinks.
#[test]
fn a_tokens_attention_is_the_same_alone_and_in_a_prompt() {
    let rng = &mut StdRng::seed_from_u64(6);
    const FIRST: usize = 500;
    const PROMPT: usize = 70;
    let sinks = random_activations(6, rng);
    for (head_dim, window, sinks) in [(64, None, None), (24, Some(300), None), (32, None, Some(&sinks[..]))] {
        let shape = AttentionShape {
            heads: HeadSizes { n_head: 6, n_kv_head: 2, head_dim, value_dim: head_dim },
            scale: 0.2,
            window: window.map_or(AttentionWindow::ALL, AttentionWindow::sliding),
            sinks,
            ..PLAIN
        };
        let mut cache = || {
            let mut rows = KvRows::new(KvType::F16, head_dim, FIRST + PROMPT).unwrap();
            (0..FIRST + PROMPT).for_each(|_| rows.push(&random_activations(head_dim, rng)));
            rows
        };
        let (keys, values) = ([cache(), cache()], [cache(), cache()]);
        let row = 6 * head_dim;
        let q = random_activations(PROMPT * row, rng);
        for cpu in cpus() {
            let attend = |first: usize, n: usize| {
                let (mut out, seen) = (vec![f32::NAN; n * row], SeenRows { keys: &keys, values: &values });
                let queries = Queries { q: &q[first * row..][..n * row], first: FIRST + first, whole: &[] };
                cpu.attention(&shape, queries, seen, &mut out, &mut AttentionScratch::default());
                out.into_iter().map(f32::to_bits).collect::<Vec<_>>()
            };
            let alone: Vec<u32> = (0..PROMPT).flat_map(|token| attend(token, 1)).collect();
            for n in [5, 9, 16, PROMPT] {
                let together: Vec<u32> =
                    (0..PROMPT).step_by(n).flat_map(|first| attend(first, n.min(PROMPT - first))).collect();
                assert!(alone == together, "{} {shape:?} in chunks of {n}", cpu.isa());
            }
        }
    }
}

//! Tests of what a token's products do not depend on: how many tokens a pass has, and the instruction set.

use rand::{SeedableRng, rngs::StdRng};

use super::{Cpu, CpuOptions, Isa, RowsJob, few_tokens, matmul::tests::random_matrix, simd::tests::random_activations};
use crate::quant::{Encoding, tests::WEIGHTS};

/// Rows of a matrix: some panels and a part of one, and some groups of rows and a part of one.
const ROWS: usize = 35;
/// Most tokens of a pass: more than are multiplied one after the other, and some tiles and a part of one.
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

/// Most tokens of a pass in which blocks have the bits of one token; with AVX-512 tiles sum in another order.
fn most(isa: Isa) -> usize {
    if isa == Isa::Avx512 { few_tokens::MOST } else { TOKENS }
}

/// A token's products have the same bits alone and in passes of up to sixteen tokens, with every type of weights, whole lines of columns
/// and parts of them; with blocks they have the same bits on all instruction sets but AVX-512.
#[test]
fn a_tokens_products_are_the_same_alone_and_among_others() {
    let rng = &mut StdRng::seed_from_u64(39);
    let cpus = cpus();
    let list: Vec<u32> = (0..ROWS as u32).filter(|row| row % 3 != 1).collect();
    for ty in WEIGHTS {
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
                let floats = matches!(ty.encoding(), Some(Encoding::Float(_)));
                let most = if floats { TOKENS } else { most(cpu.isa()) };
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
                if floats || cpu.isa() == Isa::Avx512 {
                    continue;
                }
                let first = first.get_or_insert_with(|| alone.clone());
                assert!(*first == alone, "{} {ty} {cols} columns", cpu.isa());
            }
        }
    }
}

//! Tests that every kernel computes its equation, in every tier of the adapter, at sizes that do
//! not match the workgroup.
#![allow(clippy::unwrap_used)]

mod active;
mod attention;
mod bandwidth;
mod elements;
mod embedding;
mod expert_gate_up;
mod experts;
mod gemm_neurons;
mod gpu;
mod half_products;
mod latent;
mod matmul;
mod recurrent;
mod rope;
mod sparse_down;
mod sparse_ffn;
mod sparse_gate_up;
mod streams;
mod top_k;

//! The storyteller: a small model inside the binary, so that the program has something to run without a download. Its
//! card is `assets/storyteller/README.md`.

use std::path::Path;

use thermocline_engine::{
    format::Bytes,
    model::{KvType, Sparsity},
    session::{Sampling, SparsityChoice},
    sparsity::sidecar::SidecarChoice,
};

/// What error messages and `inspect` call the built-in model's file.
pub const NAME: &str = "built-in storyteller";

/// Bytes at an address that any weight type and any SIMD load is content with.
#[repr(C, align(64))]
struct Aligned<T: ?Sized>(T);

static FILE: &Aligned<[u8]> = &Aligned(*include_bytes!("../../assets/storyteller/storyteller-F16.gguf"));

/// The model's GGUF file, aligned to 64 bytes.
pub fn file() -> &'static [u8] {
    &FILE.0
}

static SIDECAR: &Aligned<[u8]> = &Aligned(*include_bytes!("../../assets/storyteller/storyteller-F16.thermocline.gguf"));

/// What `thermocline prepare` found out about it.
pub fn sidecar() -> SidecarChoice {
    SidecarChoice::Memory("built-in sidecar".into(), Bytes::new(&SIDECAR.0))
}

/// The path its errors name.
pub fn path() -> &'static Path {
    Path::new(NAME)
}

/// Its caches are a few MiB at most, and rounding them to halves would make texts of different processors part.
pub const KV_TYPE: KvType = KvType::F32;

/// It is quick whatever is skipped, and so small that a neuron missed by its predictors now and then spoils a word.
pub const SPARSITY: SparsityChoice = SparsityChoice::Mode(Sparsity::Exact);

/// Sampling that suits it.
pub fn sampling() -> Sampling {
    // Stories differ in length by far. A test that is told another one each time passes or fails by chance.
    let seed = if cfg!(test) { Some(2) } else { None };
    Sampling { temperature: 0.7, top_k: 0, top_p: 0.9, min_p: 0.0, seed, ..Sampling::default() }
}

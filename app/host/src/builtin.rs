//! The storyteller: a small model inside the binary, so that the program has something to run without a download. Its
//! card is `assets/storyteller/README.md`.

use std::path::Path;

use thermocline_engine::{format::Bytes, runtime::KvType, session::Sampling, sparsity::sidecar::SidecarChoice};

/// Name of the built-in model's file in error messages and `inspect`.
pub const NAME: &str = "built-in storyteller";

/// Bytes aligned to 64, which suffices for every weight type and SIMD load.
#[repr(C, align(64))]
struct Aligned<T: ?Sized>(T);

static FILE: &Aligned<[u8]> = &Aligned(*include_bytes!("../../../assets/storyteller/storyteller-F16.gguf"));

/// The model's GGUF file, aligned to 64 bytes.
pub fn file() -> &'static [u8] {
    &FILE.0
}

static SIDECAR: &Aligned<[u8]> =
    &Aligned(*include_bytes!("../../../assets/storyteller/storyteller-F16.thermocline.gguf"));

/// The sidecar that `thermocline prepare` computed for it.
pub fn sidecar() -> SidecarChoice {
    SidecarChoice::Memory("built-in sidecar".into(), Bytes::new(&SIDECAR.0))
}

/// Path of the built-in model in errors.
pub fn path() -> &'static Path {
    Path::new(NAME)
}

/// Type of its KV cache. It takes a few MiB at most, and rounding to f16 would let the texts of CPU and GPU diverge.
pub const KV_TYPE: KvType = KvType::F32;

/// Its default sampling.
pub fn sampling() -> Sampling {
    Sampling { temperature: 0.7, top_k: 0, top_p: 0.9, min_p: 0.0, ..Sampling::default() }
}

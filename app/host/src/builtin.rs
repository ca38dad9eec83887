//! The storyteller: a small model inside the binary, so that the program can run a model without a
//! download. `assets/storyteller/README.md` is its model card.

use std::path::Path;

use thermocline_engine::{format::Bytes, runtime::KvType, session::Sampling, sparsity::sidecar::SidecarChoice};

/// Name of the built-in model in error messages and `inspect`.
pub const NAME: &str = "built-in storyteller";

/// Bytes aligned to 64, which is enough for every weight type and SIMD load.
#[repr(C, align(64))]
struct Aligned<T: ?Sized>(T);

static FILE: &Aligned<[u8]> = &Aligned(*include_bytes!("../../../assets/storyteller/storyteller-F16.gguf"));

/// The model's GGUF file, aligned to 64 bytes.
pub fn file() -> &'static [u8] {
    &FILE.0
}

static SIDECAR: &Aligned<[u8]> =
    &Aligned(*include_bytes!("../../../assets/storyteller/storyteller-F16.thermocline.gguf"));

/// The built-in model's sidecar, computed by `thermocline prepare`.
pub fn sidecar() -> SidecarChoice {
    SidecarChoice::Memory("built-in sidecar".into(), Bytes::new(&SIDECAR.0))
}

/// Path of the built-in model in errors.
pub fn path() -> &'static Path {
    Path::new(NAME)
}

/// Element type of the built-in model's KV cache. F32 takes only a few MiB. Rounding to F16 would
/// make texts of CPU and GPU differ.
pub const KV_TYPE: KvType = KvType::F32;

/// Default sampling of the built-in model.
pub fn sampling() -> Sampling {
    Sampling { temperature: 0.7, top_k: 0, top_p: 0.9, min_p: 0.0, ..Sampling::default() }
}

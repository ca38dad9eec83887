//! Choice of the type in which each tensor is written.

use thermocline_formats::quant::TensorType;

/// A tensor for which a type is chosen.
#[derive(Debug, Clone, Copy)]
pub(super) struct TypeCandidate<'a> {
    /// GGUF name.
    pub(super) name: &'a str,
    /// Row-major shape.
    pub(super) shape: &'a [usize],
    /// Type of the tensor in the source.
    pub(super) source: TensorType,
}

/// The type chosen for a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TypeChoice {
    /// Type for rows that are whole blocks of it.
    pub(super) wanted: TensorType,
    /// Type that the rows fit: `wanted`, or a fallback.
    pub(super) ty: TensorType,
}

/// Facts about the model that the choice depends on.
#[derive(Debug, Clone, Copy)]
pub(super) struct ConversionTarget {
    /// Requested type.
    pub(super) ty: TensorType,
    /// Number of layers.
    pub(super) n_layer: usize,
    /// True if the head is the embedding.
    pub(super) tied: bool,
}

impl ConversionTarget {
    /// Chooses the type for `candidate`. Vectors, routers and position tables stay F32. The head
    /// gets a better type than the rest, and in K-quant files so do the most sensitive matrices.
    /// Rows that are not whole blocks fall back to the nearest type that fits.
    pub fn choose(&self, candidate: TypeCandidate<'_>) -> TypeChoice {
        let TypeCandidate { name, shape, source } = candidate;
        if !source.is_weight() {
            return TypeChoice { wanted: source, ty: source };
        }
        let stem = name.strip_suffix(".weight").unwrap_or(name);
        let role = stem.rsplit('.').next().unwrap_or(stem);
        let vectors = shape.len() < 2 || name.ends_with(".bias");
        if vectors || stem == "position_embd" || role.starts_with("ffn_gate_inp") {
            return TypeChoice { wanted: TensorType::F32, ty: TensorType::F32 };
        }
        let wanted = match self.ty {
            TensorType::F32 | TensorType::F16 | TensorType::BF16 | TensorType::Q8_0 | TensorType::Q6_K => self.ty,
            _ if stem == "output" || role == "shared_head_head" || (stem == "token_embd" && self.tied) => {
                TensorType::Q6_K
            }
            TensorType::Q4_K | TensorType::Q5_K => self.mixed(stem, role),
            other => other,
        };
        TypeChoice { wanted, ty: fit(wanted, shape[shape.len() - 1]) }
    }

    /// Mixes types as llama.cpp's "M" types do: half of the value and down matrices get Q6_K, those
    /// of the outer layers first.
    fn mixed(&self, stem: &str, role: &str) -> TensorType {
        let layer = stem.split('.').nth(1).and_then(|layer| layer.parse::<usize>().ok()).unwrap_or(0);
        let eighth = self.n_layer / 8;
        let favoured = layer < eighth || layer >= 7 * self.n_layer / 8 || (layer - eighth) % 3 == 2;
        match role {
            "attn_v" | "ffn_down" | "ffn_down_t" | "ffn_down_exps" if favoured => TensorType::Q6_K,
            // For a joint matrix of queries, keys and values, the values decide.
            "attn_qkv" if self.ty == TensorType::Q4_K => TensorType::Q5_K,
            "attn_qkv" => TensorType::Q6_K,
            _ => self.ty,
        }
    }
}

/// Returns `ty`, or the next larger type whose blocks divide rows of `cols`.
fn fit(ty: TensorType, cols: usize) -> TensorType {
    if cols.is_multiple_of(ty.block_len()) {
        return ty;
    }
    match ty {
        TensorType::Q4_K => fit(TensorType::Q5_0, cols),
        TensorType::Q5_K => fit(TensorType::Q5_1, cols),
        TensorType::Q6_K => fit(TensorType::Q8_0, cols),
        _ => TensorType::F16,
    }
}

/// Returns GGUF's `general.file_type` for files that are mostly `ty`.
pub(super) fn file_type(ty: TensorType) -> u32 {
    match ty {
        TensorType::F32 => 0,
        TensorType::F16 => 1,
        TensorType::Q4_0 => 2,
        TensorType::Q8_0 => 7,
        TensorType::Q4_K => 15,
        TensorType::Q5_K => 17,
        TensorType::Q6_K => 18,
        TensorType::BF16 => 32,
        // 1024 means "guessed". No file of another type is written.
        _ => 1024,
    }
}

#[cfg(test)]
mod tests {
    use TensorType::*;

    use super::*;

    fn choose(ty: TensorType, tied: bool, name: &str, shape: &[usize]) -> TensorType {
        ConversionTarget { ty, n_layer: 32, tied }.choose(TypeCandidate { name, shape, source: F16 }).ty
    }

    #[test]
    fn vectors_and_routers_stay_f32() {
        for ty in super::super::CONVERT_TYPES {
            assert_eq!(choose(ty, true, "blk.0.attn_norm.weight", &[4096]), F32);
            assert_eq!(choose(ty, true, "blk.0.ffn_gate_inp.weight", &[8, 4096]), F32);
            assert_eq!(choose(ty, true, "blk.0.attn_q.bias", &[4096]), F32);
            assert_eq!(choose(ty, true, "position_embd.weight", &[2050, 4096]), F32);
        }
    }

    #[test]
    fn heads_and_sensitive_matrices_get_more_bits() {
        let matrix = &[4096, 4096];
        assert_eq!(choose(Q4_0, false, "output.weight", matrix), Q6_K);
        assert_eq!(choose(Q4_0, false, "blk.32.nextn.shared_head_head.weight", matrix), Q6_K);
        assert_eq!(choose(Q4_0, false, "blk.32.nextn.eh_proj.weight", matrix), Q4_0);
        assert_eq!(choose(Q4_0, false, "token_embd.weight", matrix), Q4_0);
        assert_eq!(choose(Q4_0, true, "token_embd.weight", matrix), Q6_K);
        assert_eq!(choose(Q8_0, true, "token_embd.weight", matrix), Q8_0);
        let layers = |role: &str| {
            (0..32).filter(|n| choose(Q4_K, false, &format!("blk.{n}.{role}.weight"), matrix) == Q6_K).count()
        };
        assert_eq!((layers("attn_v"), layers("ffn_down"), layers("attn_q")), (16, 16, 0));
    }

    #[test]
    fn rows_that_are_not_whole_blocks_fall_back() {
        assert_eq!(choose(Q4_K, false, "blk.9.attn_q.weight", &[64, 64]), Q5_0);
        assert_eq!(choose(Q5_K, false, "blk.9.attn_q.weight", &[64, 64]), Q5_1);
        assert_eq!(choose(Q6_K, false, "blk.9.attn_q.weight", &[64, 64]), Q8_0);
        assert_eq!(choose(Q4_K, false, "blk.9.ffn_down.weight", &[64, 176]), F16);
        assert_eq!(choose(Q4_0, false, "blk.9.ffn_down.weight", &[64, 176]), F16);
    }
}

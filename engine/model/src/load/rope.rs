//! Rotary positions of a file. All layers share one table. In some families, layers with a window
//! have another, whose keys end in `_swa`.

use super::{Loader, MAX_SIZE, Sizes, metadata::integers};
use crate::{ModelConfig, Rope, RopeOrder, RopeScaling, RopeSections, rope::yarn_magnitude};
use thermocline_base::error::{Error, Result};
use thermocline_cpu::ops::ROPE_AXES;

/// Names that files use for the kinds of stretched rotations.
const SCALINGS: [&str; 4] = ["none", "linear", "yarn", "longrope"];

/// Defaults of a rotation table, for keys that a file lacks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RopeDefaults {
    /// Elements of a head, the upper limit of rotated elements.
    pub(crate) head_dim: usize,
    /// Number of rotated elements.
    pub(crate) dims: usize,
    /// Base of the frequencies.
    pub(crate) base: f32,
}

/// Keys of a rotation table, with its defaults and sizes.
#[derive(Clone, Copy)]
struct RopeKeys {
    /// Suffix of every key and of the stems of tensors.
    suffix: &'static str,
    defaults: RopeDefaults,
    order: RopeOrder,
    /// Number of tokens that the model can read.
    context: usize,
    /// Number of elements that the file counts per rotated element.
    counted: usize,
}

impl Loader<'_> {
    /// Reads the rotations of all layers, or of layers without a window.
    pub fn rope(&self, sizes: &Sizes, order: RopeOrder) -> Result<Rope> {
        let defaults = RopeDefaults { head_dim: sizes.head_dim, dims: sizes.head_dim, base: 10_000.0 };
        self.rotations(RopeKeys { suffix: "", defaults, order, context: sizes.context_length, counted: 1 })
    }

    /// Reads the rotations from files that count twice the rotated elements, and may have divisors
    /// for further pairs (Step 3.5).
    pub fn halved_rope(&self, sizes: &Sizes, order: RopeOrder) -> Result<Rope> {
        let defaults = RopeDefaults { head_dim: sizes.head_dim, dims: sizes.head_dim / 2, base: 10_000.0 };
        self.rotations(RopeKeys { suffix: "", defaults, order, context: sizes.context_length, counted: 2 })
    }

    /// Gives layers with a window their own rotations.
    pub fn local_rope(&self, config: &mut ModelConfig, defaults: RopeDefaults) -> Result<()> {
        let order = config.ropes.first().map_or(RopeOrder::NeoX, |rope| rope.order);
        let local =
            self.rotations(RopeKeys { suffix: "_swa", defaults, order, context: config.context_length, counted: 1 })?;
        let local = config.add_rope(local);
        for attention in config.attentions_mut().filter(|attention| attention.window.is_some()) {
            attention.positions.rope = Some(local);
        }
        Ok(())
    }

    /// Gives the rotations of all layers the axes that the file names, if it names any.
    pub fn rope_sections(&self, config: &mut ModelConfig, interleaved: bool) -> Result<()> {
        let key = "rope.dimension_sections";
        let Some(thermocline_formats::format::Value::Array(array)) = self.metadata().get(&self.key(key)) else {
            return Ok(());
        };
        for rope in &mut config.ropes {
            // A fourth section is for a fourth axis, which no model uses.
            let expected = || format!("{} pairs for {ROPE_AXES} axes", rope.dims / 2);
            let all = integers(array).ok_or_else(|| self.key_error(key, expected(), "another array"))?;
            let sum = all.iter().fold(0, |sum: u64, pairs| sum.saturating_add(*pairs));
            match all.first_chunk::<ROPE_AXES>() {
                Some(pairs) if sum == pairs.iter().sum::<u64>() && sum == rope.dims as u64 / 2 => {
                    rope.sections = Some(RopeSections { pairs: pairs.map(|pairs| pairs as usize), interleaved });
                }
                _ => return Err(self.key_error(key, expected(), format!("{all:?}"))),
            }
        }
        Ok(())
    }

    fn rotations(&self, keys: RopeKeys) -> Result<Rope> {
        let RopeKeys { suffix, defaults, order, counted, .. } = keys;
        let base = self.positive(&format!("rope.freq_base{suffix}"))?.unwrap_or(defaults.base);
        let key = format!("rope.dimension_count{suffix}");
        let all = self.size(&key, 2..=counted * defaults.head_dim)?.unwrap_or(counted * defaults.dims);
        let dims = all / counted;
        if !all.is_multiple_of(2 * counted) || dims == 0 {
            return Err(self.key_error(&key, format!("a multiple of {}", 2 * counted), all));
        }
        let kind = self.text(&format!("rope.scaling.type{suffix}"))?.unwrap_or("linear");
        if !SCALINGS.contains(&kind) {
            let supported = format!("{}, or rope_freqs.weight", SCALINGS.join(", "));
            return Err(Error::unsupported("rope scaling", kind, supported));
        }
        let scaling = match self.divisors(keys, dims)? {
            Some(divisors) => divisors,
            None => self.scaling(keys, kind)?,
        };
        Ok(Rope { dims, base, order, scaling, sections: None })
    }

    /// Returns the context length of the training, in tokens.
    fn original_context(&self, RopeKeys { suffix, context, .. }: RopeKeys) -> Result<usize> {
        let key = format!("rope.scaling.original_context_length{suffix}");
        Ok(self.size(&key, 1..=MAX_SIZE)?.unwrap_or(context))
    }

    /// Reads the divisors of frequencies, if the file has a tensor of them.
    fn divisors(&self, keys: RopeKeys, dims: usize) -> Result<Option<RopeScaling>> {
        let suffix = keys.suffix;
        let factors = |stem: &str| -> Result<Option<Vec<f32>>> {
            let name = format!("{stem}{suffix}.weight");
            let all = keys.defaults.head_dim / 2;
            let stored = if keys.counted > 1 && self.rows(&name) == Some(all) { all } else { dims / 2 };
            let Some(mut values) = self.optional_vector(&name, stored)? else { return Ok(None) };
            values.truncate(dims / 2);
            match values.iter().find(|value| !(value.is_finite() && **value > 0.0)) {
                Some(value) => Err(self.tensor_error(&name, "finite factors above 0", value)),
                None => Ok(Some(values)),
            }
        };
        let original_context = self.original_context(keys)?;
        let attention_factor = self.positive(&format!("rope.scaling.attn_factor{suffix}"))?.unwrap_or(1.0);
        if let Some(short) = factors("rope_freqs")? {
            return Ok(Some(RopeScaling::Factors { short, long: None, original_context, attention_factor }));
        }
        let Some(long) = factors("rope_factors_long")? else { return Ok(None) };
        let missing = || {
            self.missing_tensor(
                &format!("rope_factors_short{suffix}.weight"),
                "as many factors as rope_factors_long has",
            )
        };
        let short = factors("rope_factors_short")?.ok_or_else(missing)?;
        Ok(Some(RopeScaling::Factors { short, long: Some(long), original_context, attention_factor }))
    }

    /// Reads the scaling of this kind from its keys.
    fn scaling(&self, keys: RopeKeys, kind: &str) -> Result<RopeScaling> {
        let suffix = keys.suffix;
        let key = |name: &str| format!("rope.scaling.{name}{suffix}");
        let original_context = self.original_context(keys)?;
        if let Some(factor) = self.switchable(&key("dynamic_factor"))? {
            return Ok(RopeScaling::Dynamic { factor, original_context });
        }
        let factor = match self.switchable(&key("factor"))? {
            None if suffix.is_empty() => self.switchable("rope.scale_linear")?,
            factor => factor,
        };
        match (kind, factor) {
            ("none", _) | ("linear", None) => Ok(RopeScaling::None),
            ("linear", Some(1.0)) => Ok(RopeScaling::None),
            ("linear", Some(factor)) => Ok(RopeScaling::Linear { factor }),
            ("yarn", factor) => {
                let factor = factor.unwrap_or(1.0);
                let attention_factor = self.positive(&key("attn_factor"))?.unwrap_or(1.0);
                Ok(RopeScaling::Yarn {
                    factor,
                    original_context,
                    attention_factor: attention_factor * yarn_magnitude(factor, 1.0),
                    beta_fast: self.positive(&key("yarn_beta_fast"))?.unwrap_or(32.0),
                    beta_slow: self.positive(&key("yarn_beta_slow"))?.unwrap_or(1.0),
                    truncate: self.flag(&key("yarn_truncate"))?.unwrap_or(true),
                })
            }
            // Files of Phi-3's short-context models name longrope but have no factors.
            ("longrope", _) if keys.context <= original_context => Ok(RopeScaling::None),
            _ => Err(self.missing_tensor("rope_factors_long.weight", "the factors of longrope scaling")),
        }
    }
}

//! Rotary positions of a folder: base, rotated elements and scaling, for all layers or by kind of
//! layer.

use std::f64::consts::TAU;

use serde_json::{Map, Value as Json};

use super::{Draft, HfConfig, HfSizes, hf_config::finite};
use crate::{RopeSections, rope::yarn_magnitude};
use thermocline_base::error::{Error, Result};
use thermocline_cpu::ops::ROPE_AXES;
use thermocline_formats::format::{Array, Value};

/// Divisor that stops the rotation of a pair.
const NO_ROTATION: f32 = 1e30;

/// Layers that use a rotation table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LayerRope {
    /// Layers without a window, or all layers.
    Full,
    /// Layers with a window, in families where these have their own rotations.
    Sliding,
}

impl LayerRope {
    /// Returns the name of these layers in `rope_parameters`.
    fn name(self) -> &'static str {
        match self {
            LayerRope::Full => "full_attention",
            LayerRope::Sliding => "sliding_attention",
        }
    }

    /// Returns the suffix of GGUF's keys and tensor stems.
    fn suffix(self) -> &'static str {
        match self {
            LayerRope::Full => "",
            LayerRope::Sliding => "_swa",
        }
    }
}

/// Replaces rotations listed per layer (`rope_theta` or `partial_rotary_factors`) by rotations per
/// kind of layer. Each kind takes the values of its first layer. Layers without a window also take
/// `rope_scaling`.
pub(super) fn by_kind(values: &mut Map<String, Json>) {
    let names = ["rope_theta", "partial_rotary_factors"];
    let Some(Json::Array(kinds)) = values.get("layer_types").cloned() else { return };
    if !names.iter().any(|name| values.get(*name).is_some_and(Json::is_array)) {
        return;
    }
    let scaling = values.remove("rope_scaling");
    let [base, fraction] = names.map(|name| values.remove(name).unwrap_or(Json::Null));
    let of = |all: &Json, layer: usize| match all {
        Json::Array(all) => all.get(layer).cloned().unwrap_or(Json::Null),
        all => all.clone(),
    };
    let mut ropes = Map::new();
    for layers in [LayerRope::Full, LayerRope::Sliding] {
        let Some(first) = kinds.iter().position(|kind| kind.as_str() == Some(layers.name())) else { continue };
        let mut rope = Map::new();
        rope.insert("rope_theta".to_owned(), of(&base, first));
        rope.insert("partial_rotary_factor".to_owned(), of(&fraction, first));
        if let (LayerRope::Full, Some(Json::Object(scaling))) = (layers, &scaling) {
            rope.extend(scaling.clone());
        }
        ropes.insert(layers.name().to_owned(), Json::Object(rope));
    }
    values.entry("rope_parameters").or_insert(Json::Object(ropes));
}

/// Rotary parameters of a `config.json`.
struct HfRope<'a> {
    config: &'a HfConfig,
    values: Option<&'a Map<String, Json>>,
    /// True if the parameters belong to one kind of layer only.
    by_kind: bool,
}

impl<'a> HfRope<'a> {
    fn value(&self, name: &str) -> Option<&'a Json> {
        self.values?.get(name).filter(|value| !value.is_null())
    }

    /// Returns the kind of scaling: `default`, `linear`, `llama3`, `yarn`, ...
    fn kind(&self) -> &'a str {
        self.value("rope_type").or_else(|| self.value("type")).and_then(Json::as_str).unwrap_or("default")
    }

    fn f32(&self, name: &str) -> Result<Option<f32>> {
        let Some(value) = self.value(name) else { return Ok(None) };
        finite(value).map(Some).ok_or_else(|| self.config.error(&format!("rope.{name}"), "a finite number", value))
    }

    /// Returns a number; 0 counts as missing.
    fn switchable(&self, name: &str) -> Result<Option<f32>> {
        Ok(self.f32(name)?.filter(|value| *value != 0.0))
    }

    fn bool(&self, name: &str) -> Result<Option<bool>> {
        let Some(value) = self.value(name) else { return Ok(None) };
        let flag = value.as_bool();
        flag.map(Some).ok_or_else(|| self.config.error(&format!("rope.{name}"), "true or false", value))
    }

    /// Returns whether YaRN's bounds are rounded to whole dimensions. The reference ignores this
    /// key in parameters by kind of layer, and models are trained with the reference.
    fn truncates(&self) -> Result<Option<bool>> {
        Ok(self.bool("truncate")?.filter(|_| !self.by_kind))
    }

    fn usize(&self, name: &str) -> Result<Option<usize>> {
        // Some files write lengths as floats.
        Ok(self.f32(name)?.filter(|&value| value >= 1.0).map(|value| value as usize))
    }

    /// Reads a list of `len` positive numbers.
    fn factors(&self, name: &str, len: usize) -> Result<Vec<f32>> {
        let values = self.value(name).and_then(Json::as_array);
        let factors: Option<Vec<f32>> =
            values.and_then(|values| values.iter().map(|value| finite(value).filter(|&value| value > 0.0)).collect());
        factors.filter(|factors| factors.len() == len).ok_or_else(|| {
            self.config.error(&format!("rope.{name}"), format!("{len} numbers above 0"), "another value")
        })
    }

    /// Returns the context length of the training, before it was stretched to `context`.
    fn original(&self, context: usize) -> Result<usize> {
        let name = "original_max_position_embeddings";
        Ok(self.config.usize(&[name])?.or(self.usize(name)?).unwrap_or(context))
    }

    /// Returns the ratio of the stretched context to the `original` one.
    fn factor(&self, original: usize, context: usize) -> Result<f32> {
        Ok(self.f32("factor")?.unwrap_or(context as f32 / original.max(1) as f32))
    }

    /// Returns YaRN's factor on cos and sin.
    fn yarn_magnitude(&self, factor: f32) -> Result<f32> {
        let scales = [self.switchable("mscale")?, self.switchable("mscale_all_dim")?];
        Ok(match (self.f32("attention_factor")?, scales) {
            (Some(magnitude), _) => magnitude,
            (None, [Some(scale), Some(all)]) => yarn_magnitude(factor, scale) / yarn_magnitude(factor, all),
            (None, _) => yarn_magnitude(factor, 1.0),
        })
    }

    /// Returns longrope's factor on cos and sin.
    fn longrope_magnitude(&self, original: usize, context: usize) -> Result<f32> {
        let [short, long] = [self.f32("short_mscale")?, self.f32("long_mscale")?];
        if let (Some(short), Some(long)) = (short, long)
            && short != long
        {
            return Err(self.config.unsupported(
                "longrope with different magnitudes for short and long contexts",
                "rope.long_mscale",
                long,
            ));
        }
        let given = self.f32("attention_factor")?.or(short);
        let factor = f64::from(self.factor(original, context)?);
        Ok(match given {
            Some(magnitude) => magnitude,
            None if factor <= 1.0 => 1.0,
            None => (1.0 + factor.ln() / (original.max(2) as f64).ln()).sqrt() as f32,
        })
    }
}

impl HfConfig {
    /// Returns the rotary parameters: the newer `rope_parameters`, which may differ by kind of
    /// layer, or the older `rope_scaling`, which applies to layers without a window.
    fn rope(&self, layers: LayerRope) -> HfRope<'_> {
        let object = |name: &str| self.value(name).and_then(Json::as_object);
        let of = |values: &'_ Map<String, Json>, kind: LayerRope| values.get(kind.name()).is_some_and(Json::is_object);
        let parameters = object("rope_parameters");
        let by_kind = parameters.filter(|it| of(it, LayerRope::Full) || of(it, LayerRope::Sliding));
        let values = match (by_kind, layers) {
            (Some(all), _) => all.get(layers.name()).and_then(Json::as_object),
            (None, LayerRope::Full) => parameters.or_else(|| object("rope_scaling")),
            (None, LayerRope::Sliding) => None,
        };
        HfRope { config: self, values, by_kind: by_kind.is_some() }
    }

    /// Returns how many of a head's `head_dim` elements are rotated; all by default.
    pub fn rotated(&self, layers: LayerRope, head_dim: usize) -> Result<usize> {
        self.rotated_or(layers, head_dim, 1.0)
    }

    /// Returns the number of rotated elements, with `default` as their fraction. Stretched
    /// rotations ignore `default` and rotate all elements.
    pub fn rotated_or(&self, layers: LayerRope, head_dim: usize, default: f64) -> Result<usize> {
        let name = "partial_rotary_factor";
        let rope = self.rope(layers);
        let default = if rope.kind() == "default" { default } else { 1.0 };
        let given = match layers {
            LayerRope::Full => rope.value(name).or_else(|| self.value(name)),
            LayerRope::Sliding => rope.value(name),
        };
        let Some(given) = given else { return Ok((default * head_dim as f64) as usize) };
        match given.as_f64().filter(|fraction| (0.0..=1.0).contains(fraction)) {
            Some(fraction) => Ok((fraction * head_dim as f64) as usize),
            None => Err(self.error(name, "a fraction from 0 to 1", given)),
        }
    }

    /// Returns the factor on cos and sin, and the weight of the factor's logarithm in the attention
    /// scale; `None` if YaRN's parameters do not name this weight.
    pub fn yarn_of_attention(&self) -> Result<Option<[f32; 2]>> {
        let rope = self.rope(LayerRope::Full);
        let (Some(all), "yarn") = (rope.switchable("mscale_all_dim")?, rope.kind()) else { return Ok(None) };
        let context = self.or_default(&["max_position_embeddings"], 2048)?;
        let factor = rope.factor(rope.original(context)?, context)?;
        Ok(Some([rope.yarn_magnitude(factor)?, all]))
    }
}

/// A rotation table under construction.
struct RopeDraft<'a> {
    rope: HfRope<'a>,
    sizes: HfSizes,
    base: f32,
    /// Number of tokens that the model can read.
    context: usize,
    suffix: &'static str,
}

impl Draft {
    /// Sets the keys and tensors of rotary positions for all layers, or for layers without a
    /// window. `default_base` is for files without a base.
    pub fn rope(&mut self, hf: &HfConfig, sizes: &HfSizes, default_base: f32) -> Result<()> {
        let rope = hf.rope(LayerRope::Full);
        let base = match rope.f32("rope_theta")? {
            None => hf.f32(&["rope_theta"])?.unwrap_or(default_base),
            Some(base) => base,
        };
        self.rotations(hf, rope, *sizes, base, LayerRope::Full)
    }

    /// Sets the keys and tensors of rotary positions for layers with a window, in families where
    /// these have their own rotations.
    pub fn local_rope(&mut self, hf: &HfConfig, sizes: &HfSizes, default_base: f32) -> Result<()> {
        let rope_dims = hf.rotated(LayerRope::Sliding, sizes.head_dim)?;
        self.local_rope_of(hf, &HfSizes { rope_dims, ..*sizes }, default_base)
    }

    /// Works like [`Draft::local_rope`], with the rotated elements of `sizes`.
    pub fn local_rope_of(&mut self, hf: &HfConfig, sizes: &HfSizes, default_base: f32) -> Result<()> {
        let rope = hf.rope(LayerRope::Sliding);
        let base = match rope.f32("rope_theta")? {
            None => hf.f32(&["rope_local_base_freq"])?.unwrap_or(default_base),
            Some(base) => base,
        };
        self.rotations(hf, rope, *sizes, base, LayerRope::Sliding)
    }

    /// Sets the number of rotated pairs of each axis (M-RoPE). Files that name no sections have
    /// `sections`.
    pub fn rope_sections(&mut self, hf: &HfConfig, sizes: &HfSizes, mut sections: RopeSections) -> Result<()> {
        let (rope, name, pairs) = (hf.rope(LayerRope::Full), "mrope_section", sizes.rope_dims / 2);
        let given = rope.value(name);
        if let Some(given) = given {
            let of_axis = |axis: &Json| axis.as_u64().and_then(|pairs| usize::try_from(pairs).ok());
            let all: Option<Vec<usize>> = given.as_array().and_then(|all| all.iter().map(of_axis).collect());
            let Some(all) = all.and_then(|all| <[usize; ROPE_AXES]>::try_from(all).ok()) else {
                return Err(hf.error(&format!("rope.{name}"), format!("{ROPE_AXES} numbers"), given));
            };
            sections.pairs = all;
        }
        let sum = sections.pairs.iter().fold(0, |sum: usize, axis| sum.saturating_add(*axis));
        if !sections.interleaved && sum != pairs {
            let Some(given) = given else { return Ok(()) };
            return Err(hf.error(&format!("rope.{name}"), format!("numbers with the sum {pairs}"), given));
        }
        let mut counted = [0_u32; ROPE_AXES];
        (0..pairs).for_each(|pair| counted[sections.axis(pair)] += 1);
        self.set("rope.dimension_sections", Value::Array(Array::U32([&counted[..], &[0]].concat())));
        Ok(())
    }

    /// Sets the key for queries that grow with their position, in families with such queries.
    pub fn query_scale(&mut self, hf: &HfConfig) -> Result<()> {
        if let Some(beta) = hf.rope(LayerRope::Full).f32("llama_4_scaling_beta")? {
            self.set("attention.temperature_scale", Value::F32(beta));
        }
        Ok(())
    }

    fn rotations(
        &mut self,
        hf: &HfConfig,
        rope: HfRope<'_>,
        sizes: HfSizes,
        base: f32,
        layers: LayerRope,
    ) -> Result<()> {
        let (suffix, kind) = (layers.suffix(), rope.kind());
        self.set(&format!("rope.freq_base{suffix}"), Value::F32(base));
        self.set_size(&format!("rope.dimension_count{suffix}"), sizes.rope_dims)?;
        let context = hf.or_default(&["max_position_embeddings"], 2048)?;
        let of = RopeDraft { rope, sizes, base, context, suffix };
        match kind {
            "default" | "mrope" => {
                // In models without stretched positions, queries grow after this length.
                if let Some(original) = of.rope.usize("original_max_position_embeddings")? {
                    self.set_size(&format!("rope.scaling.original_context_length{suffix}"), original)?;
                }
                Ok(())
            }
            // HunYuan's "dynamic" raises the base by a fixed factor in every context.
            "dynamic" if of.rope.switchable("alpha")?.is_some() => {
                let (alpha, dims) = (of.rope.f32("alpha")?.unwrap_or(1.0), sizes.rope_dims as f32);
                if alpha <= 0.0 || sizes.rope_dims <= 2 {
                    return Err(hf.error("rope.alpha", "a number above 0, for heads of more than 2 elements", alpha));
                }
                let base = base * alpha.powf(dims / (dims - 2.0));
                self.set(&format!("rope.freq_base{suffix}"), Value::F32(base));
                Ok(())
            }
            "dynamic" => {
                let factor = of.rope.f32("factor")?.unwrap_or(1.0);
                self.set_size(&format!("rope.scaling.original_context_length{suffix}"), context)?;
                self.set(&format!("rope.scaling.dynamic_factor{suffix}"), Value::F32(factor));
                Ok(())
            }
            // The frequencies are those of the whole head, but only the first pairs rotate.
            "proportional" => {
                let slower = of.rope.f32("factor")?.unwrap_or(1.0);
                let factor = |pair| if pair < sizes.rope_dims / 2 { slower } else { NO_ROTATION };
                self.set_size(&format!("rope.dimension_count{suffix}"), sizes.head_dim)?;
                let factors: Vec<f32> = (0..sizes.head_dim / 2).map(factor).collect();
                self.vector(&format!("rope_freqs{suffix}.weight"), &factors);
                Ok(())
            }
            "linear" => {
                let factor = of.rope.f32("factor")?.unwrap_or(1.0);
                self.set(&format!("rope.scaling.type{suffix}"), Value::String("linear".to_owned()));
                self.set(&format!("rope.scaling.factor{suffix}"), Value::F32(factor));
                Ok(())
            }
            "llama3" => {
                self.vector(&format!("rope_freqs{suffix}.weight"), &of.llama3_factors()?);
                Ok(())
            }
            "yarn" => self.yarn(&of),
            "longrope" | "su" => self.longrope(&of),
            other => Err(Error::unsupported(
                "rope scaling",
                other,
                "default, linear, dynamic, llama3, yarn, longrope, proportional",
            )),
        }
    }

    /// Sets the keys of YaRN scaling.
    fn yarn(&mut self, RopeDraft { rope, context, suffix, .. }: &RopeDraft<'_>) -> Result<()> {
        let original = rope.original(*context)?;
        let factor = rope.factor(original, *context)?;
        let key = |name: &str| format!("rope.scaling.{name}{suffix}");
        self.set(&key("type"), Value::String("yarn".to_owned()));
        self.set(&key("factor"), Value::F32(factor));
        self.set_size(&key("original_context_length"), original)?;
        for (name, gguf) in [("beta_fast", "yarn_beta_fast"), ("beta_slow", "yarn_beta_slow")] {
            if let Some(beta) = rope.switchable(name)? {
                self.set(&key(gguf), Value::F32(beta));
            }
        }
        if let Some(truncate) = rope.truncates()? {
            self.set(&key("yarn_truncate"), Value::Bool(truncate));
        }
        // GGUF stores a factor on the magnitude that follows from `factor`.
        let magnitude = rope.yarn_magnitude(factor)? / yarn_magnitude(factor, 1.0);
        if magnitude != 1.0 {
            self.set(&key("attn_factor"), Value::F32(magnitude));
        }
        Ok(())
    }

    /// Sets the keys and divisors of longrope scaling.
    fn longrope(&mut self, RopeDraft { rope, sizes, context, suffix, .. }: &RopeDraft<'_>) -> Result<()> {
        let original = rope.original(*context)?;
        let magnitude = rope.longrope_magnitude(original, *context)?;
        self.set_size(&format!("rope.scaling.original_context_length{suffix}"), original)?;
        self.set(&format!("rope.scaling.attn_factor{suffix}"), Value::F32(magnitude));
        for (name, tensor) in [("long_factor", "rope_factors_long"), ("short_factor", "rope_factors_short")] {
            let factors = rope.factors(name, sizes.rope_dims / 2)?;
            self.vector(&format!("{tensor}{suffix}.weight"), &factors);
        }
        Ok(())
    }
}

impl RopeDraft<'_> {
    /// Returns Llama 3.1's divisors, one per rotated pair. Wavelengths beyond the trained length
    /// are stretched by `factor`, and short ones are kept. Wavelengths in between are blended.
    fn llama3_factors(&self) -> Result<Vec<f32>> {
        let RopeDraft { rope, base, context, .. } = self;
        let factor = f64::from(rope.f32("factor")?.unwrap_or(8.0));
        let low = f64::from(rope.f32("low_freq_factor")?.unwrap_or(1.0));
        let high = f64::from(rope.f32("high_freq_factor")?.unwrap_or(4.0));
        let (original, dims) = (rope.original(*context)? as f64, self.sizes.rope_dims);
        let divisor = |pair: usize| {
            let wavelength = TAU * f64::from(*base).powf(2.0 * pair as f64 / dims as f64);
            if wavelength < original / high {
                1.0
            } else if wavelength > original / low || high == low {
                factor
            } else {
                let smooth = (original / wavelength - low) / (high - low);
                1.0 / ((1.0 - smooth) / factor + smooth)
            }
        };
        Ok((0..dims / 2).map(|pair| divisor(pair) as f32).collect())
    }
}

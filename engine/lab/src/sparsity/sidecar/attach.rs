//! Attaches a sidecar to its model.

use super::{PreparedBundles, PreparedExperts, PreparedLayer, PreparedPredictor, Sidecar, keys};
use thermocline_base::{
    error::{Error, Location, Result},
    telemetry::neurons::LayerNeurons,
};
use thermocline_formats::format::Matrix;
use thermocline_model::{ExpertWeights, Ffn, InputSite, LayerWeights, Linear, Model, Predictor, PredictorKind};

impl Sidecar {
    /// Sets the predictors, thresholds, frequencies, neuron-major down projections and bundles of
    /// `model`'s layers that the sidecar contains. The matrices share the sidecar's bytes. Does not
    /// check the identity ([`Sidecar::foreign`]).
    ///
    /// # Errors
    /// [`Error::Malformed`] for a tensor that does not fit the model. The model is then unchanged.
    pub fn attach(&self, model: &mut Model) -> Result<()> {
        let layers = &mut model.weights.layers;
        if layers.len() != self.layers.len() {
            let expected = format!("{}, the number of layers of the model", layers.len());
            return Err(self.refuse(Location::Key(keys::MODEL_LAYERS.to_owned()), expected, self.layers.len()));
        }
        for (n, (weights, prepared)) in layers.iter().zip(&self.layers).enumerate() {
            self.check(n, weights, prepared)?;
        }
        for (weights, prepared) in layers.iter_mut().zip(&self.layers) {
            apply(weights, prepared);
        }
        let matrices = self.layers.iter().flat_map(PreparedLayer::matrices);
        let bundles = self.layers.iter().filter_map(|layer| layer.bundles.as_ref()).map(|bundles| &bundles.up);
        matrices.chain(bundles).filter_map(Matrix::file).for_each(|file| model.checkpoint.add_file(file));
        model.weights.input_figures.clone_from(&self.input_figures);
        Ok(())
    }

    fn refuse(&self, location: Location, expected: impl Into<String>, got: impl std::fmt::Display) -> Error {
        Error::malformed(&self.path, location, expected, got)
    }

    fn check(&self, n: usize, weights: &LayerWeights, prepared: &PreparedLayer) -> Result<()> {
        let tensor = |name: String, expected: String, got: usize| self.refuse(Location::Tensor(name), expected, got);
        let kind = |expected: String, got: &str| self.refuse(Location::Key(keys::KIND.to_owned()), expected, got);
        let frequencies = |wanted: usize| match &prepared.frequency {
            Some(frequency) if frequency.len() != wanted => {
                Err(tensor(keys::frequency(n), format!("{wanted} frequencies"), frequency.len()))
            }
            _ => Ok(()),
        };
        for (site, curve) in InputSite::ALL.into_iter().zip(prepared.inputs.iter().flat_map(|inputs| &inputs.sites)) {
            let (wanted, got) = (site.inputs(weights), curve.as_ref().map(|curve| curve.importance.len()));
            if let Some(got) = got.filter(|got| *got != wanted) {
                let name = keys::input_importance(n, site);
                return Err(tensor(name, format!("importances of {wanted} inputs"), got));
            }
        }
        if let Some(scales) = &prepared.gate_scales {
            let wanted = if let Ffn::Dense(ffn) = &weights.ffn { ffn.up.weight.rows() } else { 0 };
            if scales.len() != wanted {
                return Err(tensor(keys::gate_scales(n), format!("{wanted} scales"), scales.len()));
            }
        }
        let ffn = match &weights.ffn {
            Ffn::Dense(ffn) => ffn,
            Ffn::None => {
                if prepared.has_dense_part() || prepared.experts.is_some() {
                    return Err(kind(format!("`none` for layer {n}, which has no FFN"), "data of an FFN"));
                }
                return frequencies(0);
            }
            Ffn::Experts(moe) => {
                if prepared.has_dense_part() {
                    return Err(kind(format!("`none` for layer {n}, which is an MoE layer"), "data of a dense FFN"));
                }
                frequencies(moe.experts.len())?;
                return prepared.experts.as_ref().map_or(Ok(()), |experts| self.check_experts(n, moe, experts));
            }
        };
        let (n_ff, d) = (ffn.up.weight.rows(), ffn.up.weight.cols());
        frequencies(n_ff)?;
        if let Some(down) = &prepared.down {
            self.check_shape(keys::down(n), &down.weight, [n_ff, d])?;
        }
        if let Some(PreparedBundles { up, gate }) = &prepared.bundles {
            self.check_copy(keys::bundles(n), up, Some(&ffn.up))?;
            gate.as_ref().map_or(Ok(()), |gate| self.check_copy(keys::bundles(n), gate, ffn.gate.as_ref()))?;
        }
        match prepared.predictor.as_ref().map(|predictor| &predictor.kind) {
            Some(Some(PredictorKind::LowRank { fc1, fc2 })) => {
                self.check_shape(keys::fc1(n), fc1, [fc1.rows(), d])?;
                self.check_shape(keys::fc2(n), fc2, [n_ff, fc1.rows()])
            }
            Some(Some(PredictorKind::Rows { rows, .. })) => self.check_shape(keys::gate_low(n), rows, [n_ff, d]),
            Some(None) if weights.predictor.is_none() => {
                Err(kind(format!("a predictor in the sidecar for layer {n}, because the model file has none"), "model"))
            }
            Some(None) | None => Ok(()),
        }
    }

    fn check_shape(&self, name: String, matrix: &Matrix, wanted: [usize; 2]) -> Result<()> {
        let got = [matrix.rows(), matrix.cols()];
        if got != wanted {
            return Err(self.refuse(Location::Tensor(name), format!("shape {wanted:?}"), format!("{got:?}")));
        }
        Ok(())
    }

    /// Checks that `copy` can take the place of the model's own rows.
    fn check_copy(&self, name: String, copy: &Matrix, own: Option<&Linear>) -> Result<()> {
        let describe = |matrix: &Matrix| format!("rows {:?} of {}", [matrix.rows(), matrix.cols()], matrix.ty());
        let expected = own.map_or("no gate rows".to_owned(), |own| describe(&own.weight));
        let got = describe(copy);
        match expected == got {
            true => Ok(()),
            false => Err(self.refuse(Location::Tensor(name), expected, got)),
        }
    }

    fn check_experts(&self, n: usize, moe: &ExpertWeights, prepared: &PreparedExperts) -> Result<()> {
        let LayerNeurons::Experts { width, shared, .. } = moe.neurons() else { return Ok(()) };
        let sizes =
            |width: usize, shared: usize| format!("experts of {width} neurons and a shared expert of {shared} neurons");
        if (prepared.width, prepared.shared.len()) != (width, shared) {
            let got = sizes(prepared.width, prepared.shared.len());
            return Err(self.refuse(Location::Tensor(keys::expert_frequency(n)), sizes(width, shared), got));
        }
        if !prepared.downs.is_empty() && prepared.downs.len() != moe.ffns().count() {
            let (expected, got) = (moe.ffns().count(), prepared.downs.len());
            return Err(self.refuse(Location::Tensor(keys::expert_down(n, got)), format!("{expected} matrices"), got));
        }
        for (at, (down, ffn)) in prepared.downs.iter().zip(moe.ffns()).enumerate() {
            let up = &ffn.up.weight;
            self.check_shape(keys::expert_down(n, at), down, [up.rows(), up.cols()])?;
        }
        Ok(())
    }
}

/// Sets the parts that `prepared` contains. The shapes were checked before.
fn apply(weights: &mut LayerWeights, prepared: &PreparedLayer) {
    if let Some(predictor) = &prepared.predictor {
        weights.predictor = predictor_of(weights, predictor).or(weights.predictor.take());
    }
    if let Some(threshold) = prepared.activation_threshold {
        weights.activation_threshold = Some(threshold.value);
    }
    if let (Some(scales), Ffn::Dense(ffn)) = (&prepared.gate_scales, &mut weights.ffn) {
        ffn.gate_scales = Some(scales.as_slice().into());
    }
    if let Some(inputs) = &prepared.inputs {
        weights.input_curves = Some(inputs.clone());
    }
    if let Some(frequency) = &prepared.frequency {
        weights.frequency = Some(frequency.clone());
    }
    if let (Some(experts), Ffn::Experts(moe)) = (&prepared.experts, &mut weights.ffn) {
        weights.neuron_frequency = Some(experts.frequencies().collect());
        moe.set_neuron_major(experts.downs.iter().cloned().map(Some));
    }
    if let (Some(down), Ffn::Dense(ffn)) = (&prepared.down, &mut weights.ffn) {
        ffn.down.set_neuron_major(down.weight.clone());
        if let Some(PreparedBundles { up, gate }) = &prepared.bundles {
            ffn.set_bundles(up.clone(), gate.clone());
        }
    }
}

/// Returns the predictor for a layer; `None` if the sidecar refers to the model's own predictor and
/// there is none.
fn predictor_of(weights: &LayerWeights, prepared: &PreparedPredictor) -> Option<Predictor> {
    let kind = match &prepared.kind {
        // The bias is the original rows' bias.
        Some(PredictorKind::Rows { rows, .. }) => {
            let Ffn::Dense(ffn) = &weights.ffn else { return None };
            PredictorKind::Rows { rows: rows.clone(), bias: ffn.gate.as_ref().unwrap_or(&ffn.up).bias.clone() }
        }
        Some(kind) => kind.clone(),
        None => weights.predictor.as_ref()?.kind.clone(),
    };
    let PreparedPredictor { input, threshold, quality, .. } = *prepared;
    Some(Predictor { kind, input, threshold, quality: Some(quality), by_input: Default::default() })
}

//! Reads a sidecar and checks everything. Arrays must have an element per layer, tensors must have
//! the shapes that follow from the identity, and numbers must be in range.

use std::{ops::RangeInclusive, path::Path};

use super::{
    Identity, PreparedBundles, PreparedDown, PreparedExperts, PreparedLayer, PreparedPredictor, PreparedThreshold,
    Provenance, Sidecar,
    bundles::{BundleLayout, BundleRows},
    keys,
    layer::input_name,
};
use thermocline_base::error::{Error, Location, Result};
use thermocline_formats::{
    format,
    format::{Array, Bytes, Checkpoint, Matrix, Opened, ReadMode, Tensor, Value, gguf},
    quant::TensorType,
};
use thermocline_model::{
    InputCurves, InputFigures, InputSite, PredictorInput, PredictorKind, PredictorQuality, SiteCurve,
};

impl Sidecar {
    /// Reads the sidecar at `path`.
    ///
    /// # Errors
    /// Errors of the file, with key or tensor; [`Error::Unsupported`] for an unknown version.
    pub fn open(path: &Path, mode: ReadMode) -> Result<Self> {
        match format::open(path, mode)? {
            Opened::Checkpoint(file) => Self::from_checkpoint(&file),
            Opened::HuggingFace(_) => Err(Error::malformed(path, Location::File, "a sidecar", "a Hugging Face folder")),
        }
    }

    /// Reads a sidecar in memory. `name` replaces its path in errors.
    ///
    /// # Errors
    /// As [`Sidecar::open`].
    pub fn from_bytes(name: &Path, bytes: Bytes) -> Result<Self> {
        Self::from_checkpoint(&gguf::from_bytes(name, bytes)?)
    }

    /// True if `file` is a sidecar rather than a model.
    pub fn is_one(file: &Checkpoint) -> bool {
        file.metadata.get("general.architecture").and_then(Value::as_str) == Some(keys::ARCHITECTURE)
    }

    /// Reads an open sidecar.
    ///
    /// # Errors
    /// As [`Sidecar::open`].
    pub fn from_checkpoint(file: &Checkpoint) -> Result<Self> {
        let reader = SidecarReader(file);
        if !Self::is_one(file) {
            let got = file.metadata.str("general.architecture")?.unwrap_or("nothing");
            return Err(reader.key("general.architecture", format!("`{}`, a sidecar", keys::ARCHITECTURE), got));
        }
        let version = reader.size(keys::FORMAT_VERSION)?;
        let versions = keys::VERSION..=keys::VERSION_WITH_BUNDLES;
        if !versions.contains(&version) {
            let expected = format!("{} to {}", versions.start(), versions.end());
            return Err(Error::unsupported("sidecar version", version, expected));
        }
        let identity = reader.identity()?;
        let provenance = reader.provenance()?;
        let layers = reader.layers(&identity)?;
        let input_figures = reader.input_figures()?;
        Ok(Sidecar { path: file.path.clone(), identity, provenance, layers, input_figures })
    }
}

/// Checked access to a sidecar's file.
struct SidecarReader<'a>(&'a Checkpoint);

/// Values per layer, `[layers]` each.
struct Figures<'a> {
    kind: &'a [String],
    input: &'a [String],
    threshold: &'a [f32],
    quality: [&'a [f32]; 4],
    activation_threshold: &'a [f32],
    activation_density: &'a [f32],
    down_error: &'a [f32],
    /// Empty if no layer has bundles.
    bundle_types: &'a [String],
}

impl<'a> SidecarReader<'a> {
    fn key(&self, key: &str, expected: impl Into<String>, got: impl std::fmt::Display) -> Error {
        Error::malformed(&self.0.path, Location::Key(key.to_owned()), expected, got)
    }

    fn tensor(&self, name: &str, expected: impl Into<String>, got: impl std::fmt::Display) -> Error {
        Error::malformed(&self.0.path, Location::Tensor(name.to_owned()), expected, got)
    }

    fn size(&self, key: &str) -> Result<usize> {
        self.0.metadata.usize(key)?.ok_or_else(|| self.0.metadata.missing(key, "an unsigned integer"))
    }

    fn text(&self, key: &str) -> Result<&'a str> {
        self.0.metadata.str(key)?.ok_or_else(|| self.0.metadata.missing(key, "a string"))
    }

    fn fraction(&self, key: &str) -> Result<f32> {
        let fraction = self.0.metadata.f32(key)?.ok_or_else(|| self.0.metadata.missing(key, "a float"))?;
        if !(0.0..=1.0).contains(&fraction) {
            return Err(self.key(key, "a fraction from 0 to 1", fraction));
        }
        Ok(fraction)
    }

    fn identity(&self) -> Result<Identity> {
        Ok(Identity {
            architecture: self.text(keys::MODEL_ARCHITECTURE)?.to_owned(),
            n_layer: self.size(keys::MODEL_LAYERS)?,
            d_model: self.size(keys::MODEL_WIDTH)?,
            n_ff: self.size(keys::MODEL_NEURONS)?,
            n_expert: self.size(keys::MODEL_EXPERTS)?,
            tensors: self.size(keys::MODEL_TENSORS)? as u64,
            layout: self.size(keys::MODEL_LAYOUT)? as u64,
            data: self.size(keys::MODEL_DATA)? as u64,
        })
    }

    fn provenance(&self) -> Result<Provenance> {
        let activation = self.text(keys::ACTIVATION)?;
        Ok(Provenance {
            activation: activation.parse().map_err(|_| self.key(keys::ACTIVATION, "an activation", activation))?,
            corpus: self.text(keys::CORPUS)?.to_owned(),
            tokens_profiled: self.size(keys::TOKENS_PROFILED)? as u64,
            tokens_held_out: self.size(keys::TOKENS_HELD_OUT)? as u64,
            target_recall: self.fraction(keys::TARGET_RECALL)?,
            target_mass_recall: self.fraction(keys::TARGET_MASS_RECALL)?,
        })
    }

    /// Reads an array of one number per layer, all in `range`.
    fn floats(&self, key: &str, n_layer: usize, range: RangeInclusive<f32>) -> Result<&'a [f32]> {
        let floats = |array: &'a Array| if let Array::F32(values) = array { Some(&values[..]) } else { None };
        let values = self.per_layer(key, n_layer, "f32", floats)?;
        match values.iter().find(|value| !range.contains(value)) {
            Some(value) => Err(self.key(key, format!("numbers from {:e} to {:e}", range.start(), range.end()), value)),
            None => Ok(values),
        }
    }

    fn texts(&self, key: &str, n_layer: usize) -> Result<&'a [String]> {
        let texts = |array: &'a Array| if let Array::String(values) = array { Some(&values[..]) } else { None };
        self.per_layer(key, n_layer, "strings", texts)
    }

    /// Reads an array of one element per layer. `of` extracts elements of the type named
    /// `elements`.
    fn per_layer<T>(
        &self,
        key: &str,
        n_layer: usize,
        elements: &str,
        of: impl Fn(&'a Array) -> Option<&'a [T]>,
    ) -> Result<&'a [T]> {
        let wanted = format!("{n_layer} {elements}, one per layer");
        let Some(array) = self.0.metadata.array(key)? else { return Err(self.0.metadata.missing(key, &wanted)) };
        match of(array) {
            Some(values) if values.len() == n_layer => Ok(values),
            Some(values) => Err(self.key(key, wanted, values.len())),
            None => Err(self.key(key, wanted, "an array of another type")),
        }
    }

    fn layers(&self, identity: &Identity) -> Result<Vec<PreparedLayer>> {
        let n = identity.n_layer;
        let fraction = 0.0..=1.0;
        let figures = Figures {
            kind: self.texts(keys::KIND, n)?,
            input: self.texts(keys::INPUT, n)?,
            threshold: self.floats(keys::THRESHOLD, n, f32::MIN..=f32::MAX)?,
            quality: [
                self.floats(keys::RECALL, n, fraction.clone())?,
                self.floats(keys::MASS_RECALL, n, fraction.clone())?,
                self.floats(keys::PRECISION, n, fraction.clone())?,
                self.floats(keys::DENSITY, n, fraction.clone())?,
            ],
            activation_threshold: self.floats(keys::ACTIVATION_THRESHOLD, n, -1.0..=f32::MAX)?,
            activation_density: self.floats(keys::ACTIVATION_THRESHOLD_DENSITY, n, fraction)?,
            down_error: self.floats(keys::DOWN_ERROR, n, 0.0..=f32::MAX)?,
            bundle_types: match self.0.metadata.get(keys::BUNDLE_TYPES) {
                Some(_) => self.texts(keys::BUNDLE_TYPES, n)?,
                None => &[],
            },
        };
        // The arrays' length was checked, so the file has room for the number of layers.
        (0..n).map(|layer| self.layer(identity, &figures, layer)).collect()
    }

    fn layer(&self, identity: &Identity, figures: &Figures<'_>, layer: usize) -> Result<PreparedLayer> {
        let (d, n_ff) = (identity.d_model, identity.n_ff);
        let threshold = figures.activation_threshold[layer];
        let mut down = self.matrix(&keys::down(layer), n_ff, d)?;
        let types = figures.bundle_types.get(layer).map_or("", String::as_str);
        let bundles = self.bundles(identity, types, layer)?.map(|BundleRows { up, down: bundled, gate }| {
            down = Some(bundled);
            PreparedBundles { up, gate }
        });
        Ok(PreparedLayer {
            frequency: self.frequency(identity, &keys::frequency(layer))?,
            experts: self.experts(identity, layer, figures.down_error[layer])?,
            predictor: self.predictor(identity, figures, layer)?,
            activation_threshold: (threshold >= 0.0)
                .then(|| PreparedThreshold { value: threshold, density: figures.activation_density[layer] }),
            gate_scales: self.gate_scales(layer)?,
            down: down.map(|weight| PreparedDown { weight, error: figures.down_error[layer] }),
            bundles,
            inputs: self.inputs(layer)?,
        })
    }

    /// Reads the bundles of a layer, whose rows have the types `types`. They contain the down
    /// projection.
    fn bundles(&self, identity: &Identity, types: &str, layer: usize) -> Result<Option<BundleRows>> {
        let (name, d) = (keys::bundles(layer), identity.d_model);
        let tensor = self.0.tensor(&name);
        let refused = || self.key(keys::BUNDLE_TYPES, format!("two or three types of rows of {d} weights"), types);
        if types.is_empty() {
            return tensor
                .map_or(Ok(None), |_| Err(self.key(keys::BUNDLE_TYPES, format!("types for `{name}`"), "none")));
        }
        let types = types.split_whitespace().map(str::parse).collect::<Result<Vec<TensorType>>>();
        let types = types.map_err(|_| refused())?;
        let layout = BundleLayout::new(&types, d).ok_or_else(refused)?;
        let wanted = [identity.n_ff, layout.record];
        let expected = || format!("I8 of shape {wanted:?}");
        let tensor = tensor.ok_or_else(|| self.tensor(&name, expected(), "nothing: the tensor is missing"))?;
        if tensor.ty != TensorType::I8 || tensor.shape != wanted {
            return Err(self.tensor(&name, expected(), format!("{:?} of {}", tensor.shape, tensor.ty)));
        }
        if self.0.tensor(&keys::down(layer)).is_some() {
            return Err(self.tensor(
                &keys::down(layer),
                format!("no tensor beside `{name}`"),
                "a second down projection",
            ));
        }
        BundleRows::find(&types, d, &layout, &tensor.data).map(Some).ok_or_else(refused)
    }

    /// Reads the levels of input sparsity: ascending fractions. Empty if there are none.
    fn input_levels(&self) -> Result<&'a [f32]> {
        let key = keys::INPUT_LEVELS;
        let levels = match self.0.metadata.array(key)? {
            None => return Ok(&[]),
            Some(Array::F32(levels)) => levels,
            Some(_) => return Err(self.key(key, "an array of f32", "an array of another type")),
        };
        let ascending = levels.windows(2).all(|pair| pair[0] < pair[1]);
        match ascending && levels.iter().all(|level| *level > 0.0 && *level < 1.0) {
            true => Ok(levels),
            false => Err(self.key(key, "ascending fractions above 0 and below 1", format!("{levels:?}"))),
        }
    }

    fn input_figures(&self) -> Result<Vec<InputFigures>> {
        if self.input_levels()?.is_empty() {
            return Ok(Vec::new());
        }
        let text = self.text(keys::INPUT_FIGURES)?;
        serde_json::from_str(text)
            .map_err(|error| self.key(keys::INPUT_FIGURES, "the figures of the levels as JSON", error))
    }

    /// Reads the input thresholds of a layer. The tensors determine the number of inputs, which
    /// attaching compares with the model.
    fn inputs(&self, layer: usize) -> Result<Option<InputCurves>> {
        let levels = self.input_levels()?;
        let mut curves = InputCurves { levels: levels.to_vec(), sites: Default::default() };
        for (site, curve) in InputSite::ALL.into_iter().zip(&mut curves.sites) {
            let (name, thresholds) = (keys::input_importance(layer, site), keys::input_thresholds(layer, site));
            let Some(importance) = self.0.tensor(&name) else { continue };
            let importance = self.numbers(&name, importance)?;
            let Some(tensor) = self.0.tensor(&thresholds) else {
                return Err(self.tensor(
                    &thresholds,
                    format!("{} thresholds", levels.len()),
                    "nothing: the tensor is missing",
                ));
            };
            let values = self.numbers(&thresholds, tensor)?;
            if values.len() != levels.len() || values.windows(2).any(|pair| pair[0] > pair[1]) {
                let expected =
                    format!("{} ascending thresholds, one per level of `{}`", levels.len(), keys::INPUT_LEVELS);
                return Err(self.tensor(&thresholds, expected, format!("{values:?}")));
            }
            *curve = Some(SiteCurve { importance, thresholds: values });
        }
        Ok(curves.sites.iter().any(Option::is_some).then_some(curves))
    }

    /// Reads the scales of a layer's gates, whose number attaching compares with the model.
    fn gate_scales(&self, layer: usize) -> Result<Option<Vec<f32>>> {
        let name = keys::gate_scales(layer);
        self.0.tensor(&name).map(|tensor| self.numbers(&name, tensor)).transpose()
    }

    /// Reads the elements of an F32 vector, which must be finite and not below 0.
    fn numbers(&self, name: &str, tensor: &Tensor) -> Result<Vec<f32>> {
        if tensor.ty != TensorType::F32 || tensor.shape.len() != 1 {
            return Err(self.tensor(name, "a vector of F32", format!("{:?} of {}", tensor.shape, tensor.ty)));
        }
        self.elements(name, tensor, 0.0..=f32::MAX, "finite numbers of at least 0")
    }

    fn predictor(&self, identity: &Identity, figures: &Figures<'_>, layer: usize) -> Result<Option<PreparedPredictor>> {
        let (d, n_ff) = (identity.d_model, identity.n_ff);
        let required = |name: String, rows, cols| {
            let missing = || self.tensor(&name, format!("shape {:?}", [rows, cols]), "nothing: the tensor is missing");
            self.matrix(&name, rows, cols)?.ok_or_else(missing)
        };
        let kind = match figures.kind[layer].as_str() {
            "none" => return Ok(None),
            "model" => None,
            "rows" => Some(PredictorKind::Rows { rows: required(keys::gate_low(layer), n_ff, d)?, bias: None }),
            "low_rank" => {
                let rank = self.0.tensor(&keys::fc1(layer)).map_or(1, Tensor::rows);
                let fc1 = required(keys::fc1(layer), rank, d)?;
                Some(PredictorKind::LowRank { fc1, fc2: required(keys::fc2(layer), n_ff, rank)? })
            }
            other => return Err(self.key(keys::KIND, "none, model, rows or low_rank", other)),
        };
        let inputs = [PredictorInput::Residual, PredictorInput::Normed];
        let input = figures.input[layer].as_str();
        let input = inputs
            .into_iter()
            .find(|&known| input_name(known) == input)
            .ok_or_else(|| self.key(keys::INPUT, "residual or normed", input))?;
        let [recall, mass_recall, precision, density] = figures.quality.map(|values| values[layer]);
        Ok(Some(PreparedPredictor {
            kind,
            input,
            threshold: figures.threshold[layer],
            quality: PredictorQuality { recall, mass_recall, precision, density },
        }))
    }

    /// Reads the data of the experts' neurons. The tensors determine the sizes, which attaching
    /// compares with the model.
    fn experts(&self, identity: &Identity, layer: usize, down_error: f32) -> Result<Option<PreparedExperts>> {
        let (name, n) = (keys::expert_frequency(layer), identity.n_expert);
        let Some(tensor) = self.0.tensor(&name) else { return Ok(None) };
        let &[experts, width] = &tensor.shape[..] else {
            return Err(self.tensor(&name, format!("shape [{n}, neurons]"), format!("{:?}", tensor.shape)));
        };
        if experts != n {
            return Err(self.tensor(&name, format!("the {n} experts of the model"), experts));
        }
        let frequency = self.fractions(&name, tensor)?;
        let name = keys::shared_frequency(layer);
        let shared = self.0.tensor(&name).map(|tensor| self.fractions(&name, tensor)).transpose()?.unwrap_or_default();
        let mut downs = Vec::new();
        let all = (0..n).map(|expert| (keys::expert_down(layer, expert), width));
        for (name, rows) in all.chain((!shared.is_empty()).then(|| (keys::shared_down(layer), shared.len()))) {
            match self.matrix(&name, rows, identity.d_model)? {
                Some(down) => downs.push(down),
                None if downs.is_empty() => break,
                None => {
                    let expected = format!("shape {:?}, the shape of the earlier experts", [rows, identity.d_model]);
                    return Err(self.tensor(&name, expected, "nothing: the tensor is missing"));
                }
            }
        }
        Ok(Some(PreparedExperts { width, frequency, shared, downs, down_error }))
    }

    fn matrix(&self, name: &str, rows: usize, cols: usize) -> Result<Option<Matrix>> {
        let Some(tensor) = self.0.tensor(name) else { return Ok(None) };
        if tensor.shape != [rows, cols] {
            return Err(self.tensor(name, format!("shape {:?}", [rows, cols]), format!("{:?}", tensor.shape)));
        }
        match Matrix::new(tensor.ty, rows, cols, tensor.data.clone()) {
            Some(matrix) => Ok(Some(matrix)),
            None => Err(self.tensor(name, "a weight type and whole blocks per row", tensor.ty)),
        }
    }

    fn frequency(&self, identity: &Identity, name: &str) -> Result<Option<Vec<f32>>> {
        let Some(tensor) = self.0.tensor(name) else { return Ok(None) };
        let lengths = [identity.n_ff, identity.n_expert];
        if tensor.shape.len() != 1 || !lengths.contains(&tensor.shape[0]) {
            let expected = format!("F32 of {} neurons or {} experts", lengths[0], lengths[1]);
            return Err(self.tensor(name, expected, format!("{:?} of {}", tensor.shape, tensor.ty)));
        }
        self.fractions(name, tensor).map(Some)
    }

    /// Reads the elements of an F32 tensor, which must be from 0 to 1.
    fn fractions(&self, name: &str, tensor: &Tensor) -> Result<Vec<f32>> {
        if tensor.ty != TensorType::F32 {
            return Err(self.tensor(name, "F32", tensor.ty));
        }
        self.elements(name, tensor, 0.0..=1.0, "fractions from 0 to 1")
    }

    /// Reads the elements of an F32 tensor, which must be in `range`. `expected` describes the
    /// range.
    fn elements(&self, name: &str, tensor: &Tensor, range: RangeInclusive<f32>, expected: &str) -> Result<Vec<f32>> {
        let values: Vec<f32> = tensor.data.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
        match values.iter().find(|value| !range.contains(*value)) {
            Some(value) => Err(self.tensor(name, expected, value)),
            None => Ok(values),
        }
    }
}

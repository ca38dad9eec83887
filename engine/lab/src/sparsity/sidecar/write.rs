//! Writes a sidecar.

use std::{borrow::Cow, path::Path};

use super::{
    PreparedExperts, PreparedLayer, Sidecar,
    bundles::{BundleRows, PAGE},
    keys,
    layer::input_name,
};
use thermocline_base::error::Result;
use thermocline_formats::{
    format::{
        Array, Container, Matrix, Metadata, Value, gguf,
        gguf::{TensorInfo, Writer},
    },
    quant::TensorType,
};
use thermocline_model::{InputSite, PredictorInput, PredictorKind, PredictorQuality, SiteCurve};

const CONTAINER: Container = Container::Gguf(3);

impl Sidecar {
    /// Writes the sidecar to a temporary file beside `path` and renames it. Copying matrices from
    /// mapped files uses no memory.
    ///
    /// # Errors
    /// [`Error::Io`](thermocline_base::error::Error::Io). A file at `path` is then unchanged.
    pub fn write(&self, path: &Path) -> Result<()> {
        let tensors = self.tensors();
        let infos: Vec<TensorInfo> = tensors.iter().map(|(info, _)| info.clone()).collect();
        let mut writer = Writer::create(path, CONTAINER, &self.metadata(), &infos)?;
        for (_, data) in &tensors {
            match data {
                TensorSource::Bytes(bytes) => writer.tensor_data(bytes)?,
                TensorSource::Bundles(rows) => rows.write(&mut |piece| writer.tensor_data(piece))?,
            }
        }
        writer.finish()
    }

    /// Returns the bytes of the file.
    ///
    /// # Errors
    /// [`Error::Invalid`](thermocline_base::error::Error::Invalid) for shapes that GGUF cannot
    /// store.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut tensors = Vec::new();
        for (info, data) in self.tensors() {
            let bytes = match data {
                TensorSource::Bytes(bytes) => bytes,
                TensorSource::Bundles(rows) => {
                    let mut bytes = Vec::new();
                    rows.write(&mut |piece| {
                        bytes.extend_from_slice(piece);
                        Ok(())
                    })?;
                    bytes.into()
                }
            };
            tensors.push((info, bytes));
        }
        let tensors: Vec<_> = tensors.iter().map(|(info, data)| (info.clone(), &**data)).collect();
        gguf::to_bytes(CONTAINER, &self.metadata(), &tensors)
    }

    fn metadata(&self) -> Metadata {
        let mut metadata = Metadata::new(&self.path);
        let mut set = |key: &str, value: Value| drop(metadata.set(key, value));
        let text = |text: &str| Value::String(text.to_owned());
        let size = |size: usize| Value::U64(size as u64);
        set("general.architecture", text(keys::ARCHITECTURE));
        let scaled = self.layers.iter().any(|layer| layer.gate_scales.is_some());
        let bundled = self.layers.iter().any(|layer| layer.bundle_rows().is_some());
        let version = match (bundled, scaled) {
            (true, _) => keys::VERSION_WITH_BUNDLES,
            (false, true) => keys::VERSION_WITH_SCALES,
            (false, false) => keys::VERSION,
        };
        set(keys::FORMAT_VERSION, Value::U32(version as u32));

        let identity = &self.identity;
        set(keys::MODEL_ARCHITECTURE, text(&identity.architecture));
        set(keys::MODEL_LAYERS, size(identity.n_layer));
        set(keys::MODEL_WIDTH, size(identity.d_model));
        set(keys::MODEL_NEURONS, size(identity.n_ff));
        set(keys::MODEL_EXPERTS, size(identity.n_expert));
        set(keys::MODEL_TENSORS, Value::U64(identity.tensors));
        set(keys::MODEL_LAYOUT, Value::U64(identity.layout));
        set(keys::MODEL_DATA, Value::U64(identity.data));

        let made = &self.provenance;
        set(keys::ACTIVATION, text(made.activation.name()));
        set(keys::CORPUS, text(&made.corpus));
        set(keys::TOKENS_PROFILED, Value::U64(made.tokens_profiled));
        set(keys::TOKENS_HELD_OUT, Value::U64(made.tokens_held_out));
        set(keys::TARGET_RECALL, Value::F32(made.target_recall));
        set(keys::TARGET_MASS_RECALL, Value::F32(made.target_mass_recall));

        let texts =
            |of: &dyn Fn(&PreparedLayer) -> String| Value::Array(Array::String(self.layers.iter().map(of).collect()));
        let floats =
            |of: &dyn Fn(&PreparedLayer) -> f32| Value::Array(Array::F32(self.layers.iter().map(of).collect()));
        let quality = |of: fn(&PredictorQuality) -> f32| {
            floats(&|layer| layer.predictor.as_ref().map_or(0.0, |predictor| of(&predictor.quality)))
        };
        let predictor = |layer: &PreparedLayer| layer.predictor.as_ref().map_or("none", |of| of.kind_name());
        let input = |layer: &PreparedLayer| {
            input_name(layer.predictor.as_ref().map_or(PredictorInput::Residual, |predictor| predictor.input))
        };
        set(keys::KIND, texts(&|layer| predictor(layer).to_owned()));
        set(keys::INPUT, texts(&|layer| input(layer).to_owned()));
        set(keys::THRESHOLD, floats(&|layer| layer.predictor.as_ref().map_or(0.0, |of| of.threshold)));
        set(keys::RECALL, quality(|quality| quality.recall));
        set(keys::MASS_RECALL, quality(|quality| quality.mass_recall));
        set(keys::PRECISION, quality(|quality| quality.precision));
        set(keys::DENSITY, quality(|quality| quality.density));
        set(
            keys::ACTIVATION_THRESHOLD,
            floats(&|layer| layer.activation_threshold.map_or(-1.0, |threshold| threshold.value)),
        );
        set(
            keys::ACTIVATION_THRESHOLD_DENSITY,
            floats(&|layer| layer.activation_threshold.map_or(0.0, |threshold| threshold.density)),
        );
        let of_experts = |layer: &PreparedLayer| layer.experts.as_ref().map_or(0.0, |experts| experts.down_error);
        let error = |layer: &PreparedLayer| layer.down.as_ref().map_or(of_experts(layer), |down| down.error);
        set(keys::DOWN_ERROR, floats(&error));
        if bundled {
            let names = |rows: BundleRows| rows.types().iter().map(|ty| ty.name()).collect::<Vec<_>>().join(" ");
            set(keys::BUNDLE_TYPES, texts(&|layer| layer.bundle_rows().map(names).unwrap_or_default()));
            // A record then touches as few pages as possible.
            set("general.alignment", Value::U32(PAGE as u32));
        }
        if let Some(curves) = self.layers.iter().find_map(|layer| layer.inputs.as_ref()) {
            set(keys::INPUT_LEVELS, Value::Array(Array::F32(curves.levels.clone())));
            // Plain numbers can always be converted to JSON.
            set(keys::INPUT_FIGURES, text(&serde_json::to_string(&self.input_figures).unwrap_or_default()));
        }
        metadata
    }

    /// Returns the tensors with their bytes, layer by layer.
    fn tensors(&self) -> Vec<(TensorInfo, TensorSource<'_>)> {
        let mut tensors = Vec::new();
        for (n, layer) in self.layers.iter().enumerate() {
            let mut push_f32 = |name: String, values: &[f32], shape: Vec<usize>| {
                let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                let info = TensorInfo { name, ty: TensorType::F32, shape };
                tensors.push((info, TensorSource::Bytes(bytes.into())));
            };
            if let Some(frequency) = &layer.frequency {
                push_f32(keys::frequency(n), frequency, vec![frequency.len()]);
            }
            if let Some(scales) = &layer.gate_scales {
                push_f32(keys::gate_scales(n), scales, vec![scales.len()]);
            }
            for (site, curve) in InputSite::ALL.into_iter().zip(layer.inputs.iter().flat_map(|inputs| &inputs.sites)) {
                if let Some(SiteCurve { importance, thresholds }) = curve {
                    push_f32(keys::input_importance(n, site), importance, vec![importance.len()]);
                    push_f32(keys::input_thresholds(n, site), thresholds, vec![thresholds.len()]);
                }
            }
            if let Some(experts) = &layer.experts {
                let PreparedExperts { width, frequency, shared, .. } = experts;
                push_f32(keys::expert_frequency(n), frequency, vec![frequency.len() / (*width).max(1), *width]);
                if !shared.is_empty() {
                    push_f32(keys::shared_frequency(n), shared, vec![shared.len()]);
                }
            }
            for (name, matrix) in matrices(n, layer) {
                let info = TensorInfo { name, ty: matrix.ty(), shape: vec![matrix.rows(), matrix.cols()] };
                let pieces = || matrix.pieces().collect::<Vec<_>>().concat();
                let bytes = matrix.packed().map_or_else(|| Cow::Owned(pieces()), Cow::Borrowed);
                tensors.push((info, TensorSource::Bytes(bytes)));
            }
            if let Some(rows) = layer.bundle_rows() {
                let info = TensorInfo { name: keys::bundles(n), ty: TensorType::I8, shape: rows.shape().to_vec() };
                tensors.push((info, TensorSource::Bundles(Box::new(rows))));
            }
        }
        tensors
    }
}

/// Where the bytes of a tensor come from.
enum TensorSource<'a> {
    Bytes(Cow<'a, [u8]>),
    /// They are put together while they are written, so that a whole layer takes no memory.
    Bundles(Box<BundleRows>),
}

/// Returns the matrices that are stored as tensors of their own.
fn matrices(n: usize, layer: &PreparedLayer) -> Vec<(String, &Matrix)> {
    let mut matrices: Vec<(String, &Matrix)> = Vec::new();
    if let (Some(down), None) = (&layer.down, &layer.bundles) {
        matrices.push((keys::down(n), &down.weight));
    }
    if let Some(experts) = &layer.experts {
        let count = experts.frequency.len() / experts.width.max(1);
        let name = |at| if at < count { keys::expert_down(n, at) } else { keys::shared_down(n) };
        matrices.extend(experts.downs.iter().enumerate().map(|(at, down)| (name(at), down)));
    }
    match layer.predictor.as_ref().and_then(|predictor| predictor.kind.as_ref()) {
        Some(PredictorKind::LowRank { fc1, fc2 }) => matrices.extend([(keys::fc1(n), fc1), (keys::fc2(n), fc2)]),
        Some(PredictorKind::Rows { rows, .. }) => matrices.push((keys::gate_low(n), rows)),
        None => {}
    }
    matrices
}

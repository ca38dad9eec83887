//! Recorded routes.

use serde::{Deserialize, Serialize};

use thermocline_base::error::{Error, Result};
use thermocline_model::{Ffn, FfnWeights, Model};
use thermocline_run::runtime::{Forward, KvType, Outputs, Probe};

/// An MoE layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteLayer {
    /// Index of the layer in the model.
    pub layer: usize,
    /// Number of routed experts.
    pub experts: usize,
    /// Experts per token.
    pub used: usize,
    /// Bytes of the largest expert.
    pub bytes: u64,
}

/// Experts that tokens chose, by layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Routes {
    /// Origin of the routes: a model's name, or a description.
    pub source: String,
    /// The layers with experts.
    pub layers: Vec<RouteLayer>,
    /// Bytes that every token reads in addition to its experts.
    pub other_bytes: u64,
    /// `[tokens, used]` experts per layer.
    pub(super) chosen: Vec<Vec<u16>>,
}

impl Routes {
    /// Creates routes without tokens.
    ///
    /// # Errors
    /// [`Error::Invalid`] without layers, or for more experts than a 16-bit number can index.
    pub fn new(source: impl Into<String>, layers: Vec<RouteLayer>, other_bytes: u64) -> Result<Self> {
        let fits = |layer: &RouteLayer| {
            (1..=layer.experts).contains(&layer.used) && layer.experts <= usize::from(u16::MAX) + 1
        };
        if layers.is_empty() || !layers.iter().all(fits) {
            let got =
                layers.iter().find(|layer| !fits(layer)).map_or("no layers".to_owned(), |layer| format!("{layer:?}"));
            return Err(Error::invalid(
                "routes",
                "layers with up to 65536 experts, of which a token uses at least one",
                got,
            ));
        }
        let chosen = vec![Vec::new(); layers.len()];
        Ok(Routes { source: source.into(), layers, other_bytes, chosen })
    }

    /// Creates empty routes for the model's MoE layers.
    fn of(model: &Model) -> Result<Self> {
        let used = model.config.experts.map_or(0, |experts| experts.used);
        let bytes = |ffn: &FfnWeights| ffn.linears().map(|linear| linear.weight.byte_len() as u64).sum::<u64>();
        let layers = model.weights.layers.iter().enumerate().filter_map(|(layer, weights)| match &weights.ffn {
            Ffn::Experts(moe) => {
                let largest = moe.experts.iter().map(bytes).max().unwrap_or(0);
                Some(RouteLayer { layer, experts: moe.experts.len(), used, bytes: largest })
            }
            _ => None,
        });
        let layers: Vec<RouteLayer> = layers.collect();
        let routed: u64 = layers.iter().map(|layer| layer.used as u64 * layer.bytes).sum();
        let other = (model.always_read_bytes() + model.dense_ffn_bytes()).saturating_sub(routed);
        Routes::new(model.config.name.clone(), layers, other)
    }

    /// Returns the number of tokens.
    pub fn tokens(&self) -> usize {
        self.layers.iter().zip(&self.chosen).map(|(layer, chosen)| chosen.len() / layer.used).min().unwrap_or(0)
    }

    /// Returns the experts that `token` chose in layer `at` of [`Routes::layers`], best first.
    ///
    /// # Panics
    /// If there is no such token or layer.
    pub fn chosen(&self, at: usize, token: usize) -> &[u16] {
        let used = self.layers[at].used;
        &self.chosen[at][token * used..][..used]
    }

    /// Appends the experts that a token chose in layer `at`.
    ///
    /// # Panics
    /// If their number is not [`RouteLayer::used`], or an expert does not exist.
    pub fn push(&mut self, at: usize, chosen: &[usize]) {
        let RouteLayer { experts, used, .. } = self.layers[at];
        assert_eq!(chosen.len(), used, "experts of a token");
        self.chosen[at].extend(chosen.iter().map(|expert| {
            assert!(*expert < experts, "expert {expert} of {experts}");
            *expert as u16
        }));
    }
}

/// Records the routes of `texts`. Each text is computed from an empty context; a long text is
/// divided into several contexts. Calls `progress` with the tokens done.
///
/// # Errors
/// [`Error::Invalid`] for a model without experts; as [`Forward::run`].
pub fn record(forward: &mut Forward, texts: &[&[u32]], progress: &mut dyn FnMut(usize)) -> Result<Routes> {
    let model = std::sync::Arc::clone(forward.model());
    let mut routes = Routes::of(&model)?;
    let capacity = model.config.context_length.clamp(1, 2048);
    let mut kv = forward.kv_cache(capacity, KvType::F16)?;
    let mut done = 0;
    for part in texts.iter().flat_map(|text| text.chunks(capacity)) {
        kv.truncate(0);
        forward.run(part, &mut kv, Outputs::None, &mut routes)?;
        done += part.len();
        progress(done);
    }
    Ok(routes)
}

/// Appends the choices of computed tokens.
impl Probe for Routes {
    fn wants_router(&mut self) -> bool {
        true
    }

    fn router(&mut self, layer: usize, chosen: &[usize]) {
        if let Some(at) = self.layers.iter().position(|of| of.layer == layer) {
            for token in chosen.chunks_exact(self.layers[at].used) {
                self.push(at, token);
            }
        }
    }
}

//! PLM (1.8B): latent attention, and an ungated FFN with a squared ReLU, so that most neurons are
//! silent.

use super::prelude::*;

pub(super) const FAMILY: Family = Family { architectures: &["plm"], model_types: &["plm"], config, layer, import };

fn config(loader: &Loader<'_>, sizes: &Sizes) -> Result<ModelConfig> {
    let mut config = loader.base_config(sizes, NormKind::Rms, RopeOrder::Normal)?;
    config.activation = loader.activation(Activation::ReluSquared)?;
    latent::configure(loader, &mut config)?;
    Ok(config)
}

fn layer(loader: &Loader<'_>, config: &ModelConfig, n: usize) -> Result<LayerWeights> {
    let ffn = Ffn::Dense(loader.dense_ffn(n, config, false)?);
    let (norms, attention) = (norms(loader, config, n, USUAL_NORMS)?, latent::attention(loader, config, n)?);
    Ok(LayerWeights::new(norms, attention, ffn, loader.predictor(n, config)?))
}

fn import(hf: &HfConfig, draft: &mut Draft) -> Result<()> {
    hf.refuse_unless("attention_bias", false, "latent attention with biases")?;
    latent::import(hf, draft, "plm", 100_000.0)?;
    draft.activation(hf.activation(&["hidden_act"], Activation::ReluSquared)?);
    draft.tied = true;
    Ok(())
}

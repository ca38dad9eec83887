//! What to expect of a model that is not open: how much of it would fit a budget, and how fast it would be.

use std::sync::Arc;

use super::{
    EngineOptions, SparsityReport,
    place::device_chunk,
    prospect::{Basis, Prospect},
};
use crate::{
    cpu::Cpu,
    error::Result,
    gpu::AdapterReport,
    model::Model,
    sparsity::{
        measure::known_machine,
        placement::{Machine, Plan},
    },
};

/// Plans of one model with one choice of options, for any budget. Nothing of the weights is read for it.
#[derive(Debug)]
pub struct Outlook {
    prospect: Prospect,
    has_gpu: bool,
}

/// What one budget would give.
#[derive(Debug, Clone)]
pub struct Expectation {
    /// What would be resident, and what is expected of it.
    pub plan: Plan,
    /// Bytes the whole model takes on a device, with its cache.
    pub everything: u64,
    /// Tokens per second; `None` as long as nobody has measured the speeds of this machine.
    pub tokens_per_second: Option<f64>,
}

impl Outlook {
    /// Of `model` (with its sidecar attached), opened with `options` on `gpu` (`None`: the CPU alone). Goes by the speeds given in
    /// the options, or kept in their folder.
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory) if the device's limits are too narrow for a row of the model's weights,
    /// [`Error::Invalid`](crate::Error::Invalid) if its sidecar has not one frequency per neuron.
    pub fn new(model: &Model, options: &EngineOptions, gpu: Option<&AdapterReport>) -> Result<Self> {
        let known = match (&options.machine, &options.speeds) {
            (Some(given), _) => Some(given.clone()),
            (None, Some(folder)) => known_machine(&Cpu::new(&options.cpu)?, gpu, folder),
            (None, None) => None,
        };
        let turned = options.sparsity.outline(model, options.split.is_some());
        let model = turned.as_ref().map_or(model, |(turned, _)| turned);
        let basis = Basis {
            sparsity: SparsityReport::new(options.sparsity, model, options.recall).mode,
            tokens: options.context_of(&model.config),
            kv_type: options.kv_type,
            chunk: device_chunk(options.chunk),
            caps: gpu.map(|gpu| gpu.caps),
            machine: Arc::new(known.unwrap_or_else(Machine::typical)),
            stream_prompts: options.stream_prompts,
        };
        Ok(Outlook { prospect: Prospect::new(model, basis)?, has_gpu: gpu.is_some() })
    }

    /// With a budget of `bytes`; `only_if_quicker`: without the GPU where that is expected to be quicker. Where nothing fits, it
    /// is what the CPU gives.
    pub fn at(&self, bytes: u64, only_if_quicker: bool) -> Expectation {
        let prospect = &self.prospect;
        let plan = if self.has_gpu { prospect.plan(bytes, only_if_quicker).ok() } else { None };
        let plan = plan.unwrap_or_else(|| prospect.on_cpu());
        let known = !prospect.basis().machine.assumed;
        let tokens_per_second = known.then(|| plan.tokens_per_second());
        Expectation { plan, everything: prospect.everything(), tokens_per_second }
    }
}

#[cfg(test)]
mod tests {
    use std::{ops::ControlFlow, path::Path};

    use super::*;
    use crate::{
        cpu::ThreadPool,
        gpu::adapters,
        model::{LoadOptions, Sparsity},
        session::SparsityChoice,
        synth::{self, Shape, SynthOptions},
    };

    #[test]
    fn a_model_is_foretold_without_being_opened() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models/llama-relu");
        let model = Model::open(&path, &LoadOptions::default()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let unknown = EngineOptions { speeds: Some(folder.path().to_owned()), ..EngineOptions::default() };
        let all = adapters();
        let gpu = all.first();
        let outlook = Outlook::new(&model, &unknown, gpu).unwrap();
        let most = outlook.at(1 << 40, false);
        assert_eq!(most.plan.bytes.total(), most.everything);
        assert!(most.tokens_per_second.is_none() && most.plan.hot_share() > 0.99);
        let less = outlook.at(most.everything - 1, false);
        assert!(less.plan.bytes.total() < most.everything);
        let none = outlook.at(0, false);
        assert_eq!(none.plan.bytes.total(), 0);

        let mut machine = Machine::typical();
        machine.assumed = false;
        let known = EngineOptions { machine: Some(machine), ..EngineOptions::default() };
        let rate = |sparsity, budget| {
            let options = EngineOptions { sparsity, ..known.clone() };
            Outlook::new(&model, &options, gpu).unwrap().at(budget, false).tokens_per_second.unwrap()
        };
        assert!(rate(SparsityChoice::Auto, 0) > 0.0);
        let alone = Outlook::new(&model, &known, None).unwrap().at(1 << 40, false);
        assert!(alone.plan.bytes.total() == 0 && alone.tokens_per_second == Some(rate(SparsityChoice::Auto, 0)));
    }
    /// Down projections that get a row per neuron when the model is opened take in plans what they take then, on the device and in
    /// RAM; and cold rows of prompts have their slab.
    #[test]
    fn what_is_turned_on_opening_is_foretold() {
        let folder = tempfile::tempdir().unwrap();
        let mut synthetic = SynthOptions::new(Shape::named("tiny-relu-llama").unwrap(), folder.path().join("m.gguf"));
        (synthetic.layers, synthetic.predictor) = (Some(2), false);
        let quantised = synth::generate(&synthetic, &mut |_| ()).unwrap().path;
        let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models");
        let (all, pool) = (adapters(), ThreadPool::new(Some(1)));
        for (path, sparsity, has_slab) in [
            (models.join("llama-relu"), SparsityChoice::Auto, true),
            (quantised, SparsityChoice::Mode(Sparsity::Exact), true),
            (models.join("mixtral"), SparsityChoice::Mode(Sparsity::Threshold), false),
        ] {
            let model = Model::open(&path, &LoadOptions::default()).unwrap();
            let (turned, report) = model.neuron_major(&pool, &mut |_, _| ControlFlow::Continue(())).unwrap();
            assert!(report.matrices > 0 && sparsity.turns(&model, false));
            assert_eq!(sparsity.outline(&model, false).map(|(_, bytes)| bytes), Some(report.bytes));
            let options = EngineOptions { sparsity, stream_prompts: Some(true), ..EngineOptions::default() };
            let [closed, open] = [&model, &turned].map(|model| Outlook::new(model, &options, all.first()).unwrap());
            let everything = open.at(0, false).everything;
            let mut slabs = 0;
            for budget in (0..=20).map(|part| everything * part / 16) {
                let [closed, open] = [&closed, &open].map(|outlook| outlook.at(budget, false));
                assert_eq!(
                    (closed.everything, &closed.plan),
                    (everything, &open.plan),
                    "{} of {budget}",
                    path.display()
                );
                slabs += usize::from(closed.plan.bytes.slab > 0);
            }
            assert_eq!(slabs > 0, has_slab, "{}", path.display());
        }
    }
}

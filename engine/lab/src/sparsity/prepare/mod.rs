//! Prepares a model in three steps. First the model computes text ([`corpus`], or text that it
//! [generates](generate)) while firings are counted and the inputs of its FFNs are recorded
//! ([`reading`]). Then each layer gets a predictor or an activation threshold, and its down
//! projection in neuron-major order ([`layer`]). Finally the model's
//! [`Sidecar`](super::sidecar::Sidecar) is written.
//!
//! Preparing may take hours and can be stopped at any time. Finished work stays in a [`workspace`]
//! beside the future sidecar, and the next [`run`] continues from it. Stops do not change the
//! result, because every text and every layer depends only on its index and the options.

mod corpus;
mod generate;
mod inputs;
mod layer;
mod options;
mod reading;
mod report;
mod workspace;

use std::{ops::ControlFlow, sync::Arc, time::Instant};

pub use options::{PredictorChoice, PrepareCorpus, PrepareOptions, PreparePhase, PrepareProgress};
pub use report::{LayerReport, Prepared};
use workspace::Workspace;

use super::{
    predictor::ParameterBudget,
    sidecar::{Identity, Provenance, Sidecar},
};
use crate::unless_stopped;
use thermocline_base::error::Result;
use thermocline_cpu::Cpu;
use thermocline_formats::format::ReadMode;
use thermocline_model::{Ffn, Model};

/// Prepares `model` and writes its sidecar to [`PrepareOptions::out`]. `model` must be loaded
/// without a sidecar. `progress` is called several times a second. If it breaks, finished work
/// stays in the workspace and the result is
/// [`Error::Cancelled`](thermocline_base::error::Error::Cancelled).
///
/// # Errors
/// Errors of reading and writing files, and of training. `Invalid` for options out of range, too
/// little text, or a workspace that is in use.
pub fn run(
    model: &Arc<Model>,
    options: &PrepareOptions,
    progress: &mut dyn FnMut(&PrepareProgress) -> ControlFlow<()>,
) -> Result<Prepared> {
    options.check()?;
    let started = Instant::now();
    let identity = Identity::of_model(model);
    let cpu = Cpu::new(&options.cpu)?;
    let mut workspace = Workspace::open(model, &identity, options)?;
    let reading = reading::read(model, &cpu, options, &mut workspace, progress)?;

    let parameters: u64 = model.own_tensors().map(|tensor| tensor.len() as u64).sum();
    let dense = model.weights.layers.iter().filter(|layer| matches!(layer.ffn, Ffn::Dense(_))).count();
    let mut parameter_budget = ParameterBudget::new(parameters, dense);
    let mut meter = options::ProgressMeter::new(PreparePhase::Layers);
    let n_layer = model.config.n_layer();
    let blank = Sidecar {
        path: options.out.clone(),
        identity,
        provenance: Provenance {
            activation: model.config.activation,
            corpus: reading.corpus.clone(),
            tokens_profiled: reading.profile.tokens,
            tokens_held_out: layer::held_out(reading.recorded),
            target_recall: options.target.recall as f32,
            target_mass_recall: options.target.mass as f32,
        },
        layers: vec![Default::default(); n_layer],
        input_figures: Vec::new(),
    };
    let mut sidecar = blank.clone();
    let mut reports = Vec::with_capacity(n_layer);
    for n in 0..n_layer {
        let (prepared, report) = match workspace.layer(&blank, model, n) {
            Some(done) => {
                meter.skip(1.0 / n_layer as f64);
                done
            }
            None => {
                let done =
                    layer::LayerWork { model, cpu: &cpu, options, reading: &reading, folder: workspace.folder(), n }
                        .run(parameter_budget.next_layer(), &mut |part| {
                            let done = (n as f64 + part) / n_layer as f64;
                            unless_stopped(progress(&meter.progress(done, Some(n))))
                        })?;
                model.checkpoint.files().check()?;
                workspace.keep_layer(&blank, n, &done.0, &done.1)?;
                // A mapped layer uses no memory.
                workspace.layer(&blank, model, n).unwrap_or(done)
            }
        };
        parameter_budget.spend(report.parameters());
        sidecar.layers[n] = prepared;
        reports.push(report);
    }

    if options.inputs {
        let meter = options::ProgressMeter::new(PreparePhase::Inputs);
        let mut tell = |done: f64, layer: usize| unless_stopped(progress(&meter.progress(done, Some(layer))));
        let (curves, figures) =
            inputs::find(model, &options.cpu, cpu.workers(), &reading.samples, &workspace, &mut tell)?;
        sidecar.layers.iter_mut().zip(curves).for_each(|(layer, curves)| layer.inputs = curves);
        sidecar.input_figures = figures;
    }

    // Stopping now would not save time, so the answer is ignored.
    let _ = progress(&options::ProgressMeter::new(PreparePhase::Writing).progress(0.0, None));
    model.checkpoint.files().check()?;
    sidecar.write(&options.out)?;
    drop(sidecar);
    let sidecar = Sidecar::open(&options.out, ReadMode::Map)?;
    workspace.remove();
    let fraction = reports.iter().map(LayerReport::parameters).sum::<u64>() as f64 / parameters.max(1) as f64;
    Ok(Prepared { sidecar, layers: reports, predictor_fraction: fraction, seconds: started.elapsed().as_secs_f64() })
}

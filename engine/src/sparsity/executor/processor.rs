//! CPU and device as one [`Processor`].

use std::ops::{ControlFlow, Range};

use super::{cold::Cold, planner::Planner};
use crate::{
    cpu::Cpu,
    error::{Error, Result},
    gpu::Gpu,
    model::{
        CpuFfn, CpuProcessor, Ffn, GpuLoad, GpuProcessor, KvCache, KvType, Model, NormSlot, Probe, Processor, Register,
        Resident, Sparsity, Steering,
        gpu::{FfnShare, Share},
        mask,
    },
    sparsity::placement::{Placement, Streaming},
};

/// A model of which a part is resident in a device's memory.
#[derive(Debug)]
pub struct HybridProcessor {
    pub(super) gpu: Gpu,
    pub(super) cpu: CpuProcessor,
    /// Nothing is resident without it.
    pub(super) device: Option<GpuProcessor>,
    pub(super) load: GpuLoad,
    /// Where everything is to be, and whether it is there.
    pub(super) wanted: Placement,
    pub(super) settled: bool,
    pub(super) planner: Option<Box<dyn Planner>>,
    /// Per layer its neurons that are not resident, ascending, where neurons are placed one by one.
    pub(super) cold: Vec<Vec<u32>>,
    ffn: CpuFfn,
    pub(super) sparsity: Sparsity,
    pub(super) steering: Steering,
    pub(super) tokens: usize,
    /// Whether the residual stream is on the device.
    crossed: bool,
    /// Counts what has changed on the device.
    pub(super) moves: u64,
    /// Where cold neurons' part of a prompt is computed, and whether it is time to see to what that needs.
    pub(super) streaming: Streaming,
    pub(super) slab_due: bool,
}

impl HybridProcessor {
    /// Uploads what `placement` says and prepares everything but caches. Neurons are placed one by one where the down projection
    /// has a row per neuron, and experts in mixtures; elsewhere an FFN is on one side. `progress` hears how many bytes of the file are
    /// up and how many there are; it may cancel.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a placement that does not fit the model, and as [`GpuProcessor::load`].
    pub fn load(
        gpu: &Gpu,
        cpu: Cpu,
        model: &Model,
        placement: &Placement,
        load: &GpuLoad,
        progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<Self> {
        let n_layer = model.config.n_layer();
        check(model, placement)?;
        let mut device = None;
        if placement.first_resident < n_layer {
            let share = share(model, placement, load.predictors);
            device = Some(GpuProcessor::load_share(gpu, model, &share, load, progress)?);
        }
        let mut processor = HybridProcessor {
            gpu: gpu.clone(),
            cpu: CpuProcessor::new(cpu),
            device,
            load: load.clone(),
            wanted: placement.clone(),
            settled: true,
            planner: None,
            cold: vec![Vec::new(); n_layer],
            ffn: CpuFfn::default(),
            sparsity: Sparsity::Dense,
            steering: Steering::default(),
            tokens: 0,
            crossed: false,
            moves: 0,
            streaming: Streaming::Never,
            slab_due: true,
        };
        (0..n_layer).for_each(|layer| processor.find_cold(model, layer));
        Ok(processor)
    }

    /// The same with somebody to ask when the budget changes.
    #[must_use]
    pub fn with_planner(mut self, planner: Box<dyn Planner>) -> Self {
        self.planner = Some(planner);
        self
    }

    /// Where everything is to be. [`HybridProcessor::settle`] moves there what is not there yet.
    pub fn placement(&self) -> &Placement {
        &self.wanted
    }

    /// The device.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Notes which neurons of a layer the CPU has to compute.
    pub(super) fn find_cold(&mut self, model: &Model, layer: usize) {
        let n = neurons(model, layer) as u32;
        let mask = self.device.as_ref().and_then(|device| device.hot_mask(layer));
        self.cold[layer].clear();
        if let Some(mask) = mask {
            self.cold[layer].extend((0..n).filter(|i| !mask::contains(mask, *i as usize)));
        }
    }

    /// The first layer that is on the device.
    fn first_resident(&self) -> usize {
        self.device.as_ref().map_or(usize::MAX, GpuProcessor::first_layer)
    }

    /// The residual stream crosses over when the first step of a resident layer comes.
    fn reach(&mut self, layer: usize) -> Result<()> {
        if !self.crossed
            && layer >= self.first_resident()
            && let Some(device) = &mut self.device
        {
            device.begin_from(self.cpu.residual()?)?;
            self.crossed = true;
        }
        Ok(())
    }

    /// Whoever has the residual stream.
    fn current(&mut self) -> &mut dyn Processor {
        match &mut self.device {
            Some(device) if self.crossed => device,
            _ => &mut self.cpu,
        }
    }

    /// The device, if it is its turn but the head is not there: the stream of `tokens` has then come back to the CPU.
    fn comes_back(&mut self, model: &Model, tokens: Range<usize>) -> Result<bool> {
        match &mut self.device {
            Some(device) if self.crossed && !device.has_head() => {
                let n = tokens.len();
                self.cpu.take_residual(model, device.end_with(tokens)?, n)?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }
}

/// Neurons of a layer, or experts.
pub(super) fn neurons(model: &Model, layer: usize) -> usize {
    match &model.weights.layers[layer].ffn {
        Ffn::Dense(ffn) => ffn.up.weight.rows(),
        Ffn::Experts(mixture) => mixture.experts.len(),
    }
}

/// Whether `placement` is one of this model.
pub(super) fn check(model: &Model, placement: &Placement) -> Result<()> {
    let invalid = |expected: String, got: String| Err(Error::invalid("placement", expected, got));
    let n_layer = model.config.n_layer();
    if placement.hot.len() != n_layer || placement.first_resident > n_layer {
        let got = format!("{} layers, the first resident {}", placement.hot.len(), placement.first_resident);
        return invalid(format!("{n_layer} layers"), got);
    }
    if placement.head && placement.first_resident == n_layer {
        return invalid("a head where the last layer is".to_owned(), "a head alone".to_owned());
    }
    for (layer, hot) in placement.hot.iter().enumerate() {
        let n = neurons(model, layer);
        if layer < placement.first_resident && !hot.is_empty() {
            return invalid(format!("hot neurons from layer {} on", placement.first_resident), format!("in {layer}"));
        }
        let mut seen = vec![false; n];
        for neuron in hot {
            match seen.get_mut(*neuron as usize) {
                Some(seen) if !*seen => *seen = true,
                _ => return invalid(format!("each of {n} neurons once in layer {layer}"), neuron.to_string()),
            }
        }
    }
    Ok(())
}

/// What of the model goes to the device.
fn share<'a>(model: &Model, placement: &'a Placement, predictors: bool) -> Share<'a> {
    let ffn = placement.hot.iter().enumerate().skip(placement.first_resident).map(|(layer, hot)| {
        let ffn = &model.weights.layers[layer].ffn;
        let places = GpuProcessor::places_neurons(ffn);
        match hot.len() {
            0 => FfnShare::None,
            n if !places && n == neurons(model, layer) => FfnShare::All,
            // Experts that cannot be told apart are resident together.
            _ if !places && matches!(ffn, Ffn::Experts(_)) => FfnShare::None,
            _ => FfnShare::Hot(hot),
        }
    });
    Share { first_layer: placement.first_resident, ffn: ffn.collect(), head: placement.head, predictors }
}

impl Processor for HybridProcessor {
    fn max_chunk(&self) -> usize {
        self.device.as_ref().map_or(usize::MAX, Processor::max_chunk)
    }

    fn kv_cache(&mut self, model: &Model, capacity: usize, ty: KvType) -> Result<KvCache> {
        self.slab_gives_way(|it| match &mut it.device {
            Some(device) => device.kv_cache(model, capacity, ty),
            None => it.cpu.kv_cache(model, capacity, ty),
        })
    }

    fn holds(&self, kv: &KvCache) -> bool {
        match &self.device {
            Some(device) => device.holds(kv),
            None => self.cpu.holds(kv),
        }
    }

    fn begin(&mut self, model: &Model, tokens: &[u32], kv: &KvCache) -> Result<()> {
        self.tokens = tokens.len();
        self.crossed = false;
        match &mut self.device {
            Some(device) if device.first_layer() == 0 => {
                self.crossed = true;
                device.begin(model, tokens, kv)
            }
            Some(device) => {
                device.place(tokens.len(), kv);
                self.cpu.begin(model, tokens, kv)
            }
            None => self.cpu.begin(model, tokens, kv),
        }
    }

    fn norm(&mut self, model: &Model, layer: usize, norm: NormSlot, from: Register, into: Register) -> Result<()> {
        self.reach(layer)?;
        self.current().norm(model, layer, norm, from, into)
    }

    fn attention(&mut self, model: &Model, layer: usize, from: Register, kv: &mut KvCache) -> Result<()> {
        self.reach(layer)?;
        self.current().attention(model, layer, from, kv)
    }

    fn ffn(&mut self, model: &Model, layer: usize, from: Register, probe: &mut dyn Probe) -> Result<()> {
        self.reach(layer)?;
        let streams = self.streams(model, layer);
        match &mut self.device {
            Some(device) if self.crossed => {
                let (neurons, sparsity, tokens) = (&self.cold[layer][..], self.sparsity, self.tokens);
                let (cpu, ffn) = (&mut self.cpu, &mut self.ffn);
                device.ffn_with(layer, from, probe, &mut Cold { model, cpu, ffn, neurons, sparsity, tokens, streams })
            }
            _ => self.cpu.ffn(model, layer, from, probe),
        }
    }

    fn add_out(&mut self) -> Result<()> {
        self.current().add_out()
    }

    fn residual(&mut self) -> Result<&[f32]> {
        self.current().residual()
    }

    fn head(&mut self, model: &Model, tokens: Range<usize>, logits: &mut [f32]) -> Result<()> {
        match self.comes_back(model, tokens.clone())? {
            true => self.cpu.head(model, 0..tokens.len(), logits),
            false => self.current().head(model, tokens, logits),
        }
    }

    fn top(&mut self, model: &Model, token: usize, ids: &mut [u32], logits: &mut [f32]) -> Result<()> {
        match self.comes_back(model, token..token + 1)? {
            true => self.cpu.top(model, 0, ids, logits),
            false => self.current().top(model, token, ids, logits),
        }
    }

    fn finish(&mut self) -> Result<()> {
        self.current().finish()
    }

    fn report(&mut self, model: &Model, probe: &mut dyn Probe) {
        self.current().report(model, probe);
    }

    fn set_sparsity(&mut self, mode: Sparsity) {
        self.sparsity = mode;
        // Predictors may have to come or go.
        self.settled &= self.load.predictors;
        self.cpu.set_sparsity(mode);
        if let Some(device) = &mut self.device {
            device.set_sparsity(mode);
        }
    }

    fn time(&mut self, on: bool) {
        if let Some(device) = &mut self.device {
            device.time(on);
        }
    }

    fn steer(&mut self, steering: &Steering) {
        self.cpu.steer(steering);
        if let Some(device) = &mut self.device {
            device.steer(steering);
        }
        self.steering.clone_from(steering);
    }

    fn take_kv(&mut self, model: &Model, kv: &mut KvCache) -> Result<()> {
        self.slab_gives_way(|it| it.device.as_mut().map_or(Ok(()), |device| device.take_kv(model, kv)))
    }

    fn return_kv(&mut self, kv: &mut KvCache) -> Result<()> {
        self.device.as_mut().map_or(Ok(()), |device| device.return_kv(kv))
    }

    fn set_budget(&mut self, model: &Model, bytes: u64, caches: &mut [&mut KvCache]) -> Result<()> {
        let Some(planner) = &mut self.planner else {
            return Err(Error::Unsupported {
                what: "VRAM budget",
                got: "a change of one".to_owned(),
                supported: "a placement that a planner made".to_owned(),
            });
        };
        let placement = planner.plan(model, bytes)?;
        self.drop_slab();
        self.release(model, &placement, caches)?;
        self.gpu.arena().set_budget(bytes)
    }

    fn settle(&mut self, model: &Model, caches: &mut [&mut KvCache]) -> Result<bool> {
        let now = &self.wanted;
        let other = self.planner.as_mut().map_or(Ok(None), |planner| planner.revise(model, now))?;
        if let Some(placement) = other {
            self.release(model, &placement, caches)?;
        }
        if self.settled {
            self.see_to_slab(model)?;
            return Ok(false);
        }
        let bytes = self.planner.as_ref().map_or(u64::MAX, |planner| planner.bytes_per_move());
        // Once all is there, what is left of the budget is seen to.
        Ok(self.advance(model, caches, bytes)?.more || self.slab_due)
    }

    fn resident(&self, model: &Model) -> Option<Resident> {
        self.device.as_ref()?.resident(model)
    }

    fn moves(&self) -> u64 {
        self.moves
    }

    fn scratch_bytes(&self) -> u64 {
        self.cpu.scratch_bytes() + self.device.as_ref().map_or(0, Processor::scratch_bytes)
    }
}

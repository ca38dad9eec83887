//! The planner: a model's plans on one machine, solved once for all budgets.

use std::sync::{Arc, OnceLock};

use super::{
    CostProfile, DeviceBytes, Forecast, Frontier, GpuUse, Granularity, LayerCosts, Machine, Placement, Plan,
    PlanInputs, PowerInferSplit, StreamingBufferSize, time_model::threshold_ratio, usable,
};
use thermocline_base::error::{Error, Result, ScarceMemory};
use thermocline_model::Model;

/// Factor by which the CPU of [`eager_machine`] is slower than a typical CPU.
const EAGER: f64 = 1e4;

/// All plans of one model for the same inputs.
#[derive(Debug)]
pub struct PlacementSolver {
    inputs: PlanInputs,
    profile: CostProfile,
    frontier: Frontier,
    streaming_buffer: StreamingBufferSize,
    /// Plans that use the device if anything fits, for [`GpuUse::Always`] with a device slower than
    /// the CPU.
    eager: OnceLock<Frontier>,
}

impl PlacementSolver {
    /// Solves for every budget. `bytes` are the bytes of `model` on the device, with the chunk and
    /// the KV type of `inputs`.
    ///
    /// # Errors
    /// As [`CostProfile::new`].
    pub fn new(model: &Model, bytes: &DeviceBytes, inputs: PlanInputs) -> Result<Self> {
        let profile = CostProfile::new(model, bytes, &inputs)?;
        // The choice counts the reads from the disk that weights in GPU memory save.
        let from_disk = inputs.ram.map_or(0.0, |limit| limit.seconds_per_byte(inputs.machine.disk));
        let frontier = if from_disk > 0.0 {
            Frontier::new(&profile, &inputs.machine.slower_by(&profile.weight_types(), from_disk))
        } else {
            Frontier::new(&profile, &inputs.machine)
        };
        let streaming_buffer = StreamingBufferSize::new(model, bytes, &profile, &inputs.streaming());
        Ok(PlacementSolver { inputs, profile, frontier, streaming_buffer, eager: OnceLock::new() })
    }

    /// The inputs of the plans.
    pub fn inputs(&self) -> &PlanInputs {
        &self.inputs
    }

    /// Bytes and reads of the model's parts.
    pub fn profile(&self) -> &CostProfile {
        &self.profile
    }

    /// Ratio of the activation thresholds on the device to those on the CPU, from 0 to 1.
    pub fn threshold_ratio(&self) -> f32 {
        threshold_ratio(&self.profile, &self.inputs.machine)
    }

    /// The plan with nothing resident.
    pub fn on_cpu(&self) -> Plan {
        self.price(Placement::cpu(self.profile.layers.len()))
    }

    /// Device bytes of the whole model with its caches. A plan may use fewer bytes even if there is
    /// room, because it leaves parts on the CPU that the CPU computes as fast.
    pub fn everything(&self) -> u64 {
        self.price(Placement::all(&self.profile)).bytes.total()
    }

    /// The plan of `placement`.
    pub fn price(&self, placement: Placement) -> Plan {
        Plan::new(&self.profile, &self.inputs.machine, placement)
    }

    /// Bytes of `budget` for the streaming buffer; 0 if streaming does not pay or nothing is cold.
    pub fn streaming_buffer(&self, budget: u64) -> u64 {
        self.streaming_buffer.bytes_within(budget)
    }

    /// The fastest plan within `budget` bytes, which may be the CPU alone.
    pub fn quickest(&self, budget: u64) -> Plan {
        let plan = |budget| self.frontier.plan(&self.profile, &self.inputs.machine, budget);
        match self.streaming_buffer.plan_beside(&self.profile, budget, |budget| Ok(plan(budget))) {
            Ok(quickest) => quickest,
            Err(_) => plan(budget),
        }
    }

    /// The fastest plan within `budget` bytes that uses the GPU as `gpu` allows.
    ///
    /// # Errors
    /// [`Error::Memory`] if not even the least useful part fits. [`Error::SlowGpu`] if the CPU
    /// alone is expected to be faster and `gpu` is [`GpuUse::IfQuicker`].
    pub fn plan(&self, budget: u64, gpu: GpuUse) -> Result<Plan> {
        match gpu {
            GpuUse::Never => Ok(self.on_cpu()),
            _ => self.streaming_buffer.plan_beside(&self.profile, budget, |budget| self.on_gpu(budget, gpu)),
        }
    }

    fn on_gpu(&self, budget: u64, gpu: GpuUse) -> Result<Plan> {
        let profile = &self.profile;
        let plan = self.frontier.plan(profile, &self.inputs.machine, budget);
        if plan.placement.any_resident() {
            return Ok(plan);
        }
        let refuse =
            |wanted| Error::memory(ScarceMemory::Gpu, "the smallest part of the model in VRAM", wanted, budget);
        let least = profile.least_bytes(|layer| layer.base() + layer.hot_bytes(1));
        if least > budget {
            return Err(refuse(least));
        }
        if gpu == GpuUse::IfQuicker {
            return Err(Error::SlowGpu);
        }
        let machine = eager_machine();
        let eager = self.eager.get_or_init(|| Frontier::new(profile, &machine));
        let plan = eager.plan(profile, &machine, budget);
        if !plan.placement.any_resident() {
            return Err(refuse(least.max(budget.saturating_add(1))));
        }
        Ok(self.price(plan.placement))
    }

    /// The plan with as many whole layers as fit into `budget` bytes.
    ///
    /// # Errors
    /// [`Error::Memory`] if no layer fits.
    pub fn whole_layers(&self, budget: u64) -> Result<Plan> {
        let placement = Placement::whole_layers(&self.profile, budget);
        self.price_resident(placement, budget, "one whole layer in VRAM", LayerCosts::whole)
    }

    /// The plan with the most often firing neurons, as many as fit into `budget` bytes beside
    /// everything else.
    ///
    /// # Errors
    /// [`Error::Memory`] if not even one layer's attention fits.
    pub fn most_frequent(&self, budget: u64) -> Result<Plan> {
        let placement = Placement::all(&self.profile).fitting(&self.profile, budget);
        self.price_resident(placement, budget, "the smallest part of the model in VRAM", LayerCosts::base)
    }

    /// The plan within `budget` bytes by this rule. For neurons it is the fastest plan, which may
    /// be the CPU alone.
    ///
    /// # Errors
    /// As [`PlacementSolver::whole_layers`] and [`PlacementSolver::most_frequent`].
    pub fn by(&self, granularity: Granularity, budget: u64) -> Result<Plan> {
        match granularity {
            Granularity::Neurons => Ok(self.quickest(budget)),
            Granularity::Layers => self.whole_layers(budget),
            Granularity::Frequency => self.most_frequent(budget),
        }
    }

    /// The plan with as many neurons of `split` as fit into `budget` bytes.
    ///
    /// # Errors
    /// [`Error::Memory`] if not even one layer's attention fits, [`Error::Malformed`] if the split
    /// belongs to another model.
    pub fn following(&self, split: &PowerInferSplit, budget: u64) -> Result<Plan> {
        let placement = split.placement(&self.profile)?;
        self.streaming_buffer.plan_beside(&self.profile, budget, |budget| {
            let placement = placement.clone().fitting(&self.profile, budget);
            self.price_resident(placement, budget, "the smallest part of the model in VRAM", LayerCosts::base)
        })
    }

    /// Prices `placement`. Returns an error with the bytes that the last layer `needs` if nothing
    /// is resident.
    fn price_resident(
        &self,
        placement: Placement,
        budget: u64,
        what: &'static str,
        needs: impl Fn(&LayerCosts) -> u64,
    ) -> Result<Plan> {
        if !placement.any_resident() {
            let wanted = self.profile.least_bytes(needs);
            return Err(Error::memory(ScarceMemory::Gpu, what, wanted, usable(budget)));
        }
        Ok(self.price(placement))
    }

    /// Seconds of a token by `plan`, with its reads from the disk. `None` if the model is larger
    /// than the RAM and the speed of the disk is unknown.
    pub fn seconds(&self, plan: &Plan) -> Option<f64> {
        let shortage = self.inputs.ram.and_then(|limit| {
            let reads = self.profile.cpu_reads(&plan.placement);
            limit.shortage(plan.bytes.weights(), &reads, self.inputs.machine.disk)
        });
        match shortage {
            None => Some(plan.seconds),
            Some(shortage) => shortage.token_seconds(plan.seconds),
        }
    }

    /// Tokens per second that the machine's speeds predict for `plan`, with its reads from the
    /// disk. `None` if these speeds are assumed or unknown, or if only the CPU was measured and the
    /// plan uses a device.
    pub fn expected_rate(&self, plan: &Plan) -> Option<f64> {
        let machine = &self.inputs.machine;
        let measured = !machine.assumed && (machine.gpu.is_some() || !plan.placement.any_resident());
        self.seconds(plan).filter(|_| measured).map(|seconds| 1.0 / seconds)
    }

    /// The forecast for `budget` bytes by the machine's speeds alone. If nothing fits, it is the
    /// CPU's plan.
    pub fn forecast(&self, budget: u64, gpu: GpuUse) -> Forecast {
        Forecast::new(self, budget, self.plan(budget, gpu).map_err(Arc::new), None, |plan| self.expected_rate(plan))
    }
}

/// A machine on which all work pays on the GPU.
fn eager_machine() -> Machine {
    let mut machine = Machine::typical();
    machine.cpu.memory /= EAGER;
    for rate in machine.cpu.rates.values_mut() {
        rate.sequential /= EAGER;
        rate.scattered /= EAGER;
    }
    if let Some(gpu) = &mut machine.gpu {
        (gpu.dispatch, gpu.hand_over) = (0.0, 0.0);
    }
    machine
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use super::*;
    use crate::{
        placement::{
            WeightLimit,
            tests::{device_bytes, llama},
        },
        runtime::{KvType, Sparsity},
    };
    use thermocline_cpu::ThreadPool;

    fn planner(model: &Model, inputs: PlanInputs) -> PlacementSolver {
        PlacementSolver::new(model, &device_bytes(model, inputs.chunk), inputs).unwrap()
    }

    #[test]
    fn plans_leave_a_fraction_to_the_streaming_buffer_where_it_pays() {
        let model = llama();
        let pool = ThreadPool::new(Some(1));
        let (model, _) = model.neuron_major(&pool, &mut |_, _| ControlFlow::Continue(())).unwrap();
        let with = |stream_prompts, machine: Machine, chunk| {
            let inputs = PlanInputs::new(Sparsity::Exact, 64, KvType::F16);
            planner(&model, PlanInputs { chunk, stream_prompts, machine: Arc::new(machine), ..inputs })
        };
        let mut slow_bus = Machine::typical();
        slow_bus.gpu.iter_mut().flat_map(|gpu| gpu.streams.values_mut()).for_each(|rate| *rate = 1e6);
        let never = with(Some(false), Machine::typical(), 256);
        for (planner, divisor) in [
            (with(None, Machine::typical(), 256), 32),
            (with(Some(true), slow_bus.clone(), 256), 4),
            (with(None, slow_bus, 256), u64::MAX),
            (with(None, Machine::typical(), 2), u64::MAX),
        ] {
            let (everything, mut with_buffer) = (planner.everything(), 0);
            for budget in (0..=20).map(|twentieth| everything * 2 * twentieth / 20) {
                let buffer = planner.streaming_buffer(budget);
                assert!(buffer <= budget / divisor && never.streaming_buffer(budget) == 0);
                assert!(usable(budget) < everything || buffer == 0, "everything fits");
                let Ok(plan) = planner.plan(budget, GpuUse::Always) else { continue };
                assert!(plan.bytes.total() <= budget, "{} of {budget}, {buffer} to stream", plan.bytes.total());
                let without = planner.price(plan.placement.clone()).bytes.total();
                let resident = &plan.layers[plan.placement.first_resident..];
                let is_split = resident.iter().any(|layer| layer.hot < layer.units);
                let added = plan.bytes.total() - without;
                // Without room for even one layer beside the buffer, there is no buffer.
                assert!(added == 0 || (is_split && added == buffer), "{added} bytes of a buffer of {buffer}");
                assert_eq!(plan.bytes.streaming_buffer, added);
                with_buffer += usize::from(added > 0);
            }
            assert_eq!(with_buffer > 0, divisor < u64::MAX, "{with_buffer} plans had a buffer");
        }
    }

    /// A GPU that is too slow for weights in RAM is faster than the disk.
    #[test]
    fn weights_that_would_be_read_from_the_disk_go_to_the_gpu() {
        let model = llama();
        let weights = model.checkpoint.tensor_bytes();
        let with = |ram: Option<u64>, disk: Option<f64>| {
            let mut machine = Machine::typical().with_disk(disk);
            machine.assumed = false;
            machine.gpu.iter_mut().for_each(|gpu| (gpu.hand_over, gpu.dispatch) = (0.01, 0.01));
            let inputs = PlanInputs::new(Sparsity::Dense, 64, KvType::F16);
            let ram = ram.map(|ram| WeightLimit { weights, ram });
            planner(&model, PlanInputs { machine: Arc::new(machine), ram, ..inputs })
        };
        let quickest = |planner: &PlacementSolver| planner.quickest(2 * planner.everything());
        let slow = Some(weights as f64 / 100.0);
        for (ram, disk) in [(None, slow), (Some(weights), slow), (Some(weights / 2), None)] {
            let planner = with(ram, disk);
            assert!(!quickest(&planner).placement.any_resident(), "{ram:?} {disk:?}");
        }
        let planner = with(Some(weights / 2), slow);
        let plan = quickest(&planner);
        assert!(plan.placement.any_resident());
        assert_eq!(plan, planner.price(plan.placement.clone()), "times of a plan are those of its processors");
        // The CPU reads about half of the weights from the disk, which takes 50 seconds.
        let [on_cpu, on_gpu] = [planner.on_cpu(), plan].map(|plan| planner.seconds(&plan).unwrap());
        assert!((25.0..=50.1).contains(&on_cpu) && on_gpu < on_cpu / 2.0, "{on_cpu} {on_gpu}");
        assert_eq!(planner.expected_rate(&planner.on_cpu()), Some(1.0 / on_cpu));
        let unknown = with(Some(weights / 2), None);
        assert_eq!((unknown.seconds(&unknown.on_cpu()), unknown.expected_rate(&unknown.on_cpu())), (None, None));
    }

    #[test]
    fn planner_errors_distinguish_missing_full_and_slow_gpus() {
        let model = llama();
        let mut far = Machine::typical();
        far.gpu.iter_mut().for_each(|gpu| (gpu.hand_over, gpu.dispatch) = (1.0, 1.0));
        let inputs = PlanInputs { machine: Arc::new(far), ..PlanInputs::new(Sparsity::Dense, 64, KvType::F16) };
        let planner = planner(&model, inputs);
        let most = 2 * planner.everything();
        assert_eq!(planner.plan(most, GpuUse::Never).unwrap(), planner.on_cpu());
        assert!(matches!(planner.plan(most, GpuUse::IfQuicker), Err(Error::SlowGpu)));
        assert!(planner.plan(most, GpuUse::Always).unwrap().placement.any_resident());
        assert!(matches!(planner.plan(1, GpuUse::Always), Err(Error::Memory { .. })));
        let forecast = planner.forecast(most, GpuUse::IfQuicker);
        assert!(matches!(forecast.reason.as_deref(), Some(Error::SlowGpu)) && forecast.plan == planner.on_cpu());
        assert_eq!((planner.quickest(most), forecast.tokens_per_second), (planner.on_cpu(), None));
    }
}

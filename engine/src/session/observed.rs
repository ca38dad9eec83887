//! How fast tokens really come, held against what was expected of the same state: by that much every forecast is off.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::prospect::Prospect;
use crate::{
    model::{Resident, Sparsity},
    sparsity::placement::{Machine, Placement, Plan},
    telemetry::Rate,
};

/// Tokens after which a rate is believed: the first ones touch memory that nobody has touched yet.
const ENOUGH: usize = 8;

/// No machine is further from a usual one than this; whatever is, was disturbed.
const FURTHEST: f64 = 1e4;

/// What a rate is the rate of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct State {
    pub mode: Sparsity,
    /// The adapter and its budget in bytes; `None`: the CPU computes alone.
    pub device: Option<(String, Option<u64>)>,
}

/// Tokens decoded in one state.
#[derive(Debug, Clone)]
struct Run {
    state: State,
    /// What of the model was on the device.
    resident: Option<Arc<Resident>>,
    rate: Rate,
    tokens: usize,
    /// Its rate in parts of the one expected, and the speeds that were expected of the machine.
    ratio: Option<(Arc<Machine>, f64)>,
}

#[derive(Debug, Default)]
struct Runs {
    now: Option<Run>,
    /// The latest that are long enough: of the CPU alone, and with a device.
    alone: Option<Run>,
    with_device: Option<Run>,
}

/// Rates of the latest answers.
#[derive(Debug, Default)]
pub(super) struct Observed(Mutex<Runs>);

impl Observed {
    fn lock(&self) -> MutexGuard<'_, Runs> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A token was decoded in `time`, while nothing moved.
    pub fn token(&self, state: State, resident: Option<&Arc<Resident>>, time: Duration) {
        let mut runs = self.lock();
        if runs.now.as_ref().is_none_or(|run| run.state != state) {
            runs.now = Some(Run { state, resident: None, rate: Rate::default(), tokens: 0, ratio: None });
        }
        let Some(run) = &mut runs.now else { return };
        run.rate.add(1, time);
        run.tokens += 1;
        if run.tokens < ENOUGH {
            return;
        }
        run.resident = resident.cloned();
        let run = run.clone();
        match run.state.device {
            Some(_) => runs.with_device = Some(run),
            None => runs.alone = Some(run),
        }
    }

    /// Another device is to compute: what was observed on the last one says nothing of it.
    pub fn forget_device(&self) {
        let mut runs = self.lock();
        (runs.now, runs.with_device) = (None, None);
    }

    /// Tokens per second of the latest answer in `state`.
    pub fn rate(&self, state: &State) -> Option<f64> {
        let runs = self.lock();
        let run = if state.device.is_some() { &runs.with_device } else { &runs.alone };
        run.as_ref().filter(|run| run.state == *state).map(|run| run.rate.get()).filter(|rate| *rate > 0.0)
    }

    /// What is really to be expected of `plan`, in tokens per second; `None` if the speeds of this machine are not known and
    /// no answer has shown them.
    pub fn tokens_per_second(&self, prospect: &Prospect, plan: &Plan) -> Option<f64> {
        let mut runs = self.lock();
        let any = plan.placement.first_resident < plan.layers.len();
        let run = if any { &mut runs.with_device } else { &mut runs.alone };
        let machine = &prospect.basis().machine;
        let ratio = run.as_mut().and_then(|run| run.ratio(prospect));
        // Speeds of the CPU alone say nothing of a device.
        let known = !machine.assumed && (machine.gpu.is_some() || !any);
        ratio.or(known.then_some(1.0)).map(|ratio| ratio * plan.tokens_per_second())
    }
}

impl Run {
    fn ratio(&mut self, prospect: &Prospect) -> Option<f64> {
        let basis = prospect.basis();
        if let Some((machine, ratio)) = &self.ratio
            && *machine == basis.machine
        {
            return Some(*ratio);
        }
        // What was expected of another mode cannot be told any more.
        if self.state.mode != basis.sparsity {
            return None;
        }
        let placement = match (&self.state.device, &self.resident) {
            (Some(_), Some(resident)) => Placement::of(resident, prospect.demand()),
            (Some(_), None) => return None,
            (None, _) => Placement::cpu(prospect.demand().layers.len()),
        };
        let expected = prospect.price(placement).tokens_per_second();
        let ratio = self.rate.get() / expected;
        if !(1.0 / FURTHEST..=FURTHEST).contains(&ratio) {
            return None;
        }
        self.ratio = Some((Arc::clone(&basis.machine), ratio));
        Some(ratio)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{
        model::{KvType, LoadOptions, Model},
        session::prospect::Basis,
    };

    fn prospect(machine: &Arc<Machine>, sparsity: Sparsity) -> Prospect {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models/llama-relu");
        let model = Model::open(&path, &LoadOptions::default()).unwrap();
        let machine = Arc::clone(machine);
        let (kv_type, stream_prompts) = (KvType::F16, None);
        let basis = Basis { sparsity, tokens: 64, kv_type, chunk: 16, caps: None, machine, stream_prompts };
        Prospect::new(&model, basis).unwrap()
    }

    fn alone(mode: Sparsity) -> State {
        State { mode, device: None }
    }

    fn told(observed: &Observed, prospect: &Prospect) -> Option<f64> {
        observed.tokens_per_second(prospect, &prospect.on_cpu())
    }

    const TOKEN: Duration = Duration::from_millis(20);

    #[test]
    fn what_was_seen_scales_what_is_told() {
        let usual = Arc::new(Machine::typical());
        let (dense, exact) = (prospect(&usual, Sparsity::Dense), prospect(&usual, Sparsity::Exact));
        let observed = Observed::default();
        (1..ENOUGH).for_each(|_| observed.token(alone(Sparsity::Dense), None, TOKEN));
        assert_eq!((told(&observed, &dense), observed.rate(&alone(Sparsity::Dense))), (None, None));
        observed.token(alone(Sparsity::Dense), None, TOKEN);
        let near = |told: Option<f64>, want: f64| assert!(told.is_some_and(|told| (told / want - 1.0).abs() < 1e-9));
        near(observed.rate(&alone(Sparsity::Dense)), 50.0);
        near(told(&observed, &dense), 50.0);
        // By as much other modes are off.
        let ratio = 50.0 / dense.on_cpu().tokens_per_second();
        near(told(&observed, &exact), ratio * exact.on_cpu().tokens_per_second());
        assert_eq!(observed.rate(&alone(Sparsity::Exact)), None);

        let everything = Placement::all(dense.demand());
        assert_eq!(observed.tokens_per_second(&dense, &dense.price(everything.clone())), None, "no device was seen");
        let device = State { device: Some(("card".to_owned(), Some(7))), ..alone(Sparsity::Dense) };
        let resident = Arc::new(Resident::default());
        (0..ENOUGH).for_each(|_| observed.token(device.clone(), Some(&resident), TOKEN / 2));
        near(observed.rate(&device), 100.0);
        assert!(observed.tokens_per_second(&dense, &dense.price(everything.clone())).is_some());
        observed.forget_device();
        assert_eq!(observed.tokens_per_second(&dense, &dense.price(everything)), None);
        near(told(&observed, &dense), 50.0);
    }

    #[test]
    fn measured_speeds_are_told_at_once_and_corrected_then() {
        let mut machine = Machine::typical();
        machine.assumed = false;
        let measured = prospect(&Arc::new(machine), Sparsity::Dense);
        let observed = Observed::default();
        assert_eq!(told(&observed, &measured), Some(measured.on_cpu().tokens_per_second()));
        (0..ENOUGH).for_each(|_| observed.token(alone(Sparsity::Dense), None, TOKEN));
        assert!(told(&observed, &measured).is_some_and(|told| (told - 50.0).abs() < 1e-6));
        // They may be the CPU's alone, if a device was chosen since.
        let alone = prospect(&Arc::new(Machine::new(Machine::typical().cpu, None)), Sparsity::Dense);
        let on_device = alone.price(Placement::all(alone.demand()));
        assert_eq!(Observed::default().tokens_per_second(&alone, &on_device), None);
        assert!(told(&Observed::default(), &alone).is_some());
        // Other speeds: the same answer, held against what is expected now.
        let mut slower = Machine::typical();
        slower.cpu.rates.values_mut().for_each(|rate| rate.sequential /= 2.0);
        let slower = prospect(&Arc::new(slower), Sparsity::Dense);
        assert!(told(&observed, &slower).is_some_and(|told| (told - 50.0).abs() < 1e-6));
    }
}

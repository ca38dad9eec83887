//! The adapter of this machine, which is a software driver where there is no GPU, with one device per tier.
#![allow(clippy::unwrap_used)]

use std::{
    ops::ControlFlow,
    sync::{Arc, OnceLock},
};

use thermocline_engine::{
    cpu::{Cpu, CpuOptions},
    device::GpuLoad,
    gpu::{AdapterChoice, FaultPoint, Faults, Gpu, GpuOptions, Tier},
    hybrid::HybridProcessor,
    model::Model,
    runtime::Forward,
};

/// Everything the adapter offers.
pub const FULL: Tier = Tier { subgroups: true, f16: true };

/// A device of one's own.
pub fn open(options: GpuOptions) -> Gpu {
    Gpu::open(&GpuOptions { adapter: AdapterChoice::Index(0), ..options }).unwrap()
}

/// A device of one's own on whose clock every unit of work takes so many picoseconds, however busy the machine is.
pub fn paced(picoseconds: u64) -> Gpu {
    open(GpuOptions { faults: Faults(Some((FaultPoint::WorkClock, picoseconds))), ..GpuOptions::default() })
}

/// The device of `tier` that tests share, so that kernels are compiled once.
pub fn shared(tier: Tier) -> &'static Gpu {
    static DEVICES: [OnceLock<Gpu>; 4] = [const { OnceLock::new() }; 4];
    let at = Tier::ALL.iter().position(|known| *known == tier).unwrap();
    DEVICES[at].get_or_init(|| open(GpuOptions { tier: Some(tier), ..GpuOptions::default() }))
}

/// The CPU beside a device that computes everything.
pub fn idle_cpu() -> Cpu {
    Cpu::new(&CpuOptions { threads: Some(1), ..CpuOptions::default() }).unwrap()
}

/// All of `model` on `gpu`.
pub fn forward_with(gpu: &Gpu, model: &Arc<Model>, load: &GpuLoad) -> Forward {
    let mut told = (0, 0);
    let mut progress = |done, total| {
        assert!(done <= total && done >= told.0);
        told = (done, total);
        ControlFlow::Continue(())
    };
    let processor = HybridProcessor::load_whole(gpu, idle_cpu(), model, load, &mut progress).unwrap();
    assert!(told.0 == told.1 && told.1 > 0, "{told:?}");
    Forward::on(Arc::clone(model), Box::new(processor))
}

/// The same with chunks of `chunk` tokens.
pub fn forward(gpu: &Gpu, model: &Arc<Model>, chunk: usize) -> Forward {
    forward_with(gpu, model, &GpuLoad { chunk, ..GpuLoad::default() })
}

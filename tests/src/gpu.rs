//! The first GPU adapter of this machine, with one device per tier. On a machine without a GPU it
//! is a software driver.
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

/// The tier with every feature that kernels can use.
pub const FULL: Tier = Tier { subgroups: true, f16: true };

/// Opens a device that is not shared with other tests.
pub fn open(options: GpuOptions) -> Gpu {
    Gpu::open(&GpuOptions { adapter: AdapterChoice::Index(0), ..options }).unwrap()
}

/// Opens a device that is not shared. Its clock counts `picoseconds` for every unit of work, no
/// matter how busy the machine is.
pub fn paced(picoseconds: u64) -> Gpu {
    open(GpuOptions { faults: Faults(Some((FaultPoint::WorkClock, picoseconds))), ..GpuOptions::default() })
}

/// Returns the device of `tier` that tests share, so that each kernel is compiled once.
pub fn shared(tier: Tier) -> &'static Gpu {
    static DEVICES: [OnceLock<Gpu>; 4] = [const { OnceLock::new() }; 4];
    let at = Tier::ALL.iter().position(|known| *known == tier).unwrap();
    DEVICES[at].get_or_init(|| open(GpuOptions { tier: Some(tier), ..GpuOptions::default() }))
}

/// Returns a CPU to use beside a device that computes everything.
pub fn idle_cpu() -> Cpu {
    Cpu::new(&CpuOptions { threads: Some(1), ..CpuOptions::default() }).unwrap()
}

/// Loads all of `model` on `gpu`.
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

/// Loads all of `model` on `gpu`, with chunks of `chunk` tokens.
pub fn forward(gpu: &Gpu, model: &Arc<Model>, chunk: usize) -> Forward {
    forward_with(gpu, model, &GpuLoad { chunk, ..GpuLoad::default() })
}

//! The machine to plan for: published, from a file, or this one.

use std::ops::ControlFlow;

use thermocline_engine::{
    calibration::{MachineOptions, cached_machine},
    cpu::Cpu,
    device::{caps_of, limits_of},
    gpu::{Gpu, GpuOptions},
    model::Model,
    placement::{Machine, MemorySizes, PlanInputs},
    session::planner,
};

use super::PlanArgs;
use crate::machines;
use thermocline_host::{folders::Folders, memory};
use thermocline_terminal::{
    failure::{Outcome, one_line},
    standard_error::say,
};

/// The machine to plan for.
pub struct PlannedMachine {
    /// Its speeds and the sizes of its memory.
    pub machine: Machine,
    /// Budget of GPU memory if the user gives none: the free bytes of this machine, or all of
    /// another machine. `None` if unknown.
    pub free: Option<u64>,
}

impl PlannedMachine {
    /// The machine that the options name. `None` is this machine.
    pub fn named(args: &PlanArgs) -> Outcome<Option<Machine>> {
        let Some(path) = &args.machine else { return Ok(None) };
        Ok(Some(match machines::named(path)? {
            Some(published) => published.machine(),
            None => Machine::load(path)?,
        }))
    }

    /// The machine `named`, or else this machine.
    pub fn of(args: &PlanArgs, named: Option<Machine>, model: &Model, inputs: &PlanInputs) -> Outcome<Self> {
        let mut planned = match named {
            Some(machine) => PlannedMachine { free: machine.memory.vram, machine },
            None => Self::here(args, model, inputs)?,
        };
        if let Some(path) = &args.save_machine {
            planned.machine.store(path)?;
        }
        if args.device.vram.is_some_and(|bytes| bytes > 0) && planned.machine.gpu.is_none() {
            // The machine has no card, so the plan assumes a typical card.
            let gpu = Machine::typical().gpu;
            let adapter = gpu.as_ref().map_or("", |gpu| gpu.adapter.as_str());
            say(format_args!(
                "[this machine has no GPU: the plan uses the speeds of {adapter}; --machine FILE uses another machine's]"
            ));
            (planned.machine.gpu, planned.machine.assumed, planned.free) = (gpu, true, None);
        }
        planned.machine.memory.ram = args.ram.or(planned.machine.memory.ram);
        Ok(planned)
    }

    /// This machine: its speeds, measured or from its file, and its memory.
    fn here(args: &PlanArgs, model: &Model, inputs: &PlanInputs) -> Outcome<Self> {
        let cpu = Cpu::new(&args.cpu.options())?;
        let open = |options| Gpu::open(&GpuOptions { budget: None, ..options });
        let gpu = args.device.gpu(&args.cpu)?.map(open).transpose()?;
        let folder = Folders::detect().map(|folders| folders.cache);
        let ram = memory::total();
        // Only a model that is larger than the RAM is read from the disk.
        let bytes = model.checkpoint.tensor_bytes();
        let is_too_large = args.ram.or(ram).is_some_and(|ram| memory::is_too_small(ram, bytes));
        let disk = is_too_large.then(|| model.checkpoint.weights_file());
        let options = MachineOptions { folder, again: args.measure, disk, effort: memory::measure_effort() };
        let caps = gpu.as_ref().map(|gpu| caps_of(limits_of(gpu.caps())));
        let types = planner(model, caps, inputs.clone())?.profile().weight_types();
        let free = gpu.as_ref().map(|gpu| gpu.arena().budget());
        let measured = cached_machine(&cpu, gpu.as_ref(), &types, &options, &mut || ControlFlow::Continue(()));
        let mut machine = measured.unwrap_or_else(|error| {
            say(format_args!("[this machine cannot be measured: {}]", one_line(&error.to_string())));
            Machine::typical()
        });
        let vram = gpu.as_ref().and_then(|gpu| gpu.report().memory());
        machine.memory = MemorySizes { ram, vram };
        Ok(PlannedMachine { machine, free })
    }
}

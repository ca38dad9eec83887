//! `thermocline devices`: what this machine has to compute with.

use std::io::Write;

use clap::Args;
use serde_json::json;
use sysinfo::{CpuRefreshKind, MemoryRefreshKind, RefreshKind, System};
use thermocline_engine::{
    bench::read_bandwidth,
    cpu::{Cpu, CpuOptions, Isa},
};

use super::{failure::Outcome, units};

/// Bytes read to measure the memory: many times the last cache of most machines, and done in a moment.
const MEASURED: usize = 256 << 20;

/// Shows processors, instruction sets and memory.
#[derive(Debug, Args)]
pub struct DevicesArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn devices(args: &DevicesArgs) -> Outcome {
    let what =
        RefreshKind::nothing().with_cpu(CpuRefreshKind::nothing()).with_memory(MemoryRefreshKind::nothing().with_ram());
    // A system that tells nothing about itself can still compute.
    let system = System::new_with_specifics(what).ok();
    let model = system.as_ref().and_then(|system| system.cpus().first()).map(|cpu| cpu.brand().trim().to_owned());
    let model = model.filter(|brand| !brand.is_empty());
    let physical = System::physical_core_count().ok();
    let logical = std::thread::available_parallelism().map(usize::from).ok();
    let total = system.as_ref().map(System::total_memory);
    let free = system.as_ref().map(System::available_memory);
    let available: Vec<String> = Isa::available().iter().map(Isa::to_string).collect();
    let cpu = Cpu::new(&CpuOptions::default())?;
    let bandwidth = read_bandwidth(cpu.pool(), MEASURED, 2);

    let mut out = std::io::stdout().lock();
    if args.json {
        let report = json!({
            "cpu": {
                "model": model,
                "physical_cores": physical,
                "logical_cores": logical,
                "isa": { "available": available, "chosen": cpu.isa().to_string() },
                "threads": cpu.pool().threads(),
            },
            "memory": { "total_bytes": total, "available_bytes": free, "read_bytes_per_second": bandwidth },
            "gpu": [],
        });
        writeln!(out, "{report:#}")?;
        return Ok(());
    }
    let (physical, logical) = (or_unknown(physical), or_unknown(logical));
    let (total, free) = (or_unknown(total.map(units::bytes)), or_unknown(free.map(units::bytes)));
    writeln!(out, "CPU      {}", or_unknown(model))?;
    writeln!(out, "cores    {physical} physical, {logical} logical; {} threads used", cpu.pool().threads())?;
    writeln!(out, "kernels  {} (available: {})", cpu.isa(), available.join(", "))?;
    writeln!(out, "memory   {total}, {free} available; reads {:.1} GB/s", bandwidth / 1e9)?;
    writeln!(out, "GPU      not used: this version computes on the CPU")?;
    Ok(())
}

fn or_unknown(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "unknown".to_owned(), |value| value.to_string())
}

//! `thermocline devices`: shows the processors, memory and GPUs of this machine.

use std::io::Write;

use clap::Args;
use serde_json::{Value, json};
use sysinfo::{CpuRefreshKind, MemoryRefreshKind, RefreshKind, System};
use thermocline_engine::{
    bench::read_bandwidth,
    cpu::{Cpu, CpuOptions, Isa},
    gpu::{
        AdapterChoice, AdapterId, AdapterKind, AdapterReport, Caps, Fallback, FallbackPart, Fallbacks, VramReading,
        adapters,
    },
    quant::TensorType,
};

use crate::cli::{
    driver_hints,
    gpu_test::{TestedGpu, parse_weights, test_gpus},
};
use thermocline_host::{folders::Folders, units};
use thermocline_terminal::{
    engine_options::Device,
    failure::{Failure, Outcome, one_line},
};

/// Bytes to read for measuring the memory bandwidth: many times the last-level cache of most
/// machines.
const MEASURED: usize = 256 << 20;

const DETAILS: &str = "\
--device chooses a GPU by its number or a part of its name: --device 0, --device radeon.
A software driver is used only if --device chooses it.
If a GPU's driver fails with a feature here, the feature is disabled until the driver or this
program is updated; --try-again enables it again. A feature that is known to fail with the driver on
other machines is disabled too; --try-again enables it only with --force.
Several sources report the used VRAM, and each source counts differently.";

/// Shows processors, memory and GPUs.
#[derive(Debug, Args)]
#[command(after_help = DETAILS)]
pub struct DevicesArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Enable all features of a GPU again, even if its driver has failed with them here. DEVICE is
    /// the GPU's number or a part of its name; without DEVICE, this applies to every GPU
    #[arg(long, value_name = "DEVICE", num_args = 0..=1)]
    try_again: Option<Option<AdapterChoice>>,
    /// Enable even features that are known to fail with the driver on other machines
    #[arg(long, requires = "try_again")]
    force: bool,
    /// Compare every kernel of each GPU with the CPU. A software driver is tested only if --device
    /// chooses it
    #[arg(long)]
    test: bool,
    /// GPU to test, by its number or a part of its name
    #[arg(long, value_name = "DEVICE", requires = "test")]
    device: Option<Device>,
    /// Types of weights to test with, like q4_k,f16 [default: all]
    #[arg(long, value_name = "TYPES", requires = "test", value_delimiter = ',', value_parser = parse_weights)]
    weights: Vec<TensorType>,
}

/// Runs the command.
pub fn devices(args: &DevicesArgs) -> Outcome {
    let what =
        RefreshKind::nothing().with_cpu(CpuRefreshKind::nothing()).with_memory(MemoryRefreshKind::nothing().with_ram());
    // If the system reports nothing about itself, it can still compute.
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
    let fallbacks = Folders::detect().map(|folders| folders.fallbacks()).unwrap_or_default();
    if let Some(which) = &args.try_again {
        try_again(&fallbacks, which.as_ref(), args.force)?;
    }
    let gpus = adapters(&fallbacks);
    let chosen = AdapterChoice::Best.among(&gpus);
    let tested = if args.test { test_gpus(&gpus, args.device.as_ref(), &args.weights)? } else { Vec::new() };

    let mut out = std::io::stdout().lock();
    if args.json {
        let report = json!({
            "cpu": {
                "model": model,
                "physical_cores": physical,
                "logical_cores": logical,
                "isa": { "available": available, "chosen": cpu.isa().to_string(), "portable": cpu.isa().is_portable() },
                "threads": cpu.pool().threads(),
            },
            "memory": { "total_bytes": total, "available_bytes": free, "read_bytes_per_second": bandwidth },
            "gpu": gpus.iter().enumerate().map(|(at, gpu)| gpu_json(gpu, chosen == Some(at), &tested)).collect::<Value>(),
        });
        writeln!(out, "{report:#}")?;
        return Ok(());
    }
    let (physical, logical) = (or_unknown(physical), or_unknown(logical));
    let (total, free) = (or_unknown(total.map(units::bytes)), or_unknown(free.map(units::bytes)));
    writeln!(out, "CPU      {}", or_unknown(model))?;
    writeln!(out, "cores    {physical} physical, {logical} logical; {} threads used", cpu.pool().threads())?;
    writeln!(out, "kernels  {}", kernels(cpu.isa(), &available))?;
    writeln!(out, "memory   {total}, {free} available; reads {:.1} GB/s", bandwidth / 1e9)?;
    for (at, gpu) in gpus.iter().enumerate() {
        write_gpu(&mut out, gpu, chosen == Some(at))?;
    }
    let of_backends = |it: &&Fallback| matches!(it.part, FallbackPart::Backend | FallbackPart::Window);
    for fallback in fallbacks.all().iter().filter(of_backends) {
        writeln!(out, "GPU      {}", one_line(&fallback.to_string()))?;
    }
    match (gpus.is_empty(), chosen) {
        (true, _) => {
            writeln!(out, "GPU      none found: no Vulkan, Metal or Direct3D 12 driver offers a GPU")?;
            driver_hints::of_no_adapter().into_iter().try_for_each(|hint| writeln!(out, "         {hint}"))?;
        }
        (_, None) => writeln!(out, "GPU      none is used unless --device chooses one")?,
        (_, Some(at)) => writeln!(out, "GPU      {at} is used unless --device chooses another")?,
    }
    if args.test && tested.is_empty() {
        writeln!(out, "\nno GPU was tested: a software driver is tested only if --device chooses it")?;
    }
    tested.iter().try_for_each(|tested| tested.write(&mut out))?;
    Ok(())
}

/// Formats `avx2 (available: scalar, avx2)`. Marks portable code as slow, because nothing else
/// explains slow answers.
fn kernels(chosen: Isa, available: &[String]) -> String {
    let slow = if chosen.is_portable() { ", portable code without vector instructions: slow" } else { "" };
    format!("{chosen}{slow} (available: {})", available.join(", "))
}

/// Enables all features again of the GPUs that `which` names, or of every GPU. With `force`,
/// ignores known driver faults too.
fn try_again(fallbacks: &Fallbacks, which: Option<&AdapterChoice>, force: bool) -> Outcome {
    if which.is_none() {
        fallbacks.clear();
        if !force {
            return Ok(());
        }
    }
    let gpus = adapters(fallbacks);
    let named: Vec<&AdapterReport> = gpus.iter().filter(|gpu| which.is_none_or(|which| which.names(gpu))).collect();
    if let Some(which) = which.filter(|_| named.is_empty()) {
        return Err(Failure::usage(format!("--try-again: {}", which.error(&gpus))));
    }
    for adapter in named.into_iter().map(AdapterId::of) {
        if force { fallbacks.overrule(&adapter) } else { fallbacks.try_again(&adapter) }
    }
    Ok(())
}

fn write_gpu(out: &mut impl Write, gpu: &AdapterReport, chosen: bool) -> std::io::Result<()> {
    let caps = &gpu.caps;
    let mark = match gpu.kind {
        _ if chosen => ", chosen automatically",
        AdapterKind::Software => ", never chosen automatically",
        _ => "",
    };
    writeln!(out, "GPU {:<4} {}: {}, {}{mark}", gpu.index, one_line(&gpu.name), gpu.kind, gpu.backend)?;
    writeln!(out, "         driver {}, PCI {}", or_unknown(some(&gpu.driver)), or_unknown(some(&gpu.pci_bus_id)))?;
    writeln!(out, "         kernels {}; {}", caps.tier, subgroups(caps))?;
    for fallback in Fallback::worth_telling(&gpu.fallbacks) {
        let Fallback { part, why, since, .. } = fallback;
        let since = if fallback.is_known() { ", known to fail".to_owned() } else { format!(" since {}", day(*since)) };
        writeln!(out, "         {part} disabled{since}: {}", one_line(why))?;
    }
    driver_hints::of_backend(&gpu.backend).into_iter().try_for_each(|hint| writeln!(out, "         {hint}"))?;
    let (buffer, binding) = (units::bytes(caps.max_buffer), units::bytes(caps.max_binding));
    writeln!(out, "         buffers up to {buffer}, bindings up to {binding}")?;
    for reading in &gpu.vram {
        writeln!(out, "         memory {}", reading_text(reading))?;
    }
    Ok(())
}

/// Formats a date like `2026-11-26`, in UTC.
fn day(seconds: u64) -> String {
    let time = i64::try_from(seconds).ok().and_then(|seconds| chrono::DateTime::from_timestamp(seconds, 0));
    or_unknown(time.map(|time| time.format("%Y-%m-%d")))
}

/// Formats `subgroups of 8 to 32`. Kernels use no subgroups if the adapter has none or its driver
/// names no size.
fn subgroups(caps: &Caps) -> String {
    match caps.subgroups {
        (least, most) if caps.tier.subgroups && most > 0 => format!("subgroups of {least} to {most}"),
        _ => "no subgroups".to_owned(),
    }
}

/// Formats `8.0 GiB, 1.2 GiB used by all programs, 0 B by this one (NVML)`.
fn reading_text(reading: &VramReading) -> String {
    let mut parts = vec![or_unknown(reading.total.map(units::bytes))];
    parts.extend(reading.used.map(|used| format!("{} used by all programs", units::bytes(used))));
    parts.extend(reading.used_here.map(|used| format!("{} used by this program", units::bytes(used))));
    parts.extend(reading.available().map(|bytes| format!("{} available", units::bytes(bytes))));
    format!("{} ({})", parts.join(", "), reading.source.name())
}

fn gpu_json(gpu: &AdapterReport, chosen: bool, tested: &[TestedGpu]) -> Value {
    let caps = &gpu.caps;
    let with_available = |reading: &VramReading| {
        let mut object = json!(reading);
        object["available_bytes"] = json!(reading.available());
        object
    };
    let mut object = json!({
        "index": gpu.index,
        "name": gpu.name,
        "type": gpu.kind,
        "backend": gpu.backend,
        "driver": some(&gpu.driver),
        "pci_bus_id": some(&gpu.pci_bus_id),
        "tier": { "subgroups": caps.tier.subgroups, "f16": caps.tier.f16 },
        "subgroup_sizes": [caps.subgroups.0, caps.subgroups.1],
        "max_buffer_bytes": caps.max_buffer,
        "max_binding_bytes": caps.max_binding,
        "timestamps": caps.timestamps,
        "cooperative_matrix": caps.cooperative.is_some(),
        "chosen": chosen,
        "fallbacks": gpu.fallbacks.iter().map(fallback_json).collect::<Value>(),
        "vram": gpu.vram.iter().map(with_available).collect::<Value>(),
    });
    if let Some(tested) = tested.iter().find(|tested| tested.index == gpu.index) {
        object["self_test"] = tested.json();
    }
    object
}

fn fallback_json(fallback: &Fallback) -> Value {
    let since = Some(fallback.since).filter(|_| !fallback.is_known());
    json!({ "part": fallback.part.to_string(), "why": fallback.why, "since": since, "known": fallback.is_known() })
}

/// Converts an empty text to `None`.
fn some(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| one_line(text))
}

fn or_unknown(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "unknown".to_owned(), |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use thermocline_engine::gpu::GpuFeature;
    use thermocline_shaders::Tier;

    use super::*;

    #[test]
    fn disabled_parts_have_their_day_and_reason() {
        let mut gpu = adapters(&Fallbacks::default()).remove(0);
        let fallback = Fallback::new(AdapterId::of(&gpu), FallbackPart::Feature(GpuFeature::PackedDot), "it was wrong");
        let known = Fallback { since: 0, ..fallback.clone() };
        gpu.fallbacks = vec![known.clone(), Fallback { since: 1_795_708_800, ..fallback }];
        let mut out = Vec::new();
        write_gpu(&mut out, &gpu, false).unwrap();
        let text = String::from_utf8(out).unwrap();
        for line in
            ["packed dot products disabled, known to fail: it was wrong\n", "disabled since 2026-11-26: it was wrong\n"]
        {
            assert!(text.contains(line), "{text}");
        }
        // If a whole adapter is disabled, its disabled features are not listed.
        gpu.fallbacks.push(Fallback::new(AdapterId::of(&gpu), FallbackPart::Adapter, "it was lost"));
        let mut out = Vec::new();
        write_gpu(&mut out, &gpu, false).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(
            text.contains("the whole adapter disabled since") && !text.contains("packed dot products disabled"),
            "{text}"
        );
        let json = fallback_json(&known);
        assert!(json["known"] == true && json["since"].is_null(), "{json}");
    }

    #[test]
    fn portable_kernels_are_named_as_slow() {
        let available = ["scalar", "neon"].map(str::to_owned);
        assert_eq!(kernels(Isa::Neon, &available), "neon (available: scalar, neon)");
        let slow = kernels(Isa::Scalar, &available[..1]);
        assert_eq!(slow, "scalar, portable code without vector instructions: slow (available: scalar)");
    }

    #[test]
    fn days_are_those_of_utc() {
        assert_eq!(day(1_795_708_800), "2026-11-26");
        assert_eq!(day(u64::MAX), "unknown");
    }

    #[test]
    fn subgroups_that_are_not_there_have_no_size() {
        let caps =
            |subgroups, sizes| Caps { tier: Tier { subgroups, f16: false }, subgroups: sizes, ..Caps::default() };
        assert_eq!(super::subgroups(&caps(true, (8, 32))), "subgroups of 8 to 32");
        for none in [caps(false, (0, 0)), caps(false, (4, 128)), caps(true, (0, 0))] {
            assert_eq!(super::subgroups(&none), "no subgroups");
        }
    }
}

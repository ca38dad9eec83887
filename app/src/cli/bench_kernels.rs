//! `thermocline bench --kernels`: measures each kernel alone, and compares it with the memory
//! bandwidth.

use std::io::Write;

use serde_json::{Value, json};
use thermocline_engine::{
    bench::{
        BenchOptions, GpuEffort, GpuSpeed, KernelSpeed, ModelProfile, TestProfile, gpu_kernel_speed, gpu_speed,
        kernel_speed, profile_kernels, read_bandwidth,
    },
    cpu::Cpu,
    gpu::{Gpu, GpuOptions, KernelTimes, WeightType},
    quant::TensorType,
};

use crate::cli::{bench::BenchForm, table::TextTable};
use thermocline_terminal::{
    failure::{Failure, Outcome},
    model_options::ModelOptions,
};

/// Weight types for which GPUs have kernels. Other types are converted to one of them.
const GPU_TYPES: [TensorType; 8] = [
    TensorType::Q4_0,
    TensorType::Q4_K,
    TensorType::Q5_K,
    TensorType::Q6_K,
    TensorType::Q8_0,
    TensorType::F16,
    TensorType::BF16,
    TensorType::F32,
];

/// Rows and columns: attention and FFN of a 7-billion-parameter model. The next constant is for a
/// quick look.
const SHAPES: [(usize, usize); 3] = [(4096, 4096), (11008, 4096), (4096, 11008)];
const QUICK_SHAPES: [(usize, usize); 1] = [(1024, 2048)];

/// Tokens per product: decoding, and a chunk of a prompt.
const TOKENS: [usize; 2] = [1, 256];
const QUICK_TOKENS: [usize; 2] = [1, 32];

/// Runs the command.
pub(super) fn kernels(model: &ModelOptions, options: &BenchOptions, form: BenchForm) -> Outcome {
    if !matches!(form, BenchForm::Md | BenchForm::Json) {
        return Err(Failure::usage("--kernels: expected the forms md or json"));
    }
    let (json, text) = match &model.model {
        Some(path) => {
            let profile = profile_kernels(path, options, &mut |_| {})?;
            (profile_json(&profile), profile_text(&profile))
        }
        None => {
            let products = ProductBench::measure(options)?;
            (products.json(), products.text())
        }
    };
    let mut out = std::io::stdout().lock();
    match form {
        BenchForm::Json => writeln!(out, "{json:#}")?,
        _ => out.write_all(text.as_bytes())?,
    }
    Ok(())
}

fn profile_json(of: &ModelProfile) -> Value {
    let kernel = |times: &KernelTimes| {
        json!({
            "kernel": times.kernel,
            "weights": times.weights.map(|ty| ty.name()),
            "calls": times.calls,
            "nanoseconds": times.nanoseconds,
            "bytes": times.bytes,
            "flops": times.flops,
            "bytes_per_second": times.bytes_per_second(),
            "flops_per_second": times.flops_per_second(),
        })
    };
    let test = |of: &TestProfile| {
        json!({
            "n_prompt": of.test.prompt,
            "n_gen": of.test.generate,
            "n_depth": of.test.depth,
            "seconds": of.seconds,
            "clock": of.profile.clock,
            "kernels": of.profile.kernels.iter().map(kernel).collect::<Value>(),
        })
    };
    json!({
        "gpu": of.adapter.name,
        "speed": of.speed,
        "tests": of.tests.iter().map(test).collect::<Value>(),
    })
}

fn profile_text(of: &ModelProfile) -> String {
    let mut text = String::new();
    for TestProfile { test, seconds, profile } in &of.tests {
        let tokens = (test.prompt + test.generate) as f64;
        let heads = ["kernel", "calls", "ms", "share of time", "us/call", "GB/s", "of copy bandwidth", "GFLOP/s"];
        let mut lines = TextTable::new(&heads);
        let all = profile.nanoseconds().max(1.0);
        for times in &profile.kernels {
            let rate = times.bytes_per_second();
            lines.row([
                times.name(),
                times.calls.to_string(),
                format!("{:.3}", times.nanoseconds / 1e6),
                format!("{:.1} %", times.nanoseconds / all * 100.0),
                format!("{:.1}", times.nanoseconds / times.calls.max(1) as f64 / 1e3),
                rate.map_or(String::new(), |rate| format!("{:.1}", rate / 1e9)),
                rate.map_or(String::new(), |rate| percent_of(rate, of.speed.copy_bytes_per_second)),
                times.flops_per_second().map_or(String::new(), |rate| format!("{:.0}", rate / 1e9)),
            ]);
        }
        text += &format!("prompt {}, generated {}, depth {}: ", test.prompt, test.generate, test.depth);
        text += &format!("{:.2} t/s, {:.1} ms; in kernels {:.1} ms", tokens / seconds, seconds * 1e3, all / 1e6);
        text += &format!(" ({})\n\n{}\n", profile.clock.name(), lines.text());
    }
    text + &speed_text(&of.adapter.name, &of.speed)
}

/// Formats `1234.5` of `2000` as `62 %`.
fn percent_of(rate: f64, of: f64) -> String {
    format!("{:.0} %", rate / of * 100.0)
}

fn speed_text(name: &str, speed: &GpuSpeed) -> String {
    let gb = |rate: f64| format!("{:.1} GB/s", rate / 1e9);
    format!(
        "{name}\ncopy bandwidth {}, read bandwidth {}; over the bus {} up, {} down\n\
         hand-over of 16 KiB: median {:.1} us, 95 of 100 within {:.1} us\n",
        gb(speed.copy_bytes_per_second),
        gb(speed.read_bytes_per_second),
        gb(speed.upload_bytes_per_second),
        gb(speed.download_bytes_per_second),
        speed.hand_over.median_us,
        speed.hand_over.p95_us,
    )
}

/// Measured products of all weight types, without a model.
struct ProductBench {
    device: String,
    /// Speeds of the GPU; `None` for the CPU, whose read bandwidth alone is measured.
    speed: Option<GpuSpeed>,
    /// Bandwidth to compare products with, in bytes per second.
    bandwidth: f64,
    products: Vec<BenchedProduct>,
}

/// A measured product.
struct BenchedProduct {
    rows: usize,
    cols: usize,
    /// Arithmetic of the product: the engine's choice or a forced one.
    way: &'static str,
    speed: KernelSpeed,
}

/// Name of the arithmetic that the engine chooses.
const CHOSEN: &str = "as chosen";

/// Bytes to read for measuring the memory bandwidth.
const MEASURED: usize = 256 << 20;

impl ProductBench {
    fn measure(options: &BenchOptions) -> Outcome<Self> {
        let quick = options.effort.bytes < GpuEffort::default().bytes;
        let (shapes, tokens) = if quick { (&QUICK_SHAPES[..], QUICK_TOKENS) } else { (&SHAPES[..], TOKENS) };
        let of_type = |ty| shapes.iter().flat_map(move |shape| tokens.map(|tokens| (ty, *shape, tokens)));
        let Some(gpu_options) = &options.gpu else {
            let cpu = Cpu::new(&options.cpu)?;
            let bandwidth = read_bandwidth(cpu.pool(), MEASURED, 2);
            let one = |(ty, (rows, cols), tokens)| {
                let speed = kernel_speed(&cpu, ty, rows, cols, tokens, 3)?;
                Ok(BenchedProduct { rows, cols, way: CHOSEN, speed })
            };
            let types = TensorType::ALL.into_iter().filter(|ty| ty.is_weight());
            let products = types.flat_map(of_type).map(one).collect::<Outcome<_>>()?;
            return Ok(ProductBench { device: format!("CPU, {}", cpu.isa()), speed: None, bandwidth, products });
        };
        let gpu = Gpu::open(gpu_options)?;
        let speed = gpu_speed(&gpu, &options.effort)?;
        let (device, bandwidth) = (gpu.report().name.clone(), speed.copy_bytes_per_second);
        let on = |gpu: &Gpu, way, (ty, (rows, cols), tokens)| {
            let speed = gpu_kernel_speed(gpu, ty, rows, cols, tokens, &options.effort)?;
            Ok::<_, Failure>(BenchedProduct { rows, cols, way, speed })
        };
        let mut products =
            GPU_TYPES.into_iter().flat_map(of_type).map(|case| on(&gpu, CHOSEN, case)).collect::<Outcome<Vec<_>>>()?;
        drop(gpu);
        for (way, packed) in [("floats", false), ("integers", true)] {
            let gpu = Gpu::open(&GpuOptions { packed_dot: Some(packed), ..gpu_options.clone() })?;
            let both = GPU_TYPES.into_iter().filter(|ty| WeightType::PACKED.contains(&ty.device_type()));
            products.extend(both.map(|ty| on(&gpu, way, (ty, shapes[0], 1))).collect::<Outcome<Vec<_>>>()?);
        }
        Ok(ProductBench { device, speed: Some(speed), bandwidth, products })
    }

    fn json(&self) -> Value {
        let product = |of: &BenchedProduct| {
            let mut object = json!(of.speed);
            object["rows"] = json!(of.rows);
            object["cols"] = json!(of.cols);
            object["way"] = json!(of.way);
            object
        };
        json!({
            "device": self.device,
            "speed": self.speed,
            "bandwidth": self.bandwidth,
            "products": self.products.iter().map(product).collect::<Value>(),
        })
    }

    fn text(&self) -> String {
        let limit = if self.speed.is_some() { "of copy bandwidth" } else { "of read bandwidth" };
        let heads = ["weights", "rows x columns", "tokens", "arithmetic", "us", "GB/s", limit, "GFLOP/s"];
        let mut lines = TextTable::new(&heads);
        for BenchedProduct { rows, cols, way, speed } in &self.products {
            lines.row([
                speed.weight_type.clone(),
                format!("{rows} x {cols}"),
                speed.tokens.to_string(),
                (*way).to_owned(),
                format!("{:.1}", speed.seconds * 1e6),
                format!("{:.1}", speed.bytes_per_second / 1e9),
                percent_of(speed.bytes_per_second, self.bandwidth),
                format!("{:.0}", speed.macs_per_second * 2.0 / 1e9),
            ]);
        }
        let limits = match &self.speed {
            Some(speed) => speed_text(&self.device, speed),
            None => format!("{}\nread bandwidth {:.1} GB/s\n", self.device, self.bandwidth / 1e9),
        };
        format!("{}\n{limits}", lines.text())
    }
}

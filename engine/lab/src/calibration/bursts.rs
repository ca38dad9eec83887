//! Speed of a GPU's products in bursts: short submissions with waits between them, as split layers
//! make. Drivers of Radeon, Apple and laptop GPUs lower the clocks of a GPU that waits. A short
//! submission does not raise the clocks again. All other speeds are measured with products back to
//! back, so they promise more than a split layer gets.
//!
//! Each weight type is measured separately. A type that takes many instructions to unpack depends
//! on the core clock, a float type on the memory clock. Drivers lower one clock or both.

use std::{
    hint,
    time::{Duration, Instant},
};

use super::{gpu::GpuEffort, gpu_products::GpuProducts};
use thermocline_base::error::Result;
use thermocline_gpu::{Gpu, ReadbackRing, Recorder};

/// Seconds of a burst's products at their sustained speed. Computing a layer's hot neurons takes
/// about as long, for a small layer on a slow card or a large layer on a fast card.
const BURST: f64 = 200e-6;
/// Most products per burst, at any speed.
const MOST_PRODUCTS: usize = 4096;
/// Pause after a burst: about the time that the CPU needs for a layer's cold neurons.
const PAUSE: Duration = Duration::from_millis(1);
/// Time of all bursts of a type, as a multiple of one measurement ([`GpuEffort::seconds`]): 0.12 s
/// in a calibration. The first half lets the clocks drop and does not count.
const TIMES: f64 = 12.0;
/// Fewest bursts, if a burst takes long.
const FEWEST: usize = 4;
/// Bytes to read back after a burst, as in a hand-over.
const RESULTS: u64 = 16 << 10;

/// Speeds of a device without waits.
#[derive(Debug, Clone, Copy)]
pub(super) struct WithoutWaits {
    /// Bytes of weights read per second by products back to back.
    pub bytes_per_second: f64,
    /// Seconds of a hand-over.
    pub hand_over: f64,
}

/// Returns the bytes of weights that `products` read per second in bursts on `gpu`, at most the
/// speed without waits. The time is from a submission until its results arrive, minus a hand-over.
/// The price of a split layer adds the hand-over again and thus equals the measured time.
///
/// # Errors
/// [`Error::Gpu`](thermocline_base::error::Error::Gpu) if the device is lost or only counts.
/// [`Error::Memory`](thermocline_base::error::Error::Memory) if there is no room for results.
pub(super) fn burst_speed(
    gpu: &Gpu,
    products: &GpuProducts,
    without_waits: &WithoutWaits,
    effort: &GpuEffort,
) -> Result<f64> {
    let wanted = BURST * without_waits.bytes_per_second / products.bytes().max(1) as f64;
    let count = (wanted.ceil() as usize).clamp(1, MOST_PRODUCTS);
    let results = products.results();
    let bytes = RESULTS.min(results.bytes());
    let mut ring = ReadbackRing::new(gpu, 1, bytes)?;
    let mut seconds = Vec::new();
    let began = Instant::now();
    while seconds.len() < FEWEST || began.elapsed().as_secs_f64() < TIMES * effort.seconds {
        let mut recorder = Recorder::new(gpu);
        products.record(&mut recorder, seconds.len() * count, count);
        let submitted = Instant::now();
        ring.read(recorder, &[(results, 0, bytes)], || (), |read| _ = hint::black_box(read))?;
        seconds.push(submitted.elapsed().as_secs_f64());
        compute(PAUSE);
    }
    let mut settled = seconds.split_off(seconds.len() / 2);
    Ok(speed(products.bytes() * count as u64, &mut settled, without_waits))
}

/// Keeps this thread busy for `time`, as the CPU's part of a layer does. A sleeping thread would
/// wake late and let the CPU's clocks drop.
fn compute(time: Duration) {
    let began = Instant::now();
    while began.elapsed() < time {
        hint::spin_loop();
    }
}

/// Returns the bytes per second of bursts of `bytes`. Uses the median of `seconds`, because other
/// programs disturb some bursts.
fn speed(bytes: u64, seconds: &mut [f64], without_waits: &WithoutWaits) -> f64 {
    seconds.sort_by(f64::total_cmp);
    let median = seconds.get(seconds.len() / 2).copied().unwrap_or(0.0);
    let took = median - without_waits.hand_over;
    let least = bytes as f64 / without_waits.bytes_per_second;
    if took > least { bytes as f64 / took } else { without_waits.bytes_per_second }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thermocline_base::error::Error;
    use thermocline_formats::quant::TensorType;
    use thermocline_gpu::{AdapterChoice, GpuOptions};

    const LITTLE: GpuEffort = GpuEffort { bytes: 5 << 20, seconds: 0.002, hand_overs: 20 };

    fn open() -> Gpu {
        let (adapter, budget) = (AdapterChoice::Index(0), Some(64 << 20));
        Gpu::open(&GpuOptions { adapter, budget, ..GpuOptions::default() }).unwrap()
    }

    #[test]
    fn speed_in_bursts_is_of_the_median_without_the_hand_over() {
        let quick = WithoutWaits { bytes_per_second: 100e9, hand_over: 50e-6 };
        let near = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-9;
        // 20 MB take 200 us without waits. Here they take 600 us and a hand-over.
        assert!(near(speed(20_000_000, &mut [9.0, 650e-6, 1e-6, 650e-6, 650e-6], &quick), 100e9 / 3.0));
        assert!(near(speed(20_000_000, &mut [250e-6; 3], &quick), 100e9), "clocks that do not sink");
        for impossible in [0.0, 40e-6, 249e-6] {
            assert!(near(speed(20_000_000, &mut [impossible; 3], &quick), 100e9), "never quicker");
        }
        assert!(near(speed(20_000_000, &mut [], &quick), 100e9));
    }

    #[test]
    fn bursts_are_measured_and_no_quicker_than_work_without_waits() {
        let gpu = open();
        let used = gpu.arena().used();
        for ty in [TensorType::Q4_0, TensorType::F16] {
            let products = GpuProducts::new(&gpu, ty, 512, 1024, 1, &LITTLE).unwrap();
            let bytes_per_second = products.sustained(&gpu, &LITTLE).unwrap();
            let began = Instant::now();
            let of = |hand_over| WithoutWaits { bytes_per_second, hand_over };
            let speed = burst_speed(&gpu, &products, &of(1e-6), &LITTLE).unwrap();
            assert!(began.elapsed() >= PAUSE * FEWEST as u32, "{:?} with {FEWEST} pauses", began.elapsed());
            assert!(speed.is_finite() && speed > 0.0 && speed <= bytes_per_second, "{speed} of {bytes_per_second}");
            // If a hand-over takes as long as the bursts, the result is the speed without waits.
            assert_eq!(burst_speed(&gpu, &products, &of(60.0), &LITTLE).unwrap(), bytes_per_second);
        }
        assert_eq!(gpu.arena().used(), used, "all memory is given back");
    }

    #[test]
    fn bursts_of_a_device_that_only_counts_are_an_error() {
        let gpu = Gpu::counting(*open().caps(), None).unwrap();
        let products = GpuProducts::new(&gpu, TensorType::Q4_0, 512, 1024, 1, &LITTLE).unwrap();
        for bytes_per_second in [1e9, 0.0, f64::NAN, f64::INFINITY] {
            let without_waits = WithoutWaits { bytes_per_second, hand_over: 1e-6 };
            let refused = burst_speed(&gpu, &products, &without_waits, &LITTLE);
            assert!(matches!(refused, Err(Error::Gpu { .. })), "{refused:?}");
        }
    }
}

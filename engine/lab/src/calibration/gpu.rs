//! Speeds of a GPU: memory bandwidth, uploads, downloads, and hand-overs.

use std::time::Instant;

use serde::Serialize;

use super::turns::lower_quartile;
use thermocline_base::error::{Error, Result, ScarceMemory};
use thermocline_gpu::{Binding, Buffer, Gpu, Op, Purpose, ReadbackRing, Recorder, UploadRing, Usage, grid, params};

/// Effort of measuring a GPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GpuEffort {
    /// Bytes to move at once, more than a card's last cache. Fewer if limits or the budget are
    /// smaller.
    pub bytes: u64,
    /// Seconds per measurement. The lower quartile of [`ROUNDS`] measurements counts.
    pub seconds: f64,
    /// Number of hand-overs measured.
    pub hand_overs: usize,
}

/// Measurements of each kind.
const ROUNDS: usize = 5;

impl Default for GpuEffort {
    fn default() -> Self {
        GpuEffort { bytes: 256 << 20, seconds: 0.05, hand_overs: 200 }
    }
}

/// Speeds of an adapter, in bytes per second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct GpuSpeed {
    /// Copies between buffers. Bytes read and bytes written both count.
    pub copy_bytes_per_second: f64,
    /// Reads by a kernel.
    pub read_bytes_per_second: f64,
    /// Uploads from the CPU's memory to the device's, through the engine's ring.
    pub upload_bytes_per_second: f64,
    /// Downloads from the device's memory to the CPU's, through the engine's ring.
    pub download_bytes_per_second: f64,
    /// Time from the submission of a small kernel until 16 KiB of its results have been read back.
    pub hand_over: HandOverTimes,
}

/// Times of hand-overs, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct HandOverTimes {
    /// Median.
    pub median_us: f64,
    /// 95th percentile.
    pub p95_us: f64,
}

/// Measures the speeds of `gpu`.
///
/// # Errors
/// [`Error::Memory`] if its budget has no room for a small measurement, [`Error::Gpu`] if the
/// device is lost.
pub fn gpu_speed(gpu: &Gpu, effort: &GpuEffort) -> Result<GpuSpeed> {
    let buffer = |bytes| gpu.arena().buffer(Purpose::Scratch, "bandwidth measurement", bytes, Usage::Storage);
    let bytes = (gpu.arena().available() / 4).min(gpu.caps().max_buffer).min(effort.bytes) / NOISE * NOISE;
    if bytes == 0 {
        let wanted = 4 * NOISE;
        return Err(Error::memory(ScarceMemory::Gpu, "bandwidth measurement", wanted, gpu.arena().available()));
    }
    let (from, to) = (buffer(bytes)?, buffer(bytes)?);
    fill(gpu, &from)?;
    let copy = rate(gpu, effort, 2 * bytes, |recorder| recorder.copy(&from, 0, &to, 0, bytes))?;
    let read = read_bandwidth(gpu, effort, &from)?;
    let (upload, download) = (upload(gpu, effort, &to)?, download(gpu, effort, &to)?);
    Ok(GpuSpeed {
        copy_bytes_per_second: copy,
        read_bytes_per_second: read,
        upload_bytes_per_second: upload,
        download_bytes_per_second: download,
        hand_over: hand_over(gpu, effort.hand_overs)?,
    })
}

/// Bytes of noise that fill buffers. Some memory is faster when it holds zeros.
const NOISE: u64 = 64 << 10;

/// Fills `buffer`, whose length is a multiple of [`NOISE`], with noise.
fn fill(gpu: &Gpu, buffer: &Buffer) -> Result<()> {
    let mut state = 1_u32;
    let mut word = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.rotate_left(16).to_le_bytes()
    };
    let noise: Vec<u8> = (0..NOISE / 4).flat_map(|_| word()).collect();
    let source = gpu.arena().buffer(Purpose::Scratch, "noise", NOISE, Usage::Storage)?;
    let mut ring = UploadRing::new(gpu, 1, NOISE)?;
    let mut recorder = Recorder::new(gpu);
    ring.record(&mut recorder, &[(&noise, &source, 0)])?;
    (0..buffer.bytes() / NOISE).for_each(|at| recorder.copy(&source, 0, buffer, at * NOISE, NOISE));
    let index = recorder.submit()?;
    ring.submitted();
    gpu.wait(index)
}

/// Returns the seconds until the commands that `record` records are done.
fn seconds(gpu: &Gpu, record: impl FnOnce(&mut Recorder)) -> Result<f64> {
    let mut recorder = Recorder::new(gpu);
    record(&mut recorder);
    let started = Instant::now();
    let index = recorder.submit()?;
    gpu.wait(index)?;
    Ok(started.elapsed().as_secs_f64())
}

/// Returns the bytes per second of `record`, which moves `bytes`. One submission repeats it until
/// half of the intended time passes, so that the submission's overhead does not count.
pub(super) fn rate(gpu: &Gpu, effort: &GpuEffort, bytes: u64, mut record: impl FnMut(&mut Recorder)) -> Result<f64> {
    let mut times = 1_u32;
    let mut run = |times: u32| seconds(gpu, |recorder| (0..times).for_each(|_| record(recorder)));
    // The first run touches memory and compiles shaders.
    run(1)?;
    let mut took = run(times)?;
    while took < effort.seconds / 2.0 && times < 1 << 12 {
        times *= 2;
        took = run(times)?;
    }
    let mut rounds = vec![took];
    while rounds.len() < ROUNDS {
        rounds.push(run(times)?);
    }
    Ok(bytes as f64 * f64::from(times) / lower_quartile(&rounds))
}

fn read_bandwidth(gpu: &Gpu, effort: &GpuEffort, data: &Buffer) -> Result<f64> {
    let workgroup = 256;
    let pipeline = gpu.pipelines().get("read_bandwidth", None, workgroup, &[])?;
    let workgroup = pipeline.workgroup();
    let align = gpu.caps().binding_alignment.max(16);
    let part = gpu.caps().max_binding.min(data.bytes()) / align * align;
    // Enough workgroups to fill any card, but at least some elements per invocation.
    let groups = (part / 64).div_ceil(u64::from(workgroup)).min(2048) as usize;
    let [x, y] = grid(groups, gpu.caps().max_groups);
    let (stride, invocations) = (x * workgroup, x * y * workgroup);
    let sums = gpu.arena().buffer(Purpose::Scratch, "sums", u64::from(invocations) * 4, Usage::Storage)?;
    let parts = (0..data.bytes()).step_by(usize::try_from(part).unwrap_or(usize::MAX).max(1)).map(|at| {
        let bytes = part.min(data.bytes() - at);
        let op = Op::new(gpu, &pipeline, &[Binding::part(data, at, bytes), (&sums).into()])?;
        Ok((op, params::Stream { len: (bytes / 16) as u32, stride, invocations }))
    });
    let parts = parts.collect::<Result<Vec<_>>>()?;
    rate(gpu, effort, data.bytes(), |recorder| {
        parts.iter().for_each(|(op, params)| recorder.dispatch(op, params, [x, y, 1]));
    })
}

/// Bytes of one transfer over the bus.
const TRANSFER: u64 = 16 << 20;

fn upload(gpu: &Gpu, effort: &GpuEffort, to: &Buffer) -> Result<f64> {
    let load = to.bytes().min(TRANSFER);
    let data = vec![0x5a_u8; load as usize];
    let mut ring = UploadRing::new(gpu, 2, load)?;
    let begin = || {
        let mut recorder = Recorder::new(gpu);
        ring.record(&mut recorder, &[(&data, to, 0)])?;
        let index = recorder.submit()?;
        ring.submitted();
        Ok(index)
    };
    transfer_rate(effort, load, begin, |index| gpu.wait(index))
}

/// Returns the bytes per second of back-to-back transfers of `bytes` each. `begin` begins a
/// transfer, and `end` waits for the last transfer of a round.
pub(super) fn transfer_rate<T>(
    effort: &GpuEffort,
    bytes: u64,
    mut begin: impl FnMut() -> Result<T>,
    end: impl Fn(T) -> Result<()>,
) -> Result<f64> {
    let mut seconds_per_byte = Vec::new();
    for _ in 0..=ROUNDS {
        let (started, mut transfers) = (Instant::now(), 0_u64);
        loop {
            let begun = begin()?;
            transfers += 1;
            if started.elapsed().as_secs_f64() >= effort.seconds {
                end(begun)?;
                break;
            }
        }
        seconds_per_byte.push(started.elapsed().as_secs_f64() / (transfers * bytes) as f64);
    }
    // The first round touches memory.
    Ok(1.0 / lower_quartile(&seconds_per_byte[1..]))
}

fn download(gpu: &Gpu, effort: &GpuEffort, from: &Buffer) -> Result<f64> {
    let load = from.bytes().min(TRANSFER);
    let mut data = vec![0_u8; load as usize];
    let mut ring = ReadbackRing::new(gpu, 1, load)?;
    let read = || ring.read(Recorder::new(gpu), &[(from, 0, load)], || (), |bytes| data.copy_from_slice(bytes));
    transfer_rate(effort, load, read, Ok)
}

/// Floats per hand-over: the residual stream of a model of usual width.
const HAND_OVER_FLOATS: u32 = 4096;

fn hand_over(gpu: &Gpu, times: usize) -> Result<HandOverTimes> {
    let bytes = u64::from(HAND_OVER_FLOATS) * 4;
    let buffer = || gpu.arena().buffer(Purpose::Scratch, "hand-over", bytes, Usage::Storage);
    let (sum, delta) = (buffer()?, buffer()?);
    let op = Op::of(gpu, "add", 128, &[], &[&sum, &delta])?;
    let params =
        params::Elements { cols: HAND_OVER_FLOATS, pitch: HAND_OVER_FLOATS, rows: 1, stride: HAND_OVER_FLOATS };
    let groups = [HAND_OVER_FLOATS.div_ceil(op.pipeline().workgroup()), 1, 1];
    let mut ring = ReadbackRing::new(gpu, 2, bytes)?;
    let mut handed = vec![0_u8; bytes as usize];
    let mut once = || {
        let started = Instant::now();
        let mut recorder = Recorder::new(gpu);
        recorder.dispatch(&op, &params, groups);
        ring.read(recorder, &[(&sum, 0, bytes)], || (), |read| handed.copy_from_slice(read))?;
        Ok(started.elapsed().as_secs_f64() * 1e6)
    };
    let warm_up = times / 10;
    let mut all = (0..times + warm_up).map(|_| once()).collect::<Result<Vec<f64>>>()?.split_off(warm_up);
    all.sort_by(f64::total_cmp);
    let at = |percent: usize| all.get((all.len() * percent).div_ceil(100).saturating_sub(1)).copied().unwrap_or(0.0);
    Ok(HandOverTimes { median_us: at(50), p95_us: at(95) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use thermocline_gpu::{AdapterChoice, GpuOptions};

    fn open(budget: u64) -> Gpu {
        let (adapter, budget) = (AdapterChoice::Index(0), Some(budget));
        Gpu::open(&GpuOptions { adapter, budget, max_binding: Some(1 << 20), ..GpuOptions::default() }).unwrap()
    }

    const LITTLE: GpuEffort = GpuEffort { bytes: 5 << 20, seconds: 0.002, hand_overs: 20 };

    #[test]
    fn gpu_speed_is_measured_within_the_budget() {
        let gpu = open(64 << 20);
        let speed = gpu_speed(&gpu, &LITTLE).unwrap();
        let rates = [
            speed.copy_bytes_per_second,
            speed.read_bytes_per_second,
            speed.upload_bytes_per_second,
            speed.download_bytes_per_second,
        ];
        // Software drivers move more than 10 MB/s and less than 1 TB/s.
        assert!(rates.iter().all(|rate| (1e7..1e12).contains(rate)), "{speed:?}");
        assert!(speed.hand_over.median_us > 1.0 && speed.hand_over.p95_us >= speed.hand_over.median_us, "{speed:?}");
        assert_eq!(gpu.arena().used(), gpu.nothing().bytes(), "all memory is given back");

        let small = open(2 << 20);
        gpu_speed(&small, &LITTLE).unwrap();
        assert!(matches!(gpu_speed(&open(1000), &LITTLE), Err(Error::Memory { .. })));
    }
}

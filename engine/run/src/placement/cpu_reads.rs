//! The weights that the CPU reads for a token, and the part of them that comes from the disk if not
//! all fit into RAM.
//!
//! The order in which weights stay in RAM is the pager's: by uses per byte, times what it costs to
//! read a byte of them ([`Pager`](thermocline_formats::format::Pager)). Matrices that are read
//! whole are read ahead in the order of the previous token, while the CPU computes. Rows and
//! experts that a token chooses are known only when it has chosen them, so that the CPU waits for
//! their reads.

use super::{CostProfile, LayerCosts, Placement, ReadBytes, SkippedRows};
use thermocline_formats::format::{EXPERT_PIECE, REQUEST_BYTES, WHOLE_PIECE};

/// Bytes of a page. The pager takes its machine's page size, and plans are also made for other
/// machines.
const PAGE: usize = 4096;
/// Classes of scores: half octaves. The last class has scores of 16 and more.
const CLASSES: usize = 64;

/// Weights with similar scores. The pager drops them at about the same time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct ReadClass {
    /// Bytes of all weights.
    all: f64,
    /// Mean bytes that a token reads of matrices that it reads whole.
    whole: f64,
    /// Mean bytes of pages that a token reads of rows and experts that it chooses, and the number
    /// of requests for them.
    chosen: f64,
    requests: f64,
}

/// Rows of one matrix that a token reads.
#[derive(Debug, Clone, Copy)]
struct UnitRows {
    /// Number of units that have a row.
    units: f64,
    /// Mean number of rows that a token reads.
    rows: f64,
    /// Requests for each row that is not in RAM; 0 if another matrix's request reads the row.
    requests: f64,
    /// Bytes of the row, and of the other rows of its bundle.
    record: usize,
}

/// The weights that the CPU reads for a token.
#[derive(Debug, Clone, PartialEq)]
pub struct CpuReads {
    /// The hottest last.
    classes: Vec<ReadClass>,
    /// Mean bytes that a token reads.
    bytes: f64,
    /// Bytes of the largest matrix that is read whole, for the window.
    largest: f64,
    /// True if a token chooses rows or experts.
    chooses: bool,
}

/// Mean reads of a token from the disk.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct DiskReads {
    /// Bytes that are read ahead, while the CPU computes.
    pub ahead: f64,
    /// Bytes that the CPU waits for.
    pub awaited: f64,
    /// Requests for the awaited bytes.
    pub requests: f64,
}

/// Seconds of a token's reads from the disk.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DiskSeconds {
    /// Reads while the CPU computes.
    pub ahead: f64,
    /// Reads that the CPU waits for.
    pub awaited: f64,
}

impl DiskReads {
    /// Bytes of all reads.
    pub fn bytes(&self) -> f64 {
        self.ahead + self.awaited
    }

    /// Seconds of the reads from a disk that reads `rate` bytes per second.
    pub fn seconds(&self, rate: f64) -> DiskSeconds {
        DiskSeconds { ahead: self.ahead / rate, awaited: (self.awaited + self.requests * REQUEST_BYTES as f64) / rate }
    }
}

impl DiskSeconds {
    /// Seconds of all reads from the disk.
    pub fn total(&self) -> f64 {
        self.ahead + self.awaited
    }

    /// Seconds of a token that takes `computing` seconds if all weights are in RAM.
    pub fn of_token(&self, computing: f64) -> f64 {
        computing.max(self.ahead) + self.awaited
    }
}

impl CpuReads {
    /// Mean bytes that a token reads.
    pub fn bytes(&self) -> f64 {
        self.bytes
    }

    /// The reads from the disk if `room` bytes of weights stay in RAM, less the window through
    /// which the others pass.
    pub fn from_disk(&self, room: f64) -> DiskReads {
        let all: f64 = self.classes.iter().map(|class| class.all).sum();
        let absent = (1.0 - room / all.max(1.0)).max(0.0);
        let least = if self.chooses { room / 8.0 } else { 0.0 };
        let mut room = room - (2.0 * absent * self.largest).min(room / 4.0).max(least).min(absent * all);
        let mut reads = DiskReads::default();
        for class in self.classes.iter().rev() {
            let kept = class.all.min(room.max(0.0));
            room -= kept;
            let missing = if class.all > 0.0 { 1.0 - kept / class.all } else { 0.0 };
            reads.ahead += missing * class.whole;
            reads.awaited += missing * class.chosen;
            reads.requests += missing * class.requests;
        }
        reads
    }

    fn add_whole(&mut self, reads: &ReadBytes) {
        let bytes = reads.cpu as f64;
        let class = self.class(1.0, WHOLE_PIECE);
        class.all += bytes;
        class.whole += bytes;
        self.bytes += bytes;
        self.largest = self.largest.max(bytes);
    }

    /// Adds matrices with `reads` bytes for each unit.
    fn add_units(&mut self, reads: &ReadBytes, of: UnitRows, skips: SkippedRows) {
        let UnitRows { units, rows, requests, record } = of;
        let (row, heat) = (reads.cpu as f64, (rows / units).clamp(0.0, 1.0));
        let (all, read) = (row * units, row * rows);
        if all <= 0.0 {
            return;
        }
        self.bytes += read;
        if skips == SkippedRows::NotRouted {
            let class = self.class(heat, EXPERT_PIECE);
            class.all += all;
            class.chosen += read;
        } else if heat < 1.0 {
            // A page is read if any of its rows is.
            let touched = 1.0 - (1.0 - heat).powf(1.0 + PAGE as f64 / row);
            let class = self.class(touched, record + PAGE);
            class.all += all;
            class.chosen += all * touched;
            class.requests += requests * rows * (1.0 - heat);
        } else {
            let class = self.class(1.0, WHOLE_PIECE);
            class.all += all;
            class.whole += all;
            return;
        }
        self.chooses = true;
    }

    fn class(&mut self, heat: f64, piece: usize) -> &mut ReadClass {
        let score = heat * (1.0 + REQUEST_BYTES as f64 / piece as f64);
        let octaves = (16.0 / score.max(1e-9)).log2().max(0.0);
        let at = (CLASSES - 1).saturating_sub((2.0 * octaves) as usize);
        &mut self.classes[at]
    }
}

impl CostProfile {
    /// The weights that the CPU reads for a token with `placement`.
    pub fn cpu_reads(&self, placement: &Placement) -> CpuReads {
        let classes = vec![ReadClass::default(); CLASSES];
        let mut reads = CpuReads { classes, bytes: 0.0, largest: 0.0, chooses: false };
        for (at, (layer, hot)) in self.layers.iter().zip(&placement.hot).enumerate() {
            layer.add_cpu_reads((at >= placement.first_resident).then_some(&hot[..]), &mut reads);
        }
        if !placement.head {
            reads.add_whole(&self.head.reads);
        }
        reads
    }
}

impl LayerCosts {
    /// Adds the reads of the CPU. With `hot` units on the device (`None`: the whole layer is on the
    /// CPU), these are the reads of the cold units.
    fn add_cpu_reads(&self, hot: Option<&[u32]>, reads: &mut CpuReads) {
        if hot.is_none() {
            self.weights_of_each_token().for_each(|of| reads.add_whole(of));
        }
        let mut is_hot = vec![false; self.units()];
        hot.into_iter().flatten().for_each(|unit| is_hot[*unit as usize] = true);
        let mut any = false;
        for (block, ends) in self.prefix_rows.windows(2).enumerate() {
            let ranks = self.units_in(block)..self.units_in(block + 1);
            let (len, rows) = (ranks.len() as f64, ends[1].minus(ends[0]));
            let cold = ranks.filter(|rank| !is_hot[self.order[*rank] as usize]).count() as f64;
            if cold == 0.0 {
                continue;
            }
            any = true;
            let share = cold / len;
            let record = self.firing_record();
            let of = UnitRows { units: cold, rows: share * rows.firing_rows, requests: 1.0, record };
            reads.add_units(&self.firing_read, of, self.skips);
            for (at, read) in self.other_reads.iter().enumerate() {
                let (requests, record) = (self.requests_of_other(at), self.other_record(read));
                let of = UnitRows { units: cold, rows: share * rows.other_rows, requests, record };
                reads.add_units(read, of, self.skips);
            }
        }
        if any {
            reads.largest = reads.largest.max((self.units() as u64 * self.firing_read.cpu) as f64);
        }
        if any || hot.is_none() {
            self.whole_reads.iter().for_each(|of| reads.add_whole(of));
        }
    }

    /// Bytes of a unit's rows that lie side by side. A bundle contains the firing row if a
    /// predictor names it.
    fn bundle(&self) -> usize {
        let firing = if self.skips == SkippedRows::NotPredicted { self.firing_read.cpu } else { 0 };
        (firing + self.other_reads.iter().map(|read| read.cpu).sum::<u64>()) as usize
    }

    /// Bytes that are read with a firing row.
    fn firing_record(&self) -> usize {
        let is_in_bundle = self.bundled && self.skips == SkippedRows::NotPredicted;
        if is_in_bundle { self.bundle() } else { self.firing_read.cpu as usize }
    }

    /// Bytes that are read with one of the other rows, `read`.
    fn other_record(&self, read: &ReadBytes) -> usize {
        if self.bundled { self.bundle() } else { read.cpu as usize }
    }

    /// Requests for each of the other rows at `at`. A bundle is read with the first of its rows:
    /// the firing row if a predictor names it, otherwise the first other row.
    fn requests_of_other(&self, at: usize) -> f64 {
        let is_first = at == 0 && self.skips != SkippedRows::NotPredicted;
        if !self.bundled || is_first { 1.0 } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{HeadCosts, tests::layer},
        *,
    };
    use thermocline_formats::quant::TensorType;

    fn profile(layers: Vec<LayerCosts>) -> CostProfile {
        let reads = ReadBytes { ty: TensorType::Q4_0, cpu: 500, device: 600 };
        let head = HeadCosts { matrix: 500, vectors: 0, scratch: 0, reads };
        CostProfile { layers, head, scratch: 0, staging: 0, assumptions: Vec::new() }
    }

    #[test]
    fn cpu_reads_cold_weights() {
        // Half of the 64 neurons fire. The firing rows of all are read, and two more of the firing
        // ones.
        let one = || layer(64, 10, 1000, SkippedRows::Silent, |_| 0.5);
        let profile = profile(vec![one(), one()]);
        let whole = 1000.0 + 64.0 * 10.0 + 2.0 * 32.0 * 10.0;
        let cpu = Placement::cpu(2);
        assert_eq!(profile.cpu_reads(&cpu).bytes(), 2.0 * whole + 500.0);
        assert_eq!(profile.cpu_reads(&Placement::all(&profile)).bytes(), 0.0);
        let some =
            Placement { first_resident: 1, hot: vec![Vec::new(), profile.layers[1].order[..32].to_vec()], head: true };
        assert_eq!(profile.cpu_reads(&some).bytes(), whole + 32.0 * 10.0 + 2.0 * 16.0 * 10.0);
    }

    #[test]
    fn dense_weights_that_are_missing_are_read_ahead() {
        let profile = profile(vec![layer(64, 1000, 64_000, SkippedRows::Nothing, |_| 0.5)]);
        let reads = profile.cpu_reads(&Placement::cpu(1));
        let all = 64_000.0 + 3.0 * 64_000.0 + 500.0;
        assert_eq!((reads.bytes(), reads.from_disk(all)), (all, DiskReads::default()));
        // Half fits, less a quarter of it for the window.
        let half = reads.from_disk(all / 2.0);
        assert!((half.ahead - all * 5.0 / 8.0).abs() < 1.0 && half.awaited == 0.0, "{half:?}");
        let nothing = reads.from_disk(0.0);
        assert!((nothing.ahead - all).abs() < 1.0, "{nothing:?}");
        let seconds = nothing.seconds(all);
        assert_eq!((seconds.total(), seconds.of_token(0.25), seconds.of_token(3.0)), (1.0, 1.0, 3.0));
    }

    #[test]
    fn rows_that_often_fire_stay_in_ram() {
        // An eighth of the neurons fires always, and the others seldom.
        let heat = |neuron: usize| if neuron < 64 { 1.0 } else { 0.01 };
        let profile = profile(vec![layer(512, 8192, 10, SkippedRows::Silent, heat)]);
        let reads = profile.cpu_reads(&Placement::cpu(1));
        let (rows, other) = (512.0 * 8192.0, 2.0 * 448.0 * 8192.0);
        // The firing rows, and the other rows of frequent neurons.
        let often = 510.0 + rows + 2.0 * 64.0 * 8192.0;
        let missing = reads.from_disk(often * 4.0 / 3.0);
        assert!(missing.ahead < 1.0 && (missing.awaited / other - 0.015).abs() < 1e-3, "{missing:?}");
        assert!((missing.requests - 2.0 * 448.0 * 0.01 * 0.99).abs() < 0.1, "{missing:?}");
        let mut bundled = profile.clone();
        bundled.layers[0].bundled = true;
        let of_bundles = bundled.cpu_reads(&Placement::cpu(1)).from_disk(often * 4.0 / 3.0);
        assert!((of_bundles.requests - missing.requests / 2.0).abs() < 1e-6, "one request reads both rows");
        assert_eq!((of_bundles.ahead, of_bundles.awaited), (missing.ahead, missing.awaited));
        let seconds = missing.seconds(1e6);
        assert_eq!(seconds.ahead, missing.ahead / 1e6);
        assert!(seconds.awaited > missing.requests * 0.04, "requests take time");
        assert!((seconds.of_token(1.0) - 1.0 - seconds.awaited).abs() < 1e-9, "{seconds:?}");
    }
}

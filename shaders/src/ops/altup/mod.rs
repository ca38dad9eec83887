//! Streams of a model with several streams (AltUp), `s[4, rows, cols]`, with the modalities
//! `m = tanh(logits[t])` of a token. `altup_predict` computes
//! `p_i = s_i + sum over j of (map m)_ij s_j` and the first stream of it. `altup_correct` computes
//! `s_i = p_i + (1 + (map m)_i) (residual - p_0)` and the scaled first stream of it. `altup_add`
//! adds a row of values to all streams but the first, and copies the first.

use crate::{
    Access::{Read, Write},
    Kernel,
    case::{CLOSE, COLS, CaseRequest, FLAT_SIZES, KernelCase, PITCH, ROWS, map_elements, noise, sizes},
    params::params,
};

params! {
    /// `altup_predict`, `altup_correct` and `altup_add`
    Streams {
        /// Columns of a row, without padding.
        cols: u32,
        /// Elements from one row to the next.
        pitch: u32,
        /// Rows of a stream.
        rows: u32,
        /// Invocations in one row of the grid.
        stride: u32,
        /// Elements from one stream to the next.
        stream_pitch: u32,
        /// Elements from one token's modalities to the next's.
        modalities_pitch: u32,
    }
}

/// The kernel `altup_predict`.
pub(crate) const ALTUP_PREDICT: Kernel = Kernel::new::<Streams>(
    "altup_predict",
    &[Read, Read, Read, Write, Write],
    include_str!("altup_predict.wgsl"),
    cases,
);

/// The kernel `altup_correct`.
pub(crate) const ALTUP_CORRECT: Kernel = Kernel::new::<Streams>(
    "altup_correct",
    &[Read, Read, Read, Read, Write, Write],
    include_str!("altup_correct.wgsl"),
    cases,
);

/// The kernel `altup_add`.
pub(crate) const ALTUP_ADD: Kernel =
    Kernel::new::<Streams>("altup_add", &[Read, Write, Write], include_str!("altup_add.wgsl"), cases);

const STREAMS: usize = 4;
/// Rows from one stream to the next.
const STREAM_ROWS: usize = ROWS + 1;
const MODALITIES_PITCH: usize = 32;

/// The logits of modalities of a token, and a map from modalities to coefficients.
struct Mix<'a> {
    logits: &'a [f32],
    map: &'a [f32],
}

impl Mix<'_> {
    fn coefficient(&self, at: usize) -> f64 {
        let terms = self.map[at * STREAMS..][..STREAMS].iter().zip(self.logits);
        terms.map(|(weight, logit)| f64::from(*weight) * f64::from(*logit).tanh()).sum()
    }

    /// Prediction of stream `to` from an element of all streams.
    fn predict(&self, to: usize, streams: [f64; STREAMS]) -> f64 {
        let terms = streams.iter().enumerate();
        streams[to] + terms.map(|(from, value)| self.coefficient(to * STREAMS + from) * value).sum::<f64>()
    }

    /// Correction of stream `to` by the result of the first stream.
    fn correct(&self, to: usize, predicted: [f64; STREAMS], residual: f32) -> f64 {
        predicted[to] + (1.0 + self.coefficient(to)) * (f64::from(residual) - predicted[0])
    }
}

/// [`map_elements`] of all streams. `value` takes the stream, the row, the column and the element.
fn map_streams(before: &[f32], value: impl Fn(usize, usize, usize, f64) -> f64) -> Vec<f64> {
    map_elements(before, |row, col, old| match row % STREAM_ROWS {
        ROWS => old,
        of_stream => value(row / STREAM_ROWS, of_stream, col, old),
    })
}

/// One case per kernel. The streams have a gap between them.
fn cases(_request: &CaseRequest) -> Vec<KernelCase> {
    let [streams, before] = [3, 4].map(|seed| noise(STREAMS * STREAM_ROWS * PITCH, seed));
    let [residual, out] = [5, 6].map(|seed| noise(ROWS * PITCH, seed));
    let logits = noise(ROWS * MODALITIES_PITCH, 1);
    let (prediction, correction, scale) = (noise(STREAMS.pow(3), 2), noise(STREAMS.pow(2), 7), noise(COLS, 8));
    let mix = |map, row: usize| Mix { logits: &logits[row * MODALITIES_PITCH..], map };
    let column = |row: usize, col: usize| -> [f64; STREAMS] {
        std::array::from_fn(|stream| f64::from(streams[(stream * STREAM_ROWS + row) * PITCH + col]))
    };
    let first = |streams: &[f64]| map_elements(&residual, |row, col, _| streams[row * PITCH + col]);
    let predicted = map_streams(&before, |to, row, col, _| mix(&prediction, row).predict(to, column(row, col)));
    let corrected = map_streams(&before, |to, row, col, _| {
        mix(&correction, row).correct(to, column(row, col), residual[row * PITCH + col])
    });
    let scaled = map_elements(&residual, |row, col, _| corrected[row * PITCH + col] * f64::from(scale[col]));
    let added = map_streams(&before, |to, row, col, value| match to {
        0 => value,
        _ => value + f64::from(out[row * PITCH + col]),
    });
    let [cols, pitch, rows, stride] = FLAT_SIZES;
    let [stream_pitch, modalities_pitch] = sizes([STREAM_ROWS * PITCH, MODALITIES_PITCH]);
    let case = |kernel| KernelCase::flat(kernel, Streams { cols, pitch, rows, stride, stream_pitch, modalities_pitch });
    let becomes = |case: KernelCase, streams: &[f64], first: &[f64]| {
        case.input(&before).becomes(streams, CLOSE).input(&residual).becomes(first, CLOSE)
    };
    let predict = case("altup_predict").input(&logits).input(&prediction).input(&streams);
    let correct = case("altup_correct").input(&logits).input(&correction).input(&streams).input(&scale);
    vec![
        becomes(predict, &predicted, &first(&predicted)),
        becomes(correct, &corrected, &scaled),
        becomes(case("altup_add").input(&out), &added, &first(&added)),
    ]
}

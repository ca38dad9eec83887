//! The results of `thermocline bench`: a row per test, as a table, CSV or JSON.

use serde_json::{Value, json};
use thermocline_engine::{
    bench::{Comparison, LongestSubmission, Record},
    placement::{Granularity, SplitReport},
    runtime::Sparsity,
};

use crate::cli::table::TextTable;
use thermocline_host::units;

/// Columns of llama-bench's CSV that apply here, in its order.
const COLUMNS: &str = "\
    build_commit,build_number,cpu_info,gpu_info,backends,model_filename,model_type,model_size,model_n_params,\
    n_batch,n_ubatch,n_threads,type_k,type_v,n_gpu_layers,flash_attn,use_mmap,n_prompt,n_gen,n_depth,\
    test_time,avg_ns,stddev_ns,avg_ts,stddev_ts";

/// The result of a test, with the peer program's result if it ran.
pub(super) struct BenchRow {
    pub record: Record,
    peer: Option<Comparison>,
    /// Speed divided by that of whole-layer placement, if both were measured.
    of_layers: Option<f64>,
}

impl From<Record> for BenchRow {
    fn from(record: Record) -> Self {
        BenchRow { record, peer: None, of_layers: None }
    }
}

impl From<Comparison> for BenchRow {
    fn from(of: Comparison) -> Self {
        BenchRow { record: of.ours.clone(), peer: Some(of), of_layers: None }
    }
}

impl BenchRow {
    /// Builds llama-bench's JSON object. The peer's speeds are in its `thermocline` part.
    pub fn json(&self) -> Value {
        let mut object = json!(self.record);
        if let Some(peer) = &self.peer {
            object["thermocline"]["peer"] = json!({
                "avg_ts": peer.peer_avg_ts,
                "stddev_ts": peer.peer_stddev_ts,
                "samples_ts": peer.peer_samples_ts,
                "ratios": peer.ratios,
                "ratio": peer.ratio,
            });
        }
        if let Some(ratio) = self.of_layers {
            object["thermocline"]["ratio_to_layers"] = json!(ratio);
        }
        object
    }
}

/// Compares each row of a placed model with whole-layer placement: the first such row with the same
/// test.
pub(super) fn beside_layers(rows: &mut [BenchRow]) {
    let placed =
        |row: &BenchRow, pieces: Granularity| row.record.thermocline.placement.as_deref() == Some(pieces.name());
    if !rows.iter().any(|row| placed(row, Granularity::Neurons)) {
        return;
    }
    let test = |record: &Record| (record.n_prompt, record.n_gen, record.n_depth);
    let layers = rows.iter().filter(|row| placed(row, Granularity::Layers));
    let speeds: Vec<_> = layers.map(|row| (test(&row.record), row.record.avg_ts)).collect();
    for row in rows {
        let same = speeds.iter().find(|(of, _)| *of == test(&row.record));
        row.of_layers = same.map(|(_, speed)| row.record.avg_ts / speed);
    }
}

pub(super) fn markdown(rows: &[BenchRow]) -> String {
    let peer = rows.iter().any(|row| row.peer.is_some());
    let copies = rows.iter().any(|row| row.record.thermocline.copy_bandwidth.is_some());
    // For a GPU, the column shows layers in place of threads.
    let (workers, limit) = if copies { ("ngl", "of copy bandwidth") } else { ("threads", "of read bandwidth") };
    let placed = rows.iter().any(|row| row.record.thermocline.placement.is_some());
    let sparse = placed || rows.iter().any(|row| row.record.thermocline.sparsity != Sparsity::Dense.name());
    let mut heads = vec!["model", "size", "params", "backend", workers, "test", "t/s", "GB/s", limit];
    if sparse {
        heads.extend(["mode", "active", "read per token", "scattered rows"]);
    }
    if placed {
        heads.extend(["placement", "VRAM", "neurons there", "hit rate", "waiting"]);
    }
    if peer {
        heads.extend(["llama.cpp t/s", "ratio"]);
    }
    let compared = rows.iter().any(|row| row.of_layers.is_some());
    if compared {
        heads.push("ratio to layers");
    }
    let mut lines = TextTable::new(&heads);
    for BenchRow { record, peer, of_layers } in rows {
        let extra = &record.thermocline;
        let mut cells = vec![
            record.model_type.clone(),
            units::bytes(record.model_size),
            units::parameters(record.model_n_params),
            record.backends.clone(),
            if copies { record.n_gpu_layers.to_string() } else { record.n_threads.to_string() },
            record.test_name(),
            format!("{:.2} ± {:.2}", record.avg_ts, record.stddev_ts),
            extra.bytes_per_second.map_or(String::new(), |rate| format!("{:.1}", rate / 1e9)),
            extra.bandwidth_fraction.map_or(String::new(), |fraction| format!("{:.0} %", fraction * 100.0)),
        ];
        if sparse {
            cells.extend([
                extra.sparsity.clone(),
                extra.active_neurons.map_or(String::new(), |fraction| format!("{:.1} %", fraction * 100.0)),
                extra.bytes_per_token.map_or(String::new(), units::bytes),
                extra.bytes_per_token.map_or(String::new(), |_| units::bytes(extra.scattered_bytes_per_token)),
            ]);
        }
        if placed {
            let percent =
                |fraction: Option<f64>| fraction.map_or(String::new(), |fraction| format!("{:.1} %", fraction * 100.0));
            cells.extend([
                extra.placement.clone().unwrap_or_default(),
                units::bytes(extra.vram_used),
                percent(Some(extra.hot_fraction)),
                percent(extra.hit_rate),
                percent(extra.waiting),
            ]);
        }
        if let Some(peer) = peer {
            let (least, most) = peer.ratios.iter().fold((f64::INFINITY, 0.0_f64), |(a, b), r| (a.min(*r), b.max(*r)));
            cells.extend([
                format!("{:.2} ± {:.2}", peer.peer_avg_ts, peer.peer_stddev_ts),
                format!("{:.2} ({least:.2} to {most:.2})", peer.ratio),
            ]);
        }
        if compared {
            cells.push(of_layers.map_or(String::new(), |ratio| format!("{ratio:.2}")));
        }
        lines.row(cells);
    }
    lines.text() + &conditions(rows, placed)
}

/// Builds the lines below the table: the conditions and limits of the measurement.
fn conditions(rows: &[BenchRow], placed: bool) -> String {
    let mut text = String::new();
    if let Some(BenchRow { record, .. }) = rows.first() {
        let extra = &record.thermocline;
        if let Some(copies) = extra.copy_bandwidth {
            text += &format!("\ncopy bandwidth {:.1} GB/s, ", copies / 1e9);
            text += &format!("read bandwidth {:.1} GB/s, ", extra.read_bandwidth / 1e9);
            let memory = match placed {
                true => format!("budget {}", units::bytes(extra.vram_budget)),
                false => format!("{} used", units::bytes(extra.vram_used)),
            };
            let activations = match &extra.rounding_types[..] {
                "" => "float".to_owned(),
                types => format!("int8 with {types}"),
            };
            text += &format!("kernels {}, activations {activations}, {memory}, {}\n", extra.isa, record.gpu_info);
            if let Some(split) = rows.iter().find_map(|row| row.record.thermocline.split) {
                let SplitReport { neurons, resident } = split;
                text += &format!("{resident} of the {neurons} neurons of the split are in GPU memory\n");
            }
        } else {
            text += &format!("\nread bandwidth, measured around each run: {:.1} GB/s", extra.read_bandwidth / 1e9);
            if let Some(rows) = extra.scattered_bandwidth {
                text += &format!(", of scattered rows {:.1} GB/s", rows / 1e9);
            }
            text += &format!(", kernels {}, {}\n", extra.isa, record.cpu_info);
        }
    }
    text
}

/// Describes each row's longest submission in a line.
pub(super) fn longest_submissions(rows: &[BenchRow]) -> String {
    let line = |row: &BenchRow| {
        let name = row.record.test_name();
        let Some(LongestSubmission { ms, work, tokens, layers }) = &row.record.thermocline.longest_submission else {
            return format!("longest submission of {name}: the time is unknown\n");
        };
        let held = match layers {
            Some([first, last]) if first == last => format!("layer {first}"),
            Some([first, last]) => format!("layers {first} to {last}"),
            None => "the head".to_owned(),
        };
        let work = *work as f64 / 1e9;
        format!("longest submission of {name}: {ms:.2} ms, {work:.3} G multiply-adds, {held}, tokens: {tokens}\n")
    };
    rows.iter().map(line).collect()
}

pub(super) fn csv(rows: &[BenchRow]) -> String {
    let peer = rows.iter().any(|row| row.peer.is_some());
    let mut text = COLUMNS.to_owned();
    text += if peer { ",peer_avg_ts,peer_stddev_ts,ratio\n" } else { "\n" };
    for row in rows {
        let object = row.json();
        let mut cells: Vec<String> = COLUMNS.split(',').map(|column| quoted(&object[column])).collect();
        if let Some(peer) = &row.peer {
            cells.extend([peer.peer_avg_ts, peer.peer_stddev_ts, peer.ratio].map(|number| quoted(&json!(number))));
        }
        text += &(cells.join(",") + "\n");
    }
    text
}

/// Quotes a CSV cell. llama-bench quotes all of them.
fn quoted(value: &Value) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    format!("\"{}\"", text.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_doubles_quotation_marks() {
        assert_eq!(quoted(&json!("a \"b\", c")), "\"a \"\"b\"\", c\"");
        assert_eq!(quoted(&json!(1.5)), "\"1.5\"");
    }
}

//! The table of a plan's layers, in which equal layers share a row.

use thermocline_engine::placement::LayerPlan;
use thermocline_host::units;

use super::report::percent;
use crate::cli::table::TextTable;

/// Most ranges of layers that a row names.
const MOST_RANGES: usize = 3;

/// Names the units that are hot or cold in these layers.
pub fn counted(layers: &[LayerPlan]) -> &'static str {
    match (layers.iter().any(|layer| layer.experts), layers.iter().any(|layer| !layer.experts)) {
        (false, _) => "neurons",
        (true, false) => "experts",
        (true, true) => "neurons or experts",
    }
}

/// Builds the table. Layers whose cells are equal share a row, also if other layers are between
/// them.
pub fn layers_table(layers: &[LayerPlan]) -> String {
    let of = format!("of {}", counted(layers));
    let heads = ["layers", "where", "hot", &of, "of firings", "size", "ms", "GPU ms", "CPU ms"];
    let mut rows: Vec<(Vec<usize>, [String; 8])> = Vec::new();
    for (at, layer) in layers.iter().enumerate() {
        let cells = cells(layer);
        match rows.iter_mut().find(|(_, known)| *known == cells) {
            Some((equal, _)) => equal.push(at),
            None => rows.push((vec![at], cells)),
        }
    }
    let mut table = TextTable::new(&heads);
    for (equal, cells) in rows {
        table.row([names(&equal)].into_iter().chain(cells));
    }
    table.text()
}

/// The cells of a layer's row, without its name.
fn cells(layer: &LayerPlan) -> [String; 8] {
    let place = match layer {
        LayerPlan { resident: false, .. } => "CPU",
        LayerPlan { hot, units, .. } if hot == units => "GPU",
        _ => "both",
    };
    let ms = |seconds: f64| format!("{:.3}", seconds * 1e3);
    [
        place.to_owned(),
        if layer.experts { format!("{} of {}", layer.hot, layer.units) } else { layer.hot.to_string() },
        percent(layer.hot as f64 / layer.units.max(1) as f64),
        percent(layer.hot_firings / layer.firings.max(f64::MIN_POSITIVE)),
        units::bytes(layer.bytes),
        ms(layer.time.seconds),
        ms(layer.time.gpu),
        ms(layer.time.cpu),
    ]
}

/// Names layers by their ascending indices, like `0-11` or `3, 7 ... 47 (12 layers)`.
fn names(layers: &[usize]) -> String {
    let range = |of: &[usize]| match of {
        [first, .., last] => format!("{first}-{last}"),
        [only] => only.to_string(),
        [] => String::new(),
    };
    let ranges: Vec<String> = layers.chunk_by(|a, b| a + 1 == *b).map(range).collect();
    match ranges.as_slice() {
        [first, second, .., last] if ranges.len() > MOST_RANGES => {
            format!("{first}, {second} ... {last} ({} layers)", layers.len())
        }
        few => few.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thermocline_engine::placement::LayerTime;

    #[test]
    fn equal_layers_share_a_row() {
        let layer = |resident: bool, seconds: f64| LayerPlan {
            resident,
            experts: false,
            hot: if resident { 10 } else { 0 },
            units: 10,
            firings: 2.0,
            hot_firings: if resident { 2.0 } else { 0.0 },
            bytes: 1 << 20,
            time: LayerTime { seconds, ..LayerTime::default() },
        };
        // Differences that no cell shows do not count.
        let layers = [layer(false, 1e-3), layer(false, 1.000_000_1e-3), layer(true, 2e-3), layer(false, 1e-3)];
        let expected = "\
| layers | where | hot | of neurons | of firings |    size |    ms | GPU ms | CPU ms |
| ------ | ----: | --: | ---------: | ---------: | ------: | ----: | -----: | -----: |
| 0-1, 3 |   CPU |   0 |      0.0 % |      0.0 % | 1.0 MiB | 1.000 |  0.000 |  0.000 |
| 2      |   GPU |  10 |    100.0 % |    100.0 % | 1.0 MiB | 2.000 |  0.000 |  0.000 |
";
        assert_eq!(layers_table(&layers), expected);
    }

    #[test]
    fn layers_are_named_by_ranges() {
        let of = |step: usize, last: usize| names(&(0..=last).step_by(step).collect::<Vec<_>>());
        assert_eq!([of(1, 11), of(2, 4), of(2, 34), of(1, 0)], ["0-11", "0, 2, 4", "0, 2 ... 34 (18 layers)", "0"]);
        let linear: Vec<usize> = (0..48).filter(|at| at % 4 < 3).collect();
        assert_eq!(names(&linear), "0-2, 4-6 ... 44-46 (36 layers)");
    }
}

//! The lines between the experts of MoE layers on the map.

use egui::{Pos2, Rect};

use super::{atlas::Atlas, grid::Grid};

/// Minimum distance of two lines, in points.
const APART: f32 = 8.0;

/// The line through a layer, from top to bottom, with the first `at` of `shown` neurons on its
/// left. Fractions of the layer's width and height. If a column has neurons of both sides, the line
/// has a step. Otherwise two of its points are duplicates.
fn line(grid: Grid, at: usize, shown: usize) -> [[f32; 2]; 4] {
    let (lines, columns) = (grid.lines.max(1), grid.columns.max(1) as f32);
    let dot = grid.dot(at, shown);
    let x = |column: usize| (column as f32 / columns).min(1.0);
    let (column, step) = (dot / lines, dot % lines);
    let (right, y) = (x(column + usize::from(step > 0)), step as f32 / lines as f32);
    [[right, 0.0], [right, y], [x(column), y], [x(column), 1.0]]
}

/// The lines of all layers that `atlas` shows on `rect`, joined across neighbouring layers. If they
/// are too close, only every second, fourth and so on is kept.
pub fn lines(atlas: &Atlas, rect: Rect) -> Vec<Vec<Pos2>> {
    let (shown, grid) = (atlas.shown(), atlas.layout.grid);
    let band = rect.height() / shown.len().max(1) as f32;
    let groups = |layer: usize| atlas.starts(layer).len();
    let most = shown.clone().map(groups).max().unwrap_or(0);
    if most < 2 {
        return Vec::new();
    }
    let part = atlas.layout.view.to - atlas.layout.view.from;
    let width = rect.width() / part.max(f32::EPSILON) / most as f32;
    let every = ((APART / width).ceil().max(1.0) as usize).next_power_of_two();
    let mut all = Vec::new();
    for border in (every..most).step_by(every) {
        let mut path: Vec<Pos2> = Vec::new();
        for layer in shown.clone() {
            let ranks = atlas.ranks(layer);
            let at = atlas.starts(layer).get(border).map(|start| *start as usize);
            let Some(at) = at.filter(|at| ranks.start < *at && *at < ranks.end) else {
                all.push(std::mem::take(&mut path));
                continue;
            };
            let top = rect.top() + band * (layer - shown.start) as f32;
            for [x, y] in line(grid, at - ranks.start, ranks.len()) {
                let next = Pos2::new(rect.left() + x * rect.width(), top + y * band);
                // Straight segments merge into one.
                match path.as_mut_slice() {
                    [.., before, last] if before.x == last.x && last.x == next.x => *last = next,
                    _ => path.push(next),
                }
            }
        }
        all.push(path);
    }
    all.retain(|path| path.len() > 1);
    all
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use thermocline_engine::telemetry::neurons::{LayerNeurons, NeuronShape};

    use super::*;
    use crate::neurons::{atlas::MapLayout, grid::View};

    #[test]
    fn seam_line_has_a_step_within_a_column() {
        let grid = Grid { columns: 4, lines: 2 };
        assert_eq!(line(grid, 4, 8), [[0.5, 0.0], [0.5, 0.0], [0.5, 0.0], [0.5, 1.0]]);
        assert_eq!(line(grid, 3, 8), [[0.5, 0.0], [0.5, 0.5], [0.25, 0.5], [0.25, 1.0]]);
        // Each dot has four neurons.
        assert_eq!(line(grid, 16, 32), line(grid, 4, 8));
    }

    #[test]
    fn seam_line_separates_dots_by_neuron_index() {
        for (columns, lines, shown) in [(7, 3, 20), (5, 4, 20), (40, 6, 640), (9, 2, 500)] {
            let grid = Grid { columns, lines };
            for at in 1..shown {
                let [[right, _], [_, y], [left, _], _] = line(grid, at, shown);
                for dot in 0..grid.dots() {
                    let neurons = grid.neurons(dot, shown);
                    let (x, middle) = ((dot / lines) as f32 + 0.5, (dot % lines) as f32 + 0.5);
                    let edge = if middle / (lines as f32) < y { right } else { left };
                    // A dot with neurons of both sides counts as right.
                    let is_left = x / (columns as f32) < edge;
                    assert!(neurons.is_empty() || is_left == (neurons.end <= at), "{grid:?} {at} of {shown}: {dot}");
                }
            }
        }
    }

    #[test]
    fn expert_borders_are_drawn_where_the_map_has_room() {
        let moe = LayerNeurons::Experts { experts: 4, width: 40, shared: 0 };
        let shape = NeuronShape::of([moe, moe, LayerNeurons::Dense(160), moe]);
        let mut atlas = Atlas::new(&shape);
        let layout = MapLayout { grid: Grid { columns: 16, lines: 10 }, ..MapLayout::default() };
        atlas.lay_out(layout);
        atlas.sort(Duration::from_secs(120), |_| None);
        let wide = Rect::from_min_max(Pos2::new(10.0, 0.0), Pos2::new(170.0, 40.0));
        let all = lines(&atlas, wide);
        // Two layers, a gap, and one layer.
        let line = |x, top, bottom| vec![Pos2::new(x, top), Pos2::new(x, bottom)];
        assert_eq!(all[..2], [line(50.0, 0.0, 20.0), line(50.0, 30.0, 40.0)]);
        assert_eq!(all.len(), 6);
        let narrow = Rect::from_min_max(Pos2::ZERO, Pos2::new(20.0, 40.0));
        assert_eq!(lines(&atlas, narrow), [line(10.0, 0.0, 20.0), line(10.0, 30.0, 40.0)]);
        atlas.lay_out(MapLayout { view: View { layer: Some(1), from: 0.3, to: 0.7 }, ..layout });
        assert_eq!(lines(&atlas, wide).len(), 1);
        atlas.lay_out(MapLayout { view: View::of_layer(2), ..layout });
        assert!(lines(&atlas, wide).is_empty());
    }
}

//! Bold letters of scripts that our bold face lacks. Each letter is drawn twice, slightly offset.

use std::sync::Arc;

use egui::{
    Galley, TextFormat,
    epaint::{Vertex, text::Row},
};

/// Font size in points per point of offset of the second picture.
const SIZE: f32 = 18.0;

/// Makes the letters for which `is_thin` is true bold. `galley` has one glyph per character.
pub fn emboldened(galley: &Galley, is_thin: impl Fn(&TextFormat, char) -> bool) -> Galley {
    let (mut bold, scale) = (galley.clone(), galley.pixels_per_point);
    let mut letters = galley.job.text.char_indices();
    let further = |(at, letter): (usize, char)| {
        let section = galley.job.sections.partition_point(|section| section.byte_range.end.0 <= at);
        let format = &galley.job.sections.get(section)?.format;
        // Letters begin at whole pixels, and so does the second picture.
        is_thin(format, letter).then(|| (format.font_id.size * scale / SIZE).round().max(1.0) / scale)
    };
    for row in &mut bold.rows {
        let own = letters.by_ref().take(row.row.glyphs.len());
        let thin: Vec<Option<f32>> = own.map(&further).collect();
        if row.ends_with_newline {
            letters.next();
        }
        if thin.iter().any(Option::is_some) {
            embolden(Arc::make_mut(&mut row.row), &thin);
            bold.mesh_bounds |= row.row.visuals.mesh_bounds.translate(row.pos.to_vec2());
        }
    }
    bold
}

/// Draws glyphs of a line again, offset by the given number of points. The second picture follows
/// the first, so that both change colour when the letter is selected.
fn embolden(row: &mut Row, thin: &[Option<f32>]) {
    let visuals = &mut row.visuals;
    let (start, end) = (visuals.glyph_vertex_range.start, visuals.glyph_vertex_range.end);
    let before = std::mem::take(&mut visuals.mesh.vertices);
    let mut vertices: Vec<Vertex> = before[..start].to_vec();
    // New index of each vertex, and of its copy in the second picture.
    let mut first: Vec<usize> = (0..before.len()).collect();
    let mut second: Vec<Option<usize>> = vec![None; before.len()];
    let begins: Vec<usize> = row.glyphs.iter().map(|glyph| glyph.first_vertex as usize).chain([end]).collect();
    for (nth, glyph) in row.glyphs.iter_mut().enumerate() {
        let own = begins[nth]..begins[nth + 1];
        glyph.first_vertex = u32::try_from(vertices.len()).unwrap_or(u32::MAX);
        for at in own.clone() {
            first[at] = vertices.len();
            vertices.push(before[at]);
        }
        let Some(further) = thin.get(nth).copied().flatten().filter(|_| !glyph.is_color) else { continue };
        for at in own {
            second[at] = Some(vertices.len());
            let mut vertex = before[at];
            vertex.pos.x += further;
            vertices.push(vertex);
        }
    }
    visuals.glyph_vertex_range.end = vertices.len();
    for at in end..before.len() {
        first[at] = vertices.len();
        vertices.push(before[at]);
    }
    let number = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
    let mut indices = Vec::with_capacity(visuals.mesh.indices.len() * 2);
    for triangle in visuals.mesh.indices.chunks_exact(3) {
        indices.extend(triangle.iter().map(|at| number(first[*at as usize])));
        let again: Option<Vec<u32>> = triangle.iter().map(|at| second[*at as usize].map(number)).collect();
        indices.extend(again.into_iter().flatten());
    }
    (visuals.mesh.vertices, visuals.mesh.indices) = (vertices, indices);
    visuals.mesh_bounds = visuals.mesh.calc_bounds();
}

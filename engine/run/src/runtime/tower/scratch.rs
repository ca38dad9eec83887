//! RAM that the CPU takes for a picture beside the weights of the tower.

use super::processor::CHUNK;
use thermocline_cpu::ops::{KvRows, KvType};
use thermocline_model::{Merger, Tower, TowerHead};

/// Sizes of a picture in a tower.
#[derive(Debug, Clone, Copy)]
struct PatchCounts {
    patches: usize,
    /// Patches of a token.
    each: usize,
}

/// Bytes of RAM for the largest picture that `tower` takes: buffers that the CPU keeps between
/// pictures, keys and values, the resized picture or the parts of a sliced one, and the results.
pub fn tower_scratch(tower: &Tower) -> u64 {
    let (config, pixels) = (&tower.config, tower.config.sizes.most_pixels());
    let size = PatchCounts { patches: tower.most_patches(), each: config.merge * config.merge };
    let stacked = tower.weights.layers.iter().filter(|layer| layer.deepstack.is_some()).count();
    // The results of parts are copied to one vector. The picture that is cut into slices is as
    // large as all of them.
    let (results, pictures) = match config.sizes.slices() {
        Some(slices) => (2 * (slices.most + 1), 2 * slices.most + 1),
        None => (1 + stacked, 1),
    };
    let results = results.saturating_mul(tower.most_part_tokens()).saturating_mul(config.d_model);
    let pixels = pixels.saturating_mul(pictures);
    // A cosine and a sine per element of a head.
    let rotations = config.rope.map_or(0, |_| 2 * size.patches.saturating_mul(config.heads.head_dim));
    let head = KvRows::bytes_of(KvType::F32, config.heads.head_dim, size.patches);
    let heads = if tower.weights.layers.is_empty() { 0 } else { 2 * config.heads.n_kv_head as u64 };
    let read = match &tower.weights.head {
        // Keys and values of all patches.
        TowerHead::Resampler(_) => 2 * size.patches.saturating_mul(config.d_model),
        _ => 0,
    };
    let floats = [results, rotations, read].into_iter().fold(kept_floats(tower, size), usize::saturating_add);
    let floats = (floats as u64).saturating_mul(size_of::<f32>() as u64);
    floats.saturating_add(head.saturating_mul(heads)).saturating_add((pixels as u64).saturating_mul(3))
}

/// Floats of the buffers that a [`TowerProcessor`](super::TowerProcessor) keeps.
fn kept_floats(tower: &Tower, PatchCounts { patches, each }: PatchCounts) -> usize {
    let (config, weights) = (&tower.config, &tower.weights);
    let (width, n_ff) = (config.width, config.n_ff);
    let (rows, tokens) = (patches.min(CHUNK), (patches / each).min(CHUNK));
    let merger_of = |merger: &Merger| {
        let joined = tokens * each / config.first_merge.pow(2) * width;
        let out = if merger.join.is_some() { tokens * width } else { 0 };
        [joined, tokens * merger.first.weight.rows(), 0, out]
    };
    let head = match &weights.head {
        TowerHead::Merger(merger) => merger_of(merger),
        TowerHead::Pooled(_) => [tokens * each * width, tokens * width, 0, 0],
        TowerHead::Resampler(resampler) => {
            let queries = &resampler.queries;
            let of_rows = rows.max(resampler.tokens()) * config.d_model;
            [queries.len().max(rows * width), of_rows, 0, of_rows]
        }
    };
    let mergers = weights.layers.iter().filter_map(|layer| layer.deepstack.as_ref()).map(merger_of);
    let no_layers = weights.layers.is_empty();
    let of_layers = if no_layers { [0; 4] } else { [rows * width, rows * n_ff, rows * n_ff, rows * width] };
    let patch = [rows * config.patch_samples(), 0, 0, 0];
    // Normed inputs, hidden values, outputs of up matrices, outputs.
    let most = |most: [usize; 4], of: [usize; 4]| std::array::from_fn(|at| most[at].max(of[at]));
    let joins = weights.layers.iter().filter_map(|layer| layer.join.as_ref()).map(|join| {
        let each = config.first_merge.pow(2);
        let squares = (patches / each).min(CHUNK);
        [squares * each * width, squares * join.up.weight.rows(), 0, squares * width]
    });
    let chunked = mergers.chain(joins).chain([head, of_layers, patch]).fold([0; 4], most);
    let maps = weights.layers.iter().flat_map(|layer| [&layer.qkv[0], &layer.down]);
    let limited = maps.filter(|map| map.limits.is_some()).map(|map| rows * map.linear.weight.cols()).max();
    // The residual stream, and queries, keys, values and outputs of the heads of layers.
    let buffers = if no_layers { 1 } else { 5 };
    let whole = (buffers * patches).saturating_mul(width);
    // A resampler's heads use the buffer of the layers' heads.
    let more_heads = match &weights.head {
        TowerHead::Resampler(resampler) if no_layers => resampler.queries.len(),
        TowerHead::Resampler(resampler) => resampler.queries.len().saturating_sub(patches.saturating_mul(width)),
        _ => 0,
    };
    chunked.iter().sum::<usize>() + limited.unwrap_or(0) + whole + more_heads
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path, sync::Arc};

    use super::*;
    use crate::runtime::TowerProcessor;
    use thermocline_cpu::{Cpu, CpuOptions};
    use thermocline_formats::format::ReadMode;
    use thermocline_model::PictureSizes;
    use thermocline_pictures::Picture;

    /// The buffers after the largest picture hold the counted bytes.
    #[test]
    fn scratch_is_that_of_the_largest_picture() {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/towers");
        for folder in fs::read_dir(fixtures).unwrap() {
            let folder = folder.unwrap().path();
            let mut tower = Tower::open(&folder, ReadMode::Map).unwrap();
            let picture = Picture::open(&folder.join("whole.png")).unwrap();
            let [width, height] = tower.config.sizes.fit(picture.width(), picture.height()).unwrap();
            let multiple = tower.config.patch_size * tower.config.merge;
            tower.config.sizes = PictureSizes::Fitted { multiple, least: 1, most: width * height };
            let mut processor = TowerProcessor::new(Arc::new(tower.clone()), Cpu::new(&CpuOptions::default()).unwrap());
            let made = processor.embed(&picture, &mut ()).unwrap();
            let each = tower.config.merge * tower.config.merge;
            let side = tower.config.patch_size;
            let size = PatchCounts { patches: (width / side) * (height / side), each };
            assert_eq!(tower.most_patches(), size.patches, "{folder:?}");
            assert_eq!(kept_floats(&tower, size) as u64 * 4, processor.held_bytes(), "{folder:?}");
            let results = (made.embeddings.len() + made.deepstack.iter().map(Vec::len).sum::<usize>()) as u64 * 4;
            assert!(
                tower_scratch(&tower) >= processor.held_bytes() + results + 3 * (width * height) as u64,
                "{folder:?}"
            );
        }
    }

    /// All parts of a long picture are counted.
    #[test]
    fn scratch_holds_the_parts_of_sliced_pictures() {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/towers");
        let mut sliced = 0;
        for folder in fs::read_dir(fixtures).unwrap() {
            let folder = folder.unwrap().path();
            let tower = Tower::open(&folder, ReadMode::Map).unwrap();
            if tower.config.sizes.slices().is_none() {
                continue;
            }
            let mut processor = TowerProcessor::new(Arc::new(tower.clone()), Cpu::new(&CpuOptions::default()).unwrap());
            // The first picture has slices. The second one has only an overview, one patch high.
            let whole = Picture::open(&folder.join("whole.png")).unwrap();
            for [width, height] in [[1024, 64], [199, 1]] {
                let picture = whole.resized(width, height, tower.config.filter).unwrap();
                let parts = tower.config.pictures_of(&picture).unwrap();
                sliced += usize::from(parts.len() > 2);
                let made = processor.embed(&picture, &mut ()).unwrap();
                let pixels: usize = parts.iter().map(|part| part.width() * part.height()).sum();
                // The embeddings of the parts, and of the whole picture.
                let results = (made.embeddings.len() * 2 * size_of::<f32>()) as u64;
                let needed = processor.held_bytes() + results + 3 * pixels as u64;
                let counted = tower_scratch(&tower);
                assert!(counted >= needed, "{folder:?}, {width} x {height}: {counted} of {needed}");
            }
        }
        assert!(sliced >= 4, "{sliced} pictures with slices");
    }
}

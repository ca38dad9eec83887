//! Scores of queries with the keys of a cache, and the weighted sums of values: the part of
//! attention whose work grows with the context. The work of a prompt is divided into dispatches of
//! the size that the device's pace allows, with submissions between them.

use std::ops::Range;

use thermocline_shaders::{DecodeGrid, limits};

use super::{
    attention::{AttentionOps, CacheRows},
    segment::Segment,
};
use thermocline_base::error::Result;
use thermocline_cpu::ops::{AttentionWindow, HeadSizes};
use thermocline_gpu::{FEW_TOKENS, Gpu, Recorder, WorkKind, params, work_of};

/// Tokens in a group of queries, which one workgroup computes.
const QUERIES: usize = limits::ATTENTION_QUERIES as usize;

/// The rows of a chunk that belong to one conversation, reduced to what determines the work of
/// their scores.
#[derive(Debug, Clone, Copy)]
struct ScoreRows {
    rows: usize,
    /// Position of the first row.
    position: usize,
    /// Keys that a row sees.
    window: AttentionWindow,
    /// Multiply-adds of all heads of one row with one key and its value.
    per_key: u64,
    /// End of the positions that every row sees, even if they are later than its own: the end of a
    /// picture. 0 if rows see no later positions.
    seen_end: usize,
}

impl ScoreRows {
    /// Number of keys from the first that row `first` sees to the last that the row before `end`
    /// sees.
    fn keys(&self, first: usize, end: usize) -> u64 {
        let start = self.window.first_key(self.position + first);
        ((self.position + end).max(self.seen_end) - start) as u64
    }

    /// Work of the group of queries that begins at row `first`. The kernel computes whole groups.
    fn group_work(&self, first: usize) -> u64 {
        let keys = self.keys(first, self.rows.min(first + QUERIES));
        (QUERIES as u64).saturating_mul(keys).saturating_mul(self.per_key)
    }

    /// Work of rows that are computed one by one, each with its own keys.
    fn work_alone(&self, rows: &Range<usize>) -> u64 {
        rows.clone().map(|row| self.keys(row, row + 1).saturating_mul(self.per_key)).fold(0, u64::saturating_add)
    }

    /// Returns the piece that begins at row `start` and has at most `most` work. It is as many
    /// whole groups of queries as fit. If a single group is too much work, it is single rows. A
    /// workgroup takes so long for all keys of a group that fewer workgroups would not end sooner.
    fn piece(&self, start: usize, most: u64) -> ScorePiece {
        let (mut end, mut work) = (start, 0_u64);
        while end < self.rows {
            let more = work.saturating_add(self.group_work(end));
            if more > most {
                break;
            }
            (work, end) = (more, self.rows.min(end + QUERIES));
        }
        // A group only slightly above the limit is still faster as a group. Tokens that see
        // later ones are computed in groups only.
        let group = self.group_work(start);
        if end == start && (group <= most.saturating_add(most / 2) || self.seen_end > 0) {
            (work, end) = (group, self.rows.min(start + QUERIES));
        }
        if end > start {
            return ScorePiece { rows: start..end, work, alone: false };
        }
        let most_rows = self.rows.min(start + FEW_TOKENS);
        let fit = (start + 1..=most_rows).rev().find(|end| self.work_alone(&(start..*end)) <= most);
        let rows = start..fit.unwrap_or(start + 1);
        ScorePiece { work: self.work_alone(&rows), rows, alone: true }
    }
}

/// Rows whose scores are computed by one dispatch.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ScorePiece {
    rows: Range<usize>,
    work: u64,
    /// True if the rows are few and are computed like single tokens.
    alone: bool,
}

impl AttentionOps {
    /// Records the heads' outputs of one cache's rows.
    ///
    /// # Errors
    /// [`Error::Gpu`](thermocline_base::error::Error::Gpu) if the device is lost.
    pub(super) fn record_scores(&self, segment: &mut Segment, gpu: &Gpu, of: &CacheRows<'_>) -> Result<()> {
        let mut start = 0;
        for picture in &of.pictures {
            let place = |place: usize| place.saturating_sub(of.position).min(of.rows.len());
            let rows = place(picture.start)..place(picture.end);
            self.record_stretch(segment, gpu, &of.stretch(start..rows.start), 0)?;
            start = rows.end;
            self.record_stretch(segment, gpu, &of.stretch(rows), picture.end)?;
        }
        self.record_stretch(segment, gpu, &of.stretch(start..of.rows.len()), 0)
    }

    /// Records the heads' outputs of consecutive rows. `seen_end` is as in [`ScoreRows`].
    fn record_stretch(&self, segment: &mut Segment, gpu: &Gpu, of: &CacheRows<'_>, seen_end: usize) -> Result<()> {
        if of.rows.is_empty() {
            return Ok(());
        }
        let shape = &self.layout.shape;
        let HeadSizes { n_head, n_kv_head, head_dim, value_dim } = shape.heads;
        let widths = (head_dim + value_dim) as u64;
        let scores = ScoreRows {
            rows: of.rows.len(),
            position: of.position,
            window: shape.seen(),
            per_key: n_head as u64 * widths,
            seen_end,
        };
        // `attention_decode` divides each token's keys among workgroups of its own.
        // `attention_prompt` computes more tokens, in groups of queries.
        if scores.rows <= FEW_TOKENS && seen_end == 0 {
            // Keys and values are read once per token, for all query heads that share them.
            let seen = scores.keys(scores.rows.saturating_sub(1), scores.rows);
            let read = seen * n_kv_head as u64 * widths;
            let work = scores.work_alone(&(0..scores.rows)).saturating_add(work_of(read, 0));
            segment.expect(WorkKind::of_scores(scores.rows), work)?;
            self.record_alone(segment, gpu, of, 0..scores.rows);
            return Ok(());
        }
        let mut start = 0;
        while start < scores.rows {
            let kind = WorkKind::of_scores(scores.rows);
            let ScorePiece { rows, work, alone } = scores.piece(start, segment.most(kind));
            segment.expect(kind, work)?;
            start = rows.end;
            match alone {
                true => self.record_alone(segment, gpu, of, rows),
                false => self.record_groups(segment, of, rows, seen_end),
            }
        }
        Ok(())
    }

    /// Parameters of `rows` of a cache. Their keys and all earlier keys have been appended.
    fn score_params(&self, of: &CacheRows<'_>, rows: &Range<usize>) -> params::Attention {
        let (layout, shape) = (&self.layout, &self.layout.shape);
        let [n_head, n_kv_head, tokens] = [shape.heads.n_head, shape.heads.n_kv_head, rows.len()].map(|n| n as u32);
        let [position, row] = [of.position + rows.start, of.rows.start + rows.start].map(|n| n as u32);
        let [capacity, q_pitch, out_pitch] = [of.capacity, layout.q_pitch, layout.heads_pitch].map(|n| n as u32);
        params::Attention {
            n_head,
            n_kv_head,
            first_kv_head: 0,
            kv_heads: n_kv_head,
            q_pitch,
            out_pitch,
            tokens,
            position,
            capacity,
            window: shape.window.map_or(0, |window| window.length as u32),
            span: 0,
            splits: 1,
            scale: shape.scores.scale,
            softcap: shape.scores.softcap.unwrap_or(0.0),
            row,
            seen_end: 0,
            seen_start: 0,
        }
    }

    /// Records `rows` of a cache in groups of queries.
    fn record_groups(&self, segment: &mut Segment, of: &CacheRows<'_>, rows: Range<usize>, seen_end: usize) {
        let shape = &self.layout.shape;
        let params = params::Attention { seen_end: seen_end as u32, ..self.score_params(of, &rows) };
        let groups = params.tokens.div_ceil(limits::ATTENTION_QUERIES);
        // The elements of a head's output after the latent are not read.
        let wanted = shape.latent.as_ref().map_or(shape.heads.value_dim, |latent| latent.rank);
        let parts = (wanted as u32).div_ceil(limits::ATTENTION_OUT);
        for page in of.pages {
            let params = page.params(params);
            let heads = params.n_head / params.n_kv_head.max(1) * params.kv_heads;
            segment.recorder().dispatch(&page.prompt, &params, [heads, groups, parts]);
        }
    }

    /// Records a few `rows` of a cache, each with its keys divided among workgroups in the same way
    /// as if it were the only row.
    fn record_alone(&self, segment: &mut Segment, gpu: &Gpu, of: &CacheRows<'_>, rows: Range<usize>) {
        let workgroups = self.layout.workgroups.min(gpu.caps().max_groups);
        let mut start = rows.start;
        while start < rows.end {
            let params = self.score_params(of, &(start..rows.end));
            let grid = DecodeGrid::new(&params, self.layout.decode_heads, workgroups);
            self.record_grid(segment.recorder(), of, params, grid);
            start += grid.tokens as usize;
        }
    }

    /// Records the first tokens of `params` whose splits are those of `grid`.
    fn record_grid(&self, recorder: &mut Recorder, of: &CacheRows<'_>, params: params::Attention, grid: DecodeGrid) {
        let layout = &self.layout;
        let DecodeGrid { span, splits, tokens, .. } = grid;
        let params = params::Attention { span, splits, tokens, ..params };
        for page in of.pages {
            let decode = if grid.splits == 1 { &page.decode } else { &page.decode_split };
            let params = page.params(params);
            recorder.dispatch(decode, &params, grid.of_heads(&params, layout.decode_heads).workgroups().into());
        }
        if grid.splits > 1 {
            let params::Attention { n_head, out_pitch, splits, row, .. } = params;
            let merge = params::AttentionMerge { n_head, out_pitch, splits, row };
            recorder.dispatch(&self.merge, &merge, [n_head, params.tokens, 1]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Splits all rows into pieces.
    fn pieces(of: ScoreRows, most: u64) -> Vec<ScorePiece> {
        let (mut pieces, mut start) = (Vec::new(), 0);
        while start < of.rows {
            let piece = of.piece(start, most);
            start = piece.rows.end;
            pieces.push(piece);
        }
        pieces
    }

    /// Heads of a model of 8 billion parameters.
    const PER_KEY: u64 = 32 * 256;

    #[test]
    fn pieces_of_scores_fit_the_work_at_every_depth() {
        let context = [0, 1000, 8 << 10, 64 << 10, 256 << 10];
        for (position, window) in
            context.into_iter().flat_map(|at| [(at, AttentionWindow::ALL), (at, AttentionWindow::sliding(4096))])
        {
            for rows in [9, 31, 32, 33, 100, 256] {
                let of = ScoreRows { rows, position, window, per_key: PER_KEY, seen_end: 0 };
                for most in [1 << 24, 1 << 28, 1 << 31, 1 << 34, 1 << 38] {
                    let pieces = pieces(of, most);
                    let mut end = 0;
                    for piece in &pieces {
                        assert_eq!(piece.rows.start, end, "{of:?} {most}: {pieces:?}");
                        end = piece.rows.end;
                        // A piece cannot be smaller than one row.
                        let fits = piece.work <= most + most / 2 || piece.rows.len() == 1;
                        assert!(fits && !piece.rows.is_empty(), "{of:?} {most}: {pieces:?}");
                        assert!(!piece.alone || piece.rows.len() <= FEW_TOKENS);
                    }
                    assert_eq!(end, rows);
                }
            }
        }
    }

    #[test]
    fn scores_are_one_piece_where_that_is_little_work() {
        let of = ScoreRows { rows: 256, position: 8000, window: AttentionWindow::ALL, per_key: PER_KEY, seen_end: 0 };
        let whole = |of: ScoreRows| (0..of.rows).step_by(QUERIES).map(|first| of.group_work(first)).sum::<u64>();
        assert_eq!(pieces(of, whole(of)), [ScorePiece { rows: 0..256, work: whole(of), alone: false }]);
        assert_eq!(pieces(of, whole(of) - 1).len(), 2);
        // A group a third above the limit is computed as a group, and a group of twice the work row
        // by row.
        let group = of.group_work(0);
        assert_eq!(of.piece(0, group / 4 * 3), ScorePiece { rows: 0..32, work: group, alone: false });
        let ScorePiece { rows, work, alone } = of.piece(0, group / 2);
        assert!(alone && rows == (0..8) && (group / 5..=group / 4).contains(&work), "{rows:?} {work}");
        assert_eq!(of.piece(0, group / 64).rows, 0..1);
        assert_eq!(of.piece(255, 1).rows, 255..256);
        // A window limits the number of keys.
        let near = ScoreRows { window: AttentionWindow::sliding(100), ..of };
        assert_eq!((near.keys(0, 1), near.keys(0, 32), of.keys(0, 32)), (100, 131, 8032));
        assert_eq!(near.group_work(0), 32 * 131 * PER_KEY);
        // The tokens of a picture see its end, and are never computed row by row.
        let picture = ScoreRows { seen_end: 8400, ..near };
        assert_eq!((picture.keys(0, 1), picture.keys(255, 256)), (499, 244));
        assert_eq!(picture.piece(0, 1).rows, 0..32);
        assert!(!picture.piece(0, 1).alone);
    }
}

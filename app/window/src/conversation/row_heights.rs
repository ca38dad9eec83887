//! A long list of rows of different heights. Only visible rows are laid out. Heights of rows that
//! were never visible are estimated. If an estimate was wrong, the visible rows keep their place.

use std::ops::Range;

use egui::{AsIdSalt, Rect, ScrollArea, Ui, UiBuilder, Vec2, style::KineticScrollStyle};

/// Gap between two rows, in points.
const GAP: f32 = 16.0;

/// Margin beyond the visible area in which rows are laid out, in points.
const AROUND: f32 = 200.0;

/// The heights of the rows, and the scroll position.
#[derive(Debug, Default)]
pub struct RowHeights {
    heights: Vec<f32>,
    /// Scroll offset for the next frame, if rows above differed from their estimates.
    offset: Option<f32>,
    /// The row to scroll into view.
    wanted: Option<usize>,
    /// True if the list should scroll to its end.
    to_end: bool,
    /// True if the end was not visible in the previous frame.
    away: bool,
}

impl RowHeights {
    /// Replaces the rows from `first` on. There are now `count` rows, and `estimate` returns the
    /// height of each, in points.
    pub fn reset(&mut self, first: usize, count: usize, estimate: impl Fn(usize) -> f32) {
        self.heights.truncate(first);
        let from = self.heights.len();
        self.heights.extend((from..count).map(estimate));
    }

    /// Scrolls a row into view in the next frame.
    pub fn go_to(&mut self, row: usize) {
        (self.wanted, self.to_end) = (Some(row), false);
    }

    /// Scrolls to the end in the next frame. The list then follows its end.
    pub fn go_to_end(&mut self) {
        (self.wanted, self.to_end) = (None, true);
    }

    /// True if the end is visible.
    pub fn is_at_end(&self) -> bool {
        !self.away
    }

    /// Shows the rows with `row`, the newest at the end. The list follows its end until the user
    /// scrolls. Returns the rows that were laid out.
    pub fn show(&mut self, ui: &mut Ui, salt: impl AsIdSalt, mut row: impl FnMut(&mut Ui, usize)) -> Range<usize> {
        // An offset slightly past the end stops at the end of the area.
        let end = std::mem::take(&mut self.to_end)
            .then(|| (self.top(self.heights.len()) - ui.available_height()).max(0.0) + GAP);
        let wanted = self.wanted.take().map(|row| self.top(row));
        let mut area = ScrollArea::vertical().id_salt(salt).auto_shrink(false);
        // A scroll area with `stick_to_bottom` that is at its end returns there at once, whatever
        // the offset.
        area = area.stick_to_bottom(wanted.is_none());
        let goal = end.or(wanted);
        let usual = ui.spacing().scroll.kinetic;
        if let Some(offset) = goal.or(self.offset.take()) {
            area = area.vertical_scroll_offset(offset);
            // An offset past the end must not rubber-band, because the area would swing back and
            // keep moving. A goal ends the current movement.
            let decay_time = if goal.is_some() { 0.0 } else { usual.decay_time };
            ui.spacing_mut().scroll.kinetic = KineticScrollStyle { rubber_band: false, decay_time, ..usual };
        }
        let mut seen = 0..0;
        let mut moved = 0.0;
        let output = area.show_viewport(ui, |ui, view| {
            let total = self.top(self.heights.len());
            ui.set_height(total);
            // The width without the scroll bar.
            let width = ui.available_width();
            let origin = ui.min_rect().min;
            let mut top = 0.0;
            let mut first = 0;
            while first < self.heights.len() && top + self.heights[first] + GAP < view.min.y - AROUND {
                top += self.heights[first] + GAP;
                first += 1;
            }
            let mut last = first;
            // At the end all rows are measured. Rows higher than estimated would otherwise push the
            // last rows out of view.
            let at_end = view.max.y + GAP > total;
            while last < self.heights.len() && (at_end || top < view.max.y + AROUND) {
                let place = Rect::from_min_size(origin + Vec2::new(0.0, top), Vec2::new(width, self.heights[last]));
                let mut part = ui.new_child(UiBuilder::new().id_salt(last).max_rect(place));
                row(&mut part, last);
                let height = part.min_rect().height();
                let grown = height - self.heights[last];
                if grown.abs() > 0.5 {
                    if top + self.heights[last] < view.min.y {
                        moved += grown;
                    }
                    self.heights[last] = height;
                    ui.request_repaint();
                }
                top += height + GAP;
                last += 1;
            }
            seen = first..last;
        });
        if ui.spacing().scroll.kinetic != usual {
            ui.spacing_mut().scroll.kinetic = usual;
        }
        let offset = output.state.unclamped_offset().y;
        self.away = offset + output.inner_rect.height() < output.content_size.y - GAP;
        if moved != 0.0 {
            self.to_end |= !self.away;
            self.offset = Some(offset + moved).filter(|_| self.away);
        }
        seen
    }

    fn top(&self, row: usize) -> f32 {
        self.heights[..row.min(self.heights.len())].iter().map(|height| height + GAP).sum()
    }
}

#[cfg(test)]
mod tests {
    use egui::vec2;
    use egui_kittest::Harness;

    use super::*;
    use thermocline_rich_text::theme;

    #[test]
    fn rows_leave_room_for_the_scroll_bar() {
        let mut rows = RowHeights::default();
        rows.reset(0, 50, |_| 20.0);
        let show = |ui: &mut Ui, (room, widest): &mut (f32, f32)| {
            (*room, *widest) = (ui.available_width(), 0.0);
            rows.show(ui, "rows", |ui, _| *widest = widest.max(ui.max_rect().width()));
        };
        let mut it = Harness::new_ui_state(show, (0.0, 0.0));
        theme::install(&it.ctx);
        it.set_size(vec2(300.0, 300.0));
        // The first frames learn that the rows exceed the visible area.
        it.run_steps(4);
        let ((room, widest), bar) = (*it.state(), it.ctx.global_style().spacing.scroll.allocated_width());
        assert!(bar > 0.0 && widest > 0.0 && widest <= room - bar, "{widest} of {room}, the bar is {bar} wide");
    }

    #[test]
    fn end_is_reached_although_rows_are_higher_than_estimated() {
        let mut rows = RowHeights::default();
        rows.reset(0, 200, |_| 20.0);
        let show = |ui: &mut Ui, (rows, seen): &mut (RowHeights, Range<usize>)| {
            *seen = rows.show(ui, "rows", |ui, row| {
                ui.allocate_space(vec2(100.0, 30.0 + row as f32));
            });
        };
        let mut it = Harness::new_ui_state(show, (rows, 0..0));
        it.set_size(vec2(300.0, 300.0));
        it.run_steps(8);
        assert!(it.state().0.is_at_end(), "one begins there");
        it.state_mut().0.go_to(3);
        it.run_steps(8);
        let (rows, seen) = it.state();
        assert!(!rows.is_at_end() && seen.contains(&3) && seen.end < 100, "{seen:?}");
        it.state_mut().0.go_to_end();
        it.run_steps(8);
        let (rows, seen) = it.state();
        assert!(rows.is_at_end() && seen.end == 200, "{seen:?}");
        // The list follows rows that are added at its end.
        it.state_mut().0.reset(200, 230, |_| 20.0);
        it.run_steps(8);
        let (rows, seen) = it.state();
        assert!(rows.is_at_end() && seen.end == 230, "{seen:?}");
    }
}

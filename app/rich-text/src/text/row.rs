//! Lines of an edited text: the position of each character, the position of the cursor between
//! them, and the character at a position.

use std::ops::Range;

use egui::Rangef;

/// Largest gap between adjacent characters, in points. Each character begins at a whole pixel.
const ROUNDED: f32 = 1.1;

/// The position of a character in a line, in points from the beginning of the text.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Place {
    /// Its left and right ends. They are equal for a mark, and for a character joined to the one
    /// before it.
    pub ends: Rangef,
    /// True if the character begins at its right end.
    pub to_the_left: bool,
}

impl Place {
    /// The end at which reading begins.
    fn begins(&self) -> f32 {
        if self.to_the_left { self.ends.max } else { self.ends.min }
    }

    /// The end at which reading stops.
    pub fn stops(&self) -> f32 {
        if self.to_the_left { self.ends.min } else { self.ends.max }
    }
}

/// A line of an edited text.
#[derive(Debug, Clone, PartialEq)]
pub struct TextRow {
    /// Index of its first character in the text.
    pub first: usize,
    /// Positions of its characters in logical order, without the line end.
    pub places: Vec<Place>,
    /// Its upper and lower ends.
    pub height: Rangef,
    /// True if the line begins on the right.
    pub to_the_left: bool,
    /// True if a line end follows.
    pub ends: bool,
    /// Horizontal position at which it begins if it is empty.
    pub begins: f32,
}

/// A gap between two characters of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    /// Number of characters before it.
    pub column: usize,
    /// True if the cursor is next to the character after it. At a change of direction, the
    /// characters before and after a gap are apart.
    pub leading: bool,
}

impl TextRow {
    /// Horizontal position of the cursor: next to the character before it, as just typed, or next
    /// to the character after it if `leading`.
    pub fn caret(&self, gap: Gap) -> f32 {
        let before = gap.column.checked_sub(1).and_then(|column| self.places.get(column)).map(Place::stops);
        let after = self.places.get(gap.column).map(Place::begins);
        let ordered = if gap.leading { after.or(before) } else { before.or(after) };
        ordered.unwrap_or(self.begins)
    }

    /// The gap nearest to `x`.
    pub fn gap_at(&self, x: f32) -> Gap {
        let away = |place: &Place| (place.ends.min - x).max(x - place.ends.max).max(0.0);
        let wide = self.places.iter().enumerate().filter(|(_, place)| place.ends.span() > 0.0);
        let Some((column, place)) = wide.min_by(|(_, one), (_, other)| away(one).total_cmp(&away(other))) else {
            return Gap { column: 0, leading: false };
        };
        let leading = (x < place.ends.center()) != place.to_the_left;
        if leading {
            return Gap { column, leading };
        }
        // Marks belong to their letter.
        let marks = self.places[column + 1..].iter().take_while(|place| place.ends.span() <= 0.0).count();
        Gap { column: column + 1 + marks, leading }
    }

    /// The parts of the line to mark if the characters of `range`, indices in the text, are
    /// selected.
    pub fn selected(&self, range: &Range<usize>) -> Vec<Rangef> {
        let count = self.places.len();
        let column = |at: usize| at.saturating_sub(self.first).min(count);
        let mut ends: Vec<Rangef> =
            self.places[column(range.start)..column(range.end)].iter().map(|place| place.ends).collect();
        let end = self.first + count;
        if self.ends && range.start <= end && end < range.end {
            // The line end, at the end of the line.
            let Rangef { min: left, max: right } = self.span(&self.places);
            let wide = self.height.span() / 2.0;
            ends.push(if self.to_the_left { Rangef::new(left - wide, left) } else { Rangef::new(right, right + wide) });
        }
        ends.sort_by(|one, other| one.min.total_cmp(&other.min));
        let mut marked: Vec<Rangef> = Vec::new();
        for next in ends.into_iter().filter(|ends| ends.span() > 0.0) {
            match marked.last_mut() {
                Some(last) if next.min <= last.max + ROUNDED => last.max = last.max.max(next.max),
                _ => marked.push(next),
            }
        }
        marked
    }

    /// The left and right ends of some of its characters.
    pub fn span(&self, places: &[Place]) -> Rangef {
        let left = places.iter().map(|place| place.ends.min).reduce(f32::min);
        let right = places.iter().map(|place| place.ends.max).reduce(f32::max);
        Rangef::new(left.unwrap_or(self.begins), right.unwrap_or(self.begins))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line of characters 10 points wide, listed from left to right by index. Negative indices
    /// are right-to-left characters.
    fn row(seen: &[i32], to_the_left: bool) -> TextRow {
        let mut places = vec![Place { ends: Rangef::point(0.0), to_the_left: false }; seen.len()];
        for (nth, column) in seen.iter().enumerate() {
            let left = nth as f32 * 10.0;
            let ends = Rangef::new(left, left + 10.0);
            places[column.unsigned_abs() as usize] = Place { ends, to_the_left: *column < 0 };
        }
        TextRow { first: 5, places, height: Rangef::new(0.0, 20.0), to_the_left, ends: true, begins: 7.0 }
    }

    fn carets(row: &TextRow, leading: bool) -> Vec<f32> {
        (0..=row.places.len()).map(|column| row.caret(Gap { column, leading })).collect()
    }

    #[test]
    fn the_cursor_stands_where_the_next_letter_is_written() {
        // "ab " and two right-to-left letters.
        let mixed = row(&[0, 1, 2, -4, -3], false);
        assert_eq!(carets(&mixed, false), [0.0, 10.0, 20.0, 30.0, 40.0, 30.0]);
        assert_eq!(carets(&mixed, true), [0.0, 10.0, 20.0, 50.0, 40.0, 30.0]);
        assert_eq!(carets(&row(&[], true), false), [7.0]);
    }

    #[test]
    fn a_click_finds_the_gap_beside_it() {
        let mixed = row(&[0, 1, 2, -4, -3], false);
        let gap = |x| {
            let Gap { column, leading } = mixed.gap_at(x);
            (column, leading)
        };
        assert_eq!([gap(-9.0), gap(4.0), gap(6.0)], [(0, true), (0, true), (1, false)]);
        assert_eq!([gap(28.0), gap(32.0), gap(38.0)], [(3, false), (5, false), (4, true)]);
        assert_eq!([gap(44.0), gap(46.0), gap(99.0)], [(4, false), (3, true), (3, true)]);
        for x in [4.0, 6.0, 28.0, 32.0, 38.0, 44.0, 46.0] {
            assert!((mixed.caret(mixed.gap_at(x)) - x).abs() <= 5.0, "the cursor stands where {x} was clicked");
        }
        let mut marked = row(&[0, 1, 2], false);
        marked.places[1].ends = Rangef::point(10.0);
        assert_eq!(marked.gap_at(8.0).column, 2, "a mark belongs to its letter");
    }

    #[test]
    fn a_selection_over_both_directions_is_marked_in_parts() {
        let mixed = row(&[0, 1, 2, -4, -3], false);
        let marked = |range| mixed.selected(&range).iter().map(|ends| (ends.min, ends.max)).collect::<Vec<_>>();
        assert_eq!(marked(7..9), [(20.0, 30.0), (40.0, 50.0)], "the space, and the first letter to the left");
        assert_eq!(marked(0..99), [(0.0, 60.0)], "with the line end");
        assert_eq!(marked(5..10), [(0.0, 50.0)]);
        let mut rounded = row(&[0, 1, 2], false);
        rounded.places[1].ends = Rangef::new(10.9, 19.1);
        assert_eq!(rounded.selected(&(5..8)), [Rangef::new(0.0, 30.0)], "one part, without lines between letters");
        assert_eq!(row(&[], true).selected(&(0..99)), [Rangef::new(-3.0, 7.0)], "an empty line");
    }
}

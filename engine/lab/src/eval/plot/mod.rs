//! Charts as self-contained SVG files for light and dark pages. A [`Figure`] is a line chart:
//! panels of curves over a shared horizontal axis. A [`BarChart`] has bars.

mod axis;
mod bars;
mod drawing;
mod figure;

pub use axis::Axis;
pub use bars::{BarChart, Series, bar_svg};
pub use figure::svg;

/// A line chart.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// Title line.
    pub title: String,
    /// Second line, smaller: the conditions of the measurement.
    pub subtitle: String,
    /// Horizontal axis of all panels.
    pub x: Axis,
    /// Panels from the top.
    pub panels: Vec<Panel>,
}

/// One coordinate system.
#[derive(Debug, Clone, PartialEq)]
pub struct Panel {
    /// Vertical axis.
    pub y: Axis,
    /// Curves. Curves of the same name have the same colour in every panel.
    pub curves: Vec<Curve>,
    /// Horizontal reference lines: a name and a value.
    pub marks: Vec<(String, f64)>,
}

/// Points, joined by lines in their order.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    /// Name in the legend; empty for none.
    pub name: String,
    /// Points. Points that are not finite are omitted.
    pub points: Vec<Point>,
}

/// A measured point.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)]
pub struct Point {
    pub x: f64,
    pub y: f64,
    /// Standard error of `y`; 0 draws none.
    pub error: f64,
}

impl Curve {
    /// Creates a curve of points without errors.
    pub fn from_points(name: &str, points: impl IntoIterator<Item = (f64, f64)>) -> Self {
        let points = points.into_iter().map(|(x, y)| Point { x, y, error: 0.0 }).collect();
        Curve { name: name.to_owned(), points }
    }
}

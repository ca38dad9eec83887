//! Curves as SVG pictures that need nothing beside them: panels one below the other over a shared horizontal axis, with
//! ticks at round numbers, units at the axes, and colours that can be read on light and dark pages.

mod axis;
mod svg;

pub use axis::{Axis, Scale};
pub use svg::svg;

/// A picture.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// Over everything.
    pub title: String,
    /// Below the title, smaller: under which conditions.
    pub subtitle: String,
    /// Shared by all panels.
    pub x: Axis,
    /// From the top.
    pub panels: Vec<Panel>,
}

/// One system of coordinates.
#[derive(Debug, Clone, PartialEq)]
pub struct Panel {
    /// What goes up.
    pub y: Axis,
    /// Lines and points. Curves of the same name have the same colour in every panel.
    pub curves: Vec<Curve>,
    /// Straight lines across, to compare with: a name and a height.
    pub marks: Vec<(String, f64)>,
}

/// Points joined by lines, in their order.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    /// In the legend; without a name it is not in it.
    pub name: String,
    /// Points whose numbers are not finite are left out.
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
    /// Points without errors.
    pub fn of(name: &str, points: impl IntoIterator<Item = (f64, f64)>) -> Self {
        let points = points.into_iter().map(|(x, y)| Point { x, y, error: 0.0 }).collect();
        Curve { name: name.to_owned(), points }
    }
}

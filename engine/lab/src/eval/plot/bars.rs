//! Bar charts: horizontal bars in groups, one bar per series, with their values.

use super::{
    Axis,
    drawing::{BOTTOM, LEFT, Legend, RIGHT, SvgDrawing, TOP, WIDTH, text_width},
};

/// A bar chart.
#[derive(Debug, Clone, PartialEq)]
pub struct BarChart {
    /// Title line.
    pub title: String,
    /// Second line, smaller.
    pub subtitle: String,
    /// Axis of the values. A linear axis begins at 0.
    pub axis: Axis,
    /// Labels of the groups, from the top.
    pub labels: Vec<String>,
    /// Series of bars. Each series has its own colour.
    pub series: Vec<Series>,
}

/// One bar per group.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// Value per group; `None` draws no bar.
    pub values: Vec<Option<f64>>,
}

/// Height of a bar, in pixels.
const BAR: f64 = 16.0;
/// Distance between groups, in pixels.
const GAP: f64 = 12.0;
/// Room for the values after the longest bars, in pixels.
const VALUE: f64 = 56.0;

/// Draws the chart as the text of an SVG file.
pub fn bar_svg(chart: &BarChart) -> String {
    let legend = Legend::new(chart.series.iter().map(|series| series.name.as_str()));
    let longest = chart.labels.iter().map(|label| text_width(label)).fold(0.0, f64::max);
    let (left, right) = ((longest + 20.0).clamp(LEFT, 0.5 * WIDTH), WIDTH - RIGHT - VALUE);
    let group = BAR * chart.series.len() as f64 + GAP;
    let top = TOP + legend.height();
    let bottom = top + group * chart.labels.len() as f64 + GAP;
    let mut out = SvgDrawing::new(bottom + BOTTOM, &chart.title, &chart.subtitle, &legend);

    let axis = chart.axis.clone().from_zero();
    let values = chart.series.iter().flat_map(|series| series.values.iter().flatten().copied());
    let span = axis.span(values, [left, right]);
    for tick in &span.ticks {
        let x = span.at(*tick);
        out.stroke([x, top], [x, bottom], r#"class="grid""#);
        out.text([x, bottom + 18.0], "middle", "", &span.text(*tick));
    }
    let start = if axis.log { left } else { span.at(0.0) };
    for (number, label) in chart.labels.iter().enumerate() {
        let y = top + GAP + group * number as f64;
        out.text([left - 8.0, y + (group - GAP) / 2.0 + 4.0], "end", "", label);
        for (row, series) in chart.series.iter().enumerate() {
            let Some(value) = series.values.get(number).copied().flatten().filter(|value| axis.holds(*value)) else {
                continue;
            };
            let (y, end, height) = (y + BAR * row as f64, span.at(value), BAR - 2.0);
            let (from, width, colour) = (start.min(end), (end - start).abs(), legend.colour(&series.name));
            out.line(&format!(
                r#"<rect x="{from:.1}" y="{y:.1}" width="{width:.1}" height="{height}" fill="{colour}"/>"#
            ));
            out.text([start.max(end) + 5.0, y + BAR - 5.0], "start", "small", &short(value));
        }
    }
    out.text([f64::midpoint(left, right), bottom + BOTTOM - 12.0], "middle", "", &axis.title());
    out.finish()
}

/// Formats a value with about three significant digits.
fn short(value: f64) -> String {
    let decimals = match value.abs() {
        v if v >= 100.0 || v == 0.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 0.1 => 2,
        _ => return format!("{value:.2e}"),
    };
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::plot::drawing::tests::elements;

    fn chart(axis: Axis, values: [[Option<f64>; 2]; 2]) -> BarChart {
        let series = |(name, values): (&str, [Option<f64>; 2])| Series { name: name.to_owned(), values: values.into() };
        BarChart {
            title: "speed".to_owned(),
            subtitle: "a & b".to_owned(),
            axis,
            labels: vec!["dense".to_owned(), "predicted".to_owned()],
            series: ["old", "new"].into_iter().zip(values).map(series).collect(),
        }
    }

    #[test]
    fn bar_charts_are_well_formed_with_a_bar_per_value() {
        let values = [[Some(1.5), Some(-2.0)], [None, Some(f64::NAN)]];
        for (axis, bars) in [(Axis::new("speed", "tokens/s"), 2), (Axis::new("speed", "tokens/s").log(), 1)] {
            let text = bar_svg(&chart(axis, values));
            let elements = elements(&text);
            assert_eq!(elements.iter().filter(|name| *name == "rect").count(), bars, "{text}");
            for part in ["speed [tokens/s]", "a &amp; b", "dense", "predicted", "old", "new", "1.50"] {
                assert!(text.contains(part), "{part}: {text}");
            }
            assert!(!text.contains("NaN"));
        }
        let empty = BarChart { labels: Vec::new(), series: Vec::new(), ..chart(Axis::default(), values) };
        elements(&bar_svg(&empty));
    }

    #[test]
    fn bar_lengths_are_proportional_to_their_values() {
        let text = bar_svg(&chart(Axis::new("speed", ""), [[Some(10.0), Some(5.0)], [Some(20.0), None]]));
        let widths = text.lines().filter(|line| line.starts_with("<rect")).map(|line| {
            let (_, rest) = line.split_once("width=\"").unwrap();
            rest.split_once('"').unwrap().0.parse::<f64>().unwrap()
        });
        let widths: Vec<f64> = widths.collect();
        assert_eq!(widths.len(), 3, "{text}");
        // Compares the groups, within the rounding to a tenth of a pixel.
        assert!((widths[1] - 2.0 * widths[0]).abs() < 0.3 && (widths[0] - 2.0 * widths[2]).abs() < 0.3, "{widths:?}");
    }

    #[test]
    fn values_have_about_three_digits() {
        let texts = [1234.5, 34.56, 3.456, 0.1234, 0.001234, 0.0].map(short);
        assert_eq!(texts, ["1234", "34.6", "3.46", "0.12", "1.23e-3", "0"]);
    }
}

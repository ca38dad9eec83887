//! Axes of charts: positions of values, and ticks.

/// An axis.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Axis {
    /// Name of the quantity.
    pub label: String,
    /// Unit, or empty.
    pub unit: String,
    /// True for a logarithmic scale. Values that are not above 0 are omitted.
    pub log: bool,
    /// True to include 0 on a linear axis.
    pub from_zero: bool,
}

impl Axis {
    /// Creates a linear axis.
    pub fn new(label: &str, unit: &str) -> Self {
        Axis { label: label.to_owned(), unit: unit.to_owned(), ..Axis::default() }
    }

    /// Returns the axis with a logarithmic scale.
    pub fn log(self) -> Self {
        Axis { log: true, ..self }
    }

    /// Returns the axis with 0 included.
    pub fn from_zero(self) -> Self {
        Axis { from_zero: true, ..self }
    }

    /// Returns the label with the unit.
    pub(super) fn title(&self) -> String {
        if self.unit.is_empty() { self.label.clone() } else { format!("{} [{}]", self.label, self.unit) }
    }

    /// True if `value` has a position on the axis.
    pub(super) fn holds(&self, value: f64) -> bool {
        value.is_finite() && (!self.log || value > 0.0)
    }

    /// Returns the range that shows `values` between `pixels[0]` and `pixels[1]`, with ticks.
    pub(super) fn span(&self, values: impl Iterator<Item = f64>, pixels: [f64; 2]) -> Span {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values.filter(|value| self.holds(*value)) {
            (low, high) = (low.min(value), high.max(value));
        }
        if low > high {
            (low, high) = if self.log { (1.0, 10.0) } else { (0.0, 1.0) };
        }
        match self.log {
            true => logarithmic(low, high, pixels),
            false => linear(if self.from_zero { low.min(0.0) } else { low }, high, pixels),
        }
    }
}

/// A range of an axis with its ticks.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Span {
    log: bool,
    /// Ends of the range and their pixels. On a logarithmic scale, the ends are logarithms.
    ends: [f64; 2],
    pixels: [f64; 2],
    /// Tick values.
    pub ticks: Vec<f64>,
    /// Decimals of the ticks' texts.
    decimals: usize,
}

impl Span {
    /// Returns the pixel of a value.
    pub fn at(&self, value: f64) -> f64 {
        let ([low, high], [from, to]) = (self.ends, self.pixels);
        let value = if self.log { value.log10() } else { value };
        from + (value - low) / (high - low) * (to - from)
    }

    /// Returns the text of a tick.
    pub fn text(&self, tick: f64) -> String {
        match tick.abs() {
            far if far >= 1e6 || (far != 0.0 && far < 1e-3) => format!("{tick:.0e}").replace("e", " e"),
            _ if self.log => format!("{tick}"),
            _ => format!("{tick:.*}", self.decimals),
        }
    }
}

/// Approximate number of ticks.
const TICKS: f64 = 6.0;

/// Places ticks at multiples of 1, 2 or 5 times a power of ten. The range ends at ticks.
fn linear(low: f64, high: f64, pixels: [f64; 2]) -> Span {
    // All values are equal or indistinguishable in f64.
    let room = if high - low > 1e-12 * high.abs().max(low.abs()) { 0.0 } else { 0.5 * high.abs().max(1.0) };
    let (low, high) = (low - room, high + room);
    let rough = (high - low) / TICKS;
    let unit = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().find(|step| step * unit >= rough).unwrap_or(10.0) * unit;
    let (first, last) = ((low / step + 1e-9).floor(), (high / step - 1e-9).ceil());
    let ticks = (0..=(last - first) as usize).map(|i| (first + i as f64) * step).collect();
    let decimals = (-step.log10().floor()).clamp(0.0, 9.0) as usize;
    Span { log: false, ends: [first * step, last * step], pixels, ticks, decimals }
}

/// Places ticks at powers of ten, and at 2 and 5 times these powers if there are few.
fn logarithmic(low: f64, high: f64, pixels: [f64; 2]) -> Span {
    let (first, last) = (low.log10().floor(), high.log10().ceil().max(low.log10().floor() + 1.0));
    let decades = (last - first) as usize;
    let between: &[f64] = if decades <= 2 { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let mut ticks = Vec::new();
    for decade in (0..=decades).step_by(decades.div_ceil(8).max(1)) {
        // Parsed from text, so that 1e-3 is 0.001 and not its neighbour.
        let power = format!("1e{}", first as i64 + decade as i64).parse::<f64>().unwrap_or(1.0);
        ticks.extend(between.iter().map(|times| times * power).filter(|tick| tick.log10() <= last + 1e-9));
    }
    Span { log: true, ends: [first, last], pixels, ticks, decimals: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: [f64; 2] = [0.0, 1.0];

    #[test]
    fn linear_ticks_are_round_and_enclose_every_value() {
        let axis = Axis::new("fraction", "%");
        assert_eq!(axis.title(), "fraction [%]");
        let span = axis.span([3.0, 97.0, f64::NAN].into_iter(), UNIT);
        assert_eq!(span.ticks, [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        assert_eq!((span.at(0.0), span.at(100.0), span.text(20.0)), (0.0, 1.0, "20".to_owned()));
        let span = axis.span([6.94, 6.981].into_iter(), UNIT);
        assert!(span.ticks.len() >= 4 && span.at(6.94) >= -1e-6 && span.at(6.981) <= 1.0, "{span:?}");
        assert_eq!(span.text(span.ticks[0]), "6.94");
        for values in [vec![], vec![5.0], vec![0.0, 0.0], vec![-1e30, 1e30], vec![1e-30, 2e-30]] {
            let span = axis.span(values.iter().copied(), UNIT);
            assert!((3..20).contains(&span.ticks.len()), "{values:?}: {span:?}");
            assert!(values.iter().all(|value| (-1e-6..=1.000_001).contains(&span.at(*value))), "{values:?}: {span:?}");
        }
        assert_eq!(axis.from_zero().span([50.0, 60.0].into_iter(), UNIT).ticks[0], 0.0);
    }

    #[test]
    fn logarithmic_ticks_are_powers_of_ten() {
        let axis = Axis::new("KL", "nats").log();
        let span = axis.span([0.0, -1.0, 3e-4, 0.2].into_iter(), UNIT);
        assert_eq!(span.ticks, [1e-4, 1e-3, 1e-2, 1e-1, 1.0]);
        assert!((span.at(1e-2) - 0.5).abs() < 1e-12 && !axis.holds(0.0));
        assert_eq!(
            span.ticks.iter().map(|tick| span.text(*tick)).collect::<Vec<_>>(),
            ["1 e-4", "0.001", "0.01", "0.1", "1"]
        );
        assert_eq!(axis.span([2.0, 30.0].into_iter(), UNIT).ticks, [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]);
        for values in [vec![], vec![1.0], vec![1e-300, 1e300]] {
            let span = axis.span(values.iter().copied(), UNIT);
            assert!((2..20).contains(&span.ticks.len()), "{values:?}: {span:?}");
        }
    }
}

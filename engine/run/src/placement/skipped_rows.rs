//! The rows of FFNs that decoding skips, and the rows that it is expected to read.

use thermocline_model::Skips;

/// The rows of a layer's FFN that decoding a token skips, as plans price them: the rule of
/// [`SkipRule`](thermocline_model::SkipRule), in rows of units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SkippedRows {
    /// No rows.
    Nothing,
    /// All rows of silent neurons except the firing row (the gate, or up without a gate).
    Silent,
    /// All rows of neurons that are not predicted, and all rows except the firing row of predicted
    /// neurons that do not fire.
    NotPredicted,
    /// All rows of experts that are not routed to.
    NotRouted,
}

impl From<Skips> for SkippedRows {
    fn from(skips: Skips) -> Self {
        match skips {
            Skips::Nothing => SkippedRows::Nothing,
            Skips::Silent | Skips::Above(_) => SkippedRows::Silent,
            Skips::NotPredicted => SkippedRows::NotPredicted,
        }
    }
}

/// Expected numbers of rows of some units that one token reads.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct ExpectedRows {
    /// Number of units: neurons, or experts.
    pub units: f64,
    /// Number of firing rows read.
    pub firing_rows: f64,
    /// Number of units whose other rows are read.
    pub other_rows: f64,
    /// Number of units that fire, or are chosen.
    pub fires: f64,
}

impl ExpectedRows {
    pub fn minus(self, other: ExpectedRows) -> ExpectedRows {
        ExpectedRows {
            units: (self.units - other.units).max(0.0),
            firing_rows: (self.firing_rows - other.firing_rows).max(0.0),
            other_rows: (self.other_rows - other.other_rows).max(0.0),
            fires: (self.fires - other.fires).max(0.0),
        }
    }

    pub fn plus(self, other: ExpectedRows) -> ExpectedRows {
        ExpectedRows {
            units: self.units + other.units,
            firing_rows: self.firing_rows + other.firing_rows,
            other_rows: self.other_rows + other.other_rows,
            fires: self.fires + other.fires,
        }
    }
}

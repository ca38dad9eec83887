//! State of the VRAM panel between two frames.

use super::{forecasts::BudgetForecasts, reasons::SpeedReasons};
use thermocline_chats::{settings::VramBudget, speeds::ExpectedSpeeds};

/// Forecasts and choices for the memory of the open model.
#[derive(Debug, Default)]
pub struct VramState {
    /// The budget, while it is being dragged.
    pub dragged: Option<VramBudget>,
    /// Forecasts for budgets.
    pub forecasts: BudgetForecasts,
    /// The figures that explain the model's speed.
    pub reasons: SpeedReasons,
    /// Predicted speeds of all models, used until an answer has been measured.
    pub expected_speeds: ExpectedSpeeds,
}

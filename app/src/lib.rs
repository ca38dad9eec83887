//! The Thermocline application.

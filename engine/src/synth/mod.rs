//! Synthetic models with power-law firing at published shapes.

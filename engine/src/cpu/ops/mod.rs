//! Vector operations between the matrix products: norms, rotary embedding, attention, activations.

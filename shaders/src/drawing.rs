//! Shaders that draw for the window, rather than compute for the model.

use bytemuck::{Pod, Zeroable};

/// One file with a vertex and a fragment shader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drawing {
    /// Name of the file, without `.wgsl`.
    pub name: &'static str,
    /// Entry point of the vertex shader.
    pub vertex: &'static str,
    /// Entry point of the fragment shader.
    pub fragment: &'static str,
    /// WGSL.
    pub text: &'static str,
}

/// The map of neurons: see [`MapParams`].
pub const NEURON_MAP: Drawing = Drawing {
    name: "neuron_map",
    vertex: "neuron_map_corner",
    fragment: "neuron_map_dot",
    text: include_str!("../wgsl/neuron_map.wgsl"),
};

/// One opaque colour all over: the number of the first of its three corners is four times the colour, whose lowest byte is red, then
/// come green and blue.
pub const PLAIN_FILL: Drawing = Drawing {
    name: "plain_fill",
    vertex: "plain_fill_corner",
    fragment: "plain_fill_colour",
    text: include_str!("../wgsl/plain_fill.wgsl"),
};

/// All of them.
pub const DRAWINGS: &[Drawing] = &[NEURON_MAP, PLAIN_FILL];

/// Uniforms of [`NEURON_MAP`]: where the map is, how it is folded into dots, and what they mean.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Pod, Zeroable)]
pub struct MapParams {
    /// Left edge on the target, in pixels.
    pub left: f32,
    /// Top edge, in pixels.
    pub top: f32,
    /// Width, in pixels.
    pub width: f32,
    /// Height, in pixels.
    pub height: f32,
    /// Dots of a layer from left to right.
    pub columns: u32,
    /// Dots of a layer from top to bottom.
    pub lines: u32,
    /// Layers that are shown.
    pub layers: u32,
    /// Neurons in a row of their texture.
    pub row: u32,
    /// Fold of a dot's neurons, by number.
    pub fold: u32,
    /// 1 where the target wants linear colours, else 0.
    pub linear: u32,
}

impl MapParams {
    /// Bytes of the uniform buffer, which has to be a multiple of 16.
    pub const BYTES: usize = size_of::<MapParams>().next_multiple_of(16);

    /// As they lie in that buffer.
    pub fn bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..size_of::<Self>()].copy_from_slice(bytemuck::bytes_of(self));
        bytes
    }
}

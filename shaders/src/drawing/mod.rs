//! Shaders that draw the window. They do not compute the model.

use bytemuck::{Pod, Zeroable};

/// A WGSL file with a vertex and a fragment shader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drawing {
    /// Name of the file, without `.wgsl`.
    pub name: &'static str,
    /// Entry point of the vertex shader.
    pub vertex: &'static str,
    /// Entry point of the fragment shader.
    pub fragment: &'static str,
    /// WGSL text.
    pub text: &'static str,
}

/// The neuron map. Its uniforms are [`MapParams`].
pub const NEURON_MAP: Drawing = Drawing {
    name: "neuron_map",
    vertex: "neuron_map_corner",
    fragment: "neuron_map_dot",
    text: include_str!("neuron_map.wgsl"),
};

/// Fills everything with one opaque colour. The index of the first of its three corners is four
/// times the colour, with red in the lowest byte, then green and blue.
pub const PLAIN_FILL: Drawing = Drawing {
    name: "plain_fill",
    vertex: "plain_fill_corner",
    fragment: "plain_fill_colour",
    text: include_str!("plain_fill.wgsl"),
};

/// All drawings.
pub const DRAWINGS: &[Drawing] = &[NEURON_MAP, PLAIN_FILL];

/// Uniforms of [`NEURON_MAP`]: the position of the map, its division into dots, and the meaning of
/// a dot.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Pod, Zeroable)]
pub struct MapParams {
    /// Left edge on the target, in pixels.
    pub left: f32,
    /// Top edge on the target, in pixels.
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
    /// Neurons per row of the neuron texture.
    pub row: u32,
    /// Number of the fold, which combines the neurons of a dot.
    pub fold: u32,
    /// 1 if the target expects linear colours, else 0.
    pub linear: u32,
}

impl MapParams {
    /// Size of the uniform buffer in bytes, a multiple of 16.
    pub const BYTES: usize = size_of::<MapParams>().next_multiple_of(16);

    /// The uniforms as bytes of the uniform buffer.
    pub fn bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..size_of::<Self>()].copy_from_slice(bytemuck::bytes_of(self));
        bytes
    }
}

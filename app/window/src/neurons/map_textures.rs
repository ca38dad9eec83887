//! Data of the map's [`shader`](super::shader) that stays on the device between frames: a texture
//! of neuron bytes, and tables that explain them. Only changed rows are uploaded.

use std::{ops::Range, sync::Arc};

use eframe::egui_wgpu::wgpu::{self, Device, Queue, RenderPass, Texture, TextureFormat};
use egui::Rect;
use thermocline_shaders::{MapParams, NEURON_MAP};

use crate::drawing::pipeline;

/// The input of a frame.
pub struct Frame {
    /// Rectangle of the map, in points.
    pub rect: Rect,
    /// How neurons become dots. [`MapTextures::bring`] fills in the rectangle.
    pub params: MapParams,
    /// Per layer: its first row in the texture, index of its first neuron, and number of neurons.
    pub layers: Vec<[u32; 4]>,
    /// One colour for each of 256 levels, RGBA.
    pub colours: Vec<[u8; 4]>,
    /// One byte for each neuron.
    pub bytes: Arc<Vec<u8>>,
    /// Bytes per row, and number of rows.
    pub size: [u32; 2],
    /// Increases by one whenever `bytes` change.
    pub version: u64,
    /// The rows that changed in this version.
    pub fresh: Range<usize>,
}

/// Textures and pipelines that stay on the device between frames.
pub struct MapTextures {
    pipeline: wgpu::RenderPipeline,
    linear: bool,
    params: wgpu::Buffer,
    neurons: Texture,
    layers: Texture,
    colours: Texture,
    bound: Option<wgpu::BindGroup>,
    /// Version of the neuron bytes in the texture.
    version: Option<u64>,
    has_layers: Vec<[u32; 4]>,
    has_colours: Vec<[u8; 4]>,
}

impl MapTextures {
    /// Creates empty textures for a window of this format.
    pub fn new(device: &Device, target: TextureFormat) -> Self {
        let params = device.create_buffer(&wgpu::BufferDescriptor {
            label: Some(NEURON_MAP.name),
            size: MapParams::BYTES as u64,
            usage: wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        MapTextures {
            pipeline: pipeline(device, target, &NEURON_MAP),
            linear: target.is_srgb(),
            params,
            neurons: texture(device, [1, 1], TextureFormat::R8Uint),
            layers: texture(device, [1, 1], TextureFormat::Rgba32Uint),
            colours: texture(device, [256, 1], TextureFormat::Rgba8Unorm),
            bound: None,
            version: None,
            has_layers: Vec::new(),
            has_colours: Vec::new(),
        }
    }

    /// Uploads what has changed.
    pub fn bring(&mut self, device: &Device, queue: &Queue, pixels_per_point: f32, frame: &Frame) {
        let [width, height] = frame.size;
        if [self.neurons.width(), self.neurons.height()] != frame.size {
            self.neurons = texture(device, frame.size, TextureFormat::R8Uint);
            (self.version, self.bound) = (None, None);
        }
        if self.version != Some(frame.version) {
            let next = self.version.is_some_and(|version| version + 1 == frame.version);
            let rows = if next { frame.fresh.clone() } else { 0..height as usize };
            let bytes = frame.bytes.get(rows.start * width as usize..rows.end * width as usize).unwrap_or_default();
            write(queue, &self.neurons, rows.start as u32, bytes, width);
            self.version = Some(frame.version);
        }
        if self.has_layers != frame.layers {
            let count = frame.layers.len().max(1) as u32;
            if self.layers.width() != count {
                self.layers = texture(device, [count, 1], TextureFormat::Rgba32Uint);
                self.bound = None;
            }
            let bytes: Vec<u8> = frame.layers.iter().flatten().flat_map(|value| value.to_ne_bytes()).collect();
            write(queue, &self.layers, 0, &bytes, 16 * count);
            self.has_layers.clone_from(&frame.layers);
        }
        if self.has_colours != frame.colours {
            write(queue, &self.colours, 0, frame.colours.as_flattened(), 4 * 256);
            self.has_colours.clone_from(&frame.colours);
        }
        let rect = frame.rect * pixels_per_point;
        let params = MapParams {
            left: rect.left(),
            top: rect.top(),
            width: rect.width(),
            height: rect.height(),
            linear: u32::from(self.linear),
            ..frame.params
        };
        queue.write_buffer(&self.params, 0, &params.bytes());
        if self.bound.is_none() {
            let views = [&self.neurons, &self.layers, &self.colours]
                .map(|texture| texture.create_view(&wgpu::TextureViewDescriptor::default()));
            let entry = |binding, resource| wgpu::BindGroupEntry { binding, resource };
            self.bound = Some(device.create_bind_group(&wgpu::BindGroupDescriptor {
                label: Some(NEURON_MAP.name),
                layout: &self.pipeline.get_bind_group_layout(0),
                entries: &[
                    entry(0, self.params.as_entire_binding()),
                    entry(1, wgpu::BindingResource::TextureView(&views[0])),
                    entry(2, wgpu::BindingResource::TextureView(&views[1])),
                    entry(3, wgpu::BindingResource::TextureView(&views[2])),
                ],
            }));
        }
    }

    /// Draws the uploaded map.
    pub fn draw(&self, pass: &mut RenderPass<'static>) {
        if let Some(bound) = &self.bound {
            pass.set_pipeline(&self.pipeline);
            pass.set_bind_group(0, bound, &[]);
            pass.draw(0..3, 0..1);
        }
    }

    /// The version of the uploaded bytes.
    #[cfg(test)]
    pub fn version(&self) -> Option<u64> {
        self.version
    }
}

fn texture(device: &Device, [width, height]: [u32; 2], format: TextureFormat) -> Texture {
    device.create_texture(&wgpu::TextureDescriptor {
        label: Some(NEURON_MAP.name),
        size: wgpu::Extent3d { width, height, depth_or_array_layers: 1 },
        mip_level_count: 1,
        sample_count: 1,
        dimension: wgpu::TextureDimension::D2,
        format,
        usage: wgpu::TextureUsages::TEXTURE_BINDING | wgpu::TextureUsages::COPY_DST,
        view_formats: &[],
    })
}

/// Writes whole rows of `pitch` bytes, beginning at row `first`.
fn write(queue: &Queue, texture: &Texture, first: u32, bytes: &[u8], pitch: u32) {
    let height = (bytes.len() / pitch.max(1) as usize) as u32;
    if height == 0 {
        return;
    }
    let mut place = texture.as_image_copy();
    place.origin.y = first;
    let layout = wgpu::TexelCopyBufferLayout { offset: 0, bytes_per_row: Some(pitch), rows_per_image: None };
    let size = wgpu::Extent3d { width: texture.width(), height, depth_or_array_layers: 1 };
    queue.write_texture(place, bytes, layout, size);
}

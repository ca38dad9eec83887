//! Pipelines of the window's own shaders.

use eframe::egui_wgpu::wgpu::{self, Device, RenderPipeline, TextureFormat};
use thermocline_shaders::Drawing;

/// Creates a pipeline that generates its own three vertices (one triangle over everything) and
/// writes opaque colours to `target`.
pub fn pipeline(device: &Device, target: TextureFormat, drawing: &Drawing) -> RenderPipeline {
    let label = Some(drawing.name);
    let source = wgpu::ShaderSource::Wgsl(drawing.text.into());
    let module = device.create_shader_module(wgpu::ShaderModuleDescriptor { label, source });
    let compilation_options = wgpu::PipelineCompilationOptions::default();
    device.create_render_pipeline(&wgpu::RenderPipelineDescriptor {
        label,
        layout: None,
        vertex: wgpu::VertexState {
            module: &module,
            entry_point: Some(drawing.vertex),
            compilation_options: compilation_options.clone(),
            buffers: &[],
        },
        primitive: wgpu::PrimitiveState::default(),
        depth_stencil: None,
        multisample: wgpu::MultisampleState::default(),
        fragment: Some(wgpu::FragmentState {
            module: &module,
            entry_point: Some(drawing.fragment),
            compilation_options,
            targets: &[Some(target.into())],
        }),
        multiview_mask: None,
        cache: None,
    })
}

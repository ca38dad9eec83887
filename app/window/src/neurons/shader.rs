//! Draws the map with a shader. A new token uploads one byte per neuron. Every other change (zoom,
//! position, mode, colours) updates a few uniforms.
//!
//! For a model of 80 layers with 28,672 neurons each, a new token takes the window's thread under 2
//! ms (`cargo test --lib large_model -- --nocapture`). A step of a zoom takes almost nothing.
//!
//! Without the shader ([`Shader::pays`]), the CPU computes the same dots from the same bytes, and
//! the map is a texture. That happens for small models, with OpenGL, and with software drivers. A
//! software driver would compute the pixels on the cores that compute the model.

use std::sync::Arc;

use eframe::egui_wgpu::{
    Callback, CallbackResources, CallbackTrait, RenderState, ScreenDescriptor,
    wgpu::{self, CommandBuffer, CommandEncoder, Device, Queue, RenderPass},
};
use egui::{PaintCallbackInfo, Rect, Shape};
use thermocline_engine::telemetry::neurons::NeuronShape;
use thermocline_shaders::MapParams;

use super::{
    atlas::{Atlas, MapLayout},
    colours::ColourTable,
    layer_values::Fold,
    map_textures::{Frame, MapTextures},
    plane::Plane,
};

/// Proves that the window can draw maps with the shader.
#[derive(Debug, Clone, Copy)]
pub struct Shader {
    limit: usize,
    software: bool,
}

/// The CPU folds models with fewer neurons in under 3 ms, which is fast enough for every step of a
/// zoom.
const LARGE: usize = 1 << 18;

impl Shader {
    /// Creates the pipeline and stores it in the window's renderer. `None` if OpenGL draws the
    /// window. The map is then a texture.
    pub fn install(state: &RenderState) -> Option<Self> {
        let info = state.adapter.get_info();
        if info.backend == wgpu::Backend::Gl {
            return None;
        }
        let textures = MapTextures::new(&state.device, state.target_format);
        state.renderer.write().callback_resources.insert(textures);
        let limit = state.device.limits().max_texture_dimension_2d as usize;
        Some(Shader { limit, software: info.device_type == wgpu::DeviceType::Cpu })
    }

    /// True if the shader is faster for a model. A software driver would compute pixels on the
    /// model's cores.
    pub fn pays(&self, shape: &NeuronShape) -> bool {
        !self.software && shape.total() >= LARGE
    }

    /// True if a texture can hold `plane`.
    pub fn holds(&self, plane: &Plane) -> bool {
        plane.fits_texture(self.limit)
    }
}

/// The map of a frame as a shape to paint at `rect`. `None` if `atlas` has nothing for a shader.
pub fn shape(rect: Rect, atlas: &Atlas, fold: Fold, table: &ColourTable) -> Option<Shape> {
    let frame = frame(rect, atlas, fold, table)?;
    Some(Shape::Callback(Callback::new_paint_callback(rect, frame)))
}

fn frame(rect: Rect, atlas: &Atlas, fold: Fold, table: &ColourTable) -> Option<Frame> {
    let plane = &atlas.plane;
    let MapLayout { grid, .. } = atlas.layout;
    let shown = atlas.shown();
    let layer = |layer| {
        let ranks = atlas.ranks(layer);
        [plane.first_row(layer), ranks.start, ranks.len(), 0].map(|value| value as u32)
    };
    let (version, fresh) = plane.version();
    let [row, rows] = plane.size();
    let params = MapParams {
        columns: grid.columns as u32,
        lines: grid.lines as u32,
        layers: shown.len() as u32,
        row: row as u32,
        fold: fold as u32,
        ..MapParams::default()
    };
    Some(Frame {
        rect,
        params,
        layers: shown.map(layer).collect(),
        colours: table.iter().map(|colour| colour.to_array()).collect(),
        bytes: Arc::clone(&plane.bytes),
        size: [row as u32, rows as u32],
        version,
        fresh,
    })
}

impl CallbackTrait for Frame {
    fn prepare(
        &self,
        device: &Device,
        queue: &Queue,
        screen: &ScreenDescriptor,
        _encoder: &mut CommandEncoder,
        resources: &mut CallbackResources,
    ) -> Vec<CommandBuffer> {
        if let Some(textures) = resources.get_mut::<MapTextures>() {
            textures.bring(device, queue, screen.pixels_per_point, self);
        }
        Vec::new()
    }

    fn paint(&self, _info: PaintCallbackInfo, pass: &mut RenderPass<'static>, resources: &CallbackResources) {
        if let Some(textures) = resources.get::<MapTextures>() {
            textures.draw(pass);
        }
    }
}

#[cfg(test)]
mod timing;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use egui::{Color32, Pos2, TextureOptions, Ui, Vec2};
    use egui_kittest::Harness;
    use thermocline_engine::telemetry::neurons::{LayerFiring, NeuronBoard, Strength, Watch};

    use super::*;
    use crate::neurons::{
        atlas::LayerFrequencies,
        colours::{self, image},
        grid::{Grid, View},
        mode::{Colours, Mode},
    };

    /// The texture of computed levels and the shader's dots, side by side.
    pub(super) struct Both {
        pub(super) state: RenderState,
        pub(super) shader: Option<Shader>,
        pub(super) atlas: Atlas,
        fold: Fold,
        pub(super) table: ColourTable,
        size: Vec2,
        texture: Option<egui::TextureHandle>,
    }

    const LEFT: Pos2 = Pos2::new(8.0, 8.0);
    const RIGHT: Pos2 = Pos2::new(208.0, 8.0);

    impl eframe::App for Both {
        fn ui(&mut self, ui: &mut Ui, _: &mut eframe::Frame) {
            let levels = self.atlas.levels(self.fold);
            if levels.is_empty() {
                return;
            }
            let picture = image(&levels, self.atlas.layout.grid.columns, &self.table);
            // Stored until the frame has been drawn.
            let texture = self.texture.insert(ui.load_texture("picture", picture, TextureOptions::NEAREST));
            let uv = Rect::from_min_max(Pos2::ZERO, Pos2::new(1.0, 1.0));
            ui.painter().image(texture.id(), Rect::from_min_size(LEFT, self.size), uv, Color32::WHITE);
            let right = Rect::from_min_size(RIGHT, self.size);
            ui.painter().extend(shape(right, &self.atlas, self.fold, &self.table));
        }
    }

    pub(super) fn harness(shape: &NeuronShape) -> Harness<'static, Both> {
        let shape = shape.clone();
        let mut harness = Harness::builder().with_size([408.0, 208.0]).wgpu().build_eframe(move |creation| {
            let state = creation.wgpu_render_state.clone().unwrap();
            let shader = Shader::install(&state);
            let atlas = Atlas::new(&shape);
            assert!(shader.is_some_and(|shader| shader.holds(&atlas.plane)));
            Both {
                state,
                shader,
                atlas,
                fold: Fold::Fraction,
                table: [Color32::BLACK; 256],
                size: Vec2::ZERO,
                texture: None,
            }
        });
        harness.step();
        harness
    }

    /// A board with a few tokens.
    pub(super) fn board(shape: &NeuronShape) -> std::sync::Arc<NeuronBoard> {
        let (board, mut recorder) = NeuronBoard::new(shape.clone());
        board.set_watch(Watch::Strength);
        let mut seed = 5u32;
        let mut noise = || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            seed >> 8
        };
        for position in 0..6 {
            recorder.begin(1, position, &[7], true);
            for layer in (0..shape.layers()).filter(|layer| shape.neurons(*layer) > 0) {
                let neurons = shape.neurons(layer);
                let strength: Vec<f32> = (0..neurons).map(|_| (noise() % 1000) as f32).collect();
                let mut mask = |per_mille: u32| {
                    let mut mask = vec![0; neurons.div_ceil(32)];
                    for neuron in (0..neurons).filter(|neuron| noise() % 1000 < per_mille + *neuron as u32 % 50) {
                        mask[neuron / 32] |= 1 << (neuron % 32);
                    }
                    mask
                };
                let (fired, predicted) = (mask(20), mask(60));
                recorder.layer(&LayerFiring {
                    layer,
                    tokens: 1,
                    fired: &fired,
                    predicted: Some(&predicted),
                    strength: Some(Strength::All(&strength)),
                    ..LayerFiring::default()
                });
            }
            recorder.end();
        }
        board
    }

    pub(super) fn frequencies_of(board: &NeuronBoard, layer: usize) -> LayerFrequencies {
        let tally = board.tally(layer);
        LayerFrequencies { neurons: tally.recent, experts: tally.chosen_recent }
    }

    /// In every mode and at every zoom, every pixel of the shader equals that of the texture.
    #[test]
    fn shader_draws_the_computed_levels() {
        let shape = NeuronShape::new([300, 0, 4500, 1 << 20]);
        let (board, mut harness) = (board(&shape), harness(&shape));
        let (now, before) = (board.latest().unwrap(), board.token(2).unwrap());
        let soon = Duration::from_secs(120);
        let whole = View::default();
        let mut close = whole;
        close.zoom(3.0, 0.1);
        let grid = |columns, lines| Grid { columns, lines };
        for (view, grid, by_frequency) in [
            (whole, grid(40, 4), true),
            (close, grid(25, 2), true),
            (View::of_layer(2), grid(80, 60), false),
            (whole, grid(20, 1), false),
            (View::of_layer(3), grid(90, 60), true),
        ] {
            for (mode, comparing) in Mode::ALL
                .into_iter()
                .filter(|mode| *mode != Mode::Experts)
                .map(|mode| (mode, false))
                .chain([(Mode::Fired, true)])
            {
                let both = harness.state_mut();
                let atlas = &mut both.atlas;
                atlas.lay_out(MapLayout { view, grid, by_frequency });
                atlas.set_hot(|layer| if layer == 0 { vec![0xF0F0; 10] } else { vec![u32::MAX; 40] });
                atlas.sort(soon, |layer| Some(frequencies_of(&board, layer)));
                match mode {
                    Mode::Placement => atlas.draw_places(),
                    Mode::Frequency | Mode::Recency => assert!(atlas.draw_tally(&board, mode, soon)),
                    _ => atlas.draw_token(&shape, mode, &now, comparing.then_some(&before)),
                }
                both.fold = Fold::of(mode, comparing);
                both.table = std::array::from_fn(|level| Color32::from_gray(level as u8));
                let rows = both.atlas.shown().len() * grid.lines;
                both.size = Vec2::new((grid.columns * 2) as f32, (rows * 3) as f32);
                let (size, rounds) = (both.size, matches!(both.fold, Fold::Fraction | Fold::Mean));
                harness.step();
                let image = harness.render().unwrap();
                let mut seen = std::collections::BTreeSet::new();
                for y in 0..size.y as u32 {
                    for x in 0..size.x as u32 {
                        let at = |corner: Pos2| image.get_pixel(corner.x as u32 + x, corner.y as u32 + y).0;
                        let ([wanted, ..], [got, green, _, alpha]) = (at(LEFT), at(RIGHT));
                        seen.insert(wanted);
                        // Adapters may round square roots differently.
                        let near = rounds && wanted.abs_diff(got) <= 1;
                        let what = format!("{mode:?} comparing {comparing} {grid:?} at {x}, {y}");
                        assert!((wanted == got || near) && green == got && alpha == 255, "{what}: {wanted} {got}");
                    }
                }
                assert!(seen.len() > 1, "{mode:?} {grid:?} shows nothing");
            }
        }
        // Colours are looked up, not interpolated.
        let both = harness.state_mut();
        both.table = colours::table(Mode::Fired, Colours::Viridis, false, &thermocline_rich_text::theme::Palette::DARK);
        harness.step();
        let image = harness.render().unwrap();
        let at = |corner: Pos2, x: u32| image.get_pixel(corner.x as u32 + x, corner.y as u32 + 1).0;
        assert!((0..40).all(|x| at(LEFT, x) == at(RIGHT, x)));
    }
}

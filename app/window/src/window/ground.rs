//! Fills columns with one colour. egui's own shader samples a texture for every pixel, even in
//! plain areas. With a software driver, that is most of a frame's work. Large areas therefore get a
//! shader that only writes the colour.

use eframe::egui_wgpu::{
    Callback, CallbackResources, CallbackTrait, RenderState,
    wgpu::{self, RenderPass},
};
use egui::{Color32, PaintCallbackInfo, Rect, Shape};
use thermocline_shaders::PLAIN_FILL;

use crate::drawing::pipeline;

/// Proves that the window can fill areas with that shader.
#[derive(Debug, Clone, Copy)]
pub struct Ground;

impl Ground {
    /// Creates the pipeline and stores it in the window's renderer. `None` for sRGB targets, which
    /// would need other colour values than egui's.
    pub fn install(state: &RenderState) -> Option<Self> {
        if state.target_format.is_srgb() {
            return None;
        }
        let pipeline = pipeline(&state.device, state.target_format, &PLAIN_FILL);
        state.renderer.write().callback_resources.insert(GroundPipeline(pipeline));
        Some(Ground)
    }

    /// Fills `rect` with an opaque colour.
    pub fn fill(self, rect: Rect, colour: Color32) -> Shape {
        Shape::Callback(Callback::new_paint_callback(rect, GroundFill(colour)))
    }
}

struct GroundPipeline(wgpu::RenderPipeline);

struct GroundFill(Color32);

impl CallbackTrait for GroundFill {
    fn paint(&self, _info: PaintCallbackInfo, pass: &mut RenderPass<'static>, resources: &CallbackResources) {
        if let Some(GroundPipeline(pipeline)) = resources.get() {
            let [red, green, blue, _] = self.0.to_array();
            let first = 4 * u32::from_le_bytes([red, green, blue, 0]);
            pass.set_pipeline(pipeline);
            pass.draw(first..first + 3, 0..1);
        }
    }
}

#[cfg(test)]
mod tests {
    use egui::{Pos2, Ui, Vec2};
    use egui_kittest::Harness;

    use super::*;
    use thermocline_rich_text::theme::Palette;

    /// Draws egui's fill and this fill side by side.
    struct Both(Ground);

    const ASIDE: Vec2 = Vec2::new(100.0, 0.0);

    impl eframe::App for Both {
        fn ui(&mut self, ui: &mut Ui, _: &mut eframe::Frame) {
            let colours = [Palette::DARK.panel, Palette::LIGHT.background, Palette::DARK.hot];
            for (row, colour) in colours.into_iter().enumerate() {
                // The edges lie between pixels.
                let rect = Rect::from_min_size(Pos2::new(8.4, 8.6 + 30.0 * row as f32), Vec2::new(70.3, 20.5));
                ui.painter().rect_filled(rect, 0, colour);
                ui.painter().add(self.0.fill(rect.translate(ASIDE), colour));
                ui.painter().rect_filled(Rect::from_min_size(rect.min, Vec2::splat(5.0)), 0, Color32::WHITE);
                let above = Rect::from_min_size(rect.min + ASIDE, Vec2::splat(5.0));
                ui.painter().rect_filled(above, 0, Color32::WHITE);
            }
        }
    }

    #[test]
    fn ground_fills_the_pixels_that_egui_would() {
        for scale in [1.0, 1.25, 2.0] {
            let builder = Harness::builder().with_size([208.0, 108.0]).with_pixels_per_point(scale).wgpu();
            let mut harness = builder
                .build_eframe(|creation| Both(Ground::install(creation.wgpu_render_state.as_ref().unwrap()).unwrap()));
            harness.step();
            let image = harness.render().unwrap();
            let mut seen = std::collections::BTreeSet::new();
            for y in 0..image.height() {
                for x in 0..(ASIDE.x * scale) as u32 {
                    let (wanted, got) = (image.get_pixel(x, y).0, image.get_pixel(x + (ASIDE.x * scale) as u32, y).0);
                    assert_eq!(wanted, got, "at {x}, {y}, scaled by {scale}");
                    seen.insert(got);
                }
            }
            assert!(seen.len() >= 5, "three colours, what is above them and nothing: {seen:?}");
        }
    }
}

//! The start of the window: the graphics backend that draws it, and what it is drawn with.

use eframe::{CreationContext, NativeOptions};

use super::{Window, frame_throttle::FrameThrottle, ground::Ground};
use crate::{
    folders::Folders,
    library::ModelId,
    settings::Settings,
    ui::{
        fonts, frame_pace,
        icon::icon,
        opening::{self, Backend, BackendOrder, Chosen, NoWindow, Watch},
    },
};

/// Title of the window.
const TITLE: &str = "Thermocline";

/// Identity of the program for the system.
const APPLICATION: &str = "org.thermocline.Thermocline";

/// Opens the window and returns when it is closed. `model` is opened instead of the one used last. Graphics backends are tried
/// until one has drawn the first frame: the one that `WGPU_BACKEND` names and no other; else the one in the settings, the one that
/// drew last time, and the rest of this system's.
///
/// # Errors
/// Why there cannot be a window.
pub fn run(folders: &Folders, model: Option<&ModelId>) -> Result<(), NoWindow> {
    let only = std::env::var("WGPU_BACKEND").ok();
    let drawing = Settings::peek(&folders.settings()).drawing;
    let (first, worked) = (drawing.backend.as_deref(), drawing.worked.as_deref());
    let order = BackendOrder::new(Chosen { only: only.as_deref(), first, worked }, Backend::HERE)?;
    let mut desktop = opening::DesktopWindow::new()?;
    order.open(&mut |backend, software| {
        let create = |creation: &CreationContext<'_>, watch: Watch| {
            let mut window = create(creation, folders.clone(), model.cloned())?;
            window.opening = Some((watch, backend));
            Ok(window)
        };
        desktop.open(TITLE, backend, software, options(folders), create)
    })
}

fn options(folders: &Folders) -> NativeOptions {
    let viewport = egui::ViewportBuilder::default()
        .with_title(TITLE)
        .with_app_id(APPLICATION)
        .with_icon(icon())
        .with_inner_size([1440.0, 900.0])
        .with_min_inner_size([480.0, 400.0]);
    NativeOptions {
        viewport,
        persistence_path: Some(folders.config.join("window.ron")),
        // Nothing shades off so slowly that bands would be seen.
        dithering: false,
        ..NativeOptions::default()
    }
}

/// The window's contents, on what eframe draws it with.
fn create(creation: &CreationContext<'_>, folders: Folders, model: Option<ModelId>) -> Result<Window, String> {
    let drawn_by = creation.wgpu_render_state.as_ref().map(|state| state.adapter.get_info().device_type);
    frame_pace::set_draws_by_cpu(&creation.egui_ctx, drawn_by == Some(wgpu::DeviceType::Cpu));
    let mut window = Window::new(&creation.egui_ctx, folders, model)?;
    fonts::load_emoji(&creation.egui_ctx);
    if let Some(state) = &creation.wgpu_render_state {
        window.neurons.draw_on(state);
        if frame_pace::draws_by_cpu(&creation.egui_ctx) {
            window.ground = Ground::install(state);
            let device = state.device.clone();
            // A device that was lost has nothing to do any more.
            window.throttle_frames(FrameThrottle::new(move || drop(device.poll(wgpu::PollType::wait_indefinitely()))));
        }
    }
    Ok(window)
}

//! The start of the window: the graphics backend that draws it, and what it is drawn with. Its contents outlive the
//! window of eframe's that shows them: a device that is lost takes that along, and another one shows the same contents.

use std::{
    cell::RefCell,
    rc::Rc,
    time::{Duration, Instant},
};

use eframe::{CreationContext, NativeOptions};
use egui::{Context, Ui};
use thermocline_engine::session::AwaitedFrame;

use super::{Window, frame_throttle::FrameThrottle, ground::Ground};
use crate::{
    icon::icon,
    opening::{Backend, BackendOrder, Chosen, DesktopWindow, Ending, FrameWatch, Losses, NoWindow, UntilDrawn},
};
use thermocline_chats::settings::Settings;
use thermocline_host::{folders::Folders, library::ModelId};
use thermocline_rich_text::{fonts, frame_pace};

/// Title of the window.
const TITLE: &str = "Thermocline";

/// Identity of the program for the system.
const APPLICATION: &str = "org.thermocline.Thermocline";

/// Time for which a window whose device was lost is opened again while nothing draws it, as after a suspend, and between attempts.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_secs(1);

/// A task of every frame beside the drawing of the window.
type EachFrame<'a> = dyn Fn(&mut Window, &eframe::Frame) + 'a;

/// Opens the window and returns when it is closed. `model` is opened instead of the one used last. Graphics backends are tried
/// until one has drawn the first frame: the one that `WGPU_BACKEND` names and no other; else the one in the settings, the one that
/// drew last time, and the rest of this system's. When the device that draws it is lost, it is opened again with the same contents.
///
/// # Errors
/// Why there cannot be a window.
pub fn run(folders: &Folders, model: Option<&ModelId>) -> Result<(), NoWindow> {
    run_with(&mut DesktopWindow::new()?, folders, model, &|_, _| ())
}

/// The same in `desktop`, with something else to do in each frame.
pub(super) fn run_with(
    desktop: &mut DesktopWindow,
    folders: &Folders,
    model: Option<&ModelId>,
    each_frame: &EachFrame<'_>,
) -> Result<(), NoWindow> {
    let only = std::env::var("WGPU_BACKEND").ok();
    let contents = Rc::new(RefCell::new(None));
    let mut losses = Losses::default();
    // Since when nothing draws a window that was there.
    let mut dark: Option<Instant> = None;
    let fallbacks = folders.fallbacks();
    loop {
        // The model goes to its device after the first frame.
        let until_drawn = UntilDrawn::default();
        *until_drawn.awaited.borrow_mut() = Some(AwaitedFrame::default());
        let drawing = Settings::peek(&folders.settings()).drawing;
        let (first, worked) = (drawing.backend.as_deref(), drawing.worked.as_deref());
        let order = BackendOrder::new(Chosen { only: only.as_deref(), first, worked }, Backend::HERE)?;
        let mut by = None;
        let ended_programs = Backend::named(&fallbacks.last_for_windows().join(","));
        let order = order.with_last(&losses.distrusted).with_last(&ended_programs);
        let ended = order.open(&mut |backend, software| {
            *until_drawn.sentinel.borrow_mut() = fallbacks.guard_window(backend.name());
            let contents = Rc::clone(&contents);
            by = Some(backend);
            let create = move |creation: &CreationContext<'_>, watch: FrameWatch| {
                draw(&contents, creation, || (folders.clone(), model.cloned()))?;
                if let Some(window) = &mut *contents.borrow_mut() {
                    window.opening = Some((watch, backend));
                }
                Ok(ShownWindow { contents, each_frame })
            };
            let ended = desktop.open(TITLE, backend, software, options(folders), &until_drawn, create);
            drop(until_drawn.sentinel.take());
            ended
        });
        match (ended, by) {
            (Ok(Ending::Lost(why)), Some(backend)) => {
                tracing::warn!(backend = backend.name(), why, "the window is opened again");
                losses.count(backend, Instant::now());
                dark = None;
                if let Some(window) = &mut *contents.borrow_mut() {
                    let notice = format!("The window is drawn anew: {} gave up ({why}).", backend);
                    window.shell.toasts.warning(notice);
                }
            }
            (Ok(_), _) => return Ok(()),
            (Err(why), _) if contents.borrow().is_some() => {
                if dark.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                    // What the window has that nothing draws any more is kept.
                    if let Some(window) = &mut *contents.borrow_mut() {
                        eframe::App::on_exit(window);
                    }
                    return Err(why);
                }
                std::thread::sleep(PAUSE);
            }
            (Err(why), _) => return Err(why),
        }
    }
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

/// The window's contents, which outlive what draws them.
type WindowContents = Rc<RefCell<Option<Window>>>;

/// The contents in a window of eframe's.
struct ShownWindow<'a> {
    contents: WindowContents,
    each_frame: &'a EachFrame<'a>,
}

impl ShownWindow<'_> {
    fn with<T>(&self, show: impl FnOnce(&mut Window) -> T) -> Option<T> {
        self.contents.borrow_mut().as_mut().map(show)
    }
}

impl eframe::App for ShownWindow<'_> {
    fn logic(&mut self, ctx: &Context, frame: &mut eframe::Frame) {
        self.with(|window| window.logic(ctx, frame));
    }

    fn ui(&mut self, ui: &mut Ui, frame: &mut eframe::Frame) {
        self.with(|window| {
            window.ui(ui, frame);
            (self.each_frame)(window, frame);
        });
    }

    fn clear_color(&self, visuals: &egui::Visuals) -> [f32; 4] {
        self.with(|window| window.clear_color(visuals)).unwrap_or_default()
    }

    fn on_exit(&mut self) {
        self.with(eframe::App::on_exit);
    }
}

/// Has what eframe draws with draw the contents: new ones where there are none, from the folders and the model that `new` names.
fn draw(
    contents: &WindowContents,
    creation: &CreationContext<'_>,
    new: impl FnOnce() -> (Folders, Option<ModelId>),
) -> Result<(), String> {
    let ctx = &creation.egui_ctx;
    let drawn_by = creation.wgpu_render_state.as_ref().map(|state| state.adapter.get_info().device_type);
    frame_pace::set_draws_by_cpu(ctx, drawn_by == Some(wgpu::DeviceType::Cpu));
    let mut contents = contents.borrow_mut();
    let window = match &mut *contents {
        Some(window) => {
            window.move_to(ctx);
            window
        }
        none => {
            let (folders, model) = new();
            none.insert(Window::new(ctx, folders, model)?)
        }
    };
    fonts::load_emoji(ctx);
    if let Some(state) = &creation.wgpu_render_state {
        window.neurons.draw_on(state);
        if frame_pace::draws_by_cpu(ctx) {
            window.ground = Ground::install(state);
            let device = state.device.clone();
            // A device that was lost has nothing to do any more.
            let drawn = move || drop(device.poll(wgpu::PollType::wait_indefinitely()));
            window.throttle_frames(Some(FrameThrottle::new(drawn)));
        }
    }
    Ok(())
}

//! The start of the window: its graphics backend and its device. The contents outlive the eframe
//! window that shows them. If the device is lost, a new eframe window shows the same contents.

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

/// Application id for the system.
const APPLICATION: &str = "org.thermocline.Thermocline";

/// Time for which a window with a lost device is reopened while nothing draws it (as after a
/// suspend), and pause between attempts.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_secs(1);

/// A task of every frame besides drawing the window.
type EachFrame<'a> = dyn Fn(&mut Window, &eframe::Frame) + 'a;

/// Opens the window and returns when it is closed. `model` is opened instead of the last used
/// model.
///
/// Graphics backends are tried until one has drawn the first frame. `WGPU_BACKEND` names the only
/// backends to try. Without it, the order is: the backend of the settings, the backend that drew
/// last time, and the rest of this system's. If the device is lost, the window is opened again with
/// the same contents.
///
/// # Errors
/// If the window cannot be opened, with the reasons.
pub fn run(folders: &Folders, model: Option<&ModelId>) -> Result<(), NoWindow> {
    run_with(&mut DesktopWindow::new()?, folders, model, &|_, _| ())
}

/// Opens the window in `desktop`. `each_frame` is an additional task of every frame.
pub(super) fn run_with(
    desktop: &mut DesktopWindow,
    folders: &Folders,
    model: Option<&ModelId>,
    each_frame: &EachFrame<'_>,
) -> Result<(), NoWindow> {
    let only = std::env::var("WGPU_BACKEND").ok();
    let contents = Rc::new(RefCell::new(None));
    let mut losses = Losses::default();
    // Start of the time in which nothing draws an existing window.
    let mut dark: Option<Instant> = None;
    let fallbacks = folders.fallbacks();
    loop {
        // The model is loaded onto its device after the first frame.
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
                    let notice = format!("The window was reopened because {} failed ({why}).", backend);
                    window.shell.toasts.warning(notice);
                }
            }
            (Ok(_), _) => return Ok(()),
            (Err(why), _) if contents.borrow().is_some() => {
                if dark.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                    // Nothing draws the window any more, so its unsaved data is stored.
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
        // No gradient is slow enough for visible bands.
        dithering: false,
        ..NativeOptions::default()
    }
}

/// The window's contents. They outlive the eframe window.
type WindowContents = Rc<RefCell<Option<Window>>>;

/// The contents in an eframe window.
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

/// Shows the contents in eframe's context. Creates them if there are none, from the folders and the
/// model that `new` returns.
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
            // Polling fails for a lost device, which has no work left.
            let drawn = move || drop(device.poll(wgpu::PollType::wait_indefinitely()));
            window.throttle_frames(Some(FrameThrottle::new(drawn)));
        }
    }
    Ok(())
}

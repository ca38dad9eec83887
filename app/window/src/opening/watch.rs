//! The outside view of a window: of the attempt to open it until its first frame is on the screen, and of its device from then on.

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use egui::Context;
use parking_lot::Mutex;
use thermocline_engine::error::{first_line, root_cause};
use wgpu::CurrentSurfaceTexture as Frame;

use super::contained;

/// A device that has not drawn the first frame after this long hangs.
const PATIENCE: Duration = Duration::from_secs(10);

/// Surfaces that may be lost before the first frame: they are made anew when a window is moved or resized.
const MOST_LOST: u32 = 3;

/// Why a backend does not draw the window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// Only software of this name could, and hardware was asked for.
    Software(String),
    /// It cannot; a sentence without its subject says why.
    Broken(String),
    /// No backend could: it is not the graphics that fails.
    Everywhere(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Software(name) => write!(f, "only the software driver {name} draws"),
            Refusal::Broken(why) | Refusal::Everywhere(why) => f.write_str(why),
        }
    }
}

/// Signs of life of one attempt; a handle that may be cloned. Drivers write to it from any thread.
#[derive(Debug, Clone, Default)]
pub struct FrameWatch(Arc<Signs>);

#[derive(Debug, Default)]
struct Signs {
    /// The first one stays.
    refusal: OnceLock<Refusal>,
    adapter: Mutex<Option<wgpu::Adapter>>,
    /// The adapter that draws, and its backend.
    device: OnceLock<(wgpu::Device, Context)>,
    /// A frame was made, and given to the surface if that took it.
    made: AtomicBool,
    /// The surface did not take it.
    missed: AtomicBool,
    lost_surfaces: AtomicU32,
    drawn: AtomicBool,
    ended: AtomicBool,
    /// Why the device was lost after the first frame.
    loss: OnceLock<String>,
}

impl FrameWatch {
    /// The attempt has failed.
    pub fn refuse(&self, why: Refusal) {
        if !self.has_drawn() && !self.0.ended.load(Relaxed) {
            // What follows from the first failure explains nothing.
            let _ = self.0.refusal.set(why);
        }
    }

    /// An event has ended in a panic that says `why`. Libraries panic over a device that is lost: then that is the reason.
    pub fn panicked(&self, why: String) {
        if let Some((device, _)) = self.0.device.get() {
            // The news of the loss comes out of a poll, which may panic as well.
            let _ = contained(|| device.poll(wgpu::PollType::Poll));
        }
        self.refuse(Refusal::Broken(why));
    }

    /// The device has failed: before the first frame the attempt has, and later the device is lost.
    fn fail(&self, why: String) {
        if self.has_drawn() { self.lose(why) } else { self.refuse(Refusal::Broken(why)) }
    }

    /// The device of a window that has drawn is lost; the first reason stays.
    fn lose(&self, why: String) {
        if self.0.ended.load(Relaxed) || self.0.loss.set(why).is_err() {
            return;
        }
        if let Some((_, ctx)) = self.0.device.get() {
            // Losses are looked for after events.
            ctx.request_repaint();
        }
    }

    /// Why its device was lost after the first frame, if it was.
    pub fn loss(&self) -> Option<&str> {
        self.0.loss.get().map(String::as_str)
    }

    /// Why it has failed, if it has.
    pub fn refusal(&self) -> Option<Refusal> {
        self.0.refusal.get().cloned()
    }

    /// The window closes: that its device goes with it is no failure.
    pub fn end(&self) {
        self.0.ended.store(true, Relaxed);
    }

    /// `adapter` is going to draw.
    pub fn choose(&self, adapter: wgpu::Adapter) {
        *self.0.adapter.lock() = Some(adapter);
    }

    /// The chosen adapter.
    pub fn adapter(&self) -> Option<wgpu::Adapter> {
        self.0.adapter.lock().clone()
    }

    /// Listens to the errors of the device that draws for `ctx`, which hears of the first frame by another one. A device that reports
    /// an error draws wrongly or not at all, and counts as lost.
    pub fn follow(&self, device: &wgpu::Device, ctx: &Context) {
        let watch = self.clone();
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
            tracing::warn!(%error, "the window's device");
            watch.fail(root_cause(&error));
        }));
        let watch = self.clone();
        device.set_device_lost_callback(move |reason, message| {
            tracing::warn!(?reason, message, "the window's device is lost");
            let why = if message.trim().is_empty() { format!("{reason:?}") } else { first_line(&message) };
            watch.fail(format!("its device was lost: {why}"));
        });
        let _ = self.0.device.set((device.clone(), ctx.clone()));
    }

    /// A frame has been made and goes to the surface next.
    pub fn made(&self) {
        self.0.made.store(true, Relaxed);
    }

    /// The surface has given no place for it.
    pub fn missed(&self, instead: &Frame) {
        self.0.missed.store(true, Relaxed);
        match instead {
            Frame::Lost if self.0.lost_surfaces.fetch_add(1, Relaxed) + 1 >= MOST_LOST => {
                self.refuse(Refusal::Broken("its surface was lost again and again".to_owned()));
            }
            Frame::Validation => self.refuse(Refusal::Broken("it refuses the window's surface".to_owned())),
            _ => {}
        }
    }

    /// True if a frame is on the screen, as far as can be known.
    pub fn has_drawn(&self) -> bool {
        self.0.drawn.load(Relaxed)
    }

    /// To be called after each event: if a frame went to the screen, waits until the device has drawn it.
    pub fn settle(&self) {
        let (made, missed) = (self.0.made.swap(false, Relaxed), self.0.missed.swap(false, Relaxed));
        if !made || missed || self.has_drawn() || self.refusal().is_some() {
            return;
        }
        let Some((device, ctx)) = self.0.device.get() else { return };
        if let Err(error) = device.poll(wgpu::PollType::Wait { submission_index: None, timeout: Some(PATIENCE) }) {
            self.refuse(Refusal::Broken(format!("it does not draw the first frame: {error}")));
        }
        if self.refusal().is_none() {
            self.0.drawn.store(true, Relaxed);
            ctx.request_repaint();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device of the driver that the tests have.
    fn device() -> (wgpu::Device, wgpu::Queue) {
        let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle());
        let all = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::all()));
        let adapter = all.into_iter().next().expect("the tests need an adapter, if only a software one");
        pollster::block_on(adapter.request_device(&wgpu::DeviceDescriptor::default())).unwrap()
    }

    fn broken(watch: &FrameWatch) -> String {
        match watch.refusal() {
            Some(Refusal::Broken(why)) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn frame_on_the_screen_ends_the_search() {
        let (watch, (device, _queue)) = (FrameWatch::default(), device());
        watch.follow(&device, &Context::default());
        watch.settle();
        assert!(!watch.has_drawn(), "no frame was made");
        for wait in [Frame::Timeout, Frame::Occluded, Frame::Outdated, Frame::Lost, Frame::Lost] {
            watch.made();
            watch.missed(&wait);
            watch.settle();
            assert!(!watch.has_drawn() && watch.refusal().is_none(), "{wait:?}");
        }
        watch.made();
        watch.settle();
        assert!(watch.has_drawn() && watch.refusal().is_none());
        // From now on it is a window.
        watch.refuse(Refusal::Broken("late".to_owned()));
        watch.missed(&Frame::Lost);
        assert_eq!((watch.refusal(), watch.loss()), (None, None));
        device.destroy();
        watch.panicked("no staging buffer".to_owned());
        let loss = watch.loss().unwrap_or_default();
        assert!(loss.contains("device was lost") && watch.refusal().is_none(), "{loss}");
    }

    #[test]
    fn repeatedly_lost_surfaces_end_the_attempt() {
        let watch = FrameWatch::default();
        for _ in 0..MOST_LOST {
            assert_eq!(watch.refusal(), None);
            watch.made();
            watch.missed(&Frame::Lost);
            watch.settle();
        }
        assert!(broken(&watch).contains("surface was lost"));
        assert!(!watch.has_drawn());
    }

    #[test]
    fn device_loss_in_the_first_frame_ends_the_attempt() {
        let (watch, (device, _queue)) = (FrameWatch::default(), device());
        watch.follow(&device, &Context::default());
        watch.made();
        device.destroy();
        // What libraries say of a device that is gone may be a panic.
        watch.panicked("no staging buffer".to_owned());
        watch.settle();
        assert!(!watch.has_drawn());
        assert!(broken(&watch).contains("device was lost"), "{:?}", watch.refusal());
    }

    #[test]
    fn device_destroyed_with_its_window_is_neither_a_failure_nor_a_loss() {
        for drawn in [false, true] {
            let (watch, (device, _queue)) = (FrameWatch::default(), device());
            watch.follow(&device, &Context::default());
            if drawn {
                watch.made();
                watch.settle();
            }
            watch.end();
            device.destroy();
            let _ = device.poll(wgpu::PollType::Poll);
            assert_eq!((watch.has_drawn(), watch.refusal(), watch.loss()), (drawn, None, None));
        }
    }

    #[test]
    fn error_in_the_first_frame_ends_the_attempt_with_its_innermost_cause() {
        let (watch, (device, _queue)) = (FrameWatch::default(), device());
        watch.follow(&device, &Context::default());
        watch.made();
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::MAP_WRITE | wgpu::BufferUsages::VERTEX;
        let _ =
            device.create_buffer(&wgpu::BufferDescriptor { label: None, size: 4, usage, mapped_at_creation: false });
        watch.settle();
        assert!(!watch.has_drawn());
        let why = broken(&watch);
        assert!(why.contains("MAP") && !why.contains('\n') && !why.contains("Validation Error"), "{why}");
    }
}

//! Observes a window from outside: the attempt until its first frame is on the screen, and later
//! its device.

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

/// A device that takes longer for the first frame hangs.
const PATIENCE: Duration = Duration::from_secs(10);

/// Number of surfaces that may be lost before the first frame. Moving or resizing a window may
/// replace its surface.
const MOST_LOST: u32 = 3;

/// Why a backend does not draw the window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// Only a software driver of this name could draw, but hardware was required.
    Software(String),
    /// The backend fails. The text is a sentence without its subject.
    Broken(String),
    /// No backend could draw, because the failure is not in the graphics.
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

/// A cloneable handle to the signs of life of one attempt. Drivers write to it from any thread.
#[derive(Debug, Clone, Default)]
pub struct FrameWatch(Arc<Signs>);

#[derive(Debug, Default)]
struct Signs {
    /// The first reason for the failure.
    refusal: OnceLock<Refusal>,
    adapter: Mutex<Option<wgpu::Adapter>>,
    /// The device that draws, and its egui context.
    device: OnceLock<(wgpu::Device, Context)>,
    /// True if a frame was made. It was presented unless `missed`.
    made: AtomicBool,
    /// True if the surface did not accept the frame.
    missed: AtomicBool,
    lost_surfaces: AtomicU32,
    drawn: AtomicBool,
    ended: AtomicBool,
    /// Why the device was lost after the first frame.
    loss: OnceLock<String>,
}

impl FrameWatch {
    /// Records that the attempt has failed.
    pub fn refuse(&self, why: Refusal) {
        if !self.has_drawn() && !self.0.ended.load(Relaxed) {
            // The first failure explains the later ones.
            let _ = self.0.refusal.set(why);
        }
    }

    /// Records a panic of an event. Libraries panic when a device is lost. The loss is then the
    /// reason.
    pub fn panicked(&self, why: String) {
        if let Some((device, _)) = self.0.device.get() {
            // Polling delivers the loss, and may panic as well.
            let _ = contained(|| device.poll(wgpu::PollType::Poll));
        }
        self.refuse(Refusal::Broken(why));
    }

    /// Records that the device has failed. Before the first frame, this fails the attempt. Later,
    /// the device counts as lost.
    fn fail(&self, why: String) {
        if self.has_drawn() { self.lose(why) } else { self.refuse(Refusal::Broken(why)) }
    }

    /// Records that the device of a drawn window is lost. Keeps the first reason.
    fn lose(&self, why: String) {
        if self.0.ended.load(Relaxed) || self.0.loss.set(why).is_err() {
            return;
        }
        if let Some((_, ctx)) = self.0.device.get() {
            // The event loop checks for losses after each event.
            ctx.request_repaint();
        }
    }

    /// Why the device was lost after the first frame, if it was.
    pub fn loss(&self) -> Option<&str> {
        self.0.loss.get().map(String::as_str)
    }

    /// Why the attempt has failed, if it has.
    pub fn refusal(&self) -> Option<Refusal> {
        self.0.refusal.get().cloned()
    }

    /// Records that the window closes. The loss of its device is then no failure.
    pub fn end(&self) {
        self.0.ended.store(true, Relaxed);
    }

    /// Records that `adapter` will draw.
    pub fn choose(&self, adapter: wgpu::Adapter) {
        *self.0.adapter.lock() = Some(adapter);
    }

    /// The chosen adapter.
    pub fn adapter(&self) -> Option<wgpu::Adapter> {
        self.0.adapter.lock().clone()
    }

    /// Listens to the errors of the device that draws for `ctx`. A device that reports an error
    /// draws wrongly or not at all, and counts as lost. After the first frame, `ctx` is asked for
    /// another.
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

    /// Records that a frame was made and goes to the surface next.
    pub fn made(&self) {
        self.0.made.store(true, Relaxed);
    }

    /// Records that the surface did not accept the frame.
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

    /// True if a frame is on the screen, as far as this can be known.
    pub fn has_drawn(&self) -> bool {
        self.0.drawn.load(Relaxed)
    }

    /// Call this after each event. If a frame was presented, waits until the device has drawn it.
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

    /// A device of the tests' driver.
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
        // From here on, the window has drawn.
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
        // When a device is lost, a library may panic instead of returning an error.
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

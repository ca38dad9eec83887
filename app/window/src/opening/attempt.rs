//! One attempt to open an eframe window with one backend. A process can create one event loop only.
//! The loop can run repeatedly, as long as no panic unwinds through it. Libraries panic when a
//! device is lost, so all panics of event handlers are caught.

use std::{cell::RefCell, sync::Arc};

use eframe::{
    AppCreator, CreationContext, EframeWinitApplication, NativeOptions, UserEvent, WgpuConfiguration,
    egui_wgpu::{NativeAdapterSelectorMethod, WgpuSetupCreateNew},
};
use thermocline_engine::{
    error::root_cause,
    session::{AwaitedFrame, CrashSentinel, CreationLock},
};
use wgpu::{Adapter, DeviceType, Instance, InstanceDescriptor, InstanceFlags, PowerPreference, Surface};
use winit::{
    application::ApplicationHandler,
    error::EventLoopError,
    event::{DeviceEvent, DeviceId, StartCause, WindowEvent},
    event_loop::{ActiveEventLoop, EventLoop},
    platform::run_on_demand::EventLoopExtRunOnDemand,
    window::WindowId,
};

use super::{Backend, FrameWatch, NoWindow, Refusal, contained, panics::noted_place};

/// The reason if no driver is installed, or none works.
const NO_ADAPTER: &str = "no driver offers an adapter";

/// The connection to the desktop, shared by all attempts. The system grants a program only one.
#[derive(Debug)]
pub struct DesktopWindow {
    event_loop: EventLoop<UserEvent>,
}

impl DesktopWindow {
    /// Connects to the desktop.
    ///
    /// # Errors
    /// If there is no desktop, or one of its libraries is missing.
    pub fn new() -> Result<Self, NoWindow> {
        let built = contained(|| EventLoop::with_user_event().build().map_err(|error| said(&error)));
        let event_loop = built.and_then(|built| built).map_err(NoWindow::Said)?;
        Ok(DesktopWindow { event_loop })
    }

    /// Connects to an X11 desktop in the thread of a test.
    #[cfg(all(test, target_os = "linux"))]
    pub fn on_any_thread() -> Result<Self, EventLoopError> {
        use winit::platform::x11::EventLoopBuilderExtX11 as _;

        Ok(DesktopWindow { event_loop: EventLoop::with_user_event().with_x11().with_any_thread(true).build()? })
    }

    /// Opens the window with `backend`, and returns when it is closed or its device is lost.
    /// `software` accepts a software driver. `create` makes the contents of the window, which
    /// report their frames to the watch. `until_drawn` is released at the first frame.
    ///
    /// # Errors
    /// If no frame reached the screen.
    pub fn open<A: eframe::App>(
        &mut self,
        title: &str,
        backend: Backend,
        software: bool,
        options: NativeOptions,
        until_drawn: &UntilDrawn,
        create: impl FnOnce(&CreationContext<'_>, FrameWatch) -> Result<A, String>,
    ) -> Result<Ending, Refusal> {
        let watch = FrameWatch::default();
        let options = NativeOptions { wgpu_options: drawing(backend, software, &watch), ..options };
        let of = watch.clone();
        let creator: AppCreator<'_> = Box::new(move |creation| {
            if let Some(state) = &creation.wgpu_render_state {
                of.follow(&state.device, &creation.egui_ctx);
            }
            match create(creation, of.clone()) {
                Ok(app) => Ok(Box::new(app) as Box<dyn eframe::App>),
                Err(why) => {
                    of.refuse(Refusal::Everywhere(why.clone()));
                    Err(why.into())
                }
            }
        });
        let app = eframe::create_native(title, options, creator, &self.event_loop);
        let mut running = RunningApp { app: Some(app), watch: watch.clone(), until_drawn, closed: false, bug: None };
        let ended = self.event_loop.run_app_on_demand(&mut running);
        let RunningApp { closed, bug, .. } = running;
        if let Some(bug) = bug {
            // This bug is our own. A lost device does not explain it.
            panic!("{bug}");
        }
        if let Some(why) = watch.loss() {
            return Ok(Ending::Lost(why.to_owned()));
        }
        if let Some(refusal) = watch.refusal() {
            return Err(refusal);
        }
        match ended {
            Err(error) => Err(Refusal::Everywhere(said(&error))),
            Ok(()) if watch.has_drawn() || closed => Ok(Ending::Closed),
            Ok(()) => Err(Refusal::Broken(diagnosis(backend, &watch))),
        }
    }
}

/// How a window ended after it had drawn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// The user closed the window.
    Closed,
    /// The device was lost for this reason.
    Lost(String),
}

/// The message of an event loop's error, without winit's source line (`os error at F:7: no
/// display`).
fn said(error: &EventLoopError) -> String {
    let cause = root_cause(error);
    match cause.strip_prefix("os error at ").and_then(|text| text.split_once(": ")) {
        Some((_, text)) => text.to_owned(),
        None => cause,
    }
}

/// The wgpu configuration for eframe.
fn drawing(backend: Backend, software: bool, watch: &FrameWatch) -> WgpuConfiguration {
    let mut setup = WgpuSetupCreateNew::without_display_handle();
    setup.instance_descriptor = instance_descriptor(setup.instance_descriptor, backend);
    let power = preference(PowerPreference::from_env());
    setup.native_adapter_selector = Some(selector(power, software, watch.clone()));
    let usual = WgpuConfiguration::default();
    let (watch, decide) = (watch.clone(), usual.on_surface_status);
    WgpuConfiguration {
        wgpu_setup: setup.into(),
        on_surface_status: Arc::new(move |status| {
            watch.missed(status);
            decide(status)
        }),
        ..usual
    }
}

/// `usual` for the adapters of `backend`, without the validation of indirect calls, which is on by
/// default. Some Intel Macs cannot compile its kernel, and the window has no indirect calls.
fn instance_descriptor(usual: InstanceDescriptor, backend: Backend) -> InstanceDescriptor {
    let flags = usual.flags - InstanceFlags::VALIDATION_INDIRECT_CALL;
    InstanceDescriptor { backends: backend.flag(), flags, ..usual }
}

/// The power preference of the user's environment, otherwise low power, which selects the
/// integrated adapter. A graphics card that only draws the window stays awake, and has less memory
/// and time for the model.
fn preference(wants: Option<PowerPreference>) -> PowerPreference {
    wants.unwrap_or(PowerPreference::LowPower)
}

/// Selects an adapter as wgpu would, and reports the reason if there is none.
fn selector(power: PowerPreference, software: bool, watch: FrameWatch) -> NativeAdapterSelectorMethod {
    Arc::new(move |adapters: &[Adapter], surface: Option<&Surface<'_>>| {
        let kind = |adapter: &Adapter| adapter.get_info().device_type;
        let fits = |adapter: &&Adapter| surface.is_none_or(|surface| adapter.is_surface_supported(surface));
        let best = adapters.iter().filter(fits).min_by_key(|adapter| rank(kind(adapter), power));
        let refusal = match best {
            Some(adapter) if software || kind(adapter) != DeviceType::Cpu => {
                watch.choose(adapter.clone());
                return Ok(adapter.clone());
            }
            Some(adapter) => Refusal::Software(adapter.get_info().name),
            None if adapters.is_empty() => Refusal::Broken(NO_ADAPTER.to_owned()),
            None => Refusal::Broken("its adapters cannot draw on this screen".to_owned()),
        };
        watch.refuse(refusal.clone());
        Err(refusal.to_string())
    })
}

/// Rank of an adapter. The lowest rank is the best.
fn rank(kind: DeviceType, power: PowerPreference) -> u8 {
    let saves = power == PowerPreference::LowPower;
    match kind {
        DeviceType::DiscreteGpu => u8::from(saves),
        DeviceType::IntegratedGpu => u8::from(!saves),
        // OpenGL does not always report the type of its adapter.
        DeviceType::Other => 2,
        DeviceType::VirtualGpu => 3,
        DeviceType::Cpu => 4,
    }
}

/// Finds out why eframe ended without a frame, because eframe does not report it.
fn diagnosis(backend: Backend, watch: &FrameWatch) -> String {
    let Some(adapter) = watch.adapter() else {
        let descriptor = instance_descriptor(InstanceDescriptor::new_without_display_handle(), backend);
        let _lock = CreationLock::take();
        let adapters = contained(|| pollster::block_on(Instance::new(descriptor).enumerate_adapters(backend.flag())));
        return match adapters {
            Ok(adapters) if adapters.is_empty() => NO_ADAPTER.to_owned(),
            Ok(_) => "it cannot make a surface on the window".to_owned(),
            Err(panic) => panic,
        };
    };
    let asked = WgpuSetupCreateNew::without_display_handle().device_descriptor;
    let _lock = CreationLock::take();
    let opened = contained(|| pollster::block_on(adapter.request_device(&asked(&adapter))));
    match opened {
        Ok(Ok(_)) => format!("{} ends before it has drawn a frame", adapter.get_info().name),
        Ok(Err(error)) => format!("{} cannot be opened: {}", adapter.get_info().name, root_cause(&error)),
        Err(panic) => panic,
    }
}

/// Guards that are held until a window has drawn its first frame, or is closed.
#[derive(Debug, Default)]
pub struct UntilDrawn {
    /// Makes other threads wait before they create devices.
    pub awaited: RefCell<Option<AwaitedFrame>>,
    /// Records on disk that the window is starting.
    pub sentinel: RefCell<Option<CrashSentinel>>,
}

impl UntilDrawn {
    fn let_go(&self) {
        drop((self.awaited.take(), self.sentinel.take()));
    }
}

/// The eframe application in the event loop.
struct RunningApp<'a> {
    /// `None` once the attempt has failed.
    app: Option<EframeWinitApplication<'a>>,
    watch: FrameWatch,
    until_drawn: &'a UntilDrawn,
    /// True if the user closed the window.
    closed: bool,
    /// The message of a panic that no lost device explains.
    bug: Option<String>,
}

impl<'a> RunningApp<'a> {
    /// Passes an event to eframe, and checks for a failure.
    fn pass(&mut self, event_loop: &ActiveEventLoop, event: impl FnOnce(&mut EframeWinitApplication<'a>)) {
        let Some(app) = &mut self.app else { return };
        let (watch, mut passed) = (&self.watch, Ok(()));
        let over = || watch.refusal().is_some() || watch.loss().is_some();
        if !over() {
            passed = contained(|| {
                // Until the first frame, eframe creates the window's instance, device and
                // pipelines.
                let lock = (!watch.has_drawn()).then(CreationLock::take);
                event(app);
                drop(lock);
                watch.settle();
            });
        }
        if let Err(panic) = passed {
            watch.panicked(panic.clone());
            if !over() {
                let place = noted_place().map_or_else(String::new, |place| format!(" ({place})"));
                self.bug = Some(format!("{panic}{place}"));
            }
        }
        if self.watch.has_drawn() {
            self.until_drawn.let_go();
        }
        if over() || self.bug.is_some() {
            // Windows must be closed while the event loop runs.
            let app = self.app.take();
            let _ = contained(|| drop(app));
            event_loop.exit();
        }
    }
}

impl ApplicationHandler<UserEvent> for RunningApp<'_> {
    fn new_events(&mut self, event_loop: &ActiveEventLoop, cause: StartCause) {
        self.pass(event_loop, |app| app.new_events(event_loop, cause));
    }

    fn resumed(&mut self, event_loop: &ActiveEventLoop) {
        self.pass(event_loop, |app| app.resumed(event_loop));
    }

    fn suspended(&mut self, event_loop: &ActiveEventLoop) {
        self.pass(event_loop, |app| app.suspended(event_loop));
    }

    fn user_event(&mut self, event_loop: &ActiveEventLoop, event: UserEvent) {
        self.pass(event_loop, |app| app.user_event(event_loop, event));
    }

    fn window_event(&mut self, event_loop: &ActiveEventLoop, window: WindowId, event: WindowEvent) {
        if matches!(event, WindowEvent::CloseRequested) {
            self.closed = true;
            self.watch.end();
            self.until_drawn.let_go();
        }
        self.pass(event_loop, |app| app.window_event(event_loop, window, event));
    }

    fn device_event(&mut self, event_loop: &ActiveEventLoop, device: DeviceId, event: DeviceEvent) {
        self.pass(event_loop, |app| app.device_event(event_loop, device, event));
    }

    fn about_to_wait(&mut self, event_loop: &ActiveEventLoop) {
        self.pass(event_loop, |app| app.about_to_wait(event_loop));
    }

    fn exiting(&mut self, event_loop: &ActiveEventLoop) {
        self.watch.end();
        self.pass(event_loop, |app| app.exiting(event_loop));
    }

    fn memory_warning(&mut self, event_loop: &ActiveEventLoop) {
        self.pass(event_loop, |app| app.memory_warning(event_loop));
    }
}

#[cfg(test)]
mod tests {
    use eframe::egui_wgpu::WgpuSetup;

    use super::*;

    #[test]
    fn window_does_not_validate_indirect_calls() {
        assert!(InstanceFlags::default().contains(InstanceFlags::VALIDATION_INDIRECT_CALL));
        let configuration = drawing(Backend::Metal, false, &FrameWatch::default());
        let WgpuSetup::CreateNew(setup) = configuration.wgpu_setup else { panic!("eframe creates the device") };
        let made = setup.instance_descriptor;
        assert_eq!(made.backends, Backend::Metal.flag());
        assert!(!made.flags.contains(InstanceFlags::VALIDATION_INDIRECT_CALL));
    }

    #[test]
    fn adapter_rank_prefers_hardware_and_integrated_gpus_for_low_power() {
        let kinds = [
            DeviceType::DiscreteGpu,
            DeviceType::IntegratedGpu,
            DeviceType::Other,
            DeviceType::VirtualGpu,
            DeviceType::Cpu,
        ];
        let order = |power| kinds.map(|kind| rank(kind, power));
        assert_eq!(order(PowerPreference::HighPerformance), [0, 1, 2, 3, 4]);
        assert_eq!(order(PowerPreference::None), [0, 1, 2, 3, 4]);
        assert_eq!(order(PowerPreference::LowPower), [1, 0, 2, 3, 4]);
        assert_eq!(order(preference(None)), order(PowerPreference::LowPower), "a card is left to the model");
        assert_eq!(preference(Some(PowerPreference::HighPerformance)), PowerPreference::HighPerformance);
    }
}

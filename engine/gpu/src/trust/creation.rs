//! The order in which drivers create things: for one thread at a time, because two that created an instance, a device or a pipeline at
//! one moment have ended their process, and for the window first.

use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

static CREATION: Mutex<()> = Mutex::new(());
/// Windows that have not drawn yet.
static UNDRAWN: (Mutex<usize>, Condvar) = (Mutex::new(0), Condvar::new());
/// Longest time that adapters are not looked for because of a window, which may be hidden.
const PATIENCE: Duration = Duration::from_secs(10);

/// The right of one thread to have drivers create something, until it is dropped.
#[derive(Debug)]
pub struct CreationLock {
    _held: MutexGuard<'static, ()>,
}

impl CreationLock {
    /// Waits until no other thread of this process has the right. A thread that has it must not ask again.
    pub fn take() -> Self {
        CreationLock { _held: CREATION.lock() }
    }
}

/// The first frame of a window, which is awaited until this is dropped: as long as it is, no adapter is looked for or opened to
/// compute, so that the window's own device comes up undisturbed.
#[derive(Debug)]
pub struct AwaitedFrame(());

impl Default for AwaitedFrame {
    /// One more window that is to draw.
    fn default() -> Self {
        *UNDRAWN.0.lock() += 1;
        AwaitedFrame(())
    }
}

impl Drop for AwaitedFrame {
    fn drop(&mut self) {
        *UNDRAWN.0.lock() -= 1;
        UNDRAWN.1.notify_all();
    }
}

/// Waits until no window of this process is to draw its first frame, and no longer than [`PATIENCE`].
pub(crate) fn after_first_frame() {
    let mut undrawn = UNDRAWN.0.lock();
    UNDRAWN.1.wait_while_for(&mut undrawn, |undrawn| *undrawn > 0, PATIENCE);
}

#[cfg(test)]
mod tests {
    use std::{
        sync::mpsc::{RecvTimeoutError, channel},
        thread,
    };

    use super::*;
    use crate::{Fallbacks, Gpu, GpuOptions, adapters};

    #[test]
    fn adapters_and_devices_wait_for_the_first_frame_of_a_window() {
        let (ended, ends) = channel();
        let windows = [AwaitedFrame::default(), AwaitedFrame::default()];
        thread::scope(|scope| {
            let of = ended.clone();
            scope.spawn(move || of.send(adapters(&Fallbacks::default()).is_empty()));
            scope.spawn(move || {
                let open = || Gpu::open(&GpuOptions::first());
                ended.send(open().is_err())
            });
            for window in windows {
                assert_eq!(ends.recv_timeout(Duration::from_millis(200)), Err(RecvTimeoutError::Timeout));
                drop(window);
            }
            assert_eq!([ends.recv(), ends.recv()], [Ok(false), Ok(false)]);
        });
    }

    #[test]
    fn adapters_devices_and_pipelines_wait_for_the_lock() {
        let gpu = Gpu::open(&GpuOptions::first()).unwrap();
        let (ended, ends) = channel();
        let held = CreationLock::take();
        thread::scope(|scope| {
            let of = ended.clone();
            scope.spawn(move || of.send(adapters(&Fallbacks::default()).is_empty()));
            let of = ended.clone();
            scope.spawn(move || of.send(gpu.pipelines().get("scale", None, 64, &[]).is_err()));
            assert_eq!(ends.recv_timeout(Duration::from_millis(200)), Err(RecvTimeoutError::Timeout));
            drop(held);
            assert_eq!([ends.recv(), ends.recv()], [Ok(false), Ok(false)]);
        });
    }
}

//! Order in which drivers create objects. Only one thread creates at a time, because two threads
//! that created an instance, device or pipeline at once have crashed the process. The window comes
//! first.

use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

static CREATION: Mutex<()> = Mutex::new(());
/// Number of windows that have not drawn yet.
static UNDRAWN: (Mutex<usize>, Condvar) = (Mutex::new(0), Condvar::new());
/// Longest time that the search for adapters waits for a window, which may be hidden.
const PATIENCE: Duration = Duration::from_secs(10);

/// Permission of one thread to have drivers create objects, until it is dropped.
#[derive(Debug)]
pub struct CreationLock {
    _held: MutexGuard<'static, ()>,
}

impl CreationLock {
    /// Waits until no other thread of this process holds the lock. A thread that holds it must not
    /// take it again.
    pub fn take() -> Self {
        CreationLock { _held: CREATION.lock() }
    }
}

/// Marks a window without its first frame. Until it is dropped, no adapter is listed or opened for
/// computing, so that the window's own device starts undisturbed.
#[derive(Debug)]
pub struct AwaitedFrame(());

impl Default for AwaitedFrame {
    /// Registers one more window.
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

/// Waits until no window of this process still has to draw its first frame, at most [`PATIENCE`].
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

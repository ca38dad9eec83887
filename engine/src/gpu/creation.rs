//! The lock around all that drivers create: two threads that created an instance, a device or a pipeline at one moment have
//! ended their process.

use parking_lot::{Mutex, MutexGuard};

static CREATION: Mutex<()> = Mutex::new(());

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

#[cfg(test)]
mod tests {
    use std::{
        sync::mpsc::{RecvTimeoutError, channel},
        thread,
        time::Duration,
    };

    use super::*;
    use crate::gpu::{AdapterChoice, Fallbacks, Gpu, GpuOptions, adapters};

    #[test]
    fn adapters_devices_and_pipelines_wait_for_the_lock() {
        let gpu = Gpu::open(&GpuOptions { adapter: AdapterChoice::Index(0), ..GpuOptions::default() }).unwrap();
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

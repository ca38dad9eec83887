//! Where an engine computes: what a caller chooses, what becomes of it, and the board on which it can be read.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crate::{
    error::Error,
    gpu::{GpuOptions, Purpose},
};

/// Where to compute.
#[derive(Debug, Clone, Default)]
pub enum DeviceChoice {
    /// On the CPU.
    #[default]
    Cpu,
    /// On a GPU if there is one with which the model is expected to be quicker; otherwise as [`DeviceChoice::Gpu`].
    Auto(GpuOptions),
    /// On a GPU. The model is loaded into it in the background, and requests wait for that. If it cannot be had, or not
    /// any longer, the CPU does the work ([`DeviceStatus`] says why).
    Gpu(GpuOptions),
}

impl DeviceChoice {
    /// Most bytes of device memory it allows, if it says.
    pub fn budget(&self) -> Option<u64> {
        match self {
            DeviceChoice::Cpu => None,
            DeviceChoice::Auto(options) | DeviceChoice::Gpu(options) => options.budget,
        }
    }
}

/// Memory of a device that the engine has taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Name of the adapter.
    pub adapter: String,
    /// Most bytes to take, if there is a limit.
    pub budget: Option<u64>,
    /// Bytes taken.
    pub accounted: u64,
    /// The same by purpose, in the order of [`Purpose::ALL`].
    pub by_purpose: [(Purpose, u64); Purpose::ALL.len()],
    /// Whether weights are still on their way to where the budget allows them to be.
    pub moving: bool,
}

/// Where an engine computes now.
#[derive(Debug, Clone)]
pub enum DeviceStatus {
    /// On the CPU, until told otherwise.
    Cpu {
        /// Why not on a GPU; `None` if nobody asked for one.
        reason: Option<Arc<Error>>,
    },
    /// The model is being loaded into a GPU.
    Loading {
        /// Bytes that have arrived.
        done: u64,
        /// Bytes there are; 0 while the device is being opened.
        total: u64,
    },
    /// On a GPU.
    Gpu(DeviceMemory),
    /// On the CPU, since a GPU was lost, which will be tried again soon.
    Lost {
        /// Name of the adapter.
        adapter: String,
        /// What its driver said.
        reason: String,
    },
}

/// Something happened to the device while a generation was running or waiting. The generation goes on: what was computed
/// on a device that is gone is computed again.
#[derive(Debug, Clone)]
pub enum DeviceEvent {
    /// The GPU was lost. The CPU goes on; the GPU is tried again soon.
    Lost {
        /// Name of the adapter.
        adapter: String,
        /// What its driver said.
        reason: String,
    },
    /// The CPU does the work from now on.
    Cpu {
        /// Why not the GPU.
        reason: Arc<Error>,
    },
    /// A GPU does the work from now on.
    Gpu {
        /// Name of the adapter.
        adapter: String,
    },
}

/// The status, for all threads to read. Nobody holds it for longer than it takes to copy.
#[derive(Debug)]
pub(super) struct Board {
    status: Mutex<DeviceStatus>,
    changed: Condvar,
}

impl Board {
    pub fn new(status: DeviceStatus) -> Self {
        Board { status: Mutex::new(status), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, DeviceStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The status now.
    pub fn read(&self) -> DeviceStatus {
        self.lock().clone()
    }

    pub fn write(&self, status: DeviceStatus) {
        *self.lock() = status;
        self.changed.notify_all();
    }

    /// Progress of a load, if that is still what happens.
    pub fn progress(&self, now_done: u64, now_total: u64) {
        if let DeviceStatus::Loading { done, total } = &mut *self.lock() {
            (*done, *total) = (now_done, now_total);
        }
    }

    /// The status as soon as it is another than loading, or after `longest`.
    pub fn settled(&self, longest: Duration) -> DeviceStatus {
        let loading = |status: &mut DeviceStatus| matches!(status, DeviceStatus::Loading { .. });
        let waited = self.changed.wait_timeout_while(self.lock(), longest, loading);
        waited.unwrap_or_else(PoisonError::into_inner).0.clone()
    }
}

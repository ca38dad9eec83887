//! The device of an engine: the caller's choice, its status, and events.

use std::{sync::Arc, time::Duration};

use parking_lot::{Condvar, Mutex};

use crate::{
    error::Error,
    gpu::{Fallback, GpuOptions, Purpose},
    placement::GpuUse,
};

/// The device that a caller chooses.
#[derive(Debug, Clone, Default)]
pub enum DeviceChoice {
    /// On the CPU.
    #[default]
    Cpu,
    /// On a GPU if there is one with which the model is expected to be quicker; otherwise as [`DeviceChoice::Gpu`].
    Auto(GpuOptions),
    /// On a GPU. The model is loaded into it in the background, and requests wait for that. If there is none, or it is lost, the CPU
    /// does the work ([`DeviceStatus`] says why).
    Gpu(GpuOptions),
}

impl DeviceChoice {
    /// Most bytes of device memory it allows; `None`: all that is free.
    pub fn budget(&self) -> Option<u64> {
        match self {
            DeviceChoice::Cpu => None,
            DeviceChoice::Auto(options) | DeviceChoice::Gpu(options) => options.budget,
        }
    }

    /// The use of the GPU in plans for this choice.
    pub const fn gpu_use(&self) -> GpuUse {
        match self {
            DeviceChoice::Cpu => GpuUse::Never,
            DeviceChoice::Auto(_) => GpuUse::IfQuicker,
            DeviceChoice::Gpu(_) => GpuUse::Always,
        }
    }
}

/// Device memory taken by the engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Name of the adapter.
    pub adapter: String,
    /// Most bytes to take; `None`: no limit.
    pub budget: Option<u64>,
    /// Bytes taken.
    pub accounted: u64,
    /// Bytes taken by purpose, in the order of [`Purpose::ALL`].
    pub by_purpose: [(Purpose, u64); Purpose::ALL.len()],
    /// True while weights are uploaded or released until the plan for the budget is reached.
    pub moving: bool,
    /// Parts of the adapter that are done without.
    pub fallbacks: Vec<Fallback>,
}

/// The processor that an engine computes on now.
#[derive(Debug, Clone)]
pub enum DeviceStatus {
    /// The CPU.
    Cpu {
        /// Why not a GPU; `None` if none was asked for.
        reason: Option<Arc<Error>>,
    },
    /// The CPU, while the model is being loaded into a GPU.
    Loading {
        /// Bytes uploaded.
        done: u64,
        /// Bytes to upload; 0 while the device is being opened.
        total: u64,
    },
    /// A GPU.
    Gpu(DeviceMemory),
    /// The CPU, after a GPU was lost, which will be tried again soon.
    Lost {
        /// Name of the adapter.
        adapter: String,
        /// Message of its driver.
        reason: String,
    },
}

/// A change of the device while a generation was running or waiting. The generation goes on: what was computed on a device that is
/// lost is computed again.
#[derive(Debug, Clone)]
pub enum DeviceEvent {
    /// The GPU was lost. The CPU goes on; the GPU is tried again soon.
    Lost {
        /// Name of the adapter.
        adapter: String,
        /// Message of its driver.
        reason: String,
    },
    /// The CPU computes from now on.
    Cpu {
        /// Why not the GPU.
        reason: Arc<Error>,
    },
    /// A part of a GPU is done without from now on; the GPU is loaded again at once, and the CPU goes on meanwhile.
    Fallback(Fallback),
    /// A GPU computes from now on.
    Gpu {
        /// Name of the adapter.
        adapter: String,
    },
}

/// The device's status, for all threads to read.
#[derive(Debug)]
pub(super) struct StatusBoard {
    status: Mutex<DeviceStatus>,
    changed: Condvar,
}

impl StatusBoard {
    pub fn new(status: DeviceStatus) -> Self {
        StatusBoard { status: Mutex::new(status), changed: Condvar::new() }
    }

    /// The status now.
    pub fn read(&self) -> DeviceStatus {
        self.status.lock().clone()
    }

    /// Sets the status.
    pub fn write(&self, status: DeviceStatus) {
        *self.status.lock() = status;
        self.changed.notify_all();
    }

    /// Sets the progress of a load, unless the status is another by now.
    pub fn set_progress(&self, now_done: u64, now_total: u64) {
        if let DeviceStatus::Loading { done, total } = &mut *self.status.lock() {
            (*done, *total) = (now_done, now_total);
        }
    }

    /// The status as soon as it is not loading, or after `longest`.
    pub fn wait_until_loaded(&self, longest: Duration) -> DeviceStatus {
        let mut status = self.status.lock();
        let loading = |status: &mut DeviceStatus| matches!(status, DeviceStatus::Loading { .. });
        self.changed.wait_while_for(&mut status, loading, longest);
        status.clone()
    }
}

//! The device of an engine: the caller's choice, its status, and events.

use std::{sync::Arc, time::Duration};

use parking_lot::{Condvar, Mutex};

use thermocline_base::error::Error;
use thermocline_gpu::{Fallback, GpuOptions, Purpose};
use thermocline_run::placement::GpuUse;

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

/// A stage of a load into a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadStage {
    /// The device is being opened.
    Opening,
    /// Its kernels are held against the CPU, before its driver is used for the first time.
    Testing,
    /// The model is on its way.
    Uploading {
        /// Bytes uploaded.
        done: u64,
        /// Bytes to upload.
        total: u64,
    },
}

impl LoadStage {
    /// Name of the stage, for programs.
    pub const fn name(self) -> &'static str {
        match self {
            LoadStage::Opening => "opening",
            LoadStage::Testing => "testing",
            LoadStage::Uploading { .. } => "uploading",
        }
    }

    /// Bytes uploaded and their total, which is 0 until it is known.
    pub const fn bytes(self) -> (u64, u64) {
        match self {
            LoadStage::Opening | LoadStage::Testing => (0, 0),
            LoadStage::Uploading { done, total } => (done, total),
        }
    }

    /// Fraction of the bytes that is uploaded.
    pub fn fraction(self) -> f32 {
        match self.bytes() {
            (_, 0) => 0.0,
            (done, total) => done as f32 / total as f32,
        }
    }
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
    Loading(LoadStage),
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

    /// Sets the stage of a load, unless the status is another by now.
    pub fn set_progress(&self, now: LoadStage) {
        if let DeviceStatus::Loading(stage) = &mut *self.status.lock() {
            *stage = now;
        }
    }

    /// The status as soon as it is not loading, or after `longest`.
    pub fn wait_until_loaded(&self, longest: Duration) -> DeviceStatus {
        let mut status = self.status.lock();
        let loading = |status: &mut DeviceStatus| matches!(status, DeviceStatus::Loading(_));
        self.changed.wait_while_for(&mut status, loading, longest);
        status.clone()
    }
}

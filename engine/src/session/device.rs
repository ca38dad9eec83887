//! The device of an engine: the caller's choice, the status, and events.

use std::{sync::Arc, time::Duration};

use parking_lot::{Condvar, Mutex};

use thermocline_base::error::Error;
use thermocline_gpu::{Fallback, GpuOptions, Purpose};
use thermocline_run::placement::GpuUse;

/// The device that a caller chooses.
#[derive(Debug, Clone, Default)]
pub enum DeviceChoice {
    /// Compute on the CPU.
    #[default]
    Cpu,
    /// Use a GPU if the model is expected to be faster with it; otherwise as [`DeviceChoice::Gpu`].
    Auto(GpuOptions),
    /// Use a GPU. The model is loaded into it in the background, and requests wait for the load. If
    /// there is no GPU, or it is lost, the CPU computes ([`DeviceStatus`] says why).
    Gpu(GpuOptions),
}

impl DeviceChoice {
    /// Largest number of bytes of device memory to use; `None` allows all free memory.
    pub fn budget(&self) -> Option<u64> {
        match self {
            DeviceChoice::Cpu => None,
            DeviceChoice::Auto(options) | DeviceChoice::Gpu(options) => options.budget,
        }
    }

    /// How plans use the GPU for this choice.
    pub const fn gpu_use(&self) -> GpuUse {
        match self {
            DeviceChoice::Cpu => GpuUse::Never,
            DeviceChoice::Auto(_) => GpuUse::IfQuicker,
            DeviceChoice::Gpu(_) => GpuUse::Always,
        }
    }
}

/// Device memory that the engine uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Name of the adapter.
    pub adapter: String,
    /// Largest number of bytes to use; `None` for no limit.
    pub budget: Option<u64>,
    /// Bytes of the adapter's memory, which limits every budget; `None` if the system does not
    /// report them.
    pub card: Option<u64>,
    /// True if this memory is a part of the RAM.
    pub shares_ram: bool,
    /// Bytes in use.
    pub accounted: u64,
    /// Bytes in use by purpose, in the order of [`Purpose::ALL`].
    pub by_purpose: [(Purpose, u64); Purpose::ALL.len()],
    /// True while weights are uploaded or released to reach the plan for the budget.
    pub moving: bool,
    /// Disabled features of the adapter.
    pub fallbacks: Vec<Fallback>,
}

impl DeviceMemory {
    /// The budget in force if `bytes` are requested.
    pub fn limited(&self, bytes: u64) -> u64 {
        bytes.min(self.card.unwrap_or(u64::MAX))
    }
}

/// A stage of a load into a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadStage {
    /// The device is being opened.
    Opening,
    /// Its kernels are compared with the CPU's, before the first use of its driver.
    Testing,
    /// The model is being uploaded.
    Uploading {
        /// Bytes uploaded.
        done: u64,
        /// Bytes to upload.
        total: u64,
    },
}

impl LoadStage {
    /// Name of the stage for programs.
    pub const fn name(self) -> &'static str {
        match self {
            LoadStage::Opening => "opening",
            LoadStage::Testing => "testing",
            LoadStage::Uploading { .. } => "uploading",
        }
    }

    /// Bytes uploaded and bytes to upload. The total is 0 until it is known.
    pub const fn bytes(self) -> (u64, u64) {
        match self {
            LoadStage::Opening | LoadStage::Testing => (0, 0),
            LoadStage::Uploading { done, total } => (done, total),
        }
    }

    /// Uploaded fraction of the bytes.
    pub fn fraction(self) -> f32 {
        match self.bytes() {
            (_, 0) => 0.0,
            (done, total) => done as f32 / total as f32,
        }
    }
}

/// The processor on which an engine computes now.
#[derive(Debug, Clone)]
pub enum DeviceStatus {
    /// The CPU.
    Cpu {
        /// Why no GPU computes; `None` if none was requested.
        reason: Option<Arc<Error>>,
    },
    /// The CPU computes while the model is loaded into a GPU.
    Loading(LoadStage),
    /// A GPU.
    Gpu(DeviceMemory),
    /// The CPU computes after a GPU was lost. The engine will soon try that GPU again.
    Lost {
        /// Name of the adapter.
        adapter: String,
        /// Message of the driver.
        reason: String,
    },
}

/// A change of the device while a generation is running or waiting. The generation continues: the
/// engine recomputes what it had computed on a lost device.
#[derive(Debug, Clone)]
pub enum DeviceEvent {
    /// The GPU was lost. The CPU continues, and the engine will soon try the GPU again.
    Lost {
        /// Name of the adapter.
        adapter: String,
        /// Message of the driver.
        reason: String,
    },
    /// The CPU computes from now on, without a GPU.
    Cpu {
        /// Why no GPU computes.
        reason: Arc<Error>,
    },
    /// A GPU feature failed and is now disabled. The model reloads on the GPU without it, and the
    /// CPU continues meanwhile.
    Fallback(Fallback),
    /// A GPU computes from now on.
    Gpu {
        /// Name of the adapter.
        adapter: String,
    },
}

/// The device's status, which all threads can read.
#[derive(Debug)]
pub(super) struct StatusBoard {
    status: Mutex<DeviceStatus>,
    changed: Condvar,
}

impl StatusBoard {
    pub fn new(status: DeviceStatus) -> Self {
        StatusBoard { status: Mutex::new(status), changed: Condvar::new() }
    }

    /// The current status.
    pub fn read(&self) -> DeviceStatus {
        self.status.lock().clone()
    }

    /// Sets the status.
    pub fn write(&self, status: DeviceStatus) {
        *self.status.lock() = status;
        self.changed.notify_all();
    }

    /// Sets the stage of a load, unless the status is no longer loading.
    pub fn set_progress(&self, now: LoadStage) {
        if let DeviceStatus::Loading(stage) = &mut *self.status.lock() {
            *stage = now;
        }
    }

    /// Waits until the status is no longer loading, at most `longest`, and returns it.
    pub fn wait_until_loaded(&self, longest: Duration) -> DeviceStatus {
        let mut status = self.status.lock();
        let loading = |status: &mut DeviceStatus| matches!(status, DeviceStatus::Loading(_));
        self.changed.wait_while_for(&mut status, loading, longest);
        status.clone()
    }
}

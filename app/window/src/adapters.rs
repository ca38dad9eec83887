//! The GPUs of this machine, and the memory that the system reports for them. Queries are slow, so
//! a background thread makes them.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use egui::Context;
use thermocline_engine::session::{
    AdapterChoice, AdapterKind, AdapterReport, Fallback, Fallbacks, VramReading, adapters,
};

use thermocline_chats::download::GpuMemory;
use thermocline_rich_text::background::Background;

/// The adapters and their memory, as of the latest query.
#[derive(Debug, Default)]
pub struct Adapters {
    /// Features of adapters that are disabled.
    pub fallbacks: Fallbacks,
    asking: Background<Vec<AdapterReport>>,
    /// Start of the latest query. `None` starts a query at the next [`look`](Self::look).
    pub asked: Option<Instant>,
    /// Features that were disabled at the latest query.
    known: Vec<Fallback>,
    list: Option<Arc<[AdapterReport]>>,
    /// Start of the query that returned the list.
    pub read: Option<Instant>,
}

/// Longest time to wait for a running query when the window closes.
const LAST_ANSWER: Duration = Duration::from_secs(2);

/// Drivers shut down when the process exits. A thread that is still inside a driver would then
/// crash the process.
impl Drop for Adapters {
    fn drop(&mut self) {
        self.asking.wait(LAST_ANSWER);
    }
}

/// Memory of an adapter as the system reports it, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SystemMemory {
    /// Total memory.
    pub total: Option<u64>,
    /// Memory in use by all programs together.
    pub used: Option<u64>,
    /// Memory in use by this program.
    pub used_here: Option<u64>,
    /// Memory that this program can still allocate.
    pub free: Option<u64>,
}

impl SystemMemory {
    /// Combines the readings: each figure comes from the first source that has it.
    pub fn of(readings: &[VramReading]) -> Self {
        let first = |what: fn(&VramReading) -> Option<u64>| readings.iter().find_map(what);
        SystemMemory {
            total: first(|it| it.total),
            used: first(|it| it.used),
            used_here: first(|it| it.used_here),
            free: first(VramReading::available),
        }
    }

    /// Bytes available to a model that already holds `held` bytes: the free bytes plus `held`, at
    /// most the total. `None` if the system reports neither.
    pub fn can_have(&self, held: u64) -> Option<u64> {
        let (free, total) = (self.free.map(|free| free.saturating_add(held)), self.total);
        free.map(|free| free.min(total.unwrap_or(u64::MAX))).or(total).map(|bytes| bytes.max(held))
    }
}

impl Adapters {
    /// Creates the list without a query. `fallbacks` disables features of adapters.
    pub fn new(fallbacks: Fallbacks) -> Self {
        let (asking, known) = (Background::default(), Vec::new());
        Adapters { fallbacks, asking, asked: None, known, list: None, read: None }
    }

    /// Starts a query if the latest is at least `age` old or if the disabled features have changed.
    pub fn look(&mut self, ctx: &Context, age: Duration) {
        if let Some(list) = self.asking.take() {
            (self.list, self.read) = (Some(list.into()), self.asked);
        }
        if self.asking.is_busy() {
            return;
        }
        let known = self.fallbacks.all();
        if known != self.known || self.asked.is_none_or(|asked| asked.elapsed() >= age) {
            (self.asked, self.known) = (Some(Instant::now()), known);
            // If no thread can start, there is no list, and the window shows that.
            let fallbacks = self.fallbacks.clone();
            let _ = self.asking.start(ctx, move || adapters(&fallbacks));
        }
    }

    /// All adapters. `None` until the system has answered.
    pub fn list(&self) -> Option<Arc<[AdapterReport]>> {
        self.list.clone()
    }

    /// The first adapter with this name.
    pub fn named(&self, name: &str) -> Option<&AdapterReport> {
        self.list.as_deref()?.iter().find(|it| it.name == name)
    }

    /// The memory of the default GPU. Zero without a GPU and until the system has answered.
    pub fn gpu_memory(&self) -> GpuMemory {
        let gpu = self.best().filter(|adapter| adapter.kind != AdapterKind::Software);
        let memory = gpu.map(|adapter| GpuMemory {
            bytes: SystemMemory::of(&adapter.vram).total.unwrap_or(0),
            shared: adapter.kind.has_unified_memory(),
        });
        memory.unwrap_or_default()
    }

    /// The adapter that is used unless the user chooses one.
    pub fn best(&self) -> Option<&AdapterReport> {
        let all = self.list.as_deref()?;
        AdapterChoice::Best.among(all).map(|at| &all[at])
    }
}

/// Describes the kind of an adapter in a word or two.
pub fn kind(kind: AdapterKind) -> &'static str {
    match kind {
        AdapterKind::Discrete => "graphics card",
        AdapterKind::Integrated => "shares the CPU's memory",
        AdapterKind::Virtual => "virtual",
        AdapterKind::Software => "software, slow",
        AdapterKind::Other => "unknown kind",
    }
}

#[cfg(test)]
mod tests {
    use thermocline_engine::session::{AdapterId, FallbackPart, VramSource};

    use super::*;
    use thermocline_host::testing::eventually;

    /// An adapter as Metal reports it: the total is the recommended part of the machine's memory.
    fn pretended(kind: AdapterKind) -> AdapterReport {
        let (total, source) = (Some(12 << 30), VramSource::Metal);
        let reading = VramReading { source, total, used: None, used_here: Some(0), budget: total };
        let [name, backend] = ["Apple M4", "metal"].map(str::to_owned);
        AdapterReport { name, kind, backend, vram: vec![reading], ..AdapterReport::default() }
    }

    #[test]
    fn memory_of_a_gpu_is_shared_where_it_is_the_cpus() {
        let memory = |kind| {
            let mut all = Adapters::default();
            all.list = Some([pretended(kind)].into());
            all.gpu_memory()
        };
        let bytes = 12 << 30;
        assert_eq!(memory(AdapterKind::Integrated), GpuMemory { bytes, shared: true });
        assert_eq!(memory(AdapterKind::Discrete), GpuMemory { bytes, shared: false });
        assert_eq!(memory(AdapterKind::Software), GpuMemory::default());
        assert_eq!(Adapters::default().gpu_memory(), GpuMemory::default());
    }

    #[test]
    fn adapter_that_is_given_up_meanwhile_is_listed_so() {
        let (ctx, mut all) = (Context::default(), Adapters::new(Fallbacks::default()));
        let look = |all: &mut Adapters, usable| {
            eventually("a list", || {
                all.look(&ctx, Duration::MAX);
                all.list().is_some_and(|list| list[0].is_usable() == usable)
            });
        };
        look(&mut all, true);
        let id = AdapterId::of(&all.list().unwrap()[0]);
        all.fallbacks.add(Fallback::new(id, FallbackPart::Adapter, "the kernel `norm` does not compile"));
        look(&mut all, false);
        all.fallbacks.clear();
        look(&mut all, true);
    }

    #[test]
    fn memory_that_can_be_had_is_what_is_free_or_held_already() {
        let memory = |free, total| SystemMemory { free, total, ..SystemMemory::default() };
        assert_eq!(memory(None, None).can_have(5), None);
        assert_eq!(memory(Some(30), Some(100)).can_have(5), Some(35));
        assert_eq!(memory(Some(98), Some(100)).can_have(5), Some(100), "never more than there are");
        assert_eq!(memory(None, Some(100)).can_have(5), Some(100));
        assert_eq!(memory(Some(30), None).can_have(5), Some(35));
        assert_eq!(memory(Some(0), Some(4)).can_have(5), Some(5), "what is held was there");
    }

    #[test]
    fn adapters_are_listed_in_the_background_once_per_period() {
        let (ctx, mut all) = (Context::default(), Adapters::default());
        eventually("a list", || {
            all.look(&ctx, Duration::from_secs(3600));
            all.list().is_some()
        });
        let (list, read) = (all.list().unwrap(), all.read);
        assert!(!list.is_empty(), "the tests need a Vulkan driver (tests/run.sh installs one)");
        assert_eq!(all.named(&list[0].name).map(|it| it.index), Some(list[0].index));
        let memory = SystemMemory::of(&list[0].vram);
        assert!(memory.total.is_some_and(|total| total > 0), "{memory:?}");
        all.look(&ctx, Duration::from_secs(3600));
        assert_eq!(all.read, read);
    }
}

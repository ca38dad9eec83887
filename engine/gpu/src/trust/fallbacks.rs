//! The current fallbacks, and the next part of each adapter to disable. A file can keep them, per
//! adapter, driver and program version.

use std::{
    fs::File,
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::Mutex;
use thermocline_shaders::KernelFeatures;

use super::{
    AdapterId, CrashSentinel, Fallback, FallbackPart, FaultCounter, RiskyStep, fallback_file::FallbackFile,
    known_drivers::known_bad, sentinel::left_over,
};
use crate::GpuFeature;
use thermocline_base::files::keep_json;

/// Name of the file in its folder.
const FILE: &str = "gpu-fallbacks.json";

/// Handle of the current fallbacks. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Fallbacks(Arc<Mutex<FallbackState>>);

#[derive(Debug, Default)]
struct FallbackState {
    /// Fallbacks from failures on this machine.
    all: Vec<Fallback>,
    /// Adapters that are used although their drivers are known to fail.
    overruled: Vec<AdapterId>,
    /// Adapters that were opened or tried, each once, the latest last.
    in_use: Vec<AdapterUse>,
    /// File that keeps the fallbacks. `None`: they end with the process.
    file: Option<PathBuf>,
}

/// An adapter and the features that kernels use on it.
#[derive(Debug)]
struct AdapterUse {
    adapter: AdapterId,
    features: KernelFeatures,
}

impl FallbackState {
    /// Reads the file, which another process may have changed, and the sentinels of crashed
    /// processes.
    fn refresh(&mut self) {
        let Some(file) = &self.file else { return };
        let kept = File::open(file).map_or_else(|_| FallbackFile::default(), |file| FallbackFile::read(&file));
        let crashes = left_over(file.parent().unwrap_or(Path::new(".")));
        (self.all, self.overruled) = (kept.fallbacks, kept.overruled);
        if !crashes.is_empty() {
            crashes.into_iter().for_each(|it| self.insert(it));
            self.write();
        }
    }

    /// Adds a fallback, unless that part of the adapter already has one.
    fn insert(&mut self, fallback: Fallback) {
        if !self.all.iter().any(|it| it.adapter == fallback.adapter && it.part == fallback.part) {
            tracing::warn!(%fallback, "a GPU feature, a GPU or a backend is disabled");
            self.all.push(fallback);
        }
    }

    /// Changes the fallbacks in memory and in the file. If two processes change the file at once,
    /// the later write wins. The lost fallback is added again at the next failure.
    fn change(&mut self, change: impl FnOnce(&mut Self)) {
        self.refresh();
        change(self);
        self.write();
    }

    fn write(&mut self) {
        if let Some(file) = &self.file
            && let Err(error) = keep_json(file, &FallbackFile::new(&self.all, &self.overruled))
        {
            tracing::warn!(%error, "the file of disabled GPU features cannot be written");
            self.file = None;
        }
    }
}

impl Fallbacks {
    /// Returns the fallbacks kept in `folder`. All calls of a process with the same folder share
    /// one object.
    pub fn in_folder(folder: &Path) -> Self {
        static OPEN: Mutex<Vec<(PathBuf, Fallbacks)>> = Mutex::new(Vec::new());
        let mut open = OPEN.lock();
        if let Some((_, known)) = open.iter().find(|(its, _)| its == folder) {
            return known.clone();
        }
        let new = Fallbacks::read_from(folder);
        open.push((folder.to_owned(), new.clone()));
        new
    }

    /// Reads a separate object for `folder`.
    fn read_from(folder: &Path) -> Self {
        let mut state = FallbackState { file: Some(folder.join(FILE)), ..FallbackState::default() };
        state.refresh();
        Fallbacks(Arc::new(Mutex::new(state)))
    }

    /// Reads the changes that other processes have made.
    pub(crate) fn refresh(&self) {
        self.0.lock().refresh();
    }

    /// Deletes the fallbacks of other driver versions of the `listed` adapters.
    pub(crate) fn delete_other_drivers(&self, listed: &[AdapterId]) {
        let is_old = |it: &AdapterId| listed.iter().any(|listed| listed.has_other_driver(it));
        let mut state = self.0.lock();
        if state.all.iter().map(|it| &it.adapter).chain(&state.overruled).any(is_old) {
            state.change(|state| {
                state.all.retain(|it| !is_old(&it.adapter));
                state.overruled.retain(|it| !is_old(it));
            });
        }
    }

    /// Adds a fallback, unless that part of the adapter already has one.
    pub fn add(&self, fallback: Fallback) {
        self.0.lock().change(|state| state.insert(fallback));
    }

    /// Returns the sentinel of a step. If the process ends before the sentinel is dropped,
    /// `fallback` applies from the next start on. `None` without a folder.
    pub(crate) fn guard(&self, step: RiskyStep, fallback: &Fallback, faults: &FaultCounter) -> Option<CrashSentinel> {
        let folder = self.0.lock().file.as_ref().and_then(|file| file.parent()).map(Path::to_owned);
        let sentinel = folder.and_then(|folder| CrashSentinel::new(&folder, fallback));
        faults.abort_within(step);
        sentinel
    }

    /// Returns the sentinel of a window that opens over `backend`, to be held until the window has
    /// drawn. If the process ends before, [`Fallbacks::last_for_windows`] contains the backend from
    /// the next start on.
    pub fn guard_window(&self, backend: &str) -> Option<CrashSentinel> {
        let why = "the program ended before the window drew its first frame";
        let fallback = Fallback::new(AdapterId::of_backend(backend), FallbackPart::Window, why);
        self.guard(RiskyStep::Window, &fallback, &FaultCounter::default())
    }

    /// Returns the names of the backends to try last for a window.
    pub fn last_for_windows(&self) -> Vec<String> {
        self.refresh();
        self.all().into_iter().filter(|it| it.part == FallbackPart::Window).map(|it| it.adapter.backend).collect()
    }

    /// Forgets all failures on this machine, so that all parts are tried again. Known failures of
    /// drivers remain.
    pub fn clear(&self) {
        self.0.lock().change(|state| {
            state.all.clear();
            state.overruled.clear();
        });
    }

    /// Forgets the failures of `adapter` on this machine. Known failures of its driver remain.
    pub fn try_again(&self, adapter: &AdapterId) {
        self.0.lock().change(|state| {
            state.all.retain(|it| it.adapter != *adapter);
            state.overruled.retain(|it| it != adapter);
        });
    }

    /// Enables all parts of `adapter`, including the parts that its driver is known to fail with.
    pub fn overrule(&self, adapter: &AdapterId) {
        self.try_again(adapter);
        self.0.lock().change(|state| state.overruled.push(adapter.clone()));
    }

    /// Disables one more part of `adapter`, because of `why`. It is the most doubtful feature in
    /// `used` that is not disabled yet, or else the adapter.
    pub fn step(&self, adapter: &AdapterId, used: KernelFeatures, why: &str) -> Fallback {
        let fallback = Fallback::new(adapter.clone(), self.next_part(adapter, used), why);
        self.add(fallback.clone());
        fallback
    }

    /// Returns the part of `adapter` to disable next, if kernels use the features in `used`.
    pub(super) fn next_part(&self, adapter: &AdapterId, used: KernelFeatures) -> FallbackPart {
        let given_up = self.of(adapter);
        let is_left = |feature: &GpuFeature| {
            feature.is_in(used) && !given_up.iter().any(|it| it.part == FallbackPart::Feature(*feature))
        };
        GpuFeature::ALL.into_iter().find(is_left).map_or(FallbackPart::Adapter, FallbackPart::Feature)
    }

    /// Records that kernels will use `features` on `adapter`.
    pub(crate) fn note_use(&self, adapter: AdapterId, features: KernelFeatures) {
        let in_use = &mut self.0.lock().in_use;
        in_use.retain(|it| it.adapter != adapter);
        in_use.push(AdapterUse { adapter, features });
    }

    /// Disables one more part of the latest opened adapter with this name, after it was lost too
    /// often.
    pub fn after_losses(&self, name: &str, why: &str) -> Option<Fallback> {
        let state = self.0.lock();
        let last = state.in_use.iter().rfind(|it| it.adapter.name == name)?;
        let (adapter, used) = (last.adapter.clone(), last.features);
        drop(state);
        Some(self.step(&adapter, used, why))
    }

    /// Returns all fallbacks from failures on this machine, in the order in which they were added.
    pub fn all(&self) -> Vec<Fallback> {
        self.0.lock().all.clone()
    }

    /// Returns the fallbacks of an adapter: known failures of its driver, and failures on this
    /// machine.
    pub fn of(&self, adapter: &AdapterId) -> Vec<Fallback> {
        let state = self.0.lock();
        let known = if state.overruled.contains(adapter) { Vec::new() } else { known_bad(adapter) };
        known.into_iter().chain(state.all.iter().filter(|it| it.adapter == *adapter).cloned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use thermocline_shaders::Tier;

    use super::*;
    use crate::{AdapterChoice, Caps, CooperativeTile, Gpu, GpuOptions, WeightType, adapters};
    use thermocline_base::error::Error;

    fn read(file: &Path) -> Vec<Fallback> {
        FallbackFile::read(&File::open(file).unwrap()).fallbacks
    }

    fn arc() -> AdapterId {
        let [name, backend, driver] = ["Arc", "vulkan", "Mesa 25"].map(str::to_owned);
        AdapterId { name, backend, driver, pci_bus_id: String::new() }
    }

    fn without(feature: GpuFeature) -> Fallback {
        Fallback::new(arc(), FallbackPart::Feature(feature), "the driver refused `gemv_dot`")
    }

    #[test]
    fn fallbacks_are_sentences_and_kept_once_per_part() {
        let all = Fallbacks::default();
        all.add(without(GpuFeature::PackedDot));
        all.add(Fallback::new(arc(), FallbackPart::Feature(GpuFeature::PackedDot), "again"));
        all.add(Fallback::new(arc(), FallbackPart::Adapter, "it was lost three times"));
        let sentences: Vec<String> = all.of(&arc()).iter().map(Fallback::to_string).collect();
        assert_eq!(
            sentences,
            [
                "Arc runs without packed dot products over vulkan: the driver refused `gemv_dot`",
                "Arc is not used over vulkan: it was lost three times",
            ]
        );
        let updated = AdapterId { driver: "Mesa 26".to_owned(), ..arc() };
        assert!(all.of(&updated).is_empty(), "another driver starts afresh");
        let other = AdapterId { name: "Iris".to_owned(), ..arc() };
        all.add(Fallback::new(other.clone(), FallbackPart::Adapter, "it was lost"));
        all.delete_other_drivers(&[arc(), other.clone()]);
        assert_eq!(all.all().len(), 3);
        all.delete_other_drivers(&[updated, other.clone()]);
        assert_eq!(all.all().iter().map(|it| &it.adapter).collect::<Vec<_>>(), [&other], "the old driver's are gone");
    }

    #[test]
    fn steps_give_up_the_most_doubtful_feature_in_use_then_the_adapter() {
        let full = Tier { subgroups: true, f16: true };
        let every = KernelFeatures { cooperative: true, packed: true, tier: full };
        let all = Fallbacks::default();
        let parts = |used: KernelFeatures| {
            all.clear();
            let mut parts = Vec::new();
            while !parts.contains(&FallbackPart::Adapter) {
                parts.push(all.step(&arc(), used, "refused").part);
            }
            parts
        };
        let features = |features: &[GpuFeature]| {
            let features = features.iter().copied().map(FallbackPart::Feature);
            features.chain([FallbackPart::Adapter]).collect::<Vec<_>>()
        };
        assert_eq!(parts(every), features(&GpuFeature::ALL));
        let packed = KernelFeatures { cooperative: false, tier: Tier { f16: false, ..full }, ..every };
        assert_eq!(parts(packed), features(&[GpuFeature::PackedDot, GpuFeature::Subgroups]));
        assert_eq!(parts(KernelFeatures::default()), features(&[]));
        // A lost device disables the features that its kernels may use. Only the cooperative kernel
        // uses 16-bit floats.
        let caps = |cooperates: bool| Caps {
            tier: full,
            cooperative: cooperates.then_some(CooperativeTile::Sixteen),
            ..Caps::default()
        };
        assert_eq!(caps(true).used_by_kernels(true), every);
        assert_eq!(caps(false).used_by_kernels(true), packed);
        assert_eq!(Caps::default().used_by_kernels(false), KernelFeatures::default());
        assert!(all.after_losses("Arc", "lost").is_none(), "nothing of it was opened");
        all.clear();
        all.note_use(arc(), caps(false).used_by_kernels(false));
        assert_eq!(
            all.after_losses("Arc", "lost").map(|it| it.part),
            Some(FallbackPart::Feature(GpuFeature::Subgroups))
        );
    }

    #[test]
    fn fallbacks_are_kept_in_a_folder_until_they_are_cleared() {
        let folder = tempfile::tempdir().unwrap();
        let (place, file) = (folder.path().join("deeper"), folder.path().join("deeper").join(FILE));
        let first = Fallbacks::read_from(&place);
        assert!(first.all().is_empty());
        first.add(without(GpuFeature::PackedDot));
        // Simulates another process.
        let second = Fallbacks::read_from(&place);
        assert_eq!(second.all(), first.all());
        second.add(without(GpuFeature::Subgroups));
        first.refresh();
        assert_eq!(first.all(), second.all());
        assert_eq!(first.all().len(), 2);
        let shared = Fallbacks::in_folder(&place);
        Fallbacks::in_folder(&place).clear();
        assert!(shared.all().is_empty());
        first.refresh();
        assert!(first.all().is_empty() && read(&file).is_empty());
    }

    #[test]
    fn known_drivers_are_done_without_until_that_is_overruled() {
        let [name, backend, driver] = ["PowerVR D-Series", "vulkan", "PowerVR 24.2"].map(str::to_owned);
        let (folder, bad) =
            (tempfile::tempdir().unwrap(), AdapterId { name, backend, driver, pci_bus_id: String::new() });
        let all = Fallbacks::read_from(folder.path());
        let parts = || {
            // Another process reads this.
            let parts: Vec<_> = Fallbacks::read_from(folder.path()).of(&bad).iter().map(|it| it.part).collect();
            assert_eq!(parts, all.of(&bad).iter().map(|it| it.part).collect::<Vec<_>>());
            parts
        };
        let [cooperative, packed, f16] =
            [GpuFeature::CooperativeMatrices, GpuFeature::PackedDot, GpuFeature::F16].map(FallbackPart::Feature);
        assert_eq!(parts(), [cooperative, packed]);
        assert!(all.all().is_empty() && all.of(&bad).iter().all(Fallback::is_known));
        let every = KernelFeatures { cooperative: true, packed: true, tier: Tier { subgroups: true, f16: true } };
        assert_eq!(all.step(&bad, every, "refused").part, f16, "what is known is not given up again");
        all.add(without(GpuFeature::F16));
        all.try_again(&bad);
        assert_eq!(parts(), [cooperative, packed]);
        assert_eq!(all.of(&arc()).len(), 1, "the others' stay");
        all.overrule(&bad);
        assert!(parts().is_empty());
        assert_eq!(all.step(&bad, every, "refused").part, cooperative, "what fails here is given up all the same");
        all.clear();
        assert_eq!(parts(), [cooperative, packed]);
        all.overrule(&bad);
        all.add(without(GpuFeature::F16));
        let text = fs::read_to_string(folder.path().join(FILE)).unwrap();
        fs::write(folder.path().join(FILE), text.replace(env!("CARGO_PKG_VERSION"), "0.0.1")).unwrap();
        let updated = Fallbacks::read_from(folder.path());
        assert!(updated.of(&bad).len() == 2 && updated.all().is_empty(), "another version of the program");
    }

    #[test]
    fn damaged_file_is_an_empty_record_and_no_folder_is_needed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(FILE);
        Fallbacks::read_from(folder.path()).add(without(GpuFeature::PackedDot));
        let whole = fs::read(&file).unwrap();
        let damaged = (0..whole.len()).map(|end| whole[..end].to_vec());
        for text in damaged.chain([b"{\"version\": 2, \"fallbacks\": []}".to_vec(), vec![b' '; 2 << 20]]) {
            fs::write(&file, &text).unwrap();
            assert!(Fallbacks::read_from(folder.path()).all().is_empty(), "{} bytes", text.len());
        }
        let all = Fallbacks::read_from(folder.path());
        all.add(without(GpuFeature::F16));
        assert_eq!(read(&file), all.all());
        // Fallbacks that cannot be written still apply.
        let nowhere = Fallbacks::read_from(&file.join("below"));
        nowhere.add(without(GpuFeature::F16));
        nowhere.refresh();
        nowhere.add(without(GpuFeature::PackedDot));
        assert_eq!(nowhere.all().len(), 2);
    }

    #[test]
    fn devices_open_without_what_is_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let (writer, all) = (Fallbacks::read_from(folder.path()), Fallbacks::read_from(folder.path()));
        let adapter = AdapterId::of(&adapters(&all)[0]);
        // Another process would do this.
        let give_up = |part| writer.add(Fallback::new(adapter.clone(), part, "it was wrong"));
        let open = || {
            let (adapter, fallbacks) = (AdapterChoice::Index(0), all.clone());
            Gpu::open(&GpuOptions { adapter, packed_dot: Some(true), fallbacks, ..GpuOptions::default() })
        };
        let has = || {
            let gpu = open().unwrap();
            let tier = gpu.caps().tier;
            (gpu.shape(WeightType::Q4_0).unwrap().packed, tier.f16, tier.subgroups)
        };
        assert_eq!(has(), (true, true, true));
        give_up(FallbackPart::Feature(GpuFeature::PackedDot));
        assert_eq!(has(), (false, true, true), "whatever is asked for");
        give_up(FallbackPart::Feature(GpuFeature::F16));
        assert_eq!(has(), (false, false, true));
        give_up(FallbackPart::Feature(GpuFeature::Subgroups));
        assert_eq!(has(), (false, false, false));
        give_up(FallbackPart::Adapter);
        let Err(Error::Gpu { reason, .. }) = open() else { panic!("it was given up") };
        assert!(reason.ends_with("is not used over vulkan: it was wrong"), "{reason}");
        writer.clear();
        assert_eq!(has(), (true, true, true));
    }
}

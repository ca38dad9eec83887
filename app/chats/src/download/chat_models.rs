//! Chat models offered for download, and which of them fit a computer. `assets/chat_models.json`
//! lists them, smallest first. All are of families that the engine opens. The repository supplies
//! exact file sizes and checksums.

use std::sync::LazyLock;

use serde::Deserialize;

use super::{GpuMemory, MemoryFit, hub::HubModel};

/// The list as JSON.
const LIST: &str = include_str!("../../../../assets/chat_models.json");

/// Number of models offered at once.
pub const OFFERED: usize = 3;

/// Tokens per second that suffice for a conversation.
const FLUENT: f64 = 5.0;

/// Fractions of the memory's read bandwidth that decoding reaches on small and on large machines.
pub const REACHED: [f64; 2] = [0.5, 0.8];

/// A chat model in a Hugging Face repository.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChatModel {
    /// Name of the model.
    pub name: String,
    /// Year in which it was published.
    pub year: u16,
    /// Repository as `owner/name`.
    pub repository: String,
    /// Part of the file name that selects the file in the repository: its quantisation.
    pub file: String,
    /// Approximate size of the file.
    pub gigabytes: f64,
    /// Gigabytes of weights read per token. With MoE models, only the experts in use.
    pub read_gigabytes: f64,
    /// Description in one line.
    pub about: String,
}

/// All listed models, smallest first.
pub fn all() -> &'static [ChatModel] {
    static ALL: LazyLock<Vec<ChatModel>> = LazyLock::new(|| serde_json::from_str(LIST).unwrap_or_default());
    &ALL
}

impl ChatModel {
    /// The fit of this model on a machine with `ram` bytes of RAM and this GPU.
    pub fn fit(&self, ram: u64, gpu: GpuMemory) -> MemoryFit {
        MemoryFit::of(self.gigabytes * 1e9, ram, gpu)
    }

    /// Lowest and highest expected tokens per second of a CPU that reads memory at `bandwidth`
    /// bytes per second.
    pub fn rates(&self, bandwidth: f64) -> [f64; 2] {
        REACHED.map(|reached| reached * bandwidth / (self.read_gigabytes * 1e9))
    }

    /// The file of this model, or its split files, among the files of its repository.
    pub fn pick<'m>(&self, found: &'m [HubModel]) -> Option<&'m HubModel> {
        let wanted = self.file.to_ascii_lowercase();
        let has = |model: &&HubModel| model.name.to_ascii_lowercase().contains(&wanted);
        found.iter().filter(has).min_by_key(|model| model.name.len())
    }
}

/// The models to offer for a machine with `ram` bytes of RAM and this GPU, largest first.
/// `bandwidth` is the memory's read bandwidth in bytes per second, if known. Offers the largest
/// model that fits and is fast enough, and smaller ones, all of the latest year. Includes older
/// models only if too few of the latest year fit.
pub fn offered(ram: u64, gpu: GpuMemory, bandwidth: Option<f64>) -> Vec<&'static ChatModel> {
    let fits = |model: &&ChatModel| model.fit(ram, gpu) != MemoryFit::TooLarge;
    let latest = all().iter().map(|model| model.year).max();
    let mut fitting: Vec<&ChatModel> = all().iter().filter(|model| Some(model.year) == latest).filter(fits).collect();
    if fitting.len() < OFFERED {
        fitting = all().iter().filter(fits).collect();
    }
    let fluent = |model: &&&ChatModel| {
        let most = bandwidth.map_or(f64::INFINITY, |bandwidth| model.rates(bandwidth)[1]);
        // A model in VRAM is read faster.
        most >= FLUENT || !gpu.shared && model.fit(ram, gpu) == MemoryFit::Gpu
    };
    let mut offered: Vec<&ChatModel> = fitting.iter().filter(fluent).copied().collect();
    if offered.len() < OFFERED {
        offered = fitting;
        offered.truncate(OFFERED);
    }
    offered.reverse();
    // Choose different sizes: the largest model, then each time one of at most 0.6 times the size.
    let mut chosen: Vec<&ChatModel> = Vec::new();
    for model in &offered {
        if chosen.len() < OFFERED && chosen.last().is_none_or(|last| model.gigabytes <= 0.6 * last.gigabytes) {
            chosen.push(*model);
        }
    }
    for model in offered {
        if chosen.len() < OFFERED && !chosen.contains(&model) {
            chosen.push(model);
        }
    }
    chosen.sort_by(|a, b| b.gigabytes.total_cmp(&a.gigabytes));
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::download::hub::{HubFile, repository_name};

    const GB: u64 = 1_000_000_000;

    /// The memory of a graphics card with this many gigabytes.
    fn card(gigabytes: u64) -> GpuMemory {
        GpuMemory { bytes: gigabytes * GB, shared: false }
    }

    #[test]
    fn list_of_chat_models_is_valid_and_sorted() {
        assert!(all().len() >= 8, "{}", all().len());
        let latest = all().iter().filter(|model| model.year == 2026).count();
        assert!(latest >= 8 && all().iter().all(|model| (2025..=2026).contains(&model.year)), "{latest}");
        for model in all() {
            assert_eq!(repository_name(&model.repository).as_deref(), Some(&*model.repository));
            assert!(model.read_gigabytes > 0.0 && model.read_gigabytes <= model.gigabytes, "{}", model.name);
            assert!(!model.about.is_empty() && !model.file.is_empty());
        }
        assert!(all().windows(2).all(|two| two[0].gigabytes <= two[1].gigabytes));
    }

    #[test]
    fn offered_models_fit_the_machine_and_talk_fluently() {
        for (ram, vram) in [(6, 0), (8, 0), (16, 0), (16, 8), (32, 0), (64, 24), (128, 0)] {
            for bandwidth in [None, Some(12e9), Some(40e9)] {
                let offers = offered(ram * GB, card(vram), bandwidth);
                assert_eq!(offers.len(), OFFERED, "{ram} GB and {vram} GB of VRAM");
                let fits = |model: &&ChatModel| model.fit(ram * GB, card(vram)) != MemoryFit::TooLarge;
                assert!(offers.iter().all(fits), "{ram} {vram}: {offers:?}");
                assert!(offers.iter().all(|model| model.year == 2026), "not this year's: {offers:?}");
                assert!(offers.windows(2).all(|two| two[0].gigabytes >= two[1].gigabytes));
                let different: std::collections::BTreeSet<_> = offers.iter().map(|model| &model.name).collect();
                assert_eq!(different.len(), OFFERED);
            }
        }
        let slow = offered(64 * GB, card(0), Some(12e9));
        assert!(slow.iter().all(|model| model.rates(12e9)[1] >= FLUENT), "below 5 tokens/s: {slow:?}");
        let few = offered(4 * GB, card(0), None);
        assert!(few.len() == OFFERED && few.iter().any(|model| model.year < 2026), "older ones fill up: {few:?}");
        assert!(offered(2 * GB, card(0), None).is_empty(), "none fits");
        // Memory that the GPU shares with the CPU is neither faster nor larger.
        for bandwidth in [None, Some(12e9), Some(100e9)] {
            let shared = offered(16 * GB, GpuMemory { bytes: 11 * GB, shared: true }, bandwidth);
            assert_eq!(shared, offered(16 * GB, card(0), bandwidth));
        }
    }

    #[test]
    fn file_is_picked_by_its_quantisation() {
        let model = all().iter().find(|model| model.name == "Gemma 4 E4B").unwrap();
        let found = |names: &[&str]| -> Vec<HubModel> {
            let file = |name: &str| HubFile { path: name.to_owned(), bytes: 1, sha256: None };
            names.iter().map(|name| HubModel { name: (*name).to_owned(), files: vec![file(name)] }).collect()
        };
        let all = found(&["E4B-it-Q8_0.gguf", "E4B-it-q4_k_m.gguf", "imatrix/E4B-it-q4_k_m-other.gguf"]);
        assert_eq!(model.pick(&all).map(|it| &*it.name), Some("E4B-it-q4_k_m.gguf"));
        assert_eq!(model.pick(&found(&["E4B-it-Q8_0.gguf"])), None);
    }

    #[test]
    fn rates_are_those_of_the_memory() {
        let model = &all()[0];
        let [least, most] = model.rates(20e9);
        assert!((least - 26.3).abs() < 0.1 && (most - 42.1).abs() < 0.1, "{least} {most}");
    }
}

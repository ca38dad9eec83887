//! Checks the consistency of the statistics of a device's memory.

use thermocline_engine::session::DeviceMemory;

use crate::adapters::SystemMemory;
use thermocline_host::units::bytes;

/// Bytes that the system may count beyond the engine's figure: the window's textures and the
/// driver's own memory.
const BESIDE: u64 = 512 << 20;

/// Bytes that the system may count less than the engine, because it is read at another moment.
const MISSING: u64 = 32 << 20;

/// A sentence for the user if figures contradict each other. `None` if they agree. `system` is the
/// system's reading of a card's own memory.
pub fn disagreement(memory: &DeviceMemory, system: Option<SystemMemory>) -> Option<String> {
    let (held, parts) = (memory.accounted, memory.by_purpose.iter().map(|(_, bytes)| bytes).sum::<u64>());
    if let Some(budget) = memory.budget.filter(|budget| held > *budget) {
        let over = bytes(held - budget);
        return Some(format!("The model uses {}, {over} more than the budget allows.", bytes(held)));
    }
    if parts != held && !memory.moving {
        return Some(format!("The parts add up to {}, but the model uses {}.", bytes(parts), bytes(held)));
    }
    let system = system.filter(|_| !memory.moving)?;
    if let Some(total) = system.total.filter(|total| held > *total) {
        return Some(format!("The model uses {}, but the system reports only {} of VRAM.", bytes(held), bytes(total)));
    }
    let here = system.used_here?;
    if here.saturating_add(MISSING) < held - held / 10 {
        return Some(format!(
            "The model uses {}, but only {} are in VRAM. The driver may keep the rest in RAM, which is slow. Choose a smaller budget.",
            bytes(held),
            bytes(here)
        ));
    }
    let over = here.saturating_sub(held);
    (over > BESIDE + held / 4).then(|| {
        format!("The system reports {} for this program, {} more than the model uses.", bytes(here), bytes(over))
    })
}

#[cfg(test)]
mod tests {
    use thermocline_engine::session::Purpose;

    use super::*;

    fn memory(budget: u64, held: u64) -> DeviceMemory {
        let mut by_purpose = Purpose::ALL.map(|purpose| (purpose, 0));
        by_purpose[0].1 = held;
        DeviceMemory {
            adapter: "card".to_owned(),
            budget: Some(budget),
            card: None,
            shares_ram: false,
            accounted: held,
            by_purpose,
            moving: false,
            fallbacks: Vec::new(),
        }
    }

    #[test]
    fn memory_check_has_a_sentence_per_disagreement() {
        const GIB: u64 = 1 << 30;
        let system = |here| Some(SystemMemory { total: Some(8 * GIB), used_here: Some(here), ..Default::default() });
        let fine = memory(4 * GIB, 3 * GIB);
        for said in [None, system(3 * GIB), system(3 * GIB + (300 << 20)), system(3 * GIB - (20 << 20))] {
            assert_eq!(disagreement(&fine, said), None);
        }
        let over = disagreement(&memory(GIB, 2 * GIB), None).unwrap();
        assert!(over.contains("1.0 GiB more than the budget"), "{over}");
        let odd = DeviceMemory { accounted: GIB, ..memory(4 * GIB, 2 * GIB) };
        assert!(disagreement(&odd, None).unwrap().contains("parts add up to 2.0 GiB"));
        assert_eq!(disagreement(&DeviceMemory { moving: true, ..odd }, None), None);
        assert!(disagreement(&fine, system(GIB)).unwrap().contains("only 1.0 GiB are in VRAM"));
        assert!(disagreement(&fine, system(7 * GIB)).unwrap().contains("4.0 GiB more than the model uses"));
        assert!(disagreement(&memory(16 * GIB, 9 * GIB), system(9 * GIB)).unwrap().contains("only 8.0 GiB of VRAM"));
    }
}

//! RAM of this machine: all there is, and whether there is room for more.

use std::sync::OnceLock;

use sysinfo::{MemoryRefreshKind, RefreshKind, System};

/// Part of the free RAM that stays free.
const SPARE: u64 = 16;

/// All bytes of RAM, asked once; `None`: the system does not say.
pub fn total() -> Option<u64> {
    static TOTAL: OnceLock<Option<u64>> = OnceLock::new();
    *TOTAL.get_or_init(|| system().map(|system| system.total_memory()).filter(|bytes| *bytes > 0))
}

/// The system with its memory; `None`: it does not say.
fn system() -> Option<System> {
    let what = RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram());
    System::new_with_specifics(what).ok()
}

/// Checks that `bytes` more of RAM can be had, and a little stays free. A system that does not say how much is free can have them.
///
/// # Errors
/// The bytes that are free.
pub fn check(bytes: u64) -> Result<(), u64> {
    let free = system().map_or(0, |system| system.available_memory());
    if free > 0 && bytes > free - free / SPARE { Err(free) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_machine_has_room_for_everything() {
        assert!(total().is_some_and(|bytes| bytes > 0) && total() == total());
        assert!(check(0).is_ok());
        assert!(check(u64::MAX).is_err_and(|free| free > 0));
    }
}

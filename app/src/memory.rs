//! Free RAM of this machine.

use sysinfo::{MemoryRefreshKind, RefreshKind, System};

/// Part of the free RAM that stays free.
const SPARE: u64 = 16;

/// Checks that `bytes` more of RAM can be had, and a little stays free. A system that does not say how much is free can have them.
///
/// # Errors
/// The bytes that are free.
pub fn check(bytes: u64) -> Result<(), u64> {
    let what = RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram());
    let free = System::new_with_specifics(what).map_or(0, |system| system.available_memory());
    if free > 0 && bytes > free - free / SPARE { Err(free) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_machine_has_room_for_everything() {
        assert!(check(0).is_ok());
        assert!(check(u64::MAX).is_err_and(|free| free > 0));
    }
}

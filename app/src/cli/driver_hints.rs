//! Sentences for `thermocline devices` about systems whose drivers offer less than the hardware can
//! do.

use std::fs;

/// Linux file that contains the kernel's name.
const KERNEL: &str = "/proc/sys/kernel/osrelease";

/// Returns the shortcoming of all adapters of `backend` on this system, if there is one.
pub fn of_backend(backend: &str) -> Option<&'static str> {
    of_backend_on(backend, std::env::consts::OS, std::env::consts::ARCH)
}

fn of_backend_on(backend: &str, system: &str, processor: &str) -> Option<&'static str> {
    // Only the program for x86-64 contains the newer compiler, with subgroups and 16-bit floats.
    let old_compiler = (backend, system, processor) == ("dx12", "windows", "aarch64");
    old_compiler
        .then_some("Direct3D's shader compiler of Windows on Arm64 supports neither subgroups nor 16-bit floats")
}

/// Explains why no driver offers an adapter on this system, if the reason is known.
pub fn of_no_adapter() -> Option<&'static str> {
    fs::read_to_string(KERNEL).ok().and_then(|kernel| of_no_adapter_under(&kernel))
}

fn of_no_adapter_under(kernel: &str) -> Option<&'static str> {
    let wsl = kernel.to_lowercase().contains("microsoft");
    wsl.then_some(
        "Linux under Windows has one Vulkan driver, dzn, which is not used because it does not conform; \
         Thermocline for Windows uses the GPU",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn direct3d_on_arm64_is_said_to_lack_its_compiler() {
        assert!(of_backend_on("dx12", "windows", "aarch64").is_some_and(|said| said.contains("Arm64")));
        for (backend, system, processor) in
            [("dx12", "windows", "x86_64"), ("vulkan", "windows", "aarch64"), ("metal", "macos", "aarch64")]
        {
            assert_eq!(of_backend_on(backend, system, processor), None, "{backend} {system} {processor}");
        }
    }

    #[test]
    fn no_adapter_under_windows_kernels_is_the_missing_drivers() {
        for kernel in ["5.15.153.1-microsoft-standard-WSL2\n", "4.4.0-19041-Microsoft\n"] {
            assert!(of_no_adapter_under(kernel).is_some_and(|said| said.contains("dzn")), "{kernel}");
        }
        assert_eq!(of_no_adapter_under("6.1.0-37-amd64\n"), None);
    }
}

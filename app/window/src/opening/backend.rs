//! The graphics backends that can draw a window.

use std::fmt;

/// A graphics backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// Direct3D 12.
    Direct3d12,
    /// Vulkan.
    Vulkan,
    /// Metal.
    Metal,
    /// OpenGL, or OpenGL ES.
    Gl,
}

impl Backend {
    /// All backends, the better ones first.
    pub const ALL: [Backend; 4] = [Backend::Direct3d12, Backend::Metal, Backend::Vulkan, Backend::Gl];

    /// The backends of this system, the better ones first.
    pub const HERE: &[Backend] = if cfg!(windows) {
        &[Backend::Direct3d12, Backend::Vulkan, Backend::Gl]
    } else if cfg!(target_vendor = "apple") {
        &[Backend::Metal]
    } else {
        &[Backend::Vulkan, Backend::Gl]
    };

    /// The name in the settings and in `WGPU_BACKEND`.
    pub const fn name(self) -> &'static str {
        match self {
            Backend::Direct3d12 => "dx12",
            Backend::Vulkan => "vulkan",
            Backend::Metal => "metal",
            Backend::Gl => "gl",
        }
    }

    /// The wgpu flag of the backend.
    pub fn flag(self) -> wgpu::Backends {
        wgpu::Backends::from_comma_list(self.name())
    }

    /// Parses comma-separated names of backends, case-insensitively. Accepts these names and wgpu's
    /// aliases (`vk`, `d3d12`, `mtl`, `gles`, `opengl`).
    pub fn named(names: &str) -> Vec<Backend> {
        let flags = wgpu::Backends::from_comma_list(names);
        Self::ALL.into_iter().filter(|backend| flags.contains(backend.flag())).collect()
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Backend::Direct3d12 => "Direct3D 12",
            Backend::Vulkan => "Vulkan",
            Backend::Metal => "Metal",
            Backend::Gl => "OpenGL",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backend_names_parse_to_their_backends() {
        for backend in Backend::ALL {
            assert_eq!(Backend::named(backend.name()), [backend]);
        }
        assert_eq!(Backend::named("GL, vk"), [Backend::Vulkan, Backend::Gl]);
        assert_eq!(Backend::named("d3d12"), [Backend::Direct3d12]);
        assert!(["", "nonsense", "webgpu"].iter().all(|names| Backend::named(names).is_empty()));
    }
}

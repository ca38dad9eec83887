//! Limits and features of an adapter, determined once.

use thermocline_shaders::{KERNELS, KernelFeatures, Tier};

use super::GpuFeature;

/// Limits and features that the kernels and the arena use. [`super::GpuOptions`] can narrow them,
/// never widen them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Caps {
    /// Tier of the kernel sources that the adapter can run.
    pub tier: Tier,
    /// Largest buffer in bytes.
    pub max_buffer: u64,
    /// Largest binding in bytes: the part of a buffer that a kernel can access.
    pub max_binding: u64,
    /// Alignment of binding offsets in bytes.
    pub binding_alignment: u64,
    /// Most workgroups in one dimension of a grid.
    pub max_groups: u32,
    /// Most invocations in a workgroup.
    pub max_workgroup: u32,
    /// Smallest and largest subgroup size.
    pub subgroups: (u32, u32),
    /// True if passes can be timed with timestamps.
    pub timestamps: bool,
    /// Tile of the hardware's matrix products, if the adapter offers one. A trial decides whether
    /// it is used.
    pub cooperative: Option<CooperativeTile>,
}

/// Square tile of the hardware's matrix products: 16-bit float inputs, 32-bit float sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CooperativeTile {
    /// 16 x 16.
    Sixteen,
    /// 8 x 8, as on Metal.
    Eight,
}

impl CooperativeTile {
    const ALL: [CooperativeTile; 2] = [CooperativeTile::Sixteen, CooperativeTile::Eight];

    /// Returns the number of rows, which is also the number of columns.
    fn side(self) -> u32 {
        match self {
            CooperativeTile::Sixteen => 16,
            CooperativeTile::Eight => 8,
        }
    }

    /// Returns the name of the kernel that multiplies with this tile.
    pub fn kernel(self) -> &'static str {
        match self {
            CooperativeTile::Sixteen => "gemm_coop",
            CooperativeTile::Eight => "gemm_coop_8",
        }
    }

    /// Returns the subgroups in a workgroup of that kernel.
    pub(super) fn subgroups(self) -> u32 {
        match self {
            CooperativeTile::Sixteen => 4,
            CooperativeTile::Eight => 8,
        }
    }

    /// Returns the largest supported tile among the tiles that an adapter offers.
    fn among(offered: &[wgpu::CooperativeMatrixProperties]) -> Option<Self> {
        use wgpu::CooperativeScalarType::{F16, F32};
        Self::ALL.into_iter().find(|tile| {
            let side = tile.side();
            offered
                .iter()
                .any(|it| (it.m_size, it.n_size, it.k_size, it.ab_type, it.cr_type) == (side, side, side, F16, F32))
        })
    }
}

impl Caps {
    /// Features that an adapter must have to be listed.
    pub(super) const REQUIRED: wgpu::Features = wgpu::Features::IMMEDIATES;

    pub(super) fn of(adapter: &wgpu::Adapter) -> Self {
        let (features, limits, info) = (adapter.features(), adapter.limits(), adapter.get_info());
        let has = |feature| features.contains(feature);
        let tier = Tier { subgroups: has(wgpu::Features::SUBGROUP), f16: has(wgpu::Features::SHADER_F16) };
        let cooperates = has(wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX) && tier.subgroups && tier.f16;
        let offered = if cooperates { adapter.cooperative_matrix_properties() } else { Vec::new() };
        Caps {
            tier,
            max_buffer: limits.max_buffer_size,
            max_binding: binding_limit(info.backend, limits.max_storage_buffer_binding_size),
            binding_alignment: u64::from(limits.min_storage_buffer_offset_alignment),
            max_groups: limits.max_compute_workgroups_per_dimension,
            max_workgroup: limits.max_compute_invocations_per_workgroup.min(limits.max_compute_workgroup_size_x),
            subgroups: (info.subgroup_min_size, info.subgroup_max_size),
            timestamps: has(wgpu::Features::TIMESTAMP_QUERY),
            cooperative: CooperativeTile::among(&offered),
        }
    }

    /// Checks the limits that kernels depend on. The error names the limit that is too small.
    pub(super) fn check(&self) -> Result<(), String> {
        // A row of weights must fit into a binding.
        const BYTES: u64 = 4 << 10;
        let parts = [
            (self.max_buffer, BYTES, "bytes per buffer"),
            (self.max_binding, BYTES, "bytes per buffer binding"),
            (u64::from(self.max_groups), 1 << 8, "workgroups"),
            (u64::from(self.max_workgroup), 1 << 6, "invocations per workgroup"),
        ];
        match parts.into_iter().find(|(has, wanted, _)| has < wanted) {
            Some((has, wanted, what)) => {
                Err(format!("its limits are too small: {has} {what}, but the kernels need {wanted}"))
            }
            None => Ok(()),
        }
    }

    /// Returns the features to open the device with.
    pub(super) fn features(&self) -> wgpu::Features {
        let mut features = Self::REQUIRED;
        features.set(wgpu::Features::SUBGROUP, self.tier.subgroups);
        features.set(wgpu::Features::SHADER_F16, self.tier.f16);
        features.set(wgpu::Features::TIMESTAMP_QUERY, self.timestamps);
        features.set(wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX, self.cooperative.is_some());
        features
    }

    /// Returns the features that any kernel uses. Packed dot products count only if `packed` allows
    /// them.
    pub(super) fn used_by_kernels(&self, packed: bool) -> KernelFeatures {
        let mut all = KernelFeatures { cooperative: self.cooperative.is_some(), ..KernelFeatures::default() };
        for kernel in KERNELS {
            if (kernel.cooperative && !all.cooperative) || (kernel.packed && !packed) {
                continue;
            }
            let uses = kernel.features(self.tier, kernel.weights.first().copied());
            all.packed |= uses.packed;
            all.tier.subgroups |= uses.tier.subgroups;
            all.tier.f16 |= uses.tier.f16;
        }
        all
    }

    /// Returns the caps without `feature`. Packed dot products are not part of the caps: every
    /// device supports them, and tuning excludes them.
    pub(super) fn without(mut self, feature: GpuFeature) -> Self {
        match feature {
            GpuFeature::CooperativeMatrices => self.cooperative = None,
            GpuFeature::PackedDot => {}
            GpuFeature::F16 => self = self.at_most(Tier { subgroups: true, f16: false }),
            GpuFeature::Subgroups => self = self.at_most(Tier { subgroups: false, f16: true }),
        }
        self
    }

    /// Returns the caps limited to `tier`.
    pub(super) fn at_most(mut self, tier: Tier) -> Self {
        self.tier.subgroups &= tier.subgroups;
        self.tier.f16 &= tier.f16;
        self.cooperative = self.cooperative.filter(|_| self.tier.subgroups && self.tier.f16);
        self
    }
}

/// Returns the largest binding in bytes, given the adapter's `limit`. On Metal, kernels read wrong
/// addresses of bindings of 4 GiB and more unless wgpu validates indirect calls. That validation is
/// off.
fn binding_limit(backend: wgpu::Backend, limit: u64) -> u64 {
    const METAL: u64 = (1 << 32) - 4;
    if backend == wgpu::Backend::Metal { limit.min(METAL) } else { limit }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn largest_tiles_of_halves_summed_in_floats_are_used() {
        use wgpu::CooperativeScalarType::{F16, F32};
        let tile = |side, ab_type, cr_type| wgpu::CooperativeMatrixProperties {
            m_size: side,
            n_size: side,
            k_size: side,
            ab_type,
            cr_type,
            saturating_accumulation: false,
        };
        let metal = [tile(8, F32, F32), tile(8, F16, F16), tile(8, F16, F32)];
        assert_eq!(CooperativeTile::among(&metal), Some(CooperativeTile::Eight));
        let both = [metal[2], tile(16, F16, F32)];
        assert_eq!(CooperativeTile::among(&both), Some(CooperativeTile::Sixteen));
        let wide = wgpu::CooperativeMatrixProperties { n_size: 8, ..both[1] };
        assert_eq!(CooperativeTile::among(&[metal[0], metal[1], wide, tile(16, F16, F16)]), None);
    }

    #[test]
    fn bindings_of_metal_are_less_than_4_gib() {
        for (backend, offered, limit) in [
            (wgpu::Backend::Metal, 1 << 34, (1 << 32) - 4),
            (wgpu::Backend::Metal, 1 << 32, (1 << 32) - 4),
            (wgpu::Backend::Metal, 1 << 28, 1 << 28),
            (wgpu::Backend::Vulkan, 1 << 34, 1 << 34),
        ] {
            assert_eq!(binding_limit(backend, offered), limit, "{backend}, {offered}");
        }
    }
}

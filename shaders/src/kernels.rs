//! A kernel and what its callers need to know about it.

use crate::{
    Tier, WeightType,
    case::{CaseRequest, KernelCase},
    include,
    limits::CODE_BOOK,
    ops::KERNELS,
    params::{ParamField, Params},
};

/// How a kernel uses a storage buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// `var<storage, read>`
    Read,
    /// `var<storage, read_write>`
    Write,
}

/// One kernel: a file with one entry point of the same name.
#[derive(Debug, Clone, Copy)]
pub struct Kernel {
    /// Name of the file (without `.wgsl`) and of its entry point.
    pub name: &'static str,
    /// Weight types that it can read, with one text each. Empty if it reads no weights.
    pub weights: &'static [WeightType],
    /// True if it needs hardware matrix products, and therefore subgroups and 16-bit floats.
    /// Direct3D and OpenGL do not support such kernels.
    pub cooperative: bool,
    /// True if it only prepares the input of cooperative kernels. It does not need their features
    /// itself.
    pub for_cooperative: bool,
    /// True if it computes with packed 8-bit integers.
    pub packed: bool,
    /// Storage buffers of group 0, in the order of their bindings.
    pub bindings: &'static [Access],
    /// Fields of its `Params`, set as immediates.
    pub params: &'static [ParamField],
    /// Size of its `Params` in bytes.
    pub params_bytes: u32,
    /// The cases that prove it.
    pub cases: fn(&CaseRequest) -> Vec<KernelCase>,
    text: &'static str,
}

impl Kernel {
    pub(crate) const fn new<P: Params>(
        name: &'static str,
        bindings: &'static [Access],
        text: &'static str,
        cases: fn(&CaseRequest) -> Vec<KernelCase>,
    ) -> Self {
        Kernel {
            name,
            weights: &[],
            cooperative: false,
            for_cooperative: false,
            packed: false,
            bindings,
            params: P::FIELDS,
            params_bytes: size_of::<P>() as u32,
            cases,
            text,
        }
    }

    pub(crate) const fn of_weights(self, weights: &'static [WeightType]) -> Self {
        Kernel { weights, ..self }
    }

    pub(crate) const fn cooperative(self) -> Self {
        Kernel { cooperative: true, ..self }
    }

    pub(crate) const fn for_cooperative(self) -> Self {
        Kernel { for_cooperative: true, ..self }
    }

    pub(crate) const fn packed(self) -> Self {
        Kernel { packed: true, ..self }
    }

    /// The kernel with this name.
    pub fn named(name: &str) -> Option<&'static Kernel> {
        KERNELS.iter().find(|kernel| kernel.name == name)
    }

    /// Its storage buffers and their bindings for `weights`. The code book of the weight type, if
    /// any, follows the kernel's own buffers.
    pub fn bindings_of(&self, weights: Option<WeightType>) -> impl Iterator<Item = (u32, Access)> {
        let code_book = weights.and_then(|ty| ty.device().code_book).map(|_| (CODE_BOOK, Access::Read));
        (0..).zip(self.bindings.iter().copied()).chain(code_book)
    }

    /// Tiers for which it has a text.
    pub fn tiers(&self) -> &'static [Tier] {
        if self.cooperative { &Tier::ALL[3..] } else { &Tier::ALL }
    }

    /// WGSL text for an adapter of `tier`. `weights` is the type of weights, if the kernel reads
    /// weights ([`Kernel::weights`]).
    ///
    /// # Errors
    /// A wrong directive in a file, with file and line. Tests check that no kernel has one.
    pub fn source(&self, tier: Tier, weights: Option<WeightType>) -> Result<String, String> {
        include::expand(self.name, self.text, self.params, tier, weights)
    }
}

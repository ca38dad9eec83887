//! Bytes of a model's parts on a device, the input of every plan. They are counted by what loads the parts
//! ([`crate::device::device_bytes`]); here they only have their names.

/// Device bytes of a model's parts, under one device's limits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceBytes {
    /// Tokens computed at once: those asked for, or fewer where the device's limits allow no more.
    pub chunk: usize,
    /// Registers and temporaries of all layers, needed as soon as one is resident.
    pub scratch: u64,
    /// Rings that carry data up and down, needed as soon as one layer is resident.
    pub staging: u64,
    /// The streaming buffer, which carries cold neurons to the device for the chunks of a prompt: one third lies on the device,
    /// two thirds on the way there. 0 if no layer's neurons can pass through it.
    pub streaming_buffer: u64,
    /// One entry per layer.
    pub layers: Vec<LayerBytes>,
    /// The head's matrix.
    pub head: u64,
    /// The final norm, and the head's bias.
    pub head_vectors: u64,
    /// Logits and shortlists.
    pub head_scratch: u64,
}

impl DeviceBytes {
    /// No bytes, of a model of `n_layer` layers that no device computes: the CPU's plans need none.
    pub fn none(n_layer: usize) -> Self {
        DeviceBytes { layers: vec![LayerBytes::default(); n_layer], ..DeviceBytes::default() }
    }
}

/// Device bytes of a resident layer's parts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LayerBytes {
    /// Query, key, value and output matrices, or those of a recurrent mixer.
    pub attention: u64,
    /// Norms and biases.
    pub vectors: u64,
    /// Keys and values of one token.
    pub kv_token: u64,
    /// The recurrent state of one conversation.
    pub state: u64,
    /// The predictor.
    pub predictor: u64,
    /// The router and the shared expert.
    pub routing: u64,
    /// Slot tables, and the most that blocks of units take beside their units.
    pub split_tables: u64,
    /// One unit: a neuron's rows of gate, up and down, and its biases; in an MoE layer an expert. Neurons take room in whole
    /// blocks ([`BLOCK`](super::BLOCK)).
    pub unit: u64,
    /// True if the layer's units can be resident one by one; false: all or none.
    pub by_unit: bool,
}

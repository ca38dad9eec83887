//! Bytes of a model's parts on a device, the input of every plan. [`crate::device::device_bytes`]
//! counts them with the code that loads the parts; this file only names them.

/// Device bytes of a model's parts, under one device's limits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceBytes {
    /// Tokens per chunk: the requested number, or fewer if the device's limits require it.
    pub chunk: usize,
    /// Registers and temporaries of all layers, needed as soon as one layer is resident.
    pub scratch: u64,
    /// Rings for uploads and results, needed as soon as one layer is resident.
    pub staging: u64,
    /// The streaming buffer for cold neurons and experts of prompts: one third on the device, two
    /// thirds in staging buffers. 0 if no layer's units can pass through it.
    pub streaming_buffer: u64,
    /// The smallest streaming buffer through which the units of all layers can pass.
    pub least_streaming_buffer: u64,
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
    /// Zero bytes for a model of `n_layer` layers that no device computes. The CPU's plans do not
    /// need the bytes.
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
    /// Slot tables, and the most padding that blocks of units take.
    pub split_tables: u64,
    /// One unit: a neuron's rows of gate, up and down with its biases, or an expert in an MoE
    /// layer. Neurons are placed in whole blocks ([`BLOCK`](super::BLOCK)).
    pub unit: u64,
    /// True if the layer's units can be resident one by one; false if they are resident all or
    /// none.
    pub by_unit: bool,
}

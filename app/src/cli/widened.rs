//! Report on the weights that take more bytes on a GPU than in their file.

use serde_json::{Value, json};
use thermocline_engine::format::Widening;

/// A list of them by type: names and bytes in the file and on the device, and the reason.
pub fn to_json(widenings: &[Widening]) -> Value {
    let widening = |it: &Widening| {
        json!({
            "type": it.ty.name(),
            "on_device": it.on_device,
            "file_bytes": it.file_bytes,
            "device_bytes": it.device_bytes,
            "reason": it.reason,
        })
    };
    widenings.iter().map(widening).collect()
}

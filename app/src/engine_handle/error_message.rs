//! The engine's errors as sentences for users.

use thermocline_engine::Error;

use crate::units::bytes;

/// The message of `error`: sizes with units, and a remedy for a lack of memory.
pub fn error_message(error: &Error) -> String {
    let Error::Memory { what, wanted, available } = error else { return error.to_string() };
    let figures = match available {
        0 => format!("{} wanted, none is free", bytes(*wanted)),
        // Two sizes that print alike would read like a contradiction.
        had if bytes(*had) == bytes(*wanted) => format!("a little more than the {} there are is wanted", bytes(*had)),
        had => format!("{} wanted, {} available", bytes(*wanted), bytes(*had)),
    };
    format!("{what}: {figures}. {}", remedy(what))
}

/// The remedy for a lack of memory for `what`.
fn remedy(what: &str) -> &'static str {
    if what.contains("KV cache") {
        "A shorter context needs less, and so do keys and values of type Q8_0."
    } else if ["VRAM", "GPU", "weights", "FFN", "neuron blocks", "hand-over", "streaming buffer"]
        .iter()
        .any(|part| what.contains(part))
    {
        "Raise the VRAM budget, or have the CPU compute."
    } else {
        "Close other programs, or choose a smaller model or a shorter context."
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_errors_have_units_and_a_remedy() {
        let said = |what, wanted, available| error_message(&Error::Memory { what, wanted, available });
        let weights = said("the least of the model in VRAM", 3 << 29, 200 << 20);
        assert!(weights.contains("1.5 GiB wanted, 200.0 MiB available. Raise the VRAM budget"), "{weights}");
        let cache = said("KV cache", 2 << 30, 0);
        assert!(cache.contains("2.0 GiB wanted, none is free. A shorter context"), "{cache}");
        let near = said("scratch", (64 << 20) + 1, 64 << 20);
        assert!(near.contains("a little more than the 64.0 MiB there are") && near.contains("Close"), "{near}");
        let other = Error::Stopped("why".to_owned());
        assert_eq!(error_message(&other), other.to_string());
    }
}

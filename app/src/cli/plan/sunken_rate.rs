//! Weight types that a GPU reads more slowly in bursts.

use thermocline_engine::{
    placement::{DeviceClocks, Machine},
    quant::TensorType,
};

/// Smallest relative difference at which a second speed is reported.
const WORTH_TELLING: f64 = 0.1;

/// Speeds of a GPU's products with one weight type, in bytes per second. The GPU lowers its clocks
/// between short submissions.
#[derive(Debug, PartialEq)]
pub struct SunkenRate {
    pub ty: TensorType,
    /// Speed without waits, as in whole layers.
    pub sustained: f64,
    /// Speed in bursts, as in split layers.
    pub in_bursts: f64,
}

impl SunkenRate {
    /// Returns the types that lose more than [`WORTH_TELLING`] of their speed in bursts.
    pub fn of(machine: &Machine, types: &[TensorType]) -> Vec<Self> {
        let all = machine.gpu.iter().flat_map(|gpu| {
            types.iter().map(|ty| {
                let rate = |clocks| gpu.rate_at(clocks, *ty).sequential;
                SunkenRate { ty: *ty, sustained: rate(DeviceClocks::Sustained), in_bursts: rate(DeviceClocks::Sunken) }
            })
        });
        all.filter(|it| it.in_bursts < (1.0 - WORTH_TELLING) * it.sustained).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_told_that_lose_more_than_a_tenth_in_bursts() {
        let mut machine = Machine::typical();
        let types = [TensorType::Q4_0, TensorType::Q6_K, TensorType::F16];
        assert_eq!(SunkenRate::of(&machine, &types), []);
        let gpu = machine.gpu.as_mut().unwrap();
        for (ty, fraction) in [("Q4_0", 0.5), ("Q6_K", 0.91), ("Q8_0", 0.1)] {
            gpu.bursts.insert(ty.to_owned(), fraction);
        }
        let told = SunkenRate { ty: TensorType::Q4_0, sustained: 240e9, in_bursts: 120e9 };
        assert_eq!(SunkenRate::of(&machine, &types), [told]);
        machine.gpu = None;
        assert_eq!(SunkenRate::of(&machine, &types), []);
    }
}

//! A plan with its RAM, and the speed that both give.

use thermocline_engine::placement::{Plan, RamShortage};
use thermocline_host::units;

use super::ram::PlannedRam;

/// A plan under a budget, with its RAM.
pub struct PricedPlan {
    /// Budget of GPU memory, in bytes.
    pub budget: u64,
    pub plan: Plan,
    pub ram: PlannedRam,
}

impl PricedPlan {
    /// Seconds of a token, with its reads from the disk. `None` if these cannot be predicted.
    pub fn seconds(&self) -> Option<f64> {
        match self.ram.shortage {
            None => Some(self.plan.seconds),
            Some(shortage) => shortage.token_seconds(self.plan.seconds),
        }
    }

    /// Tokens per second, if they can be predicted.
    pub fn tokens_per_second(&self) -> Option<f64> {
        self.seconds().map(|seconds| 1.0 / seconds)
    }

    /// The speed as text, for a line of its own.
    pub fn speed(&self) -> String {
        self.tokens_per_second().map_or_else(|| "no speed predicted".to_owned(), |rate| format!("{rate:.2} tokens/s"))
    }

    /// The part of the machine that limits the speed.
    pub fn bottleneck(&self) -> &'static str {
        match self.ram.shortage {
            Some(shortage) if shortage.disk.is_none_or(|disk| disk.total() > self.plan.seconds) => "the disk",
            _ => self.plan.bottleneck().name(),
        }
    }

    /// Describes missing RAM to the user.
    pub fn shortage_note(&self) -> Option<String> {
        let RamShortage { ram, missing, disk_bytes, disk } = self.ram.shortage?;
        let [missing, there, read] = [missing, ram, disk_bytes as u64].map(units::bytes);
        let start = format!("{missing} of RAM are missing: the machine has {there}");
        Some(match disk.map(|disk| disk.total()) {
            _ if self.ram.need.others > ram => {
                let others = units::bytes(self.ram.need.others);
                format!("{start}, less than the {others} needed besides weights, so no speed is predicted")
            }
            Some(seconds) => format!("{start}, and reads {read} from the disk for each token, in {seconds:.1} s"),
            None => format!(
                "{start}, and reads {read} from the disk for each token; the disk's speed is unknown, so no speed is \
                 predicted"
            ),
        })
    }
}

//! The time of a token, divided into parts: predicted by a plan, or measured.

use super::Plan;

/// A part of a token's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TokenPart {
    /// Attention and recurrent mixers with their norms, on either side.
    Attention,
    /// FFNs on the device: hot neurons, experts, and the selection of both.
    Hot,
    /// FFNs on the CPU: cold neurons, and whole FFNs of layers that are not on a device.
    Cold,
    /// The head.
    Head,
    /// Waiting of one processor for the other, and transfers between them. For a measured token it
    /// is all time that no other part accounts for, such as sampling.
    Waiting,
}

impl TokenPart {
    /// All parts, in the order of a token.
    pub const ALL: [TokenPart; 5] =
        [TokenPart::Attention, TokenPart::Hot, TokenPart::Cold, TokenPart::Head, TokenPart::Waiting];
}

/// Seconds of a token, by part. If both processors compute a layer's FFN, the time counts for the
/// slower side.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct TokenTime {
    /// Seconds of [`TokenPart::Attention`].
    pub attention: f64,
    /// Seconds of [`TokenPart::Hot`].
    pub hot: f64,
    /// Seconds of [`TokenPart::Cold`].
    pub cold: f64,
    /// Seconds of [`TokenPart::Head`].
    pub head: f64,
    /// Seconds of [`TokenPart::Waiting`].
    pub waiting: f64,
}

impl TokenTime {
    /// The times of a plan, whose sum is the plan's seconds per token.
    pub fn of_plan(plan: &Plan) -> Self {
        let (head, waiting) = (plan.head_seconds, plan.token_seconds);
        let mut time = TokenTime { head, waiting, ..TokenTime::default() };
        for layer in &plan.layers {
            let it = layer.time;
            time.attention += it.attention;
            time.waiting += it.hand_over;
            let ffn = (it.seconds - it.attention - it.hand_over).max(0.0);
            *time.ffn_side(!layer.resident || it.cpu >= it.gpu - it.attention) += ffn;
        }
        time
    }

    /// The FFN part of the slower side: the CPU's if `cpu`, otherwise the device's.
    pub fn ffn_side(&mut self, cpu: bool) -> &mut f64 {
        if cpu { &mut self.cold } else { &mut self.hot }
    }

    /// Seconds of one part.
    pub fn seconds(&self, part: TokenPart) -> f64 {
        match part {
            TokenPart::Attention => self.attention,
            TokenPart::Hot => self.hot,
            TokenPart::Cold => self.cold,
            TokenPart::Head => self.head,
            TokenPart::Waiting => self.waiting,
        }
    }

    /// Seconds of the token.
    pub fn total(&self) -> f64 {
        TokenPart::ALL.iter().map(|part| self.seconds(*part)).sum()
    }

    /// The part that takes longest.
    pub fn largest(&self) -> TokenPart {
        let longest = |a: &TokenPart, b: &TokenPart| self.seconds(*a).total_cmp(&self.seconds(*b));
        TokenPart::ALL.into_iter().max_by(longest).unwrap_or(TokenPart::Waiting)
    }

    /// Scales these times to a token that took `total` seconds. If the parts are less, the rest was
    /// waiting; if they are more, they are scaled down.
    #[must_use]
    pub fn within(self, total: f64) -> Self {
        let known = self.total() - self.waiting;
        let scale = if known > total && known > 0.0 { total / known } else { 1.0 };
        let [attention, hot, cold, head] = [self.attention, self.hot, self.cold, self.head].map(|it| it * scale);
        TokenTime { attention, hot, cold, head, waiting: (total - known * scale).max(0.0) }
    }
}

impl std::iter::Sum for TokenTime {
    fn sum<I: Iterator<Item = TokenTime>>(times: I) -> Self {
        times.fold(TokenTime::default(), |sum, it| TokenTime {
            attention: sum.attention + it.attention,
            hot: sum.hot + it.hot,
            cold: sum.cold + it.cold,
            head: sum.head + it.head,
            waiting: sum.waiting + it.waiting,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        placement::{
            GpuUse, Machine, PlacementSolver, PlanInputs,
            tests::{device_bytes, llama},
        },
        runtime::{KvType, Sparsity},
    };

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-9 * b.abs()
    }

    #[test]
    fn parts_of_plans_add_up_to_their_tokens_time() {
        let model = llama();
        let inputs =
            PlanInputs { machine: Arc::new(Machine::typical()), ..PlanInputs::new(Sparsity::Exact, 64, KvType::F16) };
        let planner = PlacementSolver::new(&model, &device_bytes(&model, inputs.chunk), inputs).unwrap();
        let everything = planner.everything();
        let (mut with_hot, mut with_cold) = (0, 0);
        for budget in (0..=8).map(|eighth| everything * eighth / 8) {
            let Ok(plan) = planner.plan(budget, GpuUse::Always) else { continue };
            let time = TokenTime::of_plan(&plan);
            assert!(near(time.total(), plan.seconds), "{time:?} of {}", plan.seconds);
            assert!(TokenPart::ALL.iter().all(|part| time.seconds(*part) >= 0.0), "{time:?}");
            assert!(TokenPart::ALL.iter().all(|part| time.seconds(*part) <= time.seconds(time.largest())));
            with_hot += usize::from(time.hot > 0.0);
            with_cold += usize::from(time.cold > 0.0);
        }
        assert!(with_hot > 0, "no plan has hot neurons");
        let on_cpu = TokenTime::of_plan(&planner.on_cpu());
        assert!(
            (on_cpu.hot, on_cpu.waiting) == (0.0, 0.0) && on_cpu.cold > 0.0 && on_cpu.attention > 0.0,
            "{on_cpu:?}"
        );
        assert!(near(on_cpu.total(), planner.on_cpu().seconds), "{with_cold} others have cold neurons");
    }

    #[test]
    fn rest_of_a_measured_token_is_waiting() {
        let known = TokenTime { attention: 1.0, hot: 2.0, cold: 3.0, head: 4.0, waiting: 0.0 };
        assert_eq!((known.within(12.0).waiting, known.within(12.0).total()), (2.0, 12.0));
        let less = known.within(5.0);
        assert_eq!((less.attention, less.head, less.waiting, less.total()), (0.5, 2.0, 0.0, 5.0));
        assert_eq!((less.largest(), TokenTime::default().within(1.0).largest()), (TokenPart::Head, TokenPart::Waiting));
        assert_eq!([known, known].into_iter().sum::<TokenTime>().cold, 6.0);
    }
}

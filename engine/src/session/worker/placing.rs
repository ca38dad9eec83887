//! Changes of the placement: plans for new inputs, and moves between two turns.

use super::{super::context::SessionContext, EngineWorker, ServedSession};

impl EngineWorker<'_> {
    /// Plans for the caches that are on the device or soon will be there.
    pub(super) fn update_planned_context(&self) {
        let is_active =
            |it: &&ServedSession<'_>| it.running.is_some() || !it.waiting.is_empty() || it.context.on_device();
        let active = self.conversations.iter().filter(is_active);
        let (tokens, contexts) = active.fold((0, 0), |(sum, n), it| (sum + it.context.capacity(), n + 1));
        self.state.planner.set_contexts(tokens, contexts);
    }

    /// Solves for a new plan. True on success.
    pub(super) fn replan(&mut self) -> bool {
        self.update_planned_context();
        let mut contexts: Vec<&mut SessionContext> = self.conversations.iter_mut().map(|it| &mut it.context).collect();
        self.device.replan(&mut self.forward, &mut contexts)
    }

    /// Solves for a new plan after the machine's speeds have changed.
    pub(super) fn replan_for_new_speeds(&mut self) {
        self.update_planned_context();
        let mut contexts: Vec<&mut SessionContext> = self.conversations.iter_mut().map(|it| &mut it.context).collect();
        let events = self.device.replan_for_new_speeds(&mut self.forward, &mut contexts);
        self.send_device_events(&events);
    }

    /// True while a running answer depends on the experts that are resident.
    fn holds_experts(&self) -> bool {
        self.conversations.iter().filter_map(|it| it.running.as_ref()).any(|(generation, _)| generation.holds_experts())
    }

    /// True if a change of the placement has to wait, because a running answer depends on the
    /// experts that are resident.
    pub(super) fn postpones_placement(&mut self) -> bool {
        let held = self.holds_experts();
        self.placement_due |= held;
        held
    }

    /// Keeps the resident experts while a running answer depends on them. Moves that have begun are
    /// completed first, and postponed changes follow afterwards.
    pub(super) fn hold_experts(&mut self) {
        let held = self.holds_experts();
        self.state.planner.adaptation.hold(held);
        if held {
            while self.device.moving {
                self.move_weights();
            }
        } else if std::mem::take(&mut self.placement_due) {
            self.apply_settings();
            self.replan_for_new_speeds();
        }
    }

    /// Moves weights by one step.
    pub(super) fn move_weights(&mut self) {
        let adapts = self.state.planner.adaptation.is_on();
        let mut contexts: Vec<&mut SessionContext> = self.conversations.iter_mut().map(|it| &mut it.context).collect();
        if let Err(error) = self.device.move_weights(adapts, &mut self.forward, &mut contexts) {
            self.continue_on_cpu(error);
        }
    }
}

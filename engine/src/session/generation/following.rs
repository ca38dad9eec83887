//! A drafter follows a generation: it computes the same tokens, so that it can draft the next ones.

use super::{
    super::{
        context::{DraftingParts, SessionContext},
        drafter::{DraftTask, Drafter},
        speculation::DraftPlan,
    },
    Generation,
};
use thermocline_base::error::{Error, Result};
use thermocline_run::runtime::{Forward, Probe};

impl Generation<'_> {
    /// True if the hidden states of a pass are needed.
    pub(super) fn collects_states(&self, context: &SessionContext) -> bool {
        self.follows && context.draft.as_ref().is_some_and(|draft| draft.reads_states())
    }

    /// Lets `drafter` compute the tokens of the context whose successors are known, if there are
    /// many. If the drafter fails, the generation continues without it.
    ///
    /// # Errors
    /// [`Error::Cancelled`] if `probe` cancels.
    pub(super) fn follow(
        &mut self,
        context: &mut SessionContext,
        drafter: Option<&mut Drafter>,
        probe: &mut dyn Probe,
    ) -> Result<()> {
        let Some(drafter) = drafter.filter(|_| self.follows) else { return Ok(()) };
        drafter.prepare();
        let followed = context.open_draft(drafter).and_then(|()| {
            let DraftingParts { draft, held, .. } = context.drafting();
            draft.map_or(Ok(()), |draft| drafter.follow(draft, &held, probe))
        });
        match followed {
            Err(Error::Cancelled) => Err(Error::Cancelled),
            Err(error) => {
                tracing::warn!(%error, "the answer continues without its drafter");
                context.draft = None;
                (self.follows, self.drafter_failed) = (false, true);
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// Appends the drafts of `plan`, by `drafter`, after the token to compute.
    pub(super) fn draft_by(
        &mut self,
        context: &mut SessionContext,
        forward: &mut Forward,
        drafter: &mut Drafter,
        plan: DraftPlan,
    ) {
        let DraftingParts { draft: Some(draft), held, kv, controller } = context.drafting() else { return };
        let Some(next) = self.todo.tokens.last().copied() else { return };
        let mut goes_on = |drafted, probability| controller.goes_on(plan.source, drafted, probability);
        let mut task = DraftTask { held: &held, next, kv, most: plan.tokens, goes_on: &mut goes_on };
        let drafted = drafter
            .copy_read_keys(forward, task.kv.as_deref_mut())
            .and_then(|()| drafter.draft(draft, task, &mut self.todo.tokens));
        if let Err(error) = drafted {
            tracing::warn!(%error, "the answer continues without its drafter");
            self.todo.tokens.truncate(1);
            context.draft = None;
            self.drafter_failed = true;
        }
    }
}

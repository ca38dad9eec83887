//! A common prefix of two conversations, copied from one cache to the other.

use super::{KvCache, LayerRows};
use crate::runtime::{kv_layer::WindowRows, snapshots::TokenSnapshot};
use thermocline_base::error::Result;
use thermocline_gpu::Recorder;

impl KvCache {
    /// Copies keys, values and states of `from` until this cache holds `tokens` of the tokens that
    /// `from` holds. The tokens that this cache already holds must be equal. `recorder` records
    /// copies in another processor's memory. Returns the number of tokens then held. The number is
    /// smaller with recurrent states, or if fewer tokens have their windows. Nothing is copied from
    /// a cache of another type or place.
    ///
    /// # Errors
    /// The errors of copying a recurrent state, and of
    /// [`OffHostRows::copy_rows`](crate::runtime::OffHostRows::copy_rows). After an error nothing
    /// has changed, unless the recorded copies are submitted.
    pub(crate) fn copy_prefix(
        &mut self,
        from: &Self,
        tokens: usize,
        mut recorder: Option<&mut Recorder>,
    ) -> Result<usize> {
        let alike = |(to, from): (&LayerRows, &LayerRows)| {
            let places = |rows: &LayerRows| (rows.ram.is_some(), rows.off_host.is_some());
            places(to) == places(from) && (to.off_host.is_none() || recorder.is_some())
        };
        let same = self.ty == from.ty && self.shape == from.shape && self.states.is_some() == from.states.is_some();
        if !same || !self.layers.iter().zip(&from.layers).all(alike) {
            return Ok(self.len);
        }
        let mut tokens = from.pictures.whole_tokens(tokens.min(from.len).min(self.capacity));
        if let Some(states) = &from.states {
            tokens = states.latest(tokens, from.len);
        }
        let Some((tokens, copies)) = self.copied_windows(from, tokens) else { return Ok(self.len) };
        let held = self.len;
        for (to, from) in self.layers.iter().zip(&from.layers) {
            if let (Some(to), Some(from), Some(recorder)) = (&to.off_host, &from.off_host, recorder.as_deref_mut()) {
                to.copy_rows(&**from, held..tokens, recorder)?;
            }
        }
        if let (Some(to), Some(states)) = (&mut self.states, &from.states) {
            to.copy_from(states, tokens, from.len)?;
        }
        for (at, (to, from_rows)) in self.layers.iter_mut().zip(&from.layers).enumerate() {
            let extended = self.kept[at].extended(from.kept[at], held, tokens);
            let copy = copies.and_then(|copies| copies.of[at].as_ref()).filter(|_| !extended.is_whole(tokens));
            match (&mut to.ram, copy, &from_rows.ram) {
                (Some(to), Some(copy), _) => {
                    self.kept[at].restart(extended.seen_from(tokens));
                    to.begin_at(self.kept[at].first());
                    to.extend_to(copy, tokens);
                }
                (Some(to), None, Some(from)) => {
                    self.kept[at] = extended;
                    to.begin_at(held);
                    to.extend_to(from, tokens);
                }
                _ => self.kept[at] = extended,
            }
        }
        self.pictures.copy(&from.pictures, held, tokens);
        self.len = tokens;
        Ok(tokens)
    }

    /// The largest number of tokens, at most `tokens` and more than are held, for which `from` has
    /// every window. Also returns the copies with the windows that its rings do not hold. With
    /// recurrent states, the states decide the number, and the rings must hold the windows.
    fn copied_windows<'f>(
        &self,
        from: &'f Self,
        tokens: usize,
    ) -> Option<(usize, Option<&'f TokenSnapshot<WindowRows>>)> {
        let held = |at: usize, tokens| self.kept[at].extended(from.kept[at], self.len, tokens).is_whole(tokens);
        let layers = || 0..self.layers.len();
        if tokens > self.len && layers().all(|at| held(at, tokens)) {
            return Some((tokens, None));
        }
        let usable = |it: &&TokenSnapshot<WindowRows>| {
            it.tokens > self.len && layers().all(|at| held(at, it.tokens) || self.takes_window(it, at))
        };
        let copies = from.windows.until(tokens).find(usable).filter(|_| self.states.is_none())?;
        Some((copies.tokens, Some(copies)))
    }
}

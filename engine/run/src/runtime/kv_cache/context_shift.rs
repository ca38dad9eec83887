//! A context shift: tokens in the middle of a cache are forgotten, and later tokens move down.

use super::KvCache;
use thermocline_base::error::{Error, Result};
use thermocline_cpu::{Isa, ops::RopeRows};

impl KvCache {
    /// Forgets `discard` tokens after the first `keep` and moves the later ones down, rotating
    /// their keys to their new positions with `isa`. Their values still depend on the forgotten
    /// tokens.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if positions are learned: they are in the embedding and cannot be
    /// rotated. Recurrent states are refused because they cannot forget tokens. Keys that are
    /// normed after their rotation are refused because the norm's weights do not move with the
    /// rotation. A cache on a device is refused, and so is a shift that cuts a picture. A window
    /// must not reach over the gap to tokens that are no longer held. The caller then has to
    /// compute the tokens again. [`Error::Invalid`] if there are fewer tokens.
    pub fn shift(&mut self, isa: Isa, keep: usize, discard: usize) -> Result<()> {
        let unsupported = |got: &str, supported: &str| Error::unsupported("context shift", got, supported);
        let Some(rotary) = &self.rotary else {
            return Err(unsupported("learned positions", "rotary positions"));
        };
        if self.states.is_some() {
            return Err(unsupported("recurrent states", "attention in every layer"));
        }
        let mut layers = (0..self.layers.len()).filter_map(|layer| self.shape.attention(layer));
        if layers.any(|of| of.positions.norm_after_rope && of.positions.rope.is_some()) {
            return Err(unsupported("key norms after the rotation", "key norms before the rotation"));
        }
        if !self.on_host() {
            return Err(unsupported("a cache on a device", "a cache in RAM"));
        }
        if keep.checked_add(discard).is_none_or(|end| end > self.len) {
            let got = format!("{keep} kept tokens and {discard} discarded tokens");
            return Err(Error::invalid("context shift", format!("at most {} tokens", self.len), got));
        }
        if discard == 0 {
            return Ok(());
        }
        let kept: Vec<_> = self.kept.iter().map(|kept| kept.without(keep, discard)).collect();
        if !kept.iter().all(|kept| kept.is_whole(self.len - discard)) {
            return Err(unsupported("a window that reaches across the gap", "windows after the gap"));
        }
        let Some(distance) = self.pictures.remove(keep, discard) else {
            return Err(unsupported("a part of a picture", "whole pictures"));
        };
        self.kept = kept;
        self.windows.truncate(keep);
        let rotations: Vec<RopeRows> = rotary.tables().iter().map(|table| RopeRows::shift(table, distance)).collect();
        let mut key = Vec::new();
        for (index, layer) in self.layers.iter_mut().enumerate() {
            let Some(layer) = &mut layer.ram else { continue };
            for rows in layer.rows_mut() {
                rows.truncate(self.len);
                rows.remove(keep, discard);
            }
            let Some(of) = self.shape.attention(index) else { continue };
            let Some(rotation) = of.positions.rope_in(&rotations) else { continue };
            key.resize(of.heads.head_dim, 0.0);
            for rows in &mut layer.keys {
                for i in keep.max(self.kept[index].first())..rows.len() {
                    rows.get(i, &mut key);
                    rotation.rotate(isa, 0, &mut key);
                    rows.set(i, &key);
                }
            }
        }
        self.len -= discard;
        Ok(())
    }
}

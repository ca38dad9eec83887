//! [`ReadAhead`]: the order in which matrices are read whole, and how far ahead their pieces are
//! requested. The order of a pass is that of the pass before.

/// Marks a matrix that is not in the order.
const NOWHERE: u32 = u32::MAX;

/// Progress through the expected order of a pass. The order is a cycle: after the last matrix of a
/// token comes the first of the next.
#[derive(Debug)]
pub(super) struct ReadAhead {
    /// Indices of the tensors that the previous pass read whole, for passes of several tokens and
    /// of one.
    orders: [Vec<u32>; 2],
    /// Those of this pass, so far.
    now: Vec<u32>,
    /// True if this pass has one token.
    single: bool,
    /// `[tensors]`: the index of each tensor in the expected order.
    places: Vec<u32>,
    /// Index of the current tensor in the expected order.
    at: usize,
    /// Parts, from the current one on, whose pieces are all requested.
    lead: usize,
    /// First piece of the next tensor that is not requested.
    piece: usize,
}

impl ReadAhead {
    pub fn new(tensors: usize) -> Self {
        let (orders, now, places) = Default::default();
        let mut new = ReadAhead { orders, now, single: false, places, at: 0, lead: 1, piece: 0 };
        new.places = vec![NOWHERE; tensors];
        new
    }

    /// Begins a pass. The order of the last pass is expected again.
    pub fn begin_pass(&mut self, single: bool) {
        let ended = std::mem::take(&mut self.now);
        if !ended.is_empty() {
            self.orders[usize::from(self.single)] = ended;
        }
        let same = self.single == single;
        self.single = single;
        self.places.fill(NOWHERE);
        let order = &self.orders[usize::from(single)];
        (0..).zip(order).for_each(|(at, tensor)| self.places[*tensor as usize] = at);
        if !same || self.at >= order.len() || self.lead > order.len() {
            (self.at, self.lead, self.piece) = (order.len().saturating_sub(1), 1, 0);
        }
    }

    /// Notes that `tensor` is read whole now.
    pub fn note(&mut self, tensor: usize) {
        if self.now.last() == Some(&(tensor as u32)) {
            return;
        }
        self.now.push(tensor as u32);
        let place = self.places[tensor];
        let n = self.order().len();
        if place == NOWHERE || n == 0 {
            return;
        }
        let steps = (place as usize + n - self.at) % n;
        self.at = place as usize;
        if steps >= self.lead {
            (self.lead, self.piece) = (1, 0);
        } else {
            self.lead -= steps;
        }
    }

    /// The next tensor to request, and its first piece that is not requested. `None` if the whole
    /// order is requested.
    pub fn next(&self) -> Option<(usize, usize)> {
        let order = self.order();
        let is_ahead = self.lead < order.len() && self.at < order.len();
        is_ahead.then(|| (order[(self.at + self.lead) % order.len()] as usize, self.piece))
    }

    /// Notes that the pieces of the next tensor before `piece`, of `pieces`, are requested.
    pub fn advance(&mut self, piece: usize, pieces: usize) {
        self.piece = piece;
        if piece >= pieces {
            (self.lead, self.piece) = (self.lead + 1, 0);
        }
    }

    fn order(&self) -> &[u32] {
        &self.orders[usize::from(self.single)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pass(ahead: &mut ReadAhead, single: bool, tensors: &[usize]) {
        ahead.begin_pass(single);
        tensors.iter().for_each(|tensor| ahead.note(*tensor));
    }

    #[test]
    fn order_of_a_pass_is_expected_in_the_next_and_wraps_around() {
        let mut ahead = ReadAhead::new(5);
        pass(&mut ahead, true, &[3, 0, 2]);
        assert_eq!(ahead.next(), None, "nothing is known before the second pass");
        ahead.begin_pass(true);
        ahead.note(3);
        assert_eq!(ahead.next(), Some((0, 0)));
        ahead.advance(4, 8);
        assert_eq!(ahead.next(), Some((0, 4)));
        ahead.advance(8, 8);
        assert_eq!(ahead.next(), Some((2, 0)));
        ahead.advance(1, 1);
        assert_eq!(ahead.next(), None, "the current tensor follows");
        ahead.note(0);
        assert_eq!(ahead.next(), Some((3, 0)));
        // A tensor that was not requested to its end continues where it stopped.
        ahead.advance(1, 2);
        ahead.note(2);
        assert_eq!(ahead.next(), Some((3, 1)));
        ahead.begin_pass(true);
        assert_eq!(ahead.next(), Some((3, 1)), "requests continue into the next pass");
    }

    #[test]
    fn chunks_have_an_order_of_their_own() {
        let mut ahead = ReadAhead::new(3);
        pass(&mut ahead, false, &[0, 1, 2]);
        pass(&mut ahead, true, &[0, 2]);
        pass(&mut ahead, false, &[0]);
        assert_eq!(ahead.next(), Some((1, 0)));
        pass(&mut ahead, true, &[0]);
        assert_eq!(ahead.next(), Some((2, 0)));
    }
}

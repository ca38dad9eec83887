//! Counts the losses of devices that draw the window, by backend.

use std::time::{Duration, Instant};

use super::Backend;

/// Number of losses within [`WITHIN`] after which a backend is tried last.
const MOST: usize = 3;
const WITHIN: Duration = Duration::from_secs(60);

/// The latest losses.
#[derive(Debug, Default)]
pub struct Losses {
    latest: Vec<Loss>,
    /// Backends that lost their device too often and are tried last, the latest at the end.
    pub distrusted: Vec<Backend>,
}

#[derive(Debug)]
struct Loss {
    backend: Backend,
    at: Instant,
}

impl Losses {
    /// Counts a loss of `backend`.
    pub fn count(&mut self, backend: Backend, at: Instant) {
        self.latest.retain(|loss| at.saturating_duration_since(loss.at) < WITHIN);
        self.latest.push(Loss { backend, at });
        if self.latest.iter().filter(|loss| loss.backend == backend).count() >= MOST {
            self.latest.retain(|loss| loss.backend != backend);
            self.distrusted.retain(|other| *other != backend);
            self.distrusted.push(backend);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_losses_in_a_minute_put_a_backend_last() {
        use Backend::{Gl, Vulkan};
        let (mut losses, start) = (Losses::default(), Instant::now());
        let mut lose = |backend, second| {
            losses.count(backend, start + Duration::from_secs(second));
            losses.distrusted.to_vec()
        };
        assert!(lose(Vulkan, 0).is_empty() && lose(Vulkan, 10).is_empty());
        // Losses of a minute ago are forgotten, and other backends' losses do not count.
        assert!(lose(Vulkan, 65).is_empty() && lose(Gl, 66).is_empty());
        assert_eq!(lose(Vulkan, 69), [Vulkan]);
        assert!(lose(Gl, 70) == [Vulkan] && lose(Gl, 71) == [Vulkan, Gl]);
        assert!([lose(Vulkan, 72), lose(Vulkan, 73)].iter().all(|all| *all == [Vulkan, Gl]));
        assert_eq!(lose(Vulkan, 74), [Gl, Vulkan]);
    }
}

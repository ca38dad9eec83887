//! A mean that follows its latest values.

/// A mean whose first values weigh the same. From a number of values on, older values fade.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RunningMean {
    pub mean: f64,
    /// Number of values that the mean represents.
    pub count: f64,
}

impl RunningMean {
    /// Adds `value`. The mean then represents at most `most` values.
    pub fn add(&mut self, value: f64, most: f64) {
        self.count = (self.count + 1.0).min(most);
        self.mean += (value - self.mean) / self.count;
    }

    /// Adds a measured time. The first time contains work that is done once, for instance reading
    /// memory for the first time, so a shorter second time replaces it.
    pub fn add_time(&mut self, seconds: f64, most: f64) {
        if self.count == 1.0 && seconds < self.mean {
            self.mean = seconds;
        }
        self.add(seconds, most);
    }

    /// The mean; `None` without values.
    pub fn get(&self) -> Option<f64> {
        (self.count > 0.0).then_some(self.mean)
    }

    /// The mean if `prior` counts as `weight` further values.
    pub fn with_prior(&self, prior: f64, weight: f64) -> f64 {
        (prior * weight + self.mean * self.count) / (weight + self.count)
    }
}

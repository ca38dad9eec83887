//! Numbers and lengths of the heads of attention.

/// Numbers and lengths of the heads of attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadSizes {
    /// Number of query heads.
    pub n_head: usize,
    /// Number of key/value heads; divides `n_head`. `n_head / n_kv_head` consecutive query heads
    /// share one.
    pub n_kv_head: usize,
    /// Number of elements of a query or key head.
    pub head_dim: usize,
    /// Number of elements of a value head, which is also the output width of a query head. Equal to
    /// `head_dim` except in few models (MiMo 2).
    pub value_dim: usize,
}

impl HeadSizes {
    /// Returns the number of query heads that share a key/value head.
    pub fn group(&self) -> usize {
        self.n_head / self.n_kv_head
    }

    /// Returns the number of elements of all query heads together.
    pub fn q_dim(&self) -> usize {
        self.n_head * self.head_dim
    }

    /// Returns the number of elements of all key heads together.
    pub fn k_dim(&self) -> usize {
        self.n_kv_head * self.head_dim
    }

    /// Returns the number of elements of all value heads together.
    pub fn v_dim(&self) -> usize {
        self.n_kv_head * self.value_dim
    }

    /// Returns the number of elements of all query heads' outputs together.
    pub fn out_dim(&self) -> usize {
        self.n_head * self.value_dim
    }

    /// Returns the number of elements of the longest head.
    pub fn longest(&self) -> usize {
        self.head_dim.max(self.value_dim)
    }
}

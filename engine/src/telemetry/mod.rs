//! Counters and snapshots other threads may read at any time.

//! Detection of other windows that have the same chats open. Each holds a lock on a file beside them, which the system releases
//! however a window ends.

use std::{
    fs::{File, TryLockError},
    io,
    path::Path,
};

/// This window's hold of the shared lock.
#[derive(Debug)]
pub(super) struct InstanceLock {
    /// Holds the lock until it is dropped.
    _lock: File,
    /// `true` if no other window held the lock when this one joined.
    pub alone: bool,
}

impl InstanceLock {
    /// Takes a shared lock on the file at `path`. One window at a time may call this.
    ///
    /// # Errors
    /// The system's error; some file systems have no locks.
    pub fn join(path: &Path) -> io::Result<Self> {
        let lock = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
        let alone = match lock.try_lock() {
            Ok(()) => true,
            Err(TryLockError::WouldBlock) => false,
            Err(TryLockError::Error(error)) => return Err(error),
        };
        if alone {
            lock.unlock()?;
        }
        lock.try_lock_shared()?;
        Ok(InstanceLock { _lock: lock, alone })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instance_lock_is_alone_only_for_the_first_instance() {
        let folder = tempfile::tempdir().unwrap();
        let join = || InstanceLock::join(&folder.path().join("chats.windows")).unwrap();
        let (first, second) = (join(), join());
        assert!(first.alone && !second.alone);
        drop(first);
        let third = join();
        assert!(!third.alone, "the second is still there");
        drop((second, third));
        assert!(join().alone);
    }
}

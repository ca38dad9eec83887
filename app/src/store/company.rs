//! Which windows have the same chats open. Each holds a lock on a file beside them, which the system takes back however a window
//! ends.

use std::{
    fs::{File, TryLockError},
    io,
    path::Path,
};

/// A window's part of the lock.
#[derive(Debug)]
pub(super) struct Company {
    /// Held as long as this is.
    _lock: File,
    /// Whether nobody else was there when this one came.
    pub alone: bool,
}

impl Company {
    /// Joins those that hold the file at `path`. One window at a time may be here.
    ///
    /// # Errors
    /// What the system says; some file systems know no locks.
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
        Ok(Company { _lock: lock, alone })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_comes_first_is_alone_until_it_leaves() {
        let folder = tempfile::tempdir().unwrap();
        let join = || Company::join(&folder.path().join("chats.windows")).unwrap();
        let (first, second) = (join(), join());
        assert!(first.alone && !second.alone);
        drop(first);
        let third = join();
        assert!(!third.alone, "the second is still there");
        drop((second, third));
        assert!(join().alone);
    }
}

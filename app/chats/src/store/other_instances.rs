//! Detection of other windows with the same chats. Each window holds a lock on a file beside the
//! chats. The system releases the lock however the window ends.

use std::{
    fs::{File, TryLockError},
    io,
    path::Path,
};

/// This window's share of the lock.
#[derive(Debug)]
pub(super) struct InstanceLock {
    /// The file, locked until dropped.
    lock: File,
    /// `true` if no other window held the lock when this one joined.
    pub alone: bool,
}

impl InstanceLock {
    /// Takes a shared lock on the file at `path`. One window at a time may call this.
    ///
    /// # Errors
    /// The system's error. Some file systems have no locks.
    pub fn join(path: &Path) -> io::Result<Self> {
        let open = || File::options().read(true).write(true).create(true).truncate(false).open(path);
        let first = open()?;
        let alone = match first.try_lock() {
            Ok(()) => true,
            Err(TryLockError::WouldBlock) => false,
            Err(TryLockError::Error(error)) => return Err(error),
        };
        // Open the file again instead of locking it again: under Wine, unlocking reports a failure.
        unlock(&first);
        drop(first);
        let lock = open()?;
        lock.try_lock_shared()?;
        Ok(InstanceLock { lock, alone })
    }
}

impl Drop for InstanceLock {
    fn drop(&mut self) {
        unlock(&self.lock);
    }
}

/// Unlocks a file before it is closed. Closing alone would release the lock late if a program that
/// is just being started has inherited the file.
fn unlock(file: &File) {
    let _ = file.unlock();
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
        let last = join();
        let inherited = last.lock.try_clone().unwrap();
        drop(last);
        assert!(join().alone, "a program that has inherited the file holds its lock");
        drop(inherited);
    }
}

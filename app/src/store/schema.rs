//! Schema versions of the file, and the migrations between them.

use std::path::Path;

use rusqlite::{Connection, TransactionBehavior};

use super::error::{OperationContext, StoreError};

/// Migration `n` makes version `n + 1` of version `n`.
const STEPS: [&str; 1] = [include_str!("migrations/1.sql")];

/// Migrates the file to the present version; each migration is one transaction.
pub(super) fn migrate(db: &mut Connection, path: &Path) -> Result<(), StoreError> {
    const OPERATION: &str = "bringing the chats up to date";
    let known = STEPS.len() as i64;
    loop {
        // Another window may be migrating: the second one finds it done.
        let step = db.transaction_with_behavior(TransactionBehavior::Immediate).during(OPERATION)?;
        let found: i64 = step.query_row("PRAGMA user_version", [], |row| row.get(0)).during(OPERATION)?;
        if found > known {
            return Err(StoreError::Newer { path: path.to_owned(), found, known });
        }
        let Some(sql) = usize::try_from(found).ok().and_then(|found| STEPS.get(found)) else { return Ok(()) };
        step.execute_batch(sql).during(OPERATION)?;
        step.pragma_update(None, "user_version", found + 1).during(OPERATION)?;
        step.commit().during(OPERATION)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Store;

    #[test]
    fn migrate_refuses_a_file_of_a_later_version() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("chats.db");
        drop(Store::open(&path).unwrap());
        let db = Connection::open(&path).unwrap();
        db.pragma_update(None, "user_version", 99).unwrap();
        drop(db);
        let before = std::fs::read(&path).unwrap();
        let error = Store::open(&path).unwrap_err();
        assert!(matches!(error, StoreError::Newer { found: 99, known: 1, .. }), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), before);
    }

    #[test]
    fn migrate_tolerates_concurrent_windows() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/down/chats.db");
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| assert!(Store::open(&path).unwrap().1.is_none()));
            }
        });
    }
}

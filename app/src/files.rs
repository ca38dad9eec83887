//! Writing files whole.

use std::{
    io::{self, Write},
    path::Path,
};

/// Writes a file beside its place and moves it there, so that it is never half-written and what was there before is not lost
/// when the disk is full. Others may read it as the system's settings allow.
///
/// # Errors
/// What the system says; then the old file is as it was.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut builder = tempfile::Builder::new();
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let mut file = builder.tempfile_in(folder)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_is_replaced_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.md");
        write(&path, b"long text").unwrap();
        write(&path, b"short").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "short");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert!(write(&folder.path().join("no/where"), b"").is_err());
        // What cannot be replaced stays, and nothing is left beside it.
        let taken = folder.path().join("taken");
        fs::create_dir(&taken).unwrap();
        assert!(write(&taken, b"").is_err() && taken.is_dir());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }
}

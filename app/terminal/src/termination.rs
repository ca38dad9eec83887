//! SIGTERM, by which systems ask a program to end. While a [`TerminationWatch`] exists it only sets a flag.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::SeqCst},
};

#[cfg(unix)]
use crate::standard_error::say;

/// While it exists, SIGTERM does not end the program but sets [`TerminationWatch::requested`]. Systems without signals never set it.
#[derive(Debug)]
pub struct TerminationWatch {
    requested: Arc<AtomicBool>,
}

impl TerminationWatch {
    /// Starts watching.
    pub fn start() -> Self {
        let requested = Arc::<AtomicBool>::default();
        #[cfg(unix)]
        if let Err(error) = watch(Arc::clone(&requested)) {
            // The system's default ends the program: worse, but no reason not to start.
            say(format_args!("warning: SIGTERM will end the program at once: {error}"));
        }
        TerminationWatch { requested }
    }

    /// `true` if the program was asked to end.
    pub fn requested(&self) -> bool {
        self.requested.load(SeqCst)
    }
}

/// Sets `requested` upon SIGTERM, from a thread that waits for it.
#[cfg(unix)]
fn watch(requested: Arc<AtomicBool>) -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};

    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    // Before the thread starts: none may be missed.
    let mut signals = runtime.block_on(async { signal(SignalKind::terminate()) })?;
    let wait = move || {
        runtime.block_on(signals.recv());
        requested.store(true, SeqCst);
    };
    std::thread::Builder::new().name("termination".to_owned()).spawn(wait).map(drop)
}

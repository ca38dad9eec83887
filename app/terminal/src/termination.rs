//! Handling of SIGTERM, with which systems ask a program to end. While a [`TerminationWatch`]
//! exists, SIGTERM only sets a flag.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::SeqCst},
};

#[cfg(unix)]
use crate::standard_error::say;

/// A watch for SIGTERM. While it exists, SIGTERM sets [`TerminationWatch::requested`] instead of
/// ending the program. On systems without signals the flag is never set.
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
            // Without a handler SIGTERM ends the program, which is acceptable.
            say(format_args!("warning: SIGTERM will end the program at once: {error}"));
        }
        TerminationWatch { requested }
    }

    /// `true` if the program was asked to end.
    pub fn requested(&self) -> bool {
        self.requested.load(SeqCst)
    }
}

/// Starts a thread that waits for SIGTERM and then sets `requested`.
#[cfg(unix)]
fn watch(requested: Arc<AtomicBool>) -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};

    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    // Register the handler before the thread starts, so that no signal is missed.
    let mut signals = runtime.block_on(async { signal(SignalKind::terminate()) })?;
    let wait = move || {
        runtime.block_on(signals.recv());
        requested.store(true, SeqCst);
    };
    std::thread::Builder::new().name("termination".to_owned()).spawn(wait).map(drop)
}

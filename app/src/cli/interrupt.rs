//! Ctrl-C. While something watches for it, the first press asks that thing to stop; otherwise, and on the second press,
//! the program ends with exit code 130.

use std::sync::{
    Once,
    atomic::{AtomicBool, Ordering},
};

static HANDLER: Once = Once::new();
static WATCHED: AtomicBool = AtomicBool::new(false);
static PRESSED: AtomicBool = AtomicBool::new(false);

/// While this lives, Ctrl-C does not end the program but sets [`Watch::pressed`].
#[derive(Debug)]
pub struct Watch(());

impl Watch {
    /// Starts watching, with nothing pressed.
    pub fn start() -> Self {
        HANDLER.call_once(|| {
            let installed = ctrlc::set_handler(|| {
                if !WATCHED.load(Ordering::SeqCst) || PRESSED.swap(true, Ordering::SeqCst) {
                    std::process::exit(130);
                }
            });
            // Without a handler the system's default ends the program: worse, but no reason not to start.
            if let Err(error) = installed {
                eprintln!("warning: Ctrl-C will end the program at once: {error}");
            }
        });
        PRESSED.store(false, Ordering::SeqCst);
        WATCHED.store(true, Ordering::SeqCst);
        Watch(())
    }

    /// Whether Ctrl-C was pressed since the start.
    pub fn pressed(&self) -> bool {
        PRESSED.load(Ordering::SeqCst)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        WATCHED.store(false, Ordering::SeqCst);
    }
}

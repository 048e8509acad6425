//! Ctrl-C: the first asks the work to stop, the second ends the program.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use plimsoll_device::Control;
use plimsoll_host::end_now;

use crate::out;

/// Results are being written, which takes no time worth stopping and must not be cut short.
static WRITING: AtomicBool = AtomicBool::new(false);

/// What the work looks at to know whether to stop. First Ctrl-C: it stops within one block and leaves nothing
/// behind. Second: at once, whatever other threads are doing.
pub(crate) fn control() -> Arc<Control> {
    let control = Arc::new(Control::default());
    let asked = Arc::clone(&control);
    let set = ctrlc::set_handler(move || {
        if asked.is_cancelled() && !WRITING.load(Ordering::SeqCst) {
            end_now(130);
        }
        asked.cancel();
    });
    if let Err(error) = set {
        out::notice(&format!("Ctrl-C will end the program at once: {error}"));
    }
    control
}

/// From here on a second Ctrl-C no longer ends the program.
pub(crate) fn writing() {
    WRITING.store(true, Ordering::SeqCst);
}

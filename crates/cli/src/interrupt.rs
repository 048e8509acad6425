//! Ctrl-C: the first asks the work to stop, the second ends the program.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use plimsoll_device::Control;
use plimsoll_host::{Ignored, end_now};

use crate::out;

/// Results are being written, which should take no time worth stopping.
static WRITING: AtomicBool = AtomicBool::new(false);

/// How often the program was asked to end.
static ASKED: AtomicU32 = AtomicU32::new(0);

/// What the work looks at to know whether to stop. First Ctrl-C: it stops as soon as what is under way is done, and
/// leaves nothing behind. Second: the program ends at once, whatever other threads are doing; while results are being
/// written, which are whole or absent either way, that takes a third.
///
/// A signal that the program was started to ignore stays ignored.
pub(crate) fn control() -> Arc<Control> {
    let control = Arc::new(Control::default());
    let asked = Arc::clone(&control);
    let ignored = Ignored::now();
    let set = ctrlc::set_handler(move || {
        let before = ASKED.fetch_add(1, Ordering::SeqCst);
        let most = if WRITING.load(Ordering::SeqCst) { 2 } else { 1 };
        if before >= most {
            end_now(130);
        }
        asked.cancel();
    });
    ignored.restore();
    if let Err(error) = set {
        out::notice(&format!("Ctrl-C will end the program at once: {error}"));
    }
    control
}

/// Results are written from here on.
pub(crate) fn writing() {
    WRITING.store(true, Ordering::SeqCst);
}

/// All results are written; what is left is to tell them.
pub(crate) fn written() {
    WRITING.store(false, Ordering::SeqCst);
}

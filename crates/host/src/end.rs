//! An end that waits for nobody.

/// Ends the process with `code`, without what is registered to be done at its end.
///
/// Libraries of a GPU take themselves apart at a usual exit, and one that works in another thread at that moment can
/// crash or hang; the system takes back all that a process holds either way. What a writer of the program's own still
/// buffers is lost.
pub fn end_now(code: i32) -> ! {
    #[cfg(unix)]
    {
        // SAFETY: takes a number and does not come back; it may be called at any moment, by any thread.
        unsafe { libc::_exit(code) }
    }
    #[cfg(not(unix))]
    std::process::exit(code)
}

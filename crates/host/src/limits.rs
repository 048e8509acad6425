//! What the system does where a limit of the process is reached.

/// Has a write past the largest file that the process may have (`ulimit -f`) fail like any other, for the rest of the
/// process.
///
/// The system's own answer is a signal that ends the process without a word, its drafts left behind.
pub fn fail_writes_past_the_limit() {
    #[cfg(unix)]
    {
        // SAFETY: a signal that is ignored runs no code of ours; nothing else here sets what this one does.
        let _before = unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    }
}

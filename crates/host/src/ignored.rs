//! Signals that whoever started the process had it ignore.

/// The signals that ask a process to end and that this one was started to ignore, as `nohup` does.
#[derive(Clone, Debug, Default)]
pub struct Ignored {
    #[cfg(unix)]
    signals: Vec<libc::c_int>,
}

#[cfg(unix)]
impl Ignored {
    /// As it is now, before any of them is handled.
    pub fn now() -> Self {
        let signals = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];
        Self { signals: signals.into_iter().filter(|signal| is_ignored(*signal)).collect() }
    }

    /// Ignores them again, where they have been handled since: who started the process in the background, or for longer
    /// than a terminal, meant it so.
    pub fn restore(&self) {
        for signal in &self.signals {
            // SAFETY: ignoring a signal calls no code of this process.
            unsafe { libc::signal(*signal, libc::SIG_IGN) };
        }
    }
}

#[cfg(unix)]
fn is_ignored(signal: libc::c_int) -> bool {
    // SAFETY: all-zero is a valid `sigaction`, to be written over.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: nothing is changed, and `action` is valid for writing.
    let asked = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) };
    asked == 0 && action.sa_sigaction == libc::SIG_IGN
}

#[cfg(not(unix))]
impl Ignored {
    /// None: such systems have no ignored signals.
    pub fn now() -> Self {
        Self::default()
    }

    /// Does nothing.
    pub fn restore(&self) {}
}

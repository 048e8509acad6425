//! Bars: stage, step, seconds a step, bytes streamed, time left. Silent where nobody watches.

use std::io::IsTerminal;

use indicatif::{HumanBytes, HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};
use plimsoll_exec::Progress;

/// Parts that the bar is divided into.
const PARTS: u64 = 1000;

/// A bar on standard error, or nothing.
pub(crate) struct Bar {
    bar: ProgressBar,
    /// Predicted seconds at the end of each visit, to know how much of the work is done.
    ends: Vec<f64>,
}

impl Bar {
    /// `ends[i]` is the predicted second at which visit `i` ends.
    pub(crate) fn new(ends: Vec<f64>) -> Self {
        let bar = ProgressBar::with_draw_target(Some(PARTS), ProgressDrawTarget::stderr());
        if !std::io::stderr().is_terminal() {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        if let Ok(style) = ProgressStyle::with_template("{prefix:>8} [{bar:32}] {msg}") {
            bar.set_style(style.progress_chars("=> "));
        }
        Self { bar, ends }
    }

    /// Moves the bar.
    pub(crate) fn show(&self, progress: Progress<'_>) {
        if self.bar.is_hidden() {
            return;
        }
        let total = self.ends.last().copied().unwrap_or(0.0);
        let at = usize::try_from(progress.visits_done.saturating_sub(1)).unwrap_or(usize::MAX);
        let done = self.ends.get(at).copied().unwrap_or(total);
        let share = if total > 0.0 { (done / total).clamp(0.0, 1.0) } else { 1.0 };
        // The prediction may be off by a factor; what has passed says by which.
        let left = if share > 0.0 { progress.seconds * (1.0 - share) / share } else { 0.0 };
        let mut message = String::new();
        if progress.steps > 1 {
            message += &format!("step {} of {}, ", progress.step, progress.steps);
            if progress.step > 0 {
                let steps = f64::from(progress.step);
                message += &format!("{:.3} s/step, ", progress.seconds / steps);
            }
        }
        let left = std::time::Duration::try_from_secs_f64(left).unwrap_or_default();
        message += &format!("{} streamed, ", HumanBytes(progress.copied_bytes));
        message += &format!("{} left", HumanDuration(left));
        let stage = progress.phase.split_whitespace().next().unwrap_or_default();
        self.bar.set_prefix(stage.to_owned());
        self.bar.set_message(message);
        #[expect(clippy::cast_sign_loss, clippy::cast_possible_truncation, reason = "0 to PARTS")]
        self.bar.set_position((share * PARTS as f64) as u64);
    }

    /// Takes the bar away.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// A bar for bytes that are written, which any thread may move.
pub(crate) struct ByteBar {
    bar: ProgressBar,
}

impl ByteBar {
    /// A bar of `total` bytes on standard error, or nothing where nobody watches.
    pub(crate) fn new(total: u64) -> Self {
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
        if !std::io::stderr().is_terminal() {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        let template = "[{bar:32}] {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        Self { bar }
    }

    /// Moves the bar to `done` bytes.
    pub(crate) fn show(&self, done: u64) {
        self.bar.set_position(done);
    }

    /// Takes the bar away.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

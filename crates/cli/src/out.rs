//! What is printed: results on standard output, notices on standard error.
//!
//! A reader that went away (`plimsoll plan | head -1`) is no failure, a full disk behind a redirection is.

use std::io::{ErrorKind, Write};

use crate::failure::Failure;

/// Prints results, ending with a line end.
pub(crate) fn result(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    let written = writeln!(out, "{}", text.trim_end()).and_then(|()| out.flush());
    match written {
        Err(cause) if cause.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::Write { path: "standard output".to_owned(), cause })
        }
        _ => Ok(()),
    }
}

/// Tells a person something; where nobody can be told, nothing is lost.
pub(crate) fn notice(text: &str) {
    // One line, and nothing that a terminal would obey: paths and prompts come from anywhere.
    let line: String =
        text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect();
    let _closed = writeln!(std::io::stderr(), "plimsoll: {line}");
}

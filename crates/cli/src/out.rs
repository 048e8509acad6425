//! What is printed: results on standard output, notices on standard error.
//!
//! A reader that went away (`plimsoll plan | head -1`) is no failure, a full disk behind a redirection is.
//!
//! Names out of files of models, notes of records and paths come from anybody, so nothing is printed that a terminal
//! would obey or that makes a text read as another. What is taken for such a character is its escape in JSON, which
//! leaves the meaning of JSON as it is: it can stand within texts only.

use std::borrow::Cow;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use crate::failure::Failure;

/// Prints results, ending with a line end. A text may have lines and tabs.
pub(crate) fn result(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    let text = escaped(text.trim_end(), |letter| matches!(letter, '\n' | '\t'));
    written(writeln!(out, "{text}").and_then(|()| out.flush()))
}

/// What became of writing to standard output.
pub(crate) fn written(written: std::io::Result<()>) -> Result<(), Failure> {
    match written {
        Err(cause) if cause.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::Write { path: "standard output".to_owned(), cause })
        }
        _ => Ok(()),
    }
}

/// Prints the one line of a failure and gives its exit code.
pub(crate) fn failure(failure: &Failure) -> ExitCode {
    // A trial has told its own.
    if !matches!(failure, Failure::Trial { .. }) {
        notice(&failure.text());
    }
    ExitCode::from(failure.exit_code())
}

/// Tells a person something; where nobody can be told, nothing is lost.
pub(crate) fn notice(text: &str) {
    let _closed = writeln!(std::io::stderr(), "plimsoll: {}", line(text));
}

/// A text of strangers as a part of one line: what would end the line is a space.
pub(crate) fn line(text: &str) -> String {
    let spaced = text.replace(['\n', '\r', '\t'], " ");
    escaped(&spaced, |_| false).into_owned()
}

/// The text with escapes for what a terminal would obey, but for what `is_kept`.
fn escaped(text: &str, is_kept: impl Fn(char) -> bool) -> Cow<'_, str> {
    let is_obeyed =
        |letter: char| (letter.is_control() || is_direction(letter)) && !is_kept(letter);
    if !text.contains(is_obeyed) {
        return Cow::Borrowed(text);
    }
    let mut clean = String::with_capacity(text.len());
    for letter in text.chars() {
        if is_obeyed(letter) {
            // None of them is beyond four digits.
            clean += &format!("\\u{:04x}", u32::from(letter));
        } else {
            clean.push(letter);
        }
    }
    Cow::Owned(clean)
}

/// Characters that turn the direction in which others are shown.
fn is_direction(letter: char) -> bool {
    matches!(
        letter,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_that_a_terminal_obeys() {
        let hostile = "a\u{1b}[31m\u{7f}\u{9b}2J\u{202e}\u{2066}\u{200f}\u{61c}\r\n\tb";
        let clean = line(hostile);
        assert_eq!(clean, "a\\u001b[31m\\u007f\\u009b2J\\u202e\\u2066\\u200f\\u061c   b");
        let lines = escaped(hostile, |letter| matches!(letter, '\n' | '\t'));
        assert!(lines.ends_with("\\u000d\n\tb"), "{lines}");
        let plain = "größe, 氷, \u{200d}, \\";
        assert_eq!(line(plain), plain);
    }

    #[test]
    fn json_means_the_same() {
        let text = "quote \" slash \\ \u{9b} \\\u{202e}\u{1b}\u{7f}\n\t";
        let json = serde_json::json!({ text: [text] });
        for printed in [json.to_string(), serde_json::to_string_pretty(&json).unwrap()] {
            let printed = escaped(&printed, |letter| matches!(letter, '\n' | '\t'));
            assert!(!printed.contains(['\u{9b}', '\u{202e}', '\u{7f}']), "{printed}");
            let read: serde_json::Value = serde_json::from_str(&printed).unwrap();
            assert_eq!(read, json);
        }
    }
}

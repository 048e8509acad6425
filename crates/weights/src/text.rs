//! Names and reasons out of untrusted files, made fit for one line of a message.

use std::fmt;

/// Longest piece of untrusted text that a message repeats, in characters.
const CHARS_MAX: usize = 120;

/// Shows a name between backticks: control characters escaped, cut after [`CHARS_MAX`] characters.
pub(crate) struct Quoted<'a>(pub(crate) &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", one_line(self.0))
    }
}

/// `text` on one line: control characters escaped, cut after [`CHARS_MAX`] characters.
pub(crate) fn one_line(text: &str) -> String {
    let mut line = String::new();
    for (index, character) in text.chars().enumerate() {
        if index == CHARS_MAX {
            line.push_str("...");
            break;
        }
        if character.is_control() || is_invisible(character) {
            line.extend(character.escape_default());
        } else {
            line.push(character);
        }
    }
    line
}

/// Bidirectional overrides and zero-width characters can make a name read as another one.
fn is_invisible(character: char) -> bool {
    matches!(
        character,
        '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}'
    )
}

/// Shows a noun with its article: `an image`, `a model`.
pub(crate) struct An<T>(pub(crate) T);

impl<T: fmt::Display> fmt::Display for An<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let noun = self.0.to_string();
        // Abbreviations are spelled out, so their first letter's name counts.
        let is_spelled = ["SDXL", "HDF5", "LTX"].iter().any(|word| noun.starts_with(word));
        let is_vowel = noun.starts_with(['a', 'e', 'i', 'o', 'u', 'A', 'E', 'I', 'O']);
        let article = if is_vowel || is_spelled { "an" } else { "a" };
        write!(f, "{article} {noun}")
    }
}

/// How many items a message lists before it only counts.
const LISTED_MAX: usize = 3;

/// Joins the first few items and counts the others.
pub(crate) fn listed(items: impl ExactSizeIterator<Item = String>) -> String {
    let count = items.len();
    let mut shown: Vec<String> = items.take(LISTED_MAX).collect();
    if count > LISTED_MAX {
        shown.push(format!("and {} more", count - LISTED_MAX));
    }
    shown.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_names_stay_on_one_short_line() {
        assert_eq!(Quoted("a\nb\u{1b}[31m").to_string(), "`a\\nb\\u{1b}[31m`");
        assert_eq!(one_line("\u{202e}x"), "\\u{202e}x");
        assert_eq!(one_line(&"x".repeat(10_000)).len(), CHARS_MAX + 3);
        assert_eq!(one_line("größe.weight"), "größe.weight");
    }

    #[test]
    fn nouns_get_their_article() {
        let shown: Vec<String> =
            ["image", "UMT5 encoder", "SDXL UNet", "AWQ file", "FLUX.1", "unknown model"]
                .map(|noun| An(noun).to_string())
                .into();
        assert_eq!(
            shown,
            [
                "an image",
                "a UMT5 encoder",
                "an SDXL UNet",
                "an AWQ file",
                "a FLUX.1",
                "an unknown model"
            ]
        );
    }

    #[test]
    fn long_lists_are_counted() {
        let items: Vec<String> = (0..9).map(|i| i.to_string()).collect();
        assert_eq!(listed(items.into_iter()), "0, 1, 2, and 6 more");
        assert_eq!(listed(vec!["a".to_owned()].into_iter()), "a");
    }
}

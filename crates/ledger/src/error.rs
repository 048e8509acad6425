//! Why a question about a run has no answer.

use plimsoll_models::ModelError;
use plimsoll_plan::PlanError;

/// Failures of forecasts.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LedgerError {
    /// No card, bus or model of that name.
    #[error("no {what} is called {name:?}; the nearest are {nearest}")]
    Unknown {
        /// `card`, `bus` or `model`.
        what: &'static str,
        /// What was asked for, at most 40 characters of it.
        name: String,
        /// The nearest names.
        nearest: String,
    },
    /// The data file of machines is not what it should be: a bug of this build.
    #[error("the list of machines is not valid: {cause}")]
    Machines {
        /// What is wrong.
        cause: String,
    },
    /// An option that the model has no use for.
    #[error("{model} takes no {option}")]
    Option {
        /// The model.
        model: String,
        /// The option.
        option: &'static str,
    },
    /// Host memory that is too small for anything.
    #[error(
        "{ram_bytes} bytes of RAM are less than the {needed_bytes} that the system and this program need"
    )]
    Ram {
        /// What there is.
        ram_bytes: u64,
        /// What is needed at least.
        needed_bytes: u64,
    },
    /// The model cannot take the request.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// There is no plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

/// The names nearest to `name`, best first: by shared pairs of letters.
pub(crate) fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> String {
    let pairs = |text: &str| -> Vec<[char; 2]> {
        let letters: Vec<char> =
            text.to_lowercase().chars().filter(char::is_ascii_alphanumeric).take(40).collect();
        letters.windows(2).map(|pair| [pair[0], pair[1]]).collect()
    };
    let asked = pairs(name);
    let mut scored: Vec<(usize, &str)> = names
        .map(|known| {
            let mut left = pairs(known);
            let total = asked.len() + left.len();
            let shared = asked.iter().filter(|pair| {
                let found = left.iter().position(|other| other == *pair);
                found.map(|at| left.swap_remove(at)).is_some()
            });
            (2_000 * shared.count() / total.max(1), known)
        })
        .collect();
    scored.sort_by_key(|(score, _)| std::cmp::Reverse(*score));
    let names: Vec<&str> = scored.into_iter().take(3).map(|(_, known)| known).collect();
    names.join(", ")
}

/// An unknown name.
pub(crate) fn unknown<'a>(
    what: &'static str,
    name: &str,
    names: impl Iterator<Item = &'a str>,
) -> LedgerError {
    let nearest = nearest(name, names);
    LedgerError::Unknown { what, name: name.chars().take(40).collect(), nearest }
}

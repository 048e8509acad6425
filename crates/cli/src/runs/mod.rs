//! `plimsoll runs`: the records of runs, and what they say about the next.

pub(crate) mod args;
mod command;
mod draft;
mod machine;
mod place;
mod reason;
mod recorder;
mod revision;

pub(crate) use draft::Draft;
pub(crate) use recorder::Recorder;

//! What was typed after `plimsoll runs`, and the options that every run has for its record.

use std::path::PathBuf;

use clap::Args;

/// Where a run's record goes, and whose trial it is.
#[derive(Args, Debug, Default)]
pub(crate) struct RecordArgs {
    /// Store of run records, or off [default: $PLIMSOLL_RECORDS, else the user's data folder]
    #[arg(long, value_name = "PATH|off")]
    pub(crate) records: Option<PathBuf>,
    /// The run that this one is tried after; what differs between the two is marked
    #[arg(long, value_name = "RUN")]
    pub(crate) parent: Option<String>,
    /// The run that this one repeats: no picture is written
    #[arg(long, value_name = "RUN", hide = true)]
    pub(crate) repeat_of: Option<String>,
}

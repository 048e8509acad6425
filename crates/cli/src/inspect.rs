//! `plimsoll inspect`: what a checkpoint holds.

use crate::args::InspectArgs;
use crate::failure::Failure;
use crate::out;

pub(crate) fn run(args: &InspectArgs) -> Result<(), Failure> {
    let report = plimsoll_weights::inspect(&args.path)?;
    if args.json {
        out::result(&serde_json::json!(report).to_string())
    } else {
        out::result(&report.to_string())
    }
}

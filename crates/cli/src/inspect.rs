//! `plimsoll inspect`: what a checkpoint holds.

use crate::args::InspectArgs;
use crate::failure::Failure;

pub(crate) fn run(args: &InspectArgs) -> Result<(), Failure> {
    let report = plimsoll_weights::inspect(&args.path)?;
    if args.json {
        println!("{}", serde_json::json!(report));
    } else {
        print!("{report}");
    }
    Ok(())
}

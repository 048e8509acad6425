//! A run as it is known before anything is taken for it.

use plimsoll_graph::{DType, Graph};
use plimsoll_plan::Plan;

use crate::tier::DiskShare;

/// A graph and its proven plan, with nothing taken for it yet.
#[derive(Clone, Debug)]
pub struct Planned {
    /// What is computed.
    pub graph: Graph,
    /// Where and when.
    pub plan: Plan,
    /// What of the streamed weights comes from the disk, where RAM cannot hold them.
    pub disk: Option<DiskShare>,
}

impl Planned {
    /// Whether every weight that is kept in 8 bits is copied once a run, so that a copy may be what puts it there.
    pub fn narrows_once(&self) -> bool {
        let Self { graph, plan, .. } = self;
        let mut copied = vec![false; graph.weights.len()];
        plan.copies.iter().all(|copy| {
            let unit = &plan.units[plan.loads[copy.load as usize].unit as usize];
            unit.weights.iter().all(|placed| {
                let is_again = std::mem::replace(&mut copied[placed.weight.index()], true);
                !(is_again && graph.weight(placed.weight).dtype == DType::F8E4M3)
            })
        })
    }
}

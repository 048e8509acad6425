//! The two lanes and what orders them.
//!
//! Each lane carries out its entries in order. Copy `k` waits until `after` computes are done, compute `c`
//! until `needs` copies are done. Since a lane is in order, what an entry waits for its successors have
//! waited for too; so with the running maxima
//!
//! ```text
//! A(k) = max of after over copies   0..=k     computes  0..A(k) are done when copy k begins
//! N(c) = max of needs over computes 0..=c     copies    0..N(c) are done when compute c begins
//! ```
//!
//! the whole happens-before relation between the lanes is: compute `c` before copy `k` iff `c < A(k)`, copy
//! `k` before compute `c` iff `k < N(c)`. Chains through several edges add nothing, because they end in one
//! of these edges and both maxima only grow.
//!
//! **No deadlock** iff no pair waits for each other: never `c < A(k)` and `k < N(c)`. As `N` grows with `c` it
//! is enough to ask this of the last compute that copy `k` waits for. Then an issue order exists: whichever
//! lane's next entry is the one that the other's next entry waits for can begin.
//!
//! **Concurrency**: copy `k` may run beside exactly the computes `A(k) .. B(k)`, where `B(k)` is the first
//! compute with `N(c) > k`.

use std::ops::Range;

use plimsoll_plan::Plan;

use crate::Violation;

/// The running maxima, see the head of this file.
#[derive(Debug)]
pub(crate) struct Lanes {
    /// `A(k)` by copy.
    pub(crate) after: Vec<u32>,
    /// `N(c)` by compute.
    pub(crate) needs: Vec<u32>,
}

impl Lanes {
    /// Checks that edges stay in range and that the lanes cannot wait for each other.
    pub(crate) fn new(plan: &Plan) -> Result<Self, Violation> {
        let mut after = Vec::with_capacity(plan.copies.len());
        let mut most = 0;
        for (index, copy) in plan.copies.iter().enumerate() {
            if copy.after as usize > plan.computes.len() {
                return Err(Violation::EdgeRange {
                    what: format!("copy {index}"),
                    count: copy.after,
                    len: plan.computes.len(),
                    lane: "compute",
                });
            }
            most = most.max(copy.after);
            after.push(most);
        }
        let mut needs = Vec::with_capacity(plan.computes.len());
        most = 0;
        for (index, compute) in plan.computes.iter().enumerate() {
            if compute.needs as usize > plan.copies.len() {
                return Err(Violation::EdgeRange {
                    what: format!("compute {index}"),
                    count: compute.needs,
                    len: plan.copies.len(),
                    lane: "copy",
                });
            }
            most = most.max(compute.needs);
            needs.push(most);
        }
        let lanes = Self { after, needs };
        for copy in 0..plan.copies.len() {
            let after = lanes.after[copy];
            let needs = match after.checked_sub(1) {
                Some(last) => lanes.needs[last as usize],
                None => 0,
            };
            if needs as usize > copy {
                let unit = crate::unit_name(plan, copy);
                return Err(Violation::Deadlock { copy, unit, after, needs });
            }
        }
        Ok(lanes)
    }

    /// The computes that may run beside each copy, `A(k) .. B(k)`, in the order of copies.
    pub(crate) fn windows(&self) -> impl Iterator<Item = Range<usize>> {
        let mut end = 0;
        self.after.iter().enumerate().map(move |(copy, after)| {
            while end < self.needs.len() && self.needs[end] as usize <= copy {
                end += 1;
            }
            *after as usize..end
        })
    }
}

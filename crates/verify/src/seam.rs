//! The seam: the steady steps of the loop are one program moved on.
//!
//! The first step (which fills the ring) and the last (which drains it and may prefetch what follows) are
//! programs of their own. Every step between them must be the one before it moved on by one step: as many
//! copies of the same loads in the same order, at the same distance in both lanes, and the same edges. Then a
//! device may capture one step and replay it. That the first and last steps join up with the steady ones
//! needs no rule of its own: `lanes`, `race` and `contents` look at the whole run with the loop unrolled.

use plimsoll_plan::Plan;

use crate::Violation;
use crate::lanes::Lanes;
use crate::order::Loop;

pub(crate) fn check(plan: &Plan, lanes: &Lanes, step_loop: &Loop) -> Result<(), Violation> {
    let steps = step_loop.steps as usize;
    let mut copies: Vec<Vec<usize>> = vec![Vec::new(); steps];
    for (index, copy) in plan.copies.iter().enumerate() {
        if let Some(list) = copy.step.and_then(|step| copies.get_mut(step as usize)) {
            list.push(index);
        }
    }
    for step in 2..steps.saturating_sub(1) {
        same_step(plan, lanes, step_loop, step, &copies[step - 1], &copies[step])?;
    }
    Ok(())
}

/// Compares a steady step with the one before it, both given by the copies that are first used in them.
fn same_step(
    plan: &Plan,
    lanes: &Lanes,
    step_loop: &Loop,
    step: usize,
    before: &[usize],
    copies: &[usize],
) -> Result<(), Violation> {
    let differs = |what, at| Violation::NotPeriodic {
        step: u32::try_from(step).unwrap_or(u32::MAX),
        what,
        at,
    };
    if before.len() != copies.len() {
        return Err(differs("the number of copies", copies.len()));
    }
    for (at, (earlier, later)) in before.iter().zip(copies).enumerate() {
        if plan.copies[*earlier].load != plan.copies[*later].load {
            return Err(differs("the load of copy", at));
        }
        if later - earlier != copies.len() {
            return Err(differs("the distance in the copy lane of copy", at));
        }
        if (lanes.after[*later] - lanes.after[*earlier]) as usize != step_loop.length {
            return Err(differs("what is waited for by copy", at));
        }
    }
    let start = step_loop.start + step * step_loop.length;
    for at in 0..step_loop.length {
        let (earlier, later) = (start - step_loop.length + at, start + at);
        if (lanes.needs[later] - lanes.needs[earlier]) as usize != copies.len() {
            return Err(differs("what is waited for by compute", at));
        }
    }
    Ok(())
}

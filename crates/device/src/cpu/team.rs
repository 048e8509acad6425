//! Hands the strands of an op to workers.
//!
//! An op of the demo model takes a tenth of a millisecond: waking a sleeping thread takes half of that, and a
//! thief that has to find the task another part (measured with rayon's `join`: two workers gained 20 % on a step; so
//! 60 %). So the workers look at one ticket, and sleep only after they have looked for a while. What they need to
//! know is which op, step and phase: a strand is a function of these and its index, and no closure crosses threads.
//!
//! The ticket holds the number of the round, how many strands it has and which is next. A strand is taken by raising the
//! ticket in one step, so a late worker cannot take one of a round that is over, nor one that a round does not have. The
//! leader (the compute lane) works too, and goes on when all strands of a round are done.
//!
//! A worker that takes a strand of a round has read that round's op, step and phase: it read them after the ticket with
//! the round's number, and the leader writes those of the next only when the strand is done.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::bell::Bell;

/// Bits of the ticket that count strands: all of them above the next one, the round's number above both.
const STRAND_BITS: u32 = 16;
const STRAND_MASK: u64 = (1 << STRAND_BITS) - 1;
const NUMBER_BITS: u32 = 2 * STRAND_BITS;

/// Number of a ticket's round.
fn number_of(ticket: u64) -> u64 {
    ticket >> NUMBER_BITS
}

/// The next strand of a ticket's round, if it has one more.
fn next_strand(ticket: u64) -> Option<usize> {
    let (next, all) = (ticket & STRAND_MASK, ticket >> STRAND_BITS & STRAND_MASK);
    usize::try_from(next).ok().filter(|_| next < all)
}

/// Looks at the ticket before a helper sleeps: about 0.2 ms, longer than ops that are not shared take.
const LOOKS: u32 = 4000;

/// One round: a phase of an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Round {
    /// Index in the program.
    pub(crate) op: u32,
    pub(crate) step: u32,
    pub(crate) phase: u32,
    pub(crate) strands: u32,
}

/// What the workers share.
#[derive(Default)]
pub(crate) struct Team {
    /// Number of the round, its strands, then the next of them.
    ticket: AtomicU64,
    op: AtomicU32,
    step: AtomicU32,
    phase: AtomicU32,
    /// Strands of the round that are done.
    done: AtomicU32,
    is_closed: AtomicBool,
    /// Rung for each round.
    begun: Bell,
}

impl Team {
    /// Carries out a round with whoever comes; returns when all of it is done. Called by one thread, the leader.
    pub(crate) fn share(&self, round: Round, run: &dyn Fn(Round, usize)) {
        self.op.store(round.op, Ordering::Relaxed);
        self.step.store(round.step, Ordering::Relaxed);
        self.phase.store(round.phase, Ordering::Relaxed);
        self.done.store(0, Ordering::Relaxed);
        assert!(u64::from(round.strands) <= STRAND_MASK, "{round:?}");
        // After 2^32 rounds the numbers begin again: no worker is that late.
        let number = number_of(self.ticket.load(Ordering::Relaxed).wrapping_add(1 << NUMBER_BITS));
        let ticket = number << NUMBER_BITS | u64::from(round.strands) << STRAND_BITS;
        self.ticket.store(ticket, Ordering::SeqCst);
        self.begun.ring();
        self.work(number, (round.op, round.step, round.phase), run);
        let mut looks = 0u32;
        while self.done.load(Ordering::Acquire) < round.strands {
            looks += 1;
            // A helper that lost its processor in the middle of a strand gets this one.
            if looks.is_multiple_of(256) {
                std::thread::yield_now()
            } else {
                std::hint::spin_loop()
            }
        }
    }

    /// Takes part in rounds until the team is closed.
    pub(crate) fn help(&self, run: &dyn Fn(Round, usize)) {
        let mut last = 0;
        loop {
            let number = || number_of(self.ticket.load(Ordering::SeqCst));
            let is_closed = || self.is_closed.load(Ordering::SeqCst);
            self.begun.wait_long(LOOKS, || number() != last || is_closed());
            if is_closed() {
                return;
            }
            last = number();
            let what = (
                self.op.load(Ordering::Relaxed),
                self.step.load(Ordering::Relaxed),
                self.phase.load(Ordering::Relaxed),
            );
            self.work(last, what, run);
        }
    }

    /// Sends the helpers home.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        self.begun.ring();
    }

    /// Takes strands of a round while there are any.
    ///
    /// Op, step and phase may have been read while the leader wrote those of the next round; then this one has no strand
    /// left, and they are not used.
    fn work(&self, number: u64, what: (u32, u32, u32), run: &dyn Fn(Round, usize)) {
        let mut ticket = self.ticket.load(Ordering::Acquire);
        loop {
            let Some(strand) = next_strand(ticket).filter(|_| number_of(ticket) == number) else {
                return;
            };
            let taken = self.ticket.compare_exchange_weak(
                ticket,
                ticket + 1,
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            match taken {
                Ok(_) => {
                    // Done even if it panics, or the leader would wait for ever; the run reports the panic.
                    let _done = Done(&self.done);
                    let (op, step, phase) = what;
                    let strands = (ticket >> STRAND_BITS & STRAND_MASK) as u32;
                    run(Round { op, step, phase, strands }, strand);
                    ticket = self.ticket.load(Ordering::Acquire);
                }
                Err(now) => ticket = now,
            }
        }
    }
}

/// Counts a strand as done when it goes.
struct Done<'t>(&'t AtomicU32);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::{Round, Team};

    /// A round's ticket is refused past its own strands, whatever a late worker has read of the next round: once it was
    /// asked the next round's count, and took a strand that its round did not have.
    #[test]
    fn a_round_that_is_over_gives_nothing_to_a_late_worker() {
        let team = Team::default();
        let runs = AtomicU32::new(0);
        let run = |_: Round, _: usize| {
            runs.fetch_add(1, Ordering::Relaxed);
        };
        team.share(Round { op: 7, step: 0, phase: 0, strands: 1 }, &run);
        let number = super::number_of(team.ticket.load(Ordering::SeqCst));
        // The leader has begun to write the next round, and its ticket is not there yet.
        team.op.store(8, Ordering::Relaxed);
        team.work(number, (8, 0, 0), &run);
        assert_eq!(runs.load(Ordering::Relaxed), 1);
        assert_eq!(team.done.load(Ordering::Relaxed), 1);
    }

    /// Sends the helpers home also when an assertion fails, or the test would wait for them.
    struct Closing<'t>(&'t Team);

    impl Drop for Closing<'_> {
        fn drop(&mut self) {
            self.0.close();
        }
    }

    #[test]
    fn every_strand_of_every_round_runs_once() {
        for helpers in [0, 1, 4] {
            let team = Team::default();
            let counts: Vec<AtomicU32> = (0..2000 * 16).map(|_| AtomicU32::new(0)).collect();
            let run = |round: Round, strand: usize| {
                assert_eq!((round.step, round.phase), (round.op + 1, round.op % 3));
                counts[round.op as usize * 16 + strand].fetch_add(1, Ordering::Relaxed);
            };
            std::thread::scope(|scope| {
                for _ in 0..helpers {
                    scope.spawn(|| team.help(&run));
                }
                let _closing = Closing(&team);
                for op in 0..2000 {
                    let strands = 1 + op % 16;
                    team.share(Round { op, step: op + 1, phase: op % 3, strands }, &run);
                    // All of it is done, by whomever.
                    let own = &counts[op as usize * 16..(op as usize + 1) * 16];
                    let done: u32 = own.iter().map(|count| count.load(Ordering::Relaxed)).sum();
                    assert_eq!(done, strands);
                }
            });
            for (at, count) in counts.iter().enumerate() {
                let expected = u32::from(at % 16 <= (at / 16) % 16);
                assert_eq!(count.load(Ordering::Relaxed), expected);
            }
        }
    }
}

//! Hands the strands of an op to workers.
//!
//! An op of the demo model takes a tenth of a millisecond: waking a sleeping thread takes half of that, and a
//! thief that has to find the task another part (measured with rayon's `join`: two workers gained 20 % on a step; so
//! 60 %). So the workers look at one ticket, and sleep only after they have looked for a while. What they need to
//! know is which op, step and phase: a strand is a function of these and its index, and no closure crosses threads.
//!
//! The ticket holds the number of the round and the next strand of it. A strand is taken by raising the ticket in
//! one step, so a late worker cannot take one of a round that is over. The leader (the compute lane) works too,
//! and goes on when all strands of a round are done.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::bell::Bell;

/// Bits of the ticket that count strands.
const STRAND_BITS: u32 = 16;
const STRAND_MASK: u64 = (1 << STRAND_BITS) - 1;

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
    /// Number of the round, then next strand.
    ticket: AtomicU64,
    op: AtomicU32,
    step: AtomicU32,
    phase: AtomicU32,
    strands: AtomicU32,
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
        self.strands.store(round.strands, Ordering::Relaxed);
        self.done.store(0, Ordering::Relaxed);
        let number = (self.ticket.load(Ordering::Relaxed) >> STRAND_BITS) + 1;
        self.ticket.store(number << STRAND_BITS, Ordering::SeqCst);
        self.begun.ring();
        self.work(number, round, run);
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
            let number = || self.ticket.load(Ordering::SeqCst) >> STRAND_BITS;
            let is_closed = || self.is_closed.load(Ordering::SeqCst);
            self.begun.wait_long(LOOKS, || number() != last || is_closed());
            if is_closed() {
                return;
            }
            last = number();
            let round = Round {
                op: self.op.load(Ordering::Relaxed),
                step: self.step.load(Ordering::Relaxed),
                phase: self.phase.load(Ordering::Relaxed),
                strands: self.strands.load(Ordering::Relaxed),
            };
            self.work(last, round, run);
        }
    }

    /// Sends the helpers home.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        self.begun.ring();
    }

    /// Takes strands of a round while there are any.
    ///
    /// `round` may have been read while the leader wrote the next one; then the ticket has another number, no
    /// strand is taken, and `round` is not used.
    fn work(&self, number: u64, round: Round, run: &dyn Fn(Round, usize)) {
        let mut ticket = self.ticket.load(Ordering::Acquire);
        loop {
            let strand = ticket & STRAND_MASK;
            if ticket >> STRAND_BITS != number || strand >= u64::from(round.strands) {
                return;
            }
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
                    run(round, strand as usize);
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
                for op in 0..2000 {
                    let strands = 1 + op % 16;
                    team.share(Round { op, step: op + 1, phase: op % 3, strands }, &run);
                    // All of it is done, by whomever.
                    let own = &counts[op as usize * 16..(op as usize + 1) * 16];
                    let done: u32 = own.iter().map(|count| count.load(Ordering::Relaxed)).sum();
                    assert_eq!(done, strands);
                }
                team.close();
            });
            for (at, count) in counts.iter().enumerate() {
                let expected = u32::from(at % 16 <= (at / 16) % 16);
                assert_eq!(count.load(Ordering::Relaxed), expected);
            }
        }
    }
}

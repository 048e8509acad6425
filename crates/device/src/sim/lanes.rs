//! Clocks of the lanes, and what is ordered before what.
//!
//! Copies and ops take a ticket from their lane, 1, 2, 3 and so on. A signal remembers how many tickets its
//! lane had given; who waits for it has *seen* them: everything up to that ticket is ordered before all that
//! follows in the waiting lane. With two lanes in order this one number a lane is a whole vector clock.
//!
//! Where the lanes share what they run on, a copy takes a share of the compute lane's time while it runs beside ops.
//! The lane's clock is set forward by it when the lane waits for the copy: before, it is not known what ran beside it.

use crate::contract::{DeviceError, Lane};
use crate::sim::SimFaults;

/// A place in the order: which of its lane an access is, and how much of the other lane is before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket {
    /// Position in its lane, from 1.
    pub(super) number: u64,
    /// Tickets of the other lane that are ordered before it.
    pub(super) seen: u64,
}

#[derive(Debug, Default)]
struct State {
    seconds: f64,
    given: u64,
    seen: u64,
    /// Time and number of tickets at each signal.
    signals: Vec<(f64, u64)>,
}

/// Both lanes and the host.
#[derive(Debug)]
pub(super) struct Lanes {
    copy: State,
    compute: State,
    host_seconds: f64,
    waits: u64,
    dropped_wait: Option<u64>,
    taken: Taken,
}

/// What copies take from the compute lane.
#[derive(Debug, Default)]
struct Taken {
    share: f64,
    /// Begin and end of each copy, by ticket.
    copies: Vec<(f64, f64)>,
    /// Copies that the compute lane has paid for.
    paid: usize,
    /// When the compute lane was busy, ascending and apart.
    busy: Vec<(f64, f64)>,
}

impl Taken {
    fn note_busy(&mut self, start: f64, end: f64) {
        match self.busy.last_mut() {
            Some(last) if start <= last.1 => last.1 = end,
            _ => self.busy.push((start, end)),
        }
    }

    /// Seconds that the copies up to a ticket took from the compute lane, those that are paid for left out.
    fn pay(&mut self, tickets: usize) -> f64 {
        let tickets = tickets.min(self.copies.len());
        let mut seconds = 0.0;
        for &(start, end) in self.copies.get(self.paid..tickets).unwrap_or_default() {
            let first = self.busy.partition_point(|busy| busy.1 <= start);
            for busy in self.busy[first..].iter().take_while(|busy| busy.0 < end) {
                seconds += busy.1.min(end) - busy.0.max(start);
            }
        }
        self.paid = self.paid.max(tickets);
        seconds * self.share
    }
}

/// A program or caller that breaks the contract.
pub(super) fn misuse(lane: Lane, cause: String) -> DeviceError {
    DeviceError::LaneDied { lane: name(lane), cause }
}

fn name(lane: Lane) -> &'static str {
    match lane {
        Lane::Copy => "copy",
        Lane::Compute => "compute",
    }
}

impl Lanes {
    pub(super) fn new(dropped_wait: Option<u64>, copy_share: f64) -> Self {
        Self {
            copy: State::default(),
            compute: State::default(),
            host_seconds: 0.0,
            waits: 0,
            dropped_wait,
            taken: Taken { share: copy_share, ..Taken::default() },
        }
    }

    fn state(&mut self, lane: Lane) -> &mut State {
        match lane {
            Lane::Copy => &mut self.copy,
            Lane::Compute => &mut self.compute,
        }
    }

    /// Takes the lane for `seconds` after a delay; gives the ticket, the start and the end.
    pub(super) fn begin(&mut self, lane: Lane, delay: f64, seconds: f64) -> (Ticket, f64, f64) {
        let host_seconds = self.host_seconds;
        let state = self.state(lane);
        let start = state.seconds.max(host_seconds) + delay;
        state.seconds = start + seconds;
        state.given += 1;
        let (ticket, end) = (Ticket { number: state.given, seen: state.seen }, state.seconds);
        match lane {
            Lane::Copy => self.taken.copies.push((start, end)),
            Lane::Compute => self.taken.note_busy(start, end),
        }
        (ticket, start, end)
    }

    pub(super) fn signal(&mut self, lane: Lane) {
        let state = self.state(lane);
        let now = (state.seconds, state.given);
        state.signals.push(now);
    }

    /// Makes `lane` wait for signal `count` of `other`.
    pub(super) fn wait(&mut self, lane: Lane, other: Lane, count: u64) -> Result<(), DeviceError> {
        if lane == other {
            return Err(misuse(lane, "it waits for itself".to_owned()));
        }
        let (seconds, tickets) = self.signalled(lane, other, count)?;
        let position = self.waits;
        self.waits += 1;
        if self.dropped_wait != Some(position) {
            if lane == Lane::Compute {
                let taken = self.taken.pay(usize::try_from(tickets).unwrap_or(usize::MAX));
                let begin = self.compute.seconds;
                self.compute.seconds += taken;
                if taken > 0.0 {
                    self.taken.note_busy(begin, self.compute.seconds);
                }
            }
            let state = self.state(lane);
            state.seconds = state.seconds.max(seconds);
            state.seen = state.seen.max(tickets);
        }
        Ok(())
    }

    /// Time and tickets at signal `count` of `of`, which must have been issued.
    fn signalled(&mut self, who: Lane, of: Lane, count: u64) -> Result<(f64, u64), DeviceError> {
        let Some(position) = count.checked_sub(1) else { return Ok((0.0, 0)) };
        let signals = &self.state(of).signals;
        let signal = usize::try_from(position).ok().and_then(|position| signals.get(position));
        signal.copied().ok_or_else(|| {
            let issued = signals.len();
            let cause =
                format!("signal {count} of the {} lane is awaited, {issued} are issued", name(of));
            misuse(who, cause)
        })
    }

    pub(super) fn host_wait(&mut self, lane: Lane, count: u64) -> Result<(), DeviceError> {
        let (seconds, _) = self.signalled(lane, lane, count)?;
        self.host_seconds = self.host_seconds.max(seconds);
        Ok(())
    }

    pub(super) fn seconds(&self, lane: Lane) -> f64 {
        match lane {
            Lane::Copy => self.copy.seconds,
            Lane::Compute => self.compute.seconds,
        }
    }

    pub(super) fn host_seconds(&self) -> f64 {
        self.host_seconds
    }
}

/// Seeded delays; one stream of random numbers a lane, so that one lane's work does not move the other's.
#[derive(Debug)]
pub(super) struct Delays {
    copy: SplitMix,
    op: SplitMix,
    copy_most: f64,
    op_most: f64,
}

impl Delays {
    pub(super) fn new(faults: &SimFaults) -> Self {
        Self {
            copy: SplitMix(faults.seed),
            op: SplitMix(!faults.seed),
            copy_most: faults.copy_delay_seconds,
            op_most: faults.op_delay_seconds,
        }
    }

    pub(super) fn copy(&mut self) -> f64 {
        self.copy.delay(self.copy_most)
    }

    pub(super) fn op(&mut self) -> f64 {
        self.op.delay(self.op_most)
    }
}

/// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
#[derive(Debug)]
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Half of the time 0, else evenly in `0 .. most`.
    fn delay(&mut self, most: f64) -> f64 {
        let random = self.next();
        if random & 1 == 0 {
            return 0.0;
        }
        // 53 bits fill a float's mantissa.
        most * ((random >> 11) as f64 / (1u64 << 53) as f64)
    }
}

//! Reads memory beside a run, on a thread of its own, and finds for each reading the phase that it fell into.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use plimsoll_device::{Meter, Reading};
use plimsoll_exec::Progress;
use plimsoll_graph::PhaseKind;
use plimsoll_plan::Phase;

use crate::doctor::evidence::Placed;
use crate::runs::machine;

/// Samples that are kept. When there are as many, every other goes and the pace halves, so that memory is taken once
/// and a run may last as long as it likes.
const SAMPLES_MAX: usize = 8192;

/// What was read at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sample {
    /// Seconds since the sampler began.
    pub(crate) at: f64,
    vram: Reading,
    ram_bytes: Option<u64>,
}

struct State {
    /// Touched once, so that keeping samples takes no memory while others are judged by it.
    samples: Box<[Sample]>,
    count: usize,
    pace: Duration,
    is_over: bool,
}

struct Shared {
    meter: Arc<dyn Meter>,
    began: Instant,
    state: Mutex<State>,
    wake: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn sample(&self) {
        // Read outside of the lock: a driver may take its time.
        let sample = Sample {
            at: self.began.elapsed().as_secs_f64(),
            vram: self.meter.read(),
            ram_bytes: machine::own_ram(),
        };
        let mut state = self.lock();
        if state.count == state.samples.len() {
            state.count /= 2;
            for at in 0..state.count {
                state.samples[at] = state.samples[at * 2];
            }
            state.pace *= 2;
        }
        let at = state.count;
        state.samples[at] = sample;
        state.count += 1;
    }
}

/// A thread that reads until it is told to stop.
pub(crate) struct Sampler {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// When the run began by the sampler's clock, once it is known.
    run_began: Option<f64>,
    last: Option<(PhaseKind, u32)>,
}

impl Sampler {
    /// Begins to read, every `pace`.
    pub(crate) fn start(meter: Arc<dyn Meter>, pace: Duration) -> Self {
        let filler = Sample { at: f64::NAN, ..Sample::default() };
        let state = State {
            samples: vec![filler; SAMPLES_MAX].into_boxed_slice(),
            count: 0,
            pace,
            is_over: false,
        };
        let shared = Arc::new(Shared {
            meter,
            began: Instant::now(),
            state: Mutex::new(state),
            wake: Condvar::new(),
        });
        let reader = Arc::clone(&shared);
        let thread =
            std::thread::Builder::new().name("plimsoll-meter".to_owned()).spawn(move || {
                let mut state = reader.lock();
                while !state.is_over {
                    drop(state);
                    reader.sample();
                    state = reader.lock();
                    if !state.is_over {
                        let pace = state.pace;
                        let waited = reader.wake.wait_timeout(state, pace);
                        state = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
                    }
                }
            });
        // Without a thread there still are the readings at each step.
        Self { shared, thread: thread.ok(), run_began: None, last: None }
    }

    /// The run has come so far: reads once a phase and step, so that each has a reading however short it is.
    pub(crate) fn at(&mut self, progress: Progress<'_>) {
        let now = self.shared.began.elapsed().as_secs_f64();
        self.run_began.get_or_insert(now - progress.seconds);
        let here = (progress.kind, progress.step);
        if self.last.replace(here) != Some(here) {
            self.shared.sample();
        }
    }

    /// Ends, and gives the readings that fell into the run, each with its phase.
    ///
    /// `marks` are the run's seconds at which phases and steps begin, as a device reports them.
    pub(crate) fn stop(mut self, phases: &[Phase], marks: &[f64]) -> Vec<Placed> {
        self.end();
        let state = self.shared.lock();
        self.run_began.map_or_else(Vec::new, |began| {
            place(&state.samples[..state.count], began, phases, marks)
        })
    }
}

impl Sampler {
    /// Ends the thread and waits for it, for one reading at most: a driver must not be read while the program ends.
    fn end(&mut self) {
        self.shared.lock().is_over = true;
        self.shared.wake.notify_all();
        if let Some(thread) = self.thread.take() {
            // It cannot panic but by a meter's; then what was read before counts.
            let _ended = thread.join();
        }
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        // Of a run that failed nobody asks for the readings.
        self.end();
    }
}

/// Finds the phase and step of each sample; those before and after the run are left out.
fn place(samples: &[Sample], began: f64, phases: &[Phase], marks: &[f64]) -> Vec<Placed> {
    let parts: Vec<(PhaseKind, u32)> =
        phases.iter().flat_map(|phase| (0..phase.repeat).map(|step| (phase.kind, step))).collect();
    let mut sorted: Vec<&Sample> = samples.iter().collect();
    sorted.sort_by(|a, b| a.at.total_cmp(&b.at));
    sorted
        .into_iter()
        .filter_map(|sample| {
            let at = sample.at - began;
            // The last mark that is not later; the one after the last part is the run's end.
            let part = marks.partition_point(|mark| *mark <= at).checked_sub(1)?;
            let &(phase, step) = parts.get(part)?;
            Some(Placed { phase, step, vram: sample.vram, ram_bytes: sample.ram_bytes })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    fn phase(kind: PhaseKind, repeat: u32) -> Phase {
        Phase { kind, name: String::new(), visits_start: 0, visits_end: 1, repeat }
    }

    #[test]
    fn a_reading_is_of_the_phase_and_step_that_it_fell_into() {
        let phases = [
            phase(PhaseKind::Encode, 1),
            phase(PhaseKind::Denoise, 3),
            phase(PhaseKind::Decode, 1),
        ];
        let marks = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0];
        let samples: Vec<Sample> = [9.9, 14.5, 10.5, 11.0, 13.9, 15.1]
            .into_iter()
            .map(|at| Sample { at, ..Sample::default() })
            .collect();
        let found: Vec<_> = place(&samples, 10.0, &phases, &marks)
            .iter()
            .map(|placed| (placed.phase, placed.step))
            .collect();
        // 9.9 is before the run and 15.1 after it.
        let expected = [
            (PhaseKind::Encode, 0),
            (PhaseKind::Denoise, 0),
            (PhaseKind::Denoise, 2),
            (PhaseKind::Decode, 0),
        ];
        assert_eq!(found, expected);
    }

    struct Counting(AtomicU64);

    impl Meter for Counting {
        fn read(&self) -> Reading {
            let count = self.0.fetch_add(1, Ordering::SeqCst);
            Reading { process_bytes: Some(count), device_bytes: None }
        }
    }

    #[test]
    fn a_full_sampler_thins_out_and_keeps_the_whole_time() {
        let sampler =
            Sampler::start(Arc::new(Counting(AtomicU64::new(0))), Duration::from_secs(3600));
        for _ in 0..SAMPLES_MAX * 2 {
            sampler.shared.sample();
        }
        let state = sampler.shared.lock();
        assert!(state.count > SAMPLES_MAX / 2 && state.count <= SAMPLES_MAX);
        assert!(state.pace > Duration::from_secs(3600));
        let first = state.samples[0].vram.process_bytes;
        let last = state.samples[state.count - 1].vram.process_bytes;
        assert!(first < Some(4) && last >= Some(SAMPLES_MAX as u64 * 2 - 1), "{first:?} {last:?}");
    }
}

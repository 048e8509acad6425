//! A card as a device: one arena, programs one after the other.

use plimsoll_cuda_kernels::{bound_attentions, bound_shapes, workspace_bytes};
use plimsoll_device::cpu::{Limits, check_program};
use plimsoll_device::{Control, Device, DeviceError, Mat, Program, Queue, RunStats};
use plimsoll_graph::OpKind;
use plimsoll_host::SharedMapping;

use crate::CudaError;
use crate::arena::{self, Arena};
use crate::card::Card;
use crate::dnn::Building;
use crate::host_memory::HostMemory;
use crate::lanes::{Parts, Run};
use crate::prepare::{Place, Prepared};
use crate::signals::lock;

/// Name of the device, as `--device` takes it.
const NAME: &str = "cuda";

/// A device made of an arena on a card.
///
/// Device memory: [`CudaDevice::taken_bytes`] beside what [`Card::reserved_bytes`] says. Host memory: a row of
/// pinned windows if a program needs them, a buffer for inputs and outputs, and the pages of mapped files that are
/// lent to the card.
#[derive(Debug)]
pub struct CudaDevice {
    /// Absent only after a failure to take another.
    arena: Option<Arena>,
    /// Before the card: pages are taken back while the context lives.
    host: HostMemory,
    /// Before the card, whose context it uses.
    building: Building,
    card: Card,
    /// Pages are lent and windows taken.
    has_run: bool,
    /// Why the card cannot be used any more.
    lost: Option<String>,
}

impl CudaDevice {
    /// Takes an arena of `arena_bytes` as one plain allocation, filled with a pattern.
    ///
    /// # Errors
    /// [`CudaError::Busy`] if that much is not free, or the driver's failure.
    pub fn new(mut card: Card, arena_bytes: u64) -> Result<Self, CudaError> {
        card.context.enter()?;
        let arena = Some(Self::take(&card, arena_bytes)?);
        // Only now: what plans take must not be seen by what the arena's size follows from.
        let attentions = std::mem::take(&mut card.attentions);
        let building = match &card.libraries.dnn {
            Some(dnn) if !attentions.is_empty() => Building::start(&card.context, dnn, attentions),
            _ => Building::default(),
        };
        let host = HostMemory::new(&card.context, card.index, card.host.clone());
        Ok(Self { arena, host, building, card, has_run: false, lost: None })
    }

    /// Takes an arena; the context is current.
    fn take(card: &Card, arena_bytes: u64) -> Result<Arena, CudaError> {
        let needed = arena::taken_bytes(arena_bytes).unwrap_or(u64::MAX);
        card.require_free(needed)?;
        Arena::new(&card.context, &card.kernels, &card.streams[1], arena_bytes).map_err(|error| {
            match (&error, card.free_bytes()) {
                // Free, but not in one piece, or taken by another process a moment ago.
                (CudaError::Driver { call: "cuMemAlloc_v2", code: 2, .. }, Ok(free_bytes)) => {
                    let total_bytes = card.total_bytes();
                    CudaError::Busy { needed_bytes: needed, free_bytes, total_bytes }
                }
                _ => error,
            }
        })
    }

    fn arena(&self) -> Result<&Arena, CudaError> {
        let missing = || CudaError::Unsupported { what: "a device without an arena".to_owned() };
        self.arena.as_ref().ok_or_else(missing)
    }

    /// Bytes of the device that an arena of `arena_bytes` takes: with the step counter, in granules of 2 MiB.
    pub fn taken_bytes(arena_bytes: u64) -> Option<u64> {
        arena::taken_bytes(arena_bytes)
    }

    /// The card.
    pub fn card(&self) -> &Card {
        &self.card
    }

    /// Says which mapped files programs will copy from, so that their pages can be lent to the card; files that
    /// were given before and are not here are let go. To be called before the first run, and with an empty list
    /// before the files are to be unmapped for good.
    ///
    /// The files are tried in a child process, which takes a context of its own for a moment: where device memory
    /// is scarce, [`Card::try_files`] does that before the arena is taken.
    pub fn set_mappings(&mut self, mappings: &[SharedMapping]) {
        self.host.set_mappings(mappings);
    }

    /// What went another way than the best, one line each, since the device was made.
    pub fn notices(&self) -> &[String] {
        self.host.notices()
    }

    /// Bytes of mapped files that are lent to the card; each GiB costs the card 2 MiB that are booked on no process.
    pub fn registered_bytes(&self) -> u64 {
        self.host.registered_bytes()
    }

    /// Fills the arena with its pattern again: what was touched before no longer counts in
    /// [`RunStats::high_water_bytes`].
    ///
    /// # Errors
    /// The driver's failure.
    pub fn reset_pattern(&mut self) -> Result<(), CudaError> {
        self.card.context.enter()?;
        self.arena()?.fill(&self.card.kernels, &self.card.streams[1])
    }

    /// One past the highest byte touched since the arena was filled, rounded up to 256.
    ///
    /// # Errors
    /// The driver's failure.
    pub fn high_water_bytes(&mut self) -> Result<u64, CudaError> {
        self.card.context.enter()?;
        self.arena()?.high_water_bytes(&self.card.kernels, &self.card.streams[1])
    }

    /// Everything of a run but the bookkeeping of a lost card.
    fn run_program(
        &mut self,
        program: &Program<'_>,
        control: &Control,
        drive: &mut dyn FnMut(&dyn Queue) -> Result<(), DeviceError>,
    ) -> Result<RunStats, DeviceError> {
        let backends = self.card.backends();
        let workspace_bytes = |op: &OpKind<Mat, Mat>| workspace_bytes(&bound_shapes(op), backends);
        let limits =
            Limits { device: NAME, workspace_bytes: &workspace_bytes, head_dim_max: u64::MAX };
        let (arena_bytes, base, step_counter) = {
            let arena = self.arena()?;
            (arena.bytes(), arena.base(), arena.step_counter())
        };
        check_program(program, arena_bytes, &limits)?;
        if !self.has_run {
            self.building.only(&bound_attentions(&program.ops, backends));
        }
        self.card.context.enter()?;
        let place = Place { base, arena_bytes, step_counter };
        let Card { kernels, libraries, context, .. } = &self.card;
        let prepare = || Prepared::new(program, place, kernels, libraries, backends);
        let host = &mut self.host;
        let (prepared, copies) = if self.has_run {
            (prepare(), host.prepare(program))
        } else {
            // The first time pages are lent and windows pinned, while libraries choose algorithms. Only
            // the first time: with the libraries in a new thread for each, 201 runs grew by 5 kB each.
            std::thread::scope(|scope| {
                let thread = std::thread::Builder::new().name("lend".to_owned());
                let copies = thread.spawn_scoped(scope, || {
                    context.enter()?;
                    host.prepare(program)
                });
                let copies = copies.map_err(|cause| DeviceError::no_thread("cuda", &cause))?;
                let prepared = prepare();
                let panicked = |panic| std::panic::resume_unwind(panic);
                Ok::<_, DeviceError>((prepared, copies.join().unwrap_or_else(panicked)))
            })?
        };
        self.has_run = true;
        let (prepared, copies) = (prepared?, copies?);
        self.host.reserve_transfer(prepared.host_bytes);
        let mut transfer = std::ptr::null_mut();
        if let Some(buffer) = self.host.transfer() {
            // SAFETY: streams are empty between runs.
            prepared.fill_inputs(program, unsafe { buffer.as_mut_slice() })?;
            transfer = buffer.base();
        }
        self.card.signals.iter_mut().for_each(crate::signals::Signals::reset);
        let [copy_stream, compute_stream] = &self.card.streams;
        let [copy_signals, compute_signals] = &self.card.signals;
        let parts = Parts {
            context: &self.card.context,
            libraries: &self.card.libraries,
            prepared: &prepared,
            copies: &copies,
            windows: self.host.windows(),
            streams: [copy_stream, compute_stream],
            signals: [copy_signals, compute_signals],
            base: place.base,
            step_counter: place.step_counter,
            transfer,
        };
        let run = Run::new(parts, &self.card.context, program, control)?;
        let in_flight = InFlight(&self.card);
        let went = run.go(drive);
        let emptied = in_flight.end();
        went?;
        emptied?;
        let mut stats = run.stats()?;
        if let Some(buffer) = self.host.transfer() {
            // SAFETY: the streams are empty.
            let bytes = unsafe { buffer.as_mut_slice() };
            for (output, range) in prepared.outputs() {
                lock(&program.outputs[output].bytes).copy_from_slice(&bytes[range]);
            }
        }
        stats.high_water_bytes =
            self.arena()?.high_water_bytes(&self.card.kernels, &self.card.streams[1])?;
        Ok(stats)
    }
}

/// Work that may be on a card's streams: whatever happens, a panic of the caller's too, nothing may be in flight when the
/// host memory that it borrows goes.
struct InFlight<'c>(&'c Card);

impl InFlight<'_> {
    /// Waits for it.
    fn end(self) -> Result<(), CudaError> {
        let ended = self.0.synchronize();
        std::mem::forget(self);
        ended
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        // The panic is what is told.
        let _ended = self.0.synchronize();
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        // Memory is given back only when nothing uses it. A failure has been met by the last run, or has no reader.
        let _ = self.card.context.enter().and_then(|()| self.card.synchronize());
    }
}

impl Device for CudaDevice {
    fn name(&self) -> &'static str {
        NAME
    }

    fn arena_bytes(&self) -> u64 {
        self.arena.as_ref().map_or(0, Arena::bytes)
    }

    fn retake(&mut self, arena_bytes: u64) -> Result<(), DeviceError> {
        if let Some(cause) = &self.lost {
            return Err(CudaError::Poisoned { cause: cause.clone() }.into());
        }
        self.card.context.enter()?;
        // The old one first: both together may cross the line.
        drop(self.arena.take());
        self.arena = Some(Self::take(&self.card, arena_bytes)?);
        Ok(())
    }

    fn held_bytes(&self) -> Option<u64> {
        self.card.held_bytes().ok()
    }

    fn notices(&self) -> Vec<String> {
        self.host.notices().to_vec()
    }

    fn run(
        &mut self,
        program: &Program<'_>,
        control: &Control,
        drive: &mut dyn FnMut(&dyn Queue) -> Result<(), DeviceError>,
    ) -> Result<RunStats, DeviceError> {
        if let Some(cause) = &self.lost {
            return Err(CudaError::Poisoned { cause: cause.clone() }.into());
        }
        let result = self.run_program(program, control, drive);
        if let Err(DeviceError::Driver { is_lost: true, cause, .. }) = &result {
            self.lost = Some(cause.clone());
        }
        result
    }
}

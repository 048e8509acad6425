//! A card of this machine: driver, context, kernels, libraries, streams and events, and what they take.

use std::path::PathBuf;
use std::sync::Arc;

use plimsoll_cuda_kernels::{Arch, Backends, Sdpa};
use plimsoll_host::SharedMapping;

use crate::CudaError;
use crate::driver::{self, Attribute, Context, DeviceMemory, Event, Ordinal, Stream};
use crate::host_memory::{HostOptions, probe};
use crate::kernels::Kernels;
use crate::lanes::SIGNALS;
use crate::loader::{Libraries, LibraryOptions, Searching};
use crate::lt::{TunedProduct, tuning_bytes};
use crate::meter::{Meter, MeterKind};
use crate::profile::CardProfile;
use crate::signals::Signals;

/// Kept free beside everything that was seen to be taken, of which runs were seen to take 2 MiB: a prediction is to be within
/// 1 % of the smallest run of FLUX.1, of 1.35 GiB, and never under it.
const MARGIN_BYTES: u64 = 12 << 20;

/// What others hold of a card is planned around where it is more than one part in so many.
const OTHERS_SHARE: u64 = 16;

/// Device memory lent to libraries while they are first used; given back before the meter is read.
const WARM_UP_BYTES: u64 = 64 << 20;

/// How a card is opened.
#[derive(Clone, Debug, Default)]
pub struct CardOptions {
    /// Libraries: where to look and which to use. The architecture is filled in.
    pub libraries: LibraryOptions,
    /// What may be used of host memory.
    pub host: HostOptions,
    /// Folder of profiles: choices among algorithms that `probe` has left there for the card are used.
    pub profiles: Option<PathBuf>,
    /// Files that will be tried as [`Card::try_files`] does, beside the opening, which takes about as long.
    pub files: Vec<SharedMapping>,
    /// Attentions that a program is expected to have: cuDNN builds their plans while the rest of a run is made ready, from
    /// when [`crate::CudaDevice::new`] has taken its arena.
    pub attentions: Vec<Sdpa>,
}

/// A card with everything loaded that programs need, and no arena yet.
#[derive(Debug)]
pub struct Card {
    // Handles are dropped before the context, which each of them holds.
    pub(crate) libraries: Libraries,
    pub(crate) kernels: Kernels,
    /// Of the copy lane, then of the compute lane.
    pub(crate) streams: [Stream; 2],
    pub(crate) signals: [Signals<Event>; 2],
    pub(crate) host: HostOptions,
    /// As in [`CardOptions`].
    pub(crate) attentions: Vec<Sdpa>,
    pub(crate) index: u32,
    pub(crate) context: Arc<Context>,
    meter: Meter,
    name: String,
    arch: Arch,
    multiprocessors: u32,
    driver_version: u32,
    total_bytes: u64,
    reserved_bytes: u64,
}

impl Card {
    /// Opens the card of an index and loads everything; takes some 0.45 s and 520 MiB of the device.
    ///
    /// # Errors
    /// [`CudaError::NoDriver`], [`CudaError::OldDriver`], [`CudaError::DriverUnusable`],
    /// [`CudaError::NoSuchDevice`], [`CudaError::UnsupportedCard`], or the driver's or a library's failure. None
    /// of them panics.
    pub fn open(index: u32, options: CardOptions) -> Result<Self, CudaError> {
        let CardOptions { libraries: mut library_options, host, profiles, files, attentions } =
            options;
        driver::require()?;
        let files = if host.register { files } else { Vec::new() };
        let alone = probe::alone();
        let mut trial = probe::Trial::start(&files, index, &host.probing);
        let searching = Searching::start(library_options.clone());
        driver::load()?;
        let ordinal = Ordinal::new(index)?;
        let name = ordinal.name()?;
        let major = ordinal.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = ordinal.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        let Some(arch) = Arch::of(major, minor) else {
            return Err(CudaError::UnsupportedCard { name, major, minor });
        };
        let mut meter = Meter::open(&ordinal.bus_id()?);
        let context = Context::new(ordinal)?;
        meter.find_own();
        // The meter has told its own process from others: from here on a child may have a context as well.
        if let Some(trial) = &mut trial {
            trial.go();
        }
        let kernels = Kernels::load(&context, arch)?;
        let streams = [Stream::new(&context)?, Stream::new(&context)?];
        let signals = [signals(&context)?, signals(&context)?];
        library_options.arch = Some(arch);
        // A profile that cannot be read is told of where its rates are.
        let profile = profiles.and_then(|folder| CardProfile::load(&folder, &name).ok().flatten());
        library_options.tuned.extend(profile.into_iter().flat_map(|profile| profile.tuned));
        let mut libraries = Libraries::open_found(searching.found(), &library_options);
        warm_up(&context, &mut libraries, &streams)?;
        // A child that is still there would be taken for somebody else's process. Verdicts are kept by `probe`.
        if let Some(trial) = trial {
            trial.finish();
        }
        let (_, total_bytes) = context.memory_info()?;
        let reserved_bytes = meter.bytes(&context)? + MARGIN_BYTES;
        drop(alone);
        Ok(Self {
            libraries,
            kernels,
            streams,
            signals,
            host,
            attentions,
            index,
            meter,
            name,
            arch,
            multiprocessors: ordinal
                .attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            driver_version: driver::version()?,
            total_bytes,
            reserved_bytes,
            context,
        })
    }

    /// Bytes of the device that the process takes beside an arena: what the meter showed with everything loaded
    /// and each library used once, and a margin of 12 MiB, which also covers the arena's rounding to 2 MiB.
    pub fn reserved_bytes(&self) -> u64 {
        self.reserved_bytes
    }

    /// Bytes of the device that are held now, by this process where the system says so.
    ///
    /// # Errors
    /// The driver's failure.
    pub fn held_bytes(&self) -> Result<u64, CudaError> {
        self.context.enter()?;
        self.meter.bytes(&self.context)
    }

    /// Whose figure [`Card::held_bytes`] is.
    pub fn meter_kind(&self) -> MeterKind {
        self.meter.kind()
    }

    /// Bytes of the whole device.
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Bytes of the device that nobody holds.
    ///
    /// # Errors
    /// The driver's failure.
    pub fn free_bytes(&self) -> Result<u64, CudaError> {
        self.context.enter()?;
        self.context.memory_info().map(|(free, _)| free)
    }

    /// Bytes of the card that this process can have: all but what other processes hold now. All of it where they hold
    /// little (the driver keeps some for itself) or cannot be told apart. Once an arena is taken, nobody can take it.
    pub fn room_bytes(&self) -> u64 {
        let total = self.total_bytes;
        let (MeterKind::Process, Ok(free), Ok(held)) =
            (self.meter.kind(), self.free_bytes(), self.held_bytes())
        else {
            return total;
        };
        let room = free.saturating_add(held).min(total);
        if total - room > total / OTHERS_SHARE { room } else { total }
    }

    /// Whether a process under a line of `line_bytes` finds its memory free.
    ///
    /// # Errors
    /// [`CudaError::Busy`] with the numbers if others hold it; the driver's failure.
    pub fn require_line(&self, line_bytes: u64) -> Result<(), CudaError> {
        let held = match self.meter.kind() {
            MeterKind::Process => self.held_bytes()?,
            // The device's figure has others in it: what this process holds itself is not told apart.
            MeterKind::Device => 0,
        };
        self.require_free(line_bytes.saturating_sub(held))
    }

    /// Tries which files' pages can be lent to the card, in a child process with a context of its own; to be called
    /// before an arena is taken. What was found is kept for [`crate::CudaDevice::set_mappings`].
    pub fn try_files(&self, mappings: &[SharedMapping]) {
        if self.host.register {
            // Verdicts are kept by `probe` itself.
            let _verdicts = probe::fit(mappings, self.index, &self.host.probing);
        }
    }

    /// Tries algorithms of the same bits for the layers that a run of FLUX.1 has; gives those that are quicker than what
    /// the library offers first. Takes half a GiB of the device and a second or two.
    ///
    /// `values` are random numbers in bf16.
    ///
    /// # Errors
    /// The driver's or the library's failure.
    pub fn tune(&self, values: &[u8]) -> Result<Vec<TunedProduct>, CudaError> {
        let Some(lt) = &self.libraries.lt else { return Ok(Vec::new()) };
        self.context.enter()?;
        let bytes = tuning_bytes();
        let (memory, stream) = (DeviceMemory::new(&self.context, bytes)?, &self.streams[1]);
        let mut at = 0;
        while at < bytes && !values.is_empty() {
            let count = values.len().min(usize::try_from(bytes - at).unwrap_or(usize::MAX));
            // SAFETY: within the memory, which lives until the stream is empty; so do the values.
            unsafe { stream.copy_in(memory.base() + at, values.as_ptr(), count) }?;
            at += count as u64;
        }
        stream.synchronize()?;
        // SAFETY: the memory has that size, and lives until the stream is empty.
        let tuned = unsafe { lt.tune(memory.base(), stream.raw(), &|| stream.synchronize()) };
        // Whatever happened: nothing may be in flight when the memory goes.
        stream.synchronize()?;
        tuned
    }

    pub(crate) fn require_free(&self, needed_bytes: u64) -> Result<(), CudaError> {
        let (free_bytes, total_bytes) = (self.free_bytes()?, self.total_bytes);
        if needed_bytes <= free_bytes {
            return Ok(());
        }
        Err(CudaError::Busy { needed_bytes, free_bytes, total_bytes })
    }

    /// The card's name, as the driver has it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The kernels that run on it.
    pub fn arch(&self) -> Arch {
        self.arch
    }

    /// Multiprocessors.
    pub fn multiprocessors(&self) -> u32 {
        self.multiprocessors
    }

    /// The CUDA version of the driver: 13000 for 13.0.
    pub fn driver_version(&self) -> u32 {
        self.driver_version
    }

    /// Libraries that were found, with reasons for those that were not.
    pub fn libraries(&self) -> &Libraries {
        &self.libraries
    }

    /// Which implementations ops are given to.
    pub fn backends(&self) -> Backends {
        self.libraries.backends()
    }

    /// Sleeps until both streams are empty.
    pub(crate) fn synchronize(&self) -> Result<(), CudaError> {
        let [copy, compute] = &self.streams;
        // Both, even if the first fails: an error must not leave work behind.
        let first = copy.synchronize();
        compute.synchronize().and(first)
    }
}

fn signals(context: &Arc<Context>) -> Result<Signals<Event>, CudaError> {
    let events = (0..SIGNALS).map(|_| Event::new(context)).collect::<Result<_, _>>()?;
    Ok(Signals::new(events))
}

fn warm_up(
    context: &Arc<Context>,
    libraries: &mut Libraries,
    streams: &[Stream; 2],
) -> Result<(), CudaError> {
    let scratch = DeviceMemory::new(context, WARM_UP_BYTES)?;
    let enter = || context.enter();
    let [first, second] = streams;
    // SAFETY: the scratch has that size, and lives until the streams are empty.
    let went = unsafe {
        libraries.warm_up(scratch.base(), WARM_UP_BYTES, [first.raw(), second.raw()], &enter)
    };
    // Whatever happened: nothing may be in flight when the scratch goes.
    let emptied = first.synchronize().and(second.synchronize());
    went.and(emptied)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_a_driver_is_told_so() {
        match Card::open(0, CardOptions::default()) {
            Err(CudaError::NoDriver) => {}
            Err(error) => panic!("{error}"),
            Ok(card) => {
                let refused = Card::open(4096, CardOptions::default());
                assert!(matches!(refused, Err(CudaError::NoSuchDevice { index: 4096, .. })));
                assert!(card.reserved_bytes() > MARGIN_BYTES);
            }
        }
    }
}

//! How weights get from host memory to the card: three ways, the same bits.
//!
//! 1. `registered`: pages of a shared read-only file mapping are lent to the card, and copies come straight from
//!    the page cache. Files are tried in a child process first (`probe`).
//! 2. `staged`: reader threads fill pinned windows ahead of the card; for data that is in no mapping, for what
//!    cannot be lent, for every copy that casts, and from the disk for what RAM has no room for.
//! 3. The same through ordinary memory, where even pinning is refused.
//!
//! Each step down leaves one notice. Host memory is taken when a device or a program is made ready, never while a
//! program runs.

mod buffer;
mod pieces;
pub(crate) mod probe;
mod registered;
mod staged;

use std::ops::Range;
use std::sync::Arc;

use plimsoll_device::{Program, Segment};
use plimsoll_host::{SharedMapping, memory};

pub(crate) use buffer::HostBuffer;
pub(crate) use staged::{Chunks, Stager, Windows};

use crate::CudaError;
use crate::driver::{Attribute, Context};
use probe::Probing;
use registered::Registered;

/// Most bytes of page-locked memory for inputs and outputs; the latent and the picture need some tens of MiB.
const TRANSFER_PINNED_MAX: usize = 256 << 20;

/// Once or twice used, windows are sooner (an H200 and its host: lending takes 51 ms a GB, and a copy then 18 ms a GB
/// against 24 to 28 through windows). From three uses on a copy is of the step loop, whose steps are to be as predicted
/// and leave the host's cores alone, though a run of few steps would end a little sooner without lending.
const REGISTERED_USES_MIN: u64 = 3;

/// What a device may use of host memory.
#[derive(Clone, Debug)]
pub struct HostOptions {
    /// Lend pages of mapped files to the card.
    pub register: bool,
    /// How a file is found fit for it.
    pub probing: Probing,
    /// Most bytes to lend; half of RAM or of the control group's limit if absent.
    pub registered_bytes_max: Option<u64>,
    /// Fewest uses of a copy in a run for which its source is lent: what is copied once or twice is sooner there
    /// through pinned windows than its pages are lent.
    pub registered_uses_min: u64,
}

impl Default for HostOptions {
    fn default() -> Self {
        Self {
            register: true,
            probing: Probing::ThisProgram,
            registered_bytes_max: None,
            registered_uses_min: REGISTERED_USES_MIN,
        }
    }
}

/// Bytes of page-cache pages that may be held for the card: half of RAM, or half of the control group's limit where
/// that is less.
///
/// The limit on locked memory (`ulimit -l`) is not asked: the driver does not count against it, and where a system
/// does refuse, the refusal itself says so.
fn lendable_bytes() -> u64 {
    memory::ram_bytes().unwrap_or(0) / 2
}

/// The host memory of a device.
#[derive(Debug)]
pub(crate) struct HostMemory {
    context: Arc<Context>,
    options: HostOptions,
    device_index: u32,
    registered: Registered,
    windows: Option<Windows>,
    transfer: Option<HostBuffer>,
    /// Why pages are not lent, until it is told.
    not_lent: Option<String>,
    /// Whether all memory that was asked to be pinned is.
    is_pinned: bool,
    notices: Vec<String>,
}

/// A range that the card copies from where it lies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Direct<'h> {
    /// Lent bytes, within one piece.
    pub(crate) source: &'h [u8],
    /// Place in the arena.
    pub(crate) target: u64,
}

/// One of the program's copies.
#[derive(Clone, Debug)]
pub(crate) struct PreparedCopy {
    /// Ranges that are copied where they lie.
    pub(crate) direct: Range<usize>,
    /// Chunks that go through windows.
    pub(crate) chunks: Range<usize>,
    /// Bytes of weights that arrive in the arena.
    pub(crate) bytes: u64,
}

/// A program's copies, ready to be issued.
#[derive(Debug, Default)]
pub(crate) struct PreparedCopies<'h> {
    /// Copies by their index in the program.
    pub(crate) copies: Vec<PreparedCopy>,
    /// Ranges of all copies.
    pub(crate) direct: Vec<Direct<'h>>,
    /// Chunks of all copies.
    pub(crate) chunks: Chunks<'h>,
}

impl HostMemory {
    /// Takes nothing yet.
    pub(crate) fn new(context: &Arc<Context>, device_index: u32, options: HostOptions) -> Self {
        let budget = options.registered_bytes_max.unwrap_or_else(lendable_bytes);
        Self {
            context: Arc::clone(context),
            options,
            device_index,
            registered: Registered::new(context, budget),
            windows: None,
            transfer: None,
            not_lent: None,
            is_pinned: true,
            notices: Vec::new(),
        }
    }

    /// What went another way than the best, one line each.
    pub(crate) fn notices(&self) -> &[String] {
        &self.notices
    }

    /// Bytes of mappings that are lent to the card.
    pub(crate) fn registered_bytes(&self) -> u64 {
        self.registered.bytes()
    }

    /// Which mapped files the card may copy from; those that were given before and are not here are let go.
    pub(crate) fn set_mappings(&mut self, mappings: &[SharedMapping]) {
        // Also where nothing more is lent: files that are let go may be about to be unmapped for good.
        self.registered.keep(mappings);
        if !self.options.register {
            return;
        }
        let supported = self
            .context
            .ordinal()
            .attribute(Attribute::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED);
        if !matches!(supported, Ok(1..)) {
            self.stop_lending("the card takes no read-only memory");
            return;
        }
        let verdicts = probe::fit(mappings, self.device_index, &self.options.probing);
        let mut fit = Vec::new();
        let mut unfit: Vec<(&SharedMapping, String)> = Vec::new();
        for (mapping, verdict) in mappings.iter().zip(verdicts) {
            match verdict {
                Ok(()) => fit.push(mapping.clone()),
                Err(cause) => unfit.push((mapping, cause)),
            }
        }
        self.registered.keep(&fit);
        match unfit.first() {
            Some((_, cause)) if fit.is_empty() && unfit.iter().all(|(_, other)| other == cause) => {
                // Not the files' matter.
                self.not_lent = Some(cause.clone());
            }
            _ => {
                for (mapping, cause) in unfit {
                    self.notice(format!(
                        "{}: its pages cannot be lent to the card ({cause}); it is copied through pinned memory",
                        mapping.path().display()
                    ));
                }
            }
        }
    }

    fn stop_lending(&mut self, cause: &str) {
        self.options.register = false;
        self.not_lent = Some(cause.to_owned());
    }

    /// Tells once what was refused, when it is known how far down that leads.
    fn tell(&mut self, is_pinned: bool) {
        let cause = self.not_lent.take();
        if !is_pinned {
            let cause = cause.map_or_else(String::new, |cause| format!(" ({cause})"));
            self.notice(format!(
                "memory for copies cannot be pinned{cause}; they go through ordinary memory, which is slower"
            ));
        } else if let Some(cause) = cause {
            self.notice(format!(
                "pages of files cannot be lent to the card ({cause}); copies go through pinned memory"
            ));
        }
    }

    fn notice(&mut self, text: String) {
        if !self.notices.contains(&text) {
            self.notices.push(text);
        }
    }

    /// Makes a program's copies ready: lends what can be, cuts the rest into chunks.
    pub(crate) fn prepare<'h>(
        &mut self,
        program: &Program<'h>,
    ) -> Result<PreparedCopies<'h>, CudaError> {
        if self.options.register {
            let least = self.options.registered_uses_min;
            let often = program.copies.iter().filter(|copy| copy.uses >= least && !copy.from_disk);
            let segments = often.flat_map(|copy| &copy.segments);
            let sources = segments.filter(|segment| segment.is_plain()).map(|s| s.source);
            match self.registered.lend(sources) {
                Ok(0) => {}
                Ok(_) => {
                    let bytes = self.registered.bytes();
                    self.notice(format!(
                        "{bytes} bytes of weight files are lent to the card, as much as this machine's memory \
                         allows; the rest is copied through pinned memory"
                    ));
                }
                Err(error) if error.is_sticky() => return Err(error),
                Err(error) => self.stop_lending(&error.to_string()),
            }
        }
        let mut prepared = PreparedCopies::default();
        for copy in &program.copies {
            let (direct, chunks) = (prepared.direct.len(), prepared.chunks.len());
            prepared.chunks.begin(copy.uses < self.options.registered_uses_min);
            for segment in &copy.segments {
                self.prepare_segment(segment, copy.from_disk, &mut prepared);
            }
            prepared.copies.push(PreparedCopy {
                direct: direct..prepared.direct.len(),
                chunks: chunks..prepared.chunks.len(),
                bytes: copy.weight_bytes(),
            });
        }
        if prepared.chunks.len() > 0 && self.windows.is_none() {
            self.windows = Some(Windows::new(&self.context)?);
        }
        let is_pinned = self.windows.as_ref().is_none_or(Windows::are_pinned);
        self.is_pinned &= is_pinned;
        self.tell(is_pinned);
        Ok(prepared)
    }

    /// Adds a segment.
    fn prepare_segment<'h>(
        &self,
        segment: &Segment<'h>,
        from_disk: bool,
        prepared: &mut PreparedCopies<'h>,
    ) {
        let Segment { source, source_dtype, target, target_dtype } = *segment;
        if !segment.is_plain() {
            prepared.chunks.add(source, Some((source_dtype, target_dtype)), target, from_disk);
            return;
        }
        if from_disk {
            prepared.chunks.add(source, None, target, true);
            return;
        }
        let mut at = target;
        self.registered.cut(source, |part, is_lent| {
            if is_lent {
                prepared.direct.push(Direct { source: part, target: at });
            } else {
                prepared.chunks.add(part, None, at, false);
            }
            at += part.len() as u64;
        });
    }

    /// Windows for the program that was prepared last.
    pub(crate) fn windows(&self) -> Option<&Windows> {
        self.windows.as_ref()
    }

    /// Makes room for `bytes` of inputs and outputs; no copy is in flight.
    pub(crate) fn reserve_transfer(&mut self, bytes: usize) {
        let has_room = self.transfer.as_ref().is_some_and(|buffer| buffer.bytes() >= bytes);
        if bytes == 0 || has_room {
            return;
        }
        self.transfer = None;
        let buffer = HostBuffer::new(&self.context, bytes, TRANSFER_PINNED_MAX);
        // Where windows were refused too, that is one matter.
        if !buffer.is_pinned() && self.is_pinned {
            self.notice(format!(
                "{bytes} bytes for inputs and outputs cannot be pinned; they are copied from ordinary memory"
            ));
        }
        self.transfer = Some(buffer);
    }

    /// Memory for inputs and outputs.
    pub(crate) fn transfer(&mut self) -> Option<&mut HostBuffer> {
        self.transfer.as_mut()
    }
}

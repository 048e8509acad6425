//! What doctor has seen, before anything is judged.

use plimsoll_device::Reading;
use plimsoll_graph::{DType, PhaseKind};

/// Where the runs were carried out, and what follows for what can be known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In an arena of RAM, which is its VRAM.
    Cpu,
    /// On a card.
    Cuda,
    /// On a virtual clock, without memory.
    Sim,
}

/// Everything that was seen.
#[derive(Clone, Debug)]
pub(crate) struct Evidence {
    pub(crate) place: Place,
    /// Whether the predicted seconds rest on rates that were measured on this machine.
    pub(crate) has_own_rates: bool,
    /// What ops compute and write.
    pub(crate) run_dtype: DType,
    pub(crate) components: Vec<Component>,
    pub(crate) runs: Vec<Observed>,
}

/// What a run's plan says.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Predicted {
    /// Highest byte of the arena.
    pub(crate) arena_bytes: u64,
    /// Of the process, with what it takes beside the arena.
    pub(crate) process_bytes: u64,
    /// Of that, what the driver and libraries take with the first run and may keep until the program ends: a context
    /// that a library holds as well is not given back before.
    pub(crate) kept_bytes: u64,
    /// Of the whole run.
    pub(crate) copied_bytes: u64,
    /// Of a step.
    pub(crate) seconds_per_step: f64,
}

/// A component's numbers.
#[derive(Clone, Debug)]
pub(crate) struct Component {
    pub(crate) name: String,
    /// What most of its weights' bytes should be, by its files and by what was asked for; `None` where nobody says.
    pub(crate) expected: Option<DType>,
    /// Bytes of weights that its ops read, by dtype, most bytes first; empty where no op was seen.
    pub(crate) weights: Vec<(DType, u64)>,
    /// Ops by the dtype of what they wrote, most ops first.
    pub(crate) results: Vec<(DType, u64)>,
}

/// One run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observed {
    pub(crate) plan_id: String,
    /// By its own plan: a card that is opened anew may reserve a little more or less.
    pub(crate) predicted: Predicted,
    /// Before anything was taken.
    pub(crate) idle: Reading,
    /// While it ran, in order of time.
    pub(crate) samples: Vec<Placed>,
    /// After everything was given back.
    pub(crate) idle_again: Reading,
    /// Highest byte that was touched, by a scan of the arena.
    pub(crate) high_water_bytes: u64,
    /// Bytes that arrived through the copy lane.
    pub(crate) copied_bytes: u64,
    pub(crate) seconds_per_step: f64,
    /// Digests of the last latents; none where nothing is computed.
    pub(crate) latents: Vec<String>,
}

/// A sample that fell into a phase.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed {
    pub(crate) phase: PhaseKind,
    /// From 0; 0 outside of the step loop.
    pub(crate) step: u32,
    pub(crate) vram: Reading,
    /// Host memory of this process that is no file's.
    pub(crate) ram_bytes: Option<u64>,
}

/// Whose figure is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// This process's own.
    Process,
    /// All of the device's, others' included.
    Device,
}

impl Scope {
    pub(crate) fn of(self, reading: Reading) -> Option<u64> {
        match self {
            Self::Process => reading.process_bytes,
            Self::Device => reading.device_bytes,
        }
    }
}

impl Evidence {
    /// The narrowest figure that every reading has: one that comes and goes would be judged against another's.
    pub(crate) fn scope(&self) -> Option<Scope> {
        let readings = || {
            self.runs.iter().flat_map(|run| {
                let samples = run.samples.iter().map(|sample| sample.vram);
                samples.chain([run.idle, run.idle_again])
            })
        };
        [Scope::Process, Scope::Device]
            .into_iter()
            .find(|scope| readings().all(|reading| scope.of(reading).is_some()))
    }
}

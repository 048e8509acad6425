//! Where a run is carried out, and what the planner is told about it.

use plimsoll_cuda_kernels::{Arch, Backends, GemmBackend, Sdpa, library_attentions};
use plimsoll_device::cpu::CpuMachine;
use plimsoll_device::sim::SimFaults;
use plimsoll_device_cuda::loader::LibraryOptions;
use plimsoll_device_cuda::profile::{CardProfile, ProfileError};
use plimsoll_device_cuda::{Card, CardOptions, CudaError, CudaMachine};
use plimsoll_graph::Graph;
use plimsoll_host::SharedMapping;
use plimsoll_pipeline::{Assembled, PipelineError, Target};
use plimsoll_plan::{Bytes, Line, Machine, PlanError};

use crate::args::{DeviceName, HostTierName, KernelsName, RunArgs};
use crate::failure::Failure;
use crate::{out, request};

/// What `--device` means on this machine.
pub(crate) enum Executor {
    Cpu {
        workers: usize,
    },
    Sim {
        workers: usize,
    },
    Cuda(Box<Card>),
    /// A card that is not here, for plans.
    Absent(Box<CardProfile>),
}

impl Executor {
    /// The device that carries a run out.
    pub(crate) fn find(args: &RunArgs) -> Result<Self, Failure> {
        Self::find_for(args, Expected::default())
    }

    /// As [`Executor::find`], for a run of which something is known.
    pub(crate) fn find_for(args: &RunArgs, expected: Expected) -> Result<Self, Failure> {
        match args.device {
            DeviceName::Auto => match open(args, 0, expected) {
                Ok(card) => Ok(Self::Cuda(card)),
                Err(error) => {
                    if error != CudaError::NoDriver {
                        out::notice(&format!("the CPU is used: {error}"));
                    }
                    Ok(Self::Cpu { workers: request::workers(args)? })
                }
            },
            DeviceName::Cuda(index) => {
                open(args, index, expected).map(Self::Cuda).map_err(Failure::Cuda)
            }
            DeviceName::Cpu => Ok(Self::Cpu { workers: request::workers(args)? }),
            DeviceName::Sim => Ok(Self::Sim { workers: request::workers(args)? }),
        }
    }

    /// The device that a plan is for, which need not be on this machine.
    pub(crate) fn find_for_plan(args: &RunArgs) -> Result<Self, Failure> {
        match (Self::find(args), args.device) {
            (Err(Failure::Cuda(CudaError::NoDriver)), DeviceName::Cuda(_)) => {
                let profile = CardProfile::nearest("");
                out::notice(&format!(
                    "no NVIDIA driver here: planned for {} as measured ({})",
                    profile.name, profile.source,
                ));
                Ok(Self::Absent(Box::new(profile)))
            }
            (found, _) => found,
        }
    }

    /// Name, as `--device` takes it.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Cpu { .. } => "cpu",
            Self::Sim { .. } => "sim",
            Self::Cuda(_) | Self::Absent(_) => "cuda",
        }
    }

    /// Whether its memory is the host's.
    pub(crate) fn shares_ram(&self) -> bool {
        self.name() != "cuda"
    }

    /// Whether the seconds that it predicts rest on rates that were measured on this machine.
    pub(crate) fn has_own_rates(&self, args: &RunArgs) -> bool {
        match self {
            Self::Cpu { .. } => args.calibrate,
            Self::Cuda(card) => matches!(profile(card.name()), Ok(Some(_))),
            Self::Sim { .. } | Self::Absent(_) => false,
        }
    }

    /// Whether pictures come of it.
    pub(crate) fn computes(&self) -> bool {
        matches!(self, Self::Cpu { .. } | Self::Cuda(_))
    }

    /// The machine whose rates and memory a plan is for.
    pub(crate) fn machine(
        &self,
        args: &RunArgs,
        graph: &Graph,
    ) -> Result<Box<dyn Machine>, Failure> {
        match self {
            Self::Cpu { workers } | Self::Sim { workers } => {
                let machine = if args.calibrate {
                    CpuMachine::calibrate(graph, *workers).map_err(PipelineError::from)?
                } else {
                    CpuMachine::default_rates(*workers)
                };
                Ok(Box::new(machine.with_vram_bytes(request::ram_bytes())))
            }
            Self::Cuda(card) => Ok(Box::new(live(card))),
            Self::Absent(profile) => {
                let backends = match args.kernels {
                    KernelsName::Auto => Backends::libraries(Arch::named(&profile.arch)),
                    KernelsName::Own => Backends::own(Arch::named(&profile.arch)),
                };
                Ok(Box::new(CudaMachine::new((**profile).clone(), backends, "")))
            }
        }
    }

    /// Free and total bytes of a card that is shared with others, which a plan then has to do with.
    pub(crate) fn shared(&self) -> Option<Shared> {
        let Self::Cuda(card) = self else { return None };
        let (free_bytes, total_bytes) = (card.free_bytes().ok()?, card.total_bytes());
        let room_bytes = card.room_bytes();
        (room_bytes < total_bytes).then_some(Shared { free_bytes, room_bytes, total_bytes })
    }

    /// The device itself.
    pub(crate) fn target(self) -> Result<Target, Failure> {
        match self {
            Self::Cpu { workers } => Ok(Target::Cpu { workers }),
            Self::Sim { .. } => Ok(Target::Sim(SimFaults::default())),
            Self::Cuda(card) => Ok(Target::Cuda(card)),
            Self::Absent(_) => Err(Failure::Cuda(CudaError::NoDriver)),
        }
    }
}

/// What a card can make ready while it opens.
#[derive(Default)]
pub(crate) struct Expected {
    /// Files of weights.
    files: Vec<SharedMapping>,
    attentions: Vec<Sdpa>,
}

impl Expected {
    /// Of a run of a model; nothing of one that cannot be made, which is told of in its time.
    pub(crate) fn of(args: &RunArgs, assembled: &Assembled) -> Self {
        let run = request::place_request(args, assembled.defaults()).run;
        // Own kernels ask for no library; any card's libraries are asked for the same.
        let attentions = assembled
            .graph(&run)
            .map(|graph| library_attentions(&graph, Backends::libraries(None)))
            .unwrap_or_default();
        Self { files: assembled.mappings(), attentions }
    }
}

/// Opens an NVIDIA card.
pub(crate) fn open(args: &RunArgs, index: u32, expected: Expected) -> Result<Box<Card>, CudaError> {
    let own = args.kernels == KernelsName::Own;
    let libraries = LibraryOptions {
        folders: args.cuda_lib_dir.clone(),
        without_cublas_lt: own,
        without_cudnn: own,
        ..LibraryOptions::default()
    };
    let Expected { files, attentions } = expected;
    let mut options = CardOptions {
        libraries,
        files,
        attentions,
        profiles: CardProfile::default_folder().ok(),
        ..CardOptions::default()
    };
    options.host.register = args.host_tier != HostTierName::Pinned;
    let card = Card::open(index, options)?;
    if !own && card.backends().gemm == GemmBackend::Own {
        out::notice(
            "cuBLASLt was not found: products are computed by own kernels, which are slower; `plimsoll probe` says where \
             it was looked for",
        );
    }
    Ok(Box::new(card))
}

/// What others leave of a card.
#[derive(Clone, Copy)]
pub(crate) struct Shared {
    free_bytes: u64,
    room_bytes: u64,
    total_bytes: u64,
}

impl Shared {
    /// A run that fits the card but not what is left of it now is not impossible: the card is busy.
    pub(crate) fn busy(self, line: Line, error: PipelineError) -> Failure {
        let smallest = match &error {
            PipelineError::Plan(PlanError::Infeasible { smallest_any_bytes, .. }) => {
                *smallest_any_bytes
            }
            _ => return error.into(),
        };
        let asked = line.bytes(self.total_bytes).unwrap_or(self.total_bytes);
        if !(self.room_bytes + 1..=asked).contains(&smallest) {
            return error.into();
        }
        let held = self.room_bytes.saturating_sub(self.free_bytes);
        Failure::Cuda(CudaError::Busy {
            needed_bytes: smallest.saturating_sub(held),
            free_bytes: self.free_bytes,
            total_bytes: self.total_bytes,
        })
    }
}

/// A card that is here, with its own profile where `probe` has left one.
pub(crate) fn live(card: &Card) -> CudaMachine {
    let profile = match profile(card.name()) {
        Ok(Some(profile)) => profile,
        Ok(None) => CardProfile::nearest(card.name()),
        Err(error) => {
            out::notice(&error.to_string());
            CardProfile::nearest(card.name())
        }
    };
    let libraries = card.libraries().arithmetic();
    CudaMachine::new(
        CardProfile {
            name: card.name().to_owned(),
            arch: card.arch().name().to_owned(),
            ..profile
        },
        card.backends(),
        &libraries,
    )
    .with_memory(room(card), card.reserved_bytes())
}

/// Bytes of the card that a plan is for; a person is told where others hold much of it.
fn room(card: &Card) -> u64 {
    let (room, total) = (card.room_bytes(), card.total_bytes());
    if room < total {
        out::notice(&format!(
            "other processes hold {} of the card's {}: planned for the {} that are left",
            Bytes(total - room),
            Bytes(total),
            Bytes(room),
        ));
    }
    room
}

fn profile(name: &str) -> Result<Option<CardProfile>, ProfileError> {
    match CardProfile::default_folder() {
        Ok(folder) => CardProfile::load(&folder, name),
        // A machine without a home has no profile.
        Err(_) => Ok(None),
    }
}

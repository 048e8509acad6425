//! Where a run is carried out, and what the planner is told about it.

use plimsoll_cuda_kernels::{AttentionBackend, Backends, GemmBackend};
use plimsoll_device::cpu::CpuMachine;
use plimsoll_device::sim::SimFaults;
use plimsoll_device_cuda::loader::LibraryOptions;
use plimsoll_device_cuda::profile::{CardProfile, ProfileError};
use plimsoll_device_cuda::{Card, CardOptions, CudaError, CudaMachine};
use plimsoll_graph::Graph;
use plimsoll_pipeline::{PipelineError, Target};
use plimsoll_plan::Machine;

use crate::args::{DeviceName, KernelsName, RunArgs};
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
        match args.device {
            DeviceName::Auto => match open(args, 0) {
                Ok(card) => Ok(Self::Cuda(card)),
                Err(error) => {
                    if error != CudaError::NoDriver {
                        out::notice(&format!("the CPU is used: {error}"));
                    }
                    Ok(Self::Cpu { workers: request::workers(args)? })
                }
            },
            DeviceName::Cuda(index) => open(args, index).map(Self::Cuda).map_err(Failure::Cuda),
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
                    KernelsName::Auto => {
                        Backends { gemm: GemmBackend::CublasLt, attention: AttentionBackend::Cudnn }
                    }
                    KernelsName::Own => {
                        Backends { gemm: GemmBackend::Own, attention: AttentionBackend::Own }
                    }
                };
                Ok(Box::new(CudaMachine::new((**profile).clone(), backends, "")))
            }
        }
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

/// Opens an NVIDIA card.
pub(crate) fn open(args: &RunArgs, index: u32) -> Result<Box<Card>, CudaError> {
    let own = args.kernels == KernelsName::Own;
    let libraries = LibraryOptions {
        folders: args.cuda_lib_dir.clone(),
        without_cublas_lt: own,
        without_cudnn: own,
        ..LibraryOptions::default()
    };
    Card::open(index, CardOptions { libraries, ..CardOptions::default() }).map(Box::new)
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
    .with_memory(card.total_bytes(), card.reserved_bytes())
}

fn profile(name: &str) -> Result<Option<CardProfile>, ProfileError> {
    match CardProfile::default_folder() {
        Ok(folder) => CardProfile::load(&folder, name),
        // A machine without a home has no profile.
        Err(_) => Ok(None),
    }
}

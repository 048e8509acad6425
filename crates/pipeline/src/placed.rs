//! A pipeline whose every byte has a place: it can run, and nothing can be attached to it.

use plimsoll_device::cpu::CpuDevice;
use plimsoll_device::sim::{SimCosts, SimDevice, SimFaults};
use plimsoll_device::{Control, Device, DeviceError, HostDType};
use plimsoll_device_cuda::{Card, CudaDevice};
use plimsoll_exec::{HostRun, Progress, WeightBytes, WeightSource};
use plimsoll_graph::Graph;
use plimsoll_host::DiskFiles;
use plimsoll_models::FluxRun;
use plimsoll_plan::{Line, Machine, Offload, Plan, Request, Timeline};
use plimsoll_weights::SCALE_SUFFIX;
use sha2::{Digest, Sha256};

use crate::assembled::{Assembled, COMPONENTS, catalog, host_rows};
use crate::failure::PipelineError;
use crate::generated::Generated;
use crate::image::Picture;
use crate::inputs::{Prompt, inputs};
use crate::packing::host_dtype;
use crate::planned::Planned;
use crate::saved;
use crate::tier::{DiskMachine, DiskShare};
use crate::tiling::{TileSides, Tiling, plan_tiled};

/// Bytes that an arena has above its plan, where the line leaves them.
///
/// The line may be far above what the plan needs; taking all of it would cost a person's RAM for nothing. The
/// margin stays, so that a run that left its plan would be seen.
const ARENA_MARGIN_BYTES: u64 = 16 << 20;

/// What a placement is for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlaceRequest {
    /// Sizes, steps, dtype.
    pub run: FluxRun,
    /// The line that device memory may not cross.
    pub line: Line,
    /// How weights reach the device.
    pub offload: Offload,
    /// Copy ahead of use.
    pub prefetch: bool,
    /// Give what components hand on to each other to the host as well: [`Generated::tensors`].
    ///
    /// The graph, and so the plan's id, has further outputs; the bits are the same.
    pub saves: bool,
    /// In which tiles pictures are decoded; `run.vae_tile` is set by it.
    pub tiling: Tiling,
}

/// Which device carries the plan out.
#[derive(Debug)]
pub enum Target {
    /// The CPU's reference arithmetic in an arena of RAM.
    Cpu {
        /// Threads of the compute lane.
        workers: usize,
    },
    /// An NVIDIA card.
    Cuda(Box<Card>),
    /// A virtual clock: nothing is computed.
    Sim(SimFaults),
}

/// A placement that failed, with the pipeline as it was.
#[derive(Debug)]
pub struct PlaceFailure {
    /// The pipeline.
    pub assembled: Box<Assembled>,
    /// What went wrong.
    pub error: PipelineError,
}

/// A pipeline with a proven plan and an arena.
pub struct Placed {
    assembled: Assembled,
    request: PlaceRequest,
    planned: Planned,
    device: Box<dyn Device>,
    /// The weight files, where some copies come from the disk.
    disk: Option<DiskFiles>,
    /// Whether a person knows of the disk.
    is_disk_told: bool,
    /// Bytes that the arena has above its plan.
    margin_bytes: u64,
    /// Of the device's notices.
    notices_told: usize,
}

impl std::fmt::Debug for Placed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Placed")
            .field("plan", &self.planned.plan.id)
            .field("device", &self.device.name())
            .finish_non_exhaustive()
    }
}

impl Assembled {
    /// Plans a run and proves the plan, without taking memory for it.
    ///
    /// # Errors
    /// Sizes that the model cannot take, or [`PlanError::Infeasible`](plimsoll_plan::PlanError).
    pub fn plan(
        &self,
        request: &PlaceRequest,
        machine: &dyn Machine,
    ) -> Result<Planned, PipelineError> {
        let run = &request.run;
        let asked =
            Request { line: request.line, offload: request.offload, prefetch: request.prefetch };
        let sides = TileSides::of(&self.model, run);
        let probes = if request.saves { &saved::PROBES[..] } else { &[] };
        let graph = |vae_tile| self.probed_graph(&FluxRun { vae_tile, ..*run }, probes);
        let mut planned = plan_tiled(request.tiling, sides, machine, &asked, &graph)?;
        let disk = self.disk_share(&planned.graph, &planned.plan)?;
        if let Some(disk) = disk {
            let machine = DiskMachine { machine, disk };
            planned = plan_tiled(request.tiling, sides, &machine, &asked, &graph)?;
            planned.disk = Some(disk);
        }
        prove(&planned.graph, &planned.plan, machine)?;
        Ok(planned)
    }

    /// Places the pipeline: plans, proves, takes the arena.
    ///
    /// # Errors
    /// As [`Assembled::plan`], and the device's own refusal; the pipeline comes back as it was.
    pub fn place(
        self,
        request: PlaceRequest,
        machine: &dyn Machine,
        target: Target,
    ) -> Result<Placed, PlaceFailure> {
        // Mappings are shared handles: the card keeps the pages that it borrows alive.
        let mappings = self.host.mappings();
        // On a card what is taken counts, whether or not it is touched.
        let margin_bytes = if matches!(target, Target::Cuda(_)) { 0 } else { ARENA_MARGIN_BYTES };
        self.place_with(request, machine, margin_bytes, |planned, arena_bytes| {
            Ok(match target {
                Target::Cpu { workers } => Box::new(CpuDevice::new(arena_bytes, workers)?),
                Target::Cuda(card) => {
                    let plan = &planned.plan;
                    card.require_line(plan.predicted.vram_process_bytes)?;
                    card.try_files(&mappings);
                    let mut device = CudaDevice::new(*card, arena_bytes)?;
                    device.set_mappings(&mappings);
                    Box::new(device)
                }
                Target::Sim(faults) => Box::new(simulated(planned, arena_bytes, machine, faults)),
            })
        })
    }

    /// As [`Assembled::place`], on a device that `device` makes for a plan and the size of its arena.
    ///
    /// # Errors
    /// As [`Assembled::place`].
    pub fn place_on(
        self,
        request: PlaceRequest,
        machine: &dyn Machine,
        device: impl FnOnce(&Planned, u64) -> Result<Box<dyn Device>, DeviceError>,
    ) -> Result<Placed, PlaceFailure> {
        self.place_with(request, machine, ARENA_MARGIN_BYTES, device)
    }

    fn place_with(
        self,
        request: PlaceRequest,
        machine: &dyn Machine,
        margin_bytes: u64,
        device: impl FnOnce(&Planned, u64) -> Result<Box<dyn Device>, DeviceError>,
    ) -> Result<Placed, PlaceFailure> {
        let made = self.plan(&request, machine).and_then(|planned| {
            let plan = &planned.plan;
            let wanted = plan.arena_bytes.saturating_add(margin_bytes);
            let device = device(&planned, plan.arena_line_bytes().min(wanted))?;
            let disk = planned.disk.map(|_| DiskFiles::open(&self.host.mappings())).transpose()?;
            Ok((planned, device, disk))
        });
        match made {
            Ok((planned, device, disk)) => Ok(Placed {
                is_disk_told: disk.is_none(),
                assembled: self,
                request,
                planned,
                device,
                disk,
                margin_bytes,
                notices_told: 0,
            }),
            Err(error) => Err(PlaceFailure { assembled: Box::new(self), error }),
        }
    }
}

pub(crate) fn prove<'p>(
    graph: &'p Graph,
    plan: &'p Plan,
    machine: &dyn Machine,
) -> Result<plimsoll_verify::Verified<'p>, PipelineError> {
    let workspace_bytes = |op: &_| machine.workspace_bytes(graph, op);
    plimsoll_verify::verify(graph, plan, machine.reserved_bytes(), &workspace_bytes)
        .map_err(|violation| PipelineError::Unsound(Box::new(violation)))
}

/// The simulated device with the durations that the machine states for each op and copy.
pub(crate) fn simulated(
    planned: &Planned,
    arena_bytes: u64,
    machine: &dyn Machine,
    faults: SimFaults,
) -> SimDevice {
    let Planned { graph, plan, disk } = planned;
    let from_disk = disk.map(|disk| DiskMachine { machine, disk });
    let machine = from_disk.as_ref().map_or(machine, |from_disk| from_disk);
    let op_seconds = graph.ops.iter().map(|op| machine.op_seconds(graph, op)).collect();
    let copy_seconds = plan
        .loads
        .iter()
        .map(|load| {
            let weights = &plan.units[load.unit as usize].weights;
            let weights = weights.iter().map(|placed| graph.weight(placed.weight));
            let (bytes, segments) = weights.fold((0, 0), |(bytes, segments), weight| {
                (bytes + weight.bytes(), segments + weight.parts.len() as u64)
            });
            machine.copy_seconds(bytes, segments)
        })
        .collect();
    let costs = SimCosts { op_seconds, copy_seconds, copy_share: machine.copy_share() };
    SimDevice::new(arena_bytes, costs, faults)
}

impl Placed {
    /// The plan that will be carried out.
    pub fn plan(&self) -> &Plan {
        &self.planned.plan
    }

    /// What the plan computes.
    pub fn graph(&self) -> &Graph {
        &self.planned.graph
    }

    /// What was asked for.
    pub fn request(&self) -> &PlaceRequest {
        &self.request
    }

    /// What the pipeline is asked for where a request says nothing.
    pub fn assembled(&self) -> &Assembled {
        &self.assembled
    }

    /// What of the streamed weights comes from the disk, where RAM cannot hold them.
    pub fn disk(&self) -> Option<DiskShare> {
        self.planned.disk
    }

    /// The predicted times of the plan's copies and ops, on the machine that it was made for.
    pub fn simulate(&self, machine: &dyn Machine) -> Timeline {
        let Planned { graph, plan, disk } = &self.planned;
        match *disk {
            Some(disk) => plimsoll_plan::simulate(graph, plan, &DiskMachine { machine, disk }),
            None => plimsoll_plan::simulate(graph, plan, machine),
        }
    }

    /// Lays another plan on the same device: its arena is given back and another taken, while the context, the
    /// libraries and the pages that are lent to it stay.
    ///
    /// # Errors
    /// As [`Assembled::place`]; the device is then closed.
    pub fn move_to(
        self,
        request: PlaceRequest,
        machine: &dyn Machine,
    ) -> Result<Self, PlaceFailure> {
        let Self { assembled, mut device, margin_bytes, notices_told, .. } = self;
        let moved = assembled.place_with(request, machine, margin_bytes, |planned, arena_bytes| {
            if device.computes() {
                device.retake(arena_bytes)?;
                return Ok(device);
            }
            // A clock has no arena, and the costs of its plan.
            Ok(Box::new(simulated(planned, arena_bytes, machine, SimFaults::default())))
        });
        moved.map(|placed| Self { notices_told, ..placed })
    }

    /// Gives the arena back and the pipeline with it, to attach something or place it otherwise.
    pub fn release(self) -> Assembled {
        self.assembled
    }

    /// Makes the pictures of a prompt.
    ///
    /// # Errors
    /// A prompt or number that makes no sense, a weight file that changed, or the run's own failure.
    ///
    /// # Cancel safety
    /// `control.cancel()` from any thread stops within one op; the placement can be used again.
    pub fn generate(
        &mut self,
        machine: &dyn Machine,
        prompt: &Prompt,
        control: &Control,
        trace: bool,
        observe: &mut dyn FnMut(Progress<'_>),
    ) -> Result<Generated, PipelineError> {
        let Planned { graph, plan, disk } = &self.planned;
        let verified = prove(graph, plan, machine)?;
        let inputs = inputs(&self.assembled, graph, &self.request.run, prompt)?;
        self.assembled.host.recheck()?;
        let source = CheckpointSource { assembled: &self.assembled };
        let host: Vec<&[u8]> = inputs.bytes.iter().map(Vec::as_slice).collect();
        let mut program = plimsoll_exec::bind(&verified, &source, host, trace)?;
        if let Some(share) = disk {
            program.disk = self.disk.as_ref();
            plimsoll_exec::choose_disk(&mut program, share.ram_bytes);
        }
        let report =
            plimsoll_exec::run(self.device.as_mut(), &program, &verified, control, observe)?;
        // A file that lost less than a page reads as zeros there, without a signal.
        self.assembled.host.recheck()?;

        let executed = match trace {
            true => plimsoll_exec::executed(graph, &program, &report.stats.spans),
            false => Vec::new(),
        };
        let mut generated = Generated {
            pictures: Vec::new(),
            latent_sha256: Vec::new(),
            latents: Vec::new(),
            report,
            held_bytes: self.device.held_bytes(),
            tensors: Vec::new(),
            executed,
            notices: inputs.notices,
        };
        if let Some(share) = disk.filter(|_| !self.is_disk_told) {
            generated.notices.push(share.notice(plan.predicted.seconds_per_step));
            self.is_disk_told = true;
        }
        // Each is told once, by the run in which it came up.
        let notices = self.device.notices();
        generated.notices.extend_from_slice(notices.get(self.notices_told..).unwrap_or_default());
        self.notices_told = notices.len();
        if !self.device.computes() {
            return Ok(generated);
        }
        let side = |pixels: u64| u32::try_from(pixels).unwrap_or(u32::MAX);
        let run = &self.request.run;
        if self.request.saves {
            generated.tensors = saved::tensors(graph, &inputs.bytes, &program.outputs, run)?;
        }
        for (output, buffer) in graph.outputs.iter().zip(&program.outputs) {
            let bytes = match buffer.bytes.lock() {
                Ok(bytes) => bytes,
                Err(poisoned) => poisoned.into_inner(),
            };
            if !matches!(output.name.as_str(), "latent" | "image") {
                continue;
            }
            let values: Vec<f32> = bytemuck::allocation::pod_collect_to_vec(&bytes);
            if output.name == "latent" {
                let digest = Sha256::digest(&**bytes);
                let digest = digest.iter().map(|byte| format!("{byte:02x}")).collect();
                generated.latent_sha256.push(digest);
                generated.latents.push(values);
            } else {
                generated.pictures.push(Picture::from_f32(
                    &values,
                    side(run.width),
                    side(run.height),
                )?);
            }
        }
        Ok(generated)
    }
}

/// Looks tensors up in the checkpoint's catalogs and files.
pub(crate) struct CheckpointSource<'a> {
    pub(crate) assembled: &'a Assembled,
}

impl<'a> WeightSource<'a> for CheckpointSource<'a> {
    fn bytes(&self, component: &str, entry: &str) -> Option<WeightBytes<'a>> {
        let assembled = self.assembled;
        let at = COMPONENTS.iter().position(|name| *name == component)?;
        let catalog = catalog(&assembled.checkpoint, component).ok()?;
        // The scales of a matrix that is put in 8 bits by the copy are in no file: they come from its rows.
        let of_scales = || {
            let matrix = entry.strip_suffix(SCALE_SUFFIX)?;
            let found =
                catalog.get(matrix).filter(|_| assembled.narrows_entry(component, matrix))?;
            Some((found, HostDType::Scales(host_rows(found)?)))
        };
        let of_entry = || {
            let found = catalog.get(entry)?;
            let narrows = assembled.narrows_entry(component, entry);
            let dtype = if narrows {
                HostDType::Codes(host_rows(found)?)
            } else {
                host_dtype(found.dtype)?
            };
            Some((found, dtype))
        };
        let (entry, dtype) = of_entry().or_else(of_scales)?;
        let pieces = entry
            .pieces
            .iter()
            .map(|piece| {
                let blob = assembled.host.blob(at, piece.blob).ok()?;
                HostRun::new(blob, piece.offset, piece.bytes)
            })
            .collect::<Option<_>>()?;
        Some(WeightBytes { dtype, pieces })
    }
}

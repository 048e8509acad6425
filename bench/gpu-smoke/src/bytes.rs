//! Part (d): device bytes that nobody asked for by name - the context, modules, libraries, graphs.
//!
//! One process, one thing after another; each row is the growth since the row before, less what we took ourselves.
//! The driver's own figure (`cuMemGetInfo`) is beside NVML's for the device and for this process, since the line is measured on the last.

use std::path::Path;

use crate::attention::{self, Operands, Way};
use crate::dnn::Dnn;
use crate::error::{Error, Result};
use crate::file::Mapping;
use crate::gpu::{Arena, Argument, Event, Gpu, Kernels, Stream, mib};
use crate::lanes;
use crate::library::Libraries;
use crate::lt::{Call, Epilogue, Kind, Lt, Side};
use crate::process::{Meter, status_bytes};

const LAYERS: [(u64, u64); 6] =
    [(3072, 9216), (3072, 3072), (3072, 12288), (12288, 3072), (3072, 21504), (15360, 3072)];
const ARENA_BYTES: u64 = 1 << 30;
const WORKSPACE_BYTES: u64 = 32 << 20;

/// The growing account.
struct Ledger {
    meter: Meter,
    driver: u64,
    device: u64,
    process: u64,
}

impl Ledger {
    fn open() -> Self {
        let meter = Meter::open();
        let device = meter.device_used_bytes().unwrap_or(0);
        println!(
            "driver {} | device in use at rest {:.1} MiB",
            meter.driver().unwrap_or_default(),
            mib(device)
        );
        println!(
            "| what | driver MiB | NVML device MiB | NVML process MiB | of it ours | process total | host RSS MiB |\n|---|---|---|---|---|---|---|"
        );
        Self { meter, driver: 0, device, process: 0 }
    }

    /// Prints the growth since the last row, of which `own` bytes were allocated on purpose.
    fn row(&mut self, gpu: &Gpu, what: &str, own: u64) -> Result<()> {
        gpu.synchronize()?;
        let driver = gpu.used_bytes()?;
        let device = self.meter.device_used_bytes().unwrap_or(0);
        let process = self.meter.process_bytes().unwrap_or(0);
        let grown = |now: u64, before: u64| (now as f64 - before as f64) / f64::from(1 << 20);
        println!(
            "| {what} | {:.2} | {:.2} | {:.2} | {:.2} | {:.1} | {:.0} |",
            grown(driver, self.driver),
            grown(device, self.device),
            grown(process, self.process),
            mib(own),
            mib(process),
            mib(status_bytes("VmRSS").unwrap_or(0))
        );
        (self.driver, self.device, self.process) = (driver, device, process);
        Ok(())
    }
}

/// Runs the part and prints its table.
pub(crate) fn run(libraries: &Libraries, path: &Path) -> Result<()> {
    let mut ledger = Ledger::open();
    let gpu = Gpu::start()?;
    ledger.row(&gpu, "context (first row: all of it)", 0)?;
    let kernels = Kernels::load()?;
    ledger.row(&gpu, "own module of 11 kernels loaded", 0)?;
    let mut arena = Arena::new(ARENA_BYTES)?;
    ledger.row(&gpu, "arena, one cuMemAlloc", ARENA_BYTES)?;
    let stream = Stream::new()?;
    let _second = Stream::new()?;
    ledger.row(&gpu, "two streams", 0)?;
    (0..128).try_for_each(|_| Event::new().map(drop))?;
    ledger.row(&gpu, "128 events", 0)?;
    let target = arena.take(400 << 20)?;
    let fill = [
        Argument::Word(target),
        Argument::Word(200 << 20),
        Argument::Word(1),
        Argument::Float(1.0),
    ];
    kernels.launch("fill_bf16", (1024, 256, 0), &fill, stream)?;
    ledger.row(&gpu, "first own launch", 0)?;
    products(libraries, &gpu, &mut ledger, &mut arena, target, stream)?;
    graphs(&gpu, &mut ledger, path)?;
    if let Err(error) = attentions(libraries, &gpu, &mut ledger, &kernels, stream) {
        println!("| cuDNN: {error} |");
    }
    Ok(())
}

fn products(
    libraries: &Libraries,
    gpu: &Gpu,
    ledger: &mut Ledger,
    arena: &mut Arena,
    target: u64,
    stream: Stream,
) -> Result<()> {
    libraries.blas_lt()?;
    let lt = Lt::new()?;
    ledger.row(gpu, "cuBLASLt opened, handle", 0)?;
    let out = arena.take(4608 * 21504 * 2)?;
    let workspace = arena.take(WORKSPACE_BYTES)?;
    let side = Side { bias: target, x_scale: target, w_scale: target };
    for (kind, name) in [(Kind::Bf16, "bf16"), (Kind::Fp8Rows { fast: false }, "fp8 rows")] {
        for rows in [4608, 512, 1] {
            for (index, (depth, columns)) in LAYERS.into_iter().enumerate() {
                let product = Lt::product(kind, (rows, columns, depth), Epilogue::Bias, side)?;
                let Some(candidate) =
                    lt.candidates(&product, WORKSPACE_BYTES, false, 1)?.into_iter().next()
                else {
                    continue;
                };
                if index == 0 && rows == 4608 {
                    ledger.row(gpu, &format!("{name}: heuristic asked"), 0)?;
                }
                let call =
                    Call { x: target, w: target, out, workspace, workspace_bytes: WORKSPACE_BYTES };
                lt.run(&product, &candidate.algorithm, call, stream)?;
                if index == 0 {
                    ledger.row(gpu, &format!("{name}: first product of {rows} rows"), 0)?;
                }
            }
            ledger.row(gpu, &format!("{name}: five more layers of {rows} rows"), 0)?;
        }
    }
    Ok(())
}

fn graphs(gpu: &Gpu, ledger: &mut Ledger, path: &Path) -> Result<()> {
    let block_bytes = 3072 * 3072 * 2;
    Mapping::create(path, 57 * block_bytes, 8)?;
    let mapping = Mapping::open(path)?;
    mapping.register(57 * block_bytes)?;
    ledger.row(gpu, "1026 MiB of a file registered", 0)?;
    let rig = lanes::Rig::new(mapping, block_bytes, 3)?;
    let out_bytes = 4608 * 3072 * 2;
    ledger.row(
        gpu,
        "slots and operands of a small step",
        3 * rig.block_bytes + 2 * out_bytes + (4 << 20),
    )?;
    let mut kept = Vec::new();
    for products in [1, 25, 25] {
        let shape = lanes::Shape { products, ..lanes::Shape::PLAIN };
        let graph = rig.capture(shape, 0, lanes::BLOCKS)?;
        let size = format!("graph of {} nodes, {} edges", graph.node_count, graph.edge_count);
        ledger.row(gpu, &format!("{size}: instantiated"), 0)?;
        graph.upload(rig.stream())?;
        ledger.row(gpu, &format!("{size}: uploaded"), 0)?;
        rig.fill_slots(shape)?;
        graph.launch(rig.stream())?;
        graph.launch(rig.stream())?;
        ledger.row(gpu, &format!("{size}: launched twice"), 0)?;
        kept.push(graph);
    }
    drop(kept);
    ledger.row(gpu, "graphs destroyed", 0)?;
    rig.unregister(57 * block_bytes)?;
    ledger.row(gpu, "file unregistered", 0)?;
    std::fs::remove_file(path)
        .map_err(|source| Error::Io { what: format!("removing {}", path.display()), source })
}

fn attentions(
    libraries: &Libraries,
    gpu: &Gpu,
    ledger: &mut Ledger,
    kernels: &Kernels,
    stream: Stream,
) -> Result<()> {
    libraries.dnn()?;
    let dnn = Dnn::new()?;
    ledger.row(gpu, "cuDNN opened, handle", 0)?;
    dnn.set_stream(stream)?;
    let bytes = attention::OPERAND_BYTES + (1 << 20);
    let mut arena = Arena::new(bytes)?;
    let operands = Operands::take(&mut arena, kernels, stream)?;
    ledger.row(gpu, "operands of an attention", bytes)?;
    for way in [Way::Unified, Way::Pattern] {
        let plans = match attention::plans(&dnn, way, attention::Shape::PLAIN) {
            Ok(plans) => plans,
            Err(error) => {
                println!("| {way:?}: {error} |");
                continue;
            }
        };
        ledger.row(gpu, &format!("{way:?} attention: {} plans built", plans.len()), 0)?;
        if let Some(plan) = plans.into_iter().find_map(Result::ok) {
            operands.run(&dnn, &plan, operands.out())?;
            ledger.row(gpu, &format!("{way:?} attention: first run"), 0)?;
        }
    }
    Ok(())
}

//! Intermediate results of a run on the CPU, for comparing with a reference.

use std::collections::BTreeMap;

use plimsoll_device::Control;
use plimsoll_device::cpu::{CpuDevice, CpuMachine};
use plimsoll_graph::DType;
use plimsoll_models::FluxRun;
use plimsoll_plan::{Line, Offload, Request};

use crate::assembled::Assembled;
use crate::failure::PipelineError;
use crate::inputs::{Prompt, inputs};
use crate::placed::{CheckpointSource, prove};

/// A matrix of results.
#[derive(Clone, Debug, PartialEq)]
pub struct Probed {
    /// Rows.
    pub rows: u64,
    /// Columns.
    pub cols: u64,
    /// Values, row-major, widened to f32.
    pub values: Vec<f32>,
}

/// What is looked at, and what is put in place of the host's own inputs.
#[derive(Clone, Debug, Default)]
pub struct Probe<'a> {
    /// `(block, op)` whose results are wanted.
    pub ops: Vec<(&'a str, &'a str)>,
    /// `(input, values)` in place of what the host would compute, where the input is in f32.
    pub overrides: Vec<(&'a str, &'a [f32])>,
}

/// Runs all resident on the CPU device; gives `image`, `latent` and each probed result as `BLOCK/OP`.
///
/// # Errors
/// As a run's, and for a probe that names no op.
///
/// # Panics
/// If an override has another length than its input.
pub fn probe(
    assembled: &Assembled,
    run: &FluxRun,
    prompt: &Prompt,
    probe: &Probe<'_>,
) -> Result<BTreeMap<String, Probed>, PipelineError> {
    let graph = assembled.probed_graph(run, &probe.ops)?;
    let machine = CpuMachine::default_rates(1);
    let request = Request { line: Line::Max, offload: Offload::None, prefetch: true };
    let plan = plimsoll_plan::plan(&graph, &machine, &request)?;
    let verified = prove(&graph, &plan, &machine)?;
    let mut inputs = inputs(assembled, &graph, run, prompt)?;
    for (name, values) in &probe.overrides {
        for (input, bytes) in graph.inputs.iter().zip(&mut inputs.bytes) {
            if input.name == *name {
                let replaced: &[u8] = bytemuck::cast_slice(values);
                assert_eq!(replaced.len(), bytes.len(), "bytes of input {name}");
                bytes.copy_from_slice(replaced);
            }
        }
    }
    let host = inputs.bytes.iter().map(Vec::as_slice).collect();
    let source = CheckpointSource { assembled };
    let program = plimsoll_exec::bind(&verified, &source, host, false)?;
    let mut device = CpuDevice::new(plan.arena_bytes, 1)?;
    let control = Control::default();
    plimsoll_exec::run(&mut device, &program, &verified, &control, &mut |_| ())?;

    let results = graph.outputs.iter().zip(&program.outputs).map(|(output, buffer)| {
        let bytes = match buffer.bytes.lock() {
            Ok(bytes) => bytes,
            Err(poisoned) => poisoned.into_inner(),
        };
        let values = match output.dtype {
            DType::BF16 => bytemuck::allocation::pod_collect_to_vec::<u8, half::bf16>(&bytes)
                .into_iter()
                .map(half::bf16::to_f32)
                .collect(),
            DType::F32 | DType::U32 | DType::F8E4M3 => {
                bytemuck::allocation::pod_collect_to_vec(&bytes)
            }
        };
        (output.name.clone(), Probed { rows: output.rows, cols: output.cols, values })
    });
    Ok(results.collect())
}

//! From a plan to a program: addresses for operands, host bytes for copies.

use std::sync::Mutex;

use plimsoll_device::{BoundCopy, BoundOp, HostDType, HostTable, Mat, OutputBuffer, Program};
use plimsoll_graph::{Coding, Graph, Part, RowSelect, View, Weight, WeightId};
use plimsoll_plan::{Load, Plan, Region};
use plimsoll_verify::Verified;

use crate::ExecError;
use crate::runs::{HostRun, Runs};

/// A checkpoint tensor in host memory.
#[derive(Clone, Debug)]
pub struct WeightBytes<'h> {
    /// Element type of the bytes.
    pub dtype: HostDType,
    /// Its runs of bytes, row-major one after the other.
    pub pieces: Vec<HostRun<'h>>,
}

/// Where the bytes of checkpoint tensors are.
pub trait WeightSource<'h> {
    /// The bytes of a canonical tensor of a component; `None` where the checkpoint lacks it.
    fn bytes(&self, component: &str, entry: &str) -> Option<WeightBytes<'h>>;
}

/// Binds a verified plan to host memory.
///
/// `inputs` are the host values in the order of the graph's inputs, row-major. With `trace`, the run keeps a
/// span for each copy and op.
///
/// Memory: one entry an op and a copy; outputs are taken here.
///
/// # Errors
/// [`ExecError::Weight`] for a tensor that is absent or has another size, [`ExecError::Input`] for an input
/// of another size.
pub fn bind<'h>(
    verified: &Verified<'_>,
    source: &dyn WeightSource<'h>,
    inputs: Vec<&'h [u8]>,
    trace: bool,
) -> Result<Program<'h>, ExecError> {
    let (graph, plan) = (verified.graph(), verified.plan());
    check_inputs(graph, &inputs)?;
    check_codings(graph)?;
    let placed = place_weights(graph, plan);
    let mut ops = Vec::with_capacity(graph.ops.len());
    for (op, workspace) in graph.ops.iter().zip(&plan.workspaces) {
        let at = ops.len();
        let bound = op.map(&mut |view, _| place_view(graph, plan, view), &mut |id: &WeightId| {
            let weight = graph.weight(*id);
            Mat {
                offset: placed(at, *id),
                rows: weight.rows,
                cols: weight.cols,
                stride: weight.cols,
                dtype: weight.dtype,
                step_bytes: 0,
            }
        });
        ops.push(BoundOp { op: bound, workspace: *workspace });
    }
    let mut uses = vec![0; plan.loads.len()];
    for copy in &plan.copies {
        uses[copy.load as usize] += 1;
    }
    let copies = plan
        .loads
        .iter()
        .zip(uses)
        .map(|(load, uses)| Ok(BoundCopy { uses, ..bind_copy(graph, plan, load, source)? }))
        .collect::<Result<_, ExecError>>()?;
    let tables = graph
        .tables
        .iter()
        .map(|table| bind_table(graph, table, source))
        .collect::<Result<_, _>>()?;
    let outputs = graph
        .outputs
        .iter()
        .map(|output| {
            let bytes = output.rows * output.cols * output.dtype.bytes();
            OutputBuffer { bytes: Mutex::new(vec![0; host_size(bytes)].into_boxed_slice()) }
        })
        .collect();
    let runs: u64 = plan
        .computes
        .iter()
        .map(|entry| {
            let visit = &plan.visits[entry.visit as usize];
            u64::from(visit.ops_end - visit.ops_start)
        })
        .sum();
    Ok(Program {
        ops,
        copies,
        inputs,
        tables,
        outputs,
        disk: None,
        steps: graph.steps,
        mark_names: mark_names(plan),
        mark_count: plan.phases.iter().map(|phase| phase.repeat).sum::<u32>() + 1,
        trace,
        command_count: runs + plan.copies.len() as u64,
    })
}

/// What begins at each mark: a phase, or a step of the loop.
fn mark_names(plan: &Plan) -> Vec<String> {
    let names = plan.phases.iter().flat_map(|phase| {
        (0..phase.repeat).map(|step| match phase.repeat {
            1 => phase.name.clone(),
            _ => format!("{} step {step}", phase.name),
        })
    });
    names.collect()
}

/// Weights in other codings are planned for now: no device has kernels that read them.
fn check_codings(graph: &Graph) -> Result<(), ExecError> {
    let coded = graph.weights.iter().find(|weight| weight.coding != Coding::Plain);
    coded.map_or(Ok(()), |weight| {
        Err(ExecError::Weight {
            component: graph.components[weight.component.index()].name.clone(),
            entry: weight.name.clone(),
            what: "its coding can be planned, not run".to_owned(),
        })
    })
}

fn check_inputs(graph: &Graph, inputs: &[&[u8]]) -> Result<(), ExecError> {
    let count = graph.inputs.len().max(inputs.len());
    for at in 0..count {
        let expected_bytes =
            graph.inputs.get(at).map_or(0, |input| input.rows * input.cols * input.dtype.bytes());
        let found_bytes = inputs.get(at).map_or(0, |bytes| bytes.len() as u64);
        if found_bytes != expected_bytes {
            let name = graph.inputs.get(at).map_or("(none)", |input| &input.name).to_owned();
            return Err(ExecError::Input { name, found_bytes, expected_bytes });
        }
    }
    Ok(())
}

/// Arena offset of a weight for an op: the visit of the op says which load holds it.
fn place_weights<'p>(graph: &Graph, plan: &'p Plan) -> impl Fn(usize, WeightId) -> u64 + use<'p> {
    let mut visit_of = vec![0usize; graph.ops.len()];
    for (at, visit) in plan.visits.iter().enumerate() {
        for op in visit.ops_start..visit.ops_end {
            visit_of[op as usize] = at;
        }
    }
    move |op, id| {
        let loads = &plan.visits[visit_of[op]].loads;
        let found = loads.iter().find_map(|load| {
            let load = &plan.loads[*load as usize];
            let unit = &plan.units[load.unit as usize];
            let weight = unit.weights.iter().find(|weight| weight.weight == id)?;
            Some(load.region.offset + weight.offset)
        });
        match found {
            Some(offset) => offset,
            None => unreachable!("verify has proved that a visit's loads hold its weights"),
        }
    }
}

fn place_view(graph: &Graph, plan: &Plan, view: &View) -> Mat {
    let tensor = graph.tensor(view.tensor);
    let width = tensor.dtype.bytes();
    let row_bytes = tensor.cols * width;
    let (row, step_bytes) = match view.row {
        RowSelect::At(row) => (row, 0),
        RowSelect::Step => (0, row_bytes),
    };
    Mat {
        offset: plan.tensors[view.tensor.index()].offset + row * row_bytes + view.col * width,
        rows: view.rows,
        cols: view.cols,
        stride: tensor.cols,
        dtype: tensor.dtype,
        step_bytes,
    }
}

fn fetch<'h>(
    component: &str,
    part: &Part,
    source: &dyn WeightSource<'h>,
) -> Result<WeightBytes<'h>, ExecError> {
    let problem = |what: String| ExecError::Weight {
        component: component.to_owned(),
        entry: part.entry.clone(),
        what,
    };
    let bytes =
        source.bytes(component, &part.entry).ok_or_else(|| problem("is missing".to_owned()))?;
    let expected = part.shape.iter().product::<u64>() * bytes.dtype.bytes();
    let found: u64 = bytes.pieces.iter().map(HostRun::len).sum();
    let whole = bytes.pieces.iter().all(|piece| piece.len().is_multiple_of(bytes.dtype.bytes()));
    if found != expected || !whole {
        return Err(problem(format!("{found} bytes in the file, expected {expected}")));
    }
    Ok(bytes)
}

fn bind_copy<'h>(
    graph: &Graph,
    plan: &Plan,
    load: &Load,
    source: &dyn WeightSource<'h>,
) -> Result<BoundCopy<'h>, ExecError> {
    let unit = &plan.units[load.unit as usize];
    let mut runs = Runs::default();
    let mut weights = Vec::with_capacity(unit.weights.len());
    let end = load.region.end();
    for placed in &unit.weights {
        let weight: &Weight = graph.weight(placed.weight);
        let component = &graph.components[weight.component.index()].name;
        let offset = load.region.offset + placed.offset;
        let mut target = offset;
        for part in &weight.parts {
            let bytes = fetch(component, part, source)?;
            for run in bytes.pieces {
                runs.add(run, [target, end], bytes.dtype, weight.dtype);
                target += run.len() / bytes.dtype.bytes() * weight.dtype.bytes();
            }
        }
        // The proof takes a weight for arrived when its copy is done: all of it.
        if target - offset != weight.bytes() {
            let (found, expected) = (target - offset, weight.bytes());
            return Err(ExecError::Weight {
                component: component.clone(),
                entry: weight.name.clone(),
                what: format!("its parts are {found} bytes of the {expected} that it takes"),
            });
        }
        weights.push(Region { offset, bytes: target - offset });
    }
    Ok(BoundCopy {
        name: unit.name.clone(),
        segments: runs.segments(),
        weights,
        target: load.region,
        uses: 0,
        from_disk: false,
    })
}

fn bind_table<'h>(
    graph: &Graph,
    table: &plimsoll_graph::Table,
    source: &dyn WeightSource<'h>,
) -> Result<HostTable<'h>, ExecError> {
    let component = &graph.components[table.component.index()].name;
    let bytes = fetch(component, &table.part, source)?;
    let &[rows, cols] = table.part.shape.as_slice() else {
        unreachable!("the graph has checked that a table is a matrix")
    };
    let row_bytes = cols * bytes.dtype.bytes();
    if let Some(piece) = bytes.pieces.iter().find(|piece| !piece.len().is_multiple_of(row_bytes)) {
        let what = format!("a piece of {} bytes splits a row of {row_bytes}", piece.len());
        let entry = table.part.entry.clone();
        return Err(ExecError::Weight { component: component.clone(), entry, what });
    }
    let pieces = bytes.pieces.iter().map(HostRun::bytes).collect();
    Ok(HostTable { pieces, dtype: bytes.dtype, rows, cols })
}

/// A host buffer's size; what does not fit `usize` does not fit memory either.
fn host_size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

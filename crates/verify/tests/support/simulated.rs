//! A plan on the simulated device: every op bound to its places, the lanes issued with their edges.

use plimsoll_device::sim::{SimCosts, SimDevice, SimFaults};
use plimsoll_device::{
    BoundCopy, BoundOp, Command, Control, Device, DeviceError, HostDType, HostTable, Lane, Mat,
    OutputBuffer, Program, Queue, RunStats, Segment,
};
use plimsoll_graph::{DType, Graph, OpKind, RowSelect, View, WeightId};
use plimsoll_plan::{Load, Machine, Plan, Region, Visit};

/// Runs a plan with made-up costs and these faults.
pub fn run(graph: &Graph, plan: &Plan, faults: SimFaults) -> Result<RunStats, DeviceError> {
    let costs = SimCosts {
        op_seconds: vec![1.0; graph.ops.len()],
        copy_seconds: vec![1.5; plan.loads.len()],
        copy_share: 0.25,
    };
    run_with(graph, plan, costs, faults)
}

/// The costs of a machine.
pub fn costs(graph: &Graph, plan: &Plan, machine: &dyn Machine) -> SimCosts {
    let copy = |load: &Load| {
        let weights = plan.units[load.unit as usize].weights.iter();
        let weights = weights.map(|entry| graph.weight(entry.weight));
        let (bytes, segments) = weights.fold((0, 0), |(bytes, segments), weight| {
            (bytes + weight.bytes(), segments + weight.parts.len() as u64)
        });
        machine.copy_seconds(bytes, segments)
    };
    SimCosts {
        op_seconds: graph.ops.iter().map(|op| machine.op_seconds(graph, op)).collect(),
        copy_seconds: plan.loads.iter().map(copy).collect(),
        copy_share: machine.copy_share(),
    }
}

/// Runs a plan; an op's costs stand at its index in the graph, a copy's at its load's.
pub fn run_with(
    graph: &Graph,
    plan: &Plan,
    costs: SimCosts,
    faults: SimFaults,
) -> Result<RunStats, DeviceError> {
    let largest = graph.weights.iter().map(|weight| weight.bytes()).max().unwrap_or(0);
    let source = vec![0u8; largest as usize];
    let program = bind(graph, plan, &source);
    let mut device = SimDevice::new(plan.arena_bytes, costs, faults);
    device.run(&program, &Control::default(), &mut |queue| issue(plan, queue))
}

/// Issues copies just before the first compute that waits for them.
fn issue(plan: &Plan, queue: &dyn Queue) -> Result<(), DeviceError> {
    let mut copies = plan.copies.iter();
    let mut issued = 0;
    let mut copy_up_to = |count: u32| {
        while issued < count {
            let Some(copy) = copies.next() else { return Ok(()) };
            if copy.after > 0 {
                let count = u64::from(copy.after);
                queue.enqueue(Lane::Copy, Command::Wait { lane: Lane::Compute, count })?;
            }
            queue.enqueue(Lane::Copy, Command::Copy { copy: copy.load, step: copy.step })?;
            queue.enqueue(Lane::Copy, Command::Signal)?;
            issued += 1;
        }
        Ok(())
    };
    for compute in &plan.computes {
        copy_up_to(compute.needs)?;
        if compute.needs > 0 {
            let count = u64::from(compute.needs);
            queue.enqueue(Lane::Compute, Command::Wait { lane: Lane::Copy, count })?;
        }
        let Visit { ops_start, ops_end, .. } = plan.visits[compute.visit as usize];
        for op in ops_start..ops_end {
            queue.enqueue(Lane::Compute, Command::Run { op, step: compute.step })?;
        }
        queue.enqueue(Lane::Compute, Command::Signal)?;
    }
    copy_up_to(u32::MAX)
}

fn bind<'h>(graph: &Graph, plan: &Plan, source: &'h [u8]) -> Program<'h> {
    let mut ops = Vec::new();
    for visit in &plan.visits {
        for index in visit.ops_start as usize..visit.ops_end as usize {
            let op = graph.ops[index]
                .map(&mut |view: &View, _| mat(graph, plan, view), &mut |id: &WeightId| {
                    weight(graph, plan, visit, *id)
                });
            let mut op = op;
            if let OpKind::Gather { table, ids, .. } = &mut op.kind {
                // Host sides are not looked at: one of each is enough.
                (table.0, ids.0) = (0, 0);
            }
            ops.push(BoundOp { op, workspace: plan.workspaces[index] });
        }
    }
    let copies = plan.loads.iter().map(|load| {
        let unit = &plan.units[load.unit as usize];
        let segments = unit.weights.iter().map(|entry| {
            let weight = graph.weight(entry.weight);
            Segment {
                source: &source[..weight.bytes() as usize],
                source_dtype: match weight.dtype {
                    DType::BF16 => HostDType::BF16,
                    DType::F32 => HostDType::F32,
                    DType::U32 => HostDType::U32,
                    DType::F8E4M3 => HostDType::F8E4M3,
                },
                target: load.region.offset + entry.offset,
                target_dtype: weight.dtype,
            }
        });
        let weights = unit.weights.iter().map(|entry| Region {
            offset: load.region.offset + entry.offset,
            bytes: graph.weight(entry.weight).bytes(),
        });
        BoundCopy {
            name: unit.name.clone(),
            segments: segments.collect(),
            weights: weights.collect(),
            target: load.region,
            uses: 1,
            from_disk: false,
        }
    });
    let table = HostTable { pieces: vec![], dtype: HostDType::F32, rows: 0, cols: 0 };
    let output = || OutputBuffer { bytes: std::sync::Mutex::new(vec![].into()) };
    Program {
        ops,
        copies: copies.collect(),
        inputs: vec![&[]; graph.inputs.len().max(1)],
        tables: vec![table],
        outputs: graph.outputs.iter().map(|_| output()).collect(),
        steps: graph.steps,
        ..Program::default()
    }
}

fn mat(graph: &Graph, plan: &Plan, view: &View) -> Mat {
    let tensor = graph.tensor(view.tensor);
    let width = tensor.dtype.bytes();
    let (row, step_bytes) = match view.row {
        RowSelect::At(row) => (row, 0),
        RowSelect::Step => (0, tensor.cols * width),
    };
    Mat {
        offset: plan.tensors[view.tensor.index()].offset + (row * tensor.cols + view.col) * width,
        rows: view.rows,
        cols: view.cols,
        stride: tensor.cols,
        dtype: tensor.dtype,
        step_bytes,
    }
}

fn weight(graph: &Graph, plan: &Plan, visit: &Visit, id: WeightId) -> Mat {
    let weight = graph.weight(id);
    let home = visit.loads.iter().find_map(|load| {
        let load = &plan.loads[*load as usize];
        let unit = &plan.units[load.unit as usize];
        let entry = unit.weights.iter().find(|entry| entry.weight == id)?;
        Some(load.region.offset + entry.offset)
    });
    Mat {
        offset: home.expect("verify has found it"),
        rows: weight.rows,
        cols: weight.cols,
        stride: weight.cols,
        dtype: weight.dtype,
        step_bytes: 0,
    }
}

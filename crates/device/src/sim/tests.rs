//! Tests: times by hand, planted faults, contents, contract.

use plimsoll_graph::{DType, InputId, Op, OpKind, OutputId};
use plimsoll_plan::Region;

use super::*;
use crate::contract::{BoundCopy, BoundOp, HostDType, Mat, OutputBuffer, Segment};

const SLOT: u64 = 256;
const BLOCKS: u32 = 4;
const STEPS: u32 = 3;

/// `[1, 64]` in `f32`: 256 bytes.
fn row(offset: u64) -> Mat {
    Mat { offset, rows: 1, cols: 64, stride: 64, dtype: DType::F32, step_bytes: 0 }
}

fn op(name: &str, kind: OpKind<Mat, Mat>) -> BoundOp {
    BoundOp { op: Op { name: name.to_owned(), kind }, workspace: Region::default() }
}

fn copy<'h>(name: &str, source: &'h [u8], target: u64) -> BoundCopy<'h> {
    let segment =
        Segment { source, source_dtype: HostDType::F32, target, target_dtype: DType::F32 };
    let target = Region { offset: target, bytes: source.len() as u64 };
    BoundCopy {
        name: name.to_owned(),
        segments: vec![segment],
        weights: vec![target],
        target,
        uses: 1,
        from_disk: false,
    }
}

/// A tensor at 0, `x += weight` for four blocks through two slots at 256 and 512, an output.
///
/// Ops: 0 is the input, `1..=4` the blocks, 5 the output. Copies: one a block.
fn two_slots(source: &[u8]) -> Program<'_> {
    let slot = |block: u32| SLOT + u64::from(block % 2) * SLOT;
    let mut ops = vec![op("input", OpKind::Input { input: InputId(0), out: row(0) })];
    for block in 0..BLOCKS {
        let kind = OpKind::AddWeight { a: row(0), weight: row(slot(block)), out: row(0) };
        ops.push(op(&format!("add.{block}"), kind));
    }
    ops.push(op("output", OpKind::Output { output: OutputId(0), x: row(0) }));
    Program {
        ops,
        copies: (0..BLOCKS).map(|b| copy(&format!("block.{b}"), source, slot(b))).collect(),
        inputs: vec![source],
        outputs: vec![OutputBuffer { bytes: std::sync::Mutex::new(vec![7; 256].into()) }],
        steps: STEPS,
        mark_count: 1,
        trace: true,
        command_count: 64,
        ..Program::default()
    }
}

/// Issues the loop: copy `n` waits for op `n - 2`, op `n` for copy `n`.
fn drive(queue: &dyn Queue) -> Result<(), DeviceError> {
    let mut issued = 0;
    queue.enqueue(Lane::Compute, Command::Run { op: 0, step: 0 })?;
    for step in 0..STEPS {
        for block in 0..BLOCKS {
            if issued >= 2 {
                let wait = Command::Wait { lane: Lane::Compute, count: issued - 1 };
                queue.enqueue(Lane::Copy, wait)?;
            }
            queue.enqueue(Lane::Copy, Command::Copy { copy: block, step: Some(step) })?;
            queue.enqueue(Lane::Copy, Command::Signal)?;
            issued += 1;
            queue.enqueue(Lane::Compute, Command::Wait { lane: Lane::Copy, count: issued })?;
            queue.enqueue(Lane::Compute, Command::Run { op: block + 1, step })?;
            queue.enqueue(Lane::Compute, Command::Signal)?;
        }
    }
    queue.enqueue(Lane::Compute, Command::Mark(0))?;
    queue.enqueue(Lane::Compute, Command::Run { op: BLOCKS + 1, step: 0 })?;
    queue.enqueue(Lane::Compute, Command::Signal)?;
    queue.wait(Lane::Compute, issued + 1)
}

fn costs(op: f64, copy: f64) -> SimCosts {
    let mut op_seconds = vec![op; BLOCKS as usize + 2];
    (op_seconds[0], op_seconds[BLOCKS as usize + 1]) = (0.0, 0.0);
    SimCosts { op_seconds, copy_seconds: vec![copy; BLOCKS as usize], copy_share: 0.0 }
}

fn run(device: &mut SimDevice, program: &Program<'_>) -> Result<RunStats, DeviceError> {
    device.run(program, &Control::default(), &mut drive)
}

#[test]
fn times_are_those_of_hand_calculation() {
    let source = [0u8; 256];
    let program = two_slots(&source);
    let count = f64::from(BLOCKS * STEPS);
    // Copies are slower: they follow each other, the last op comes after the last copy.
    let mut device = SimDevice::new(768, costs(1.0, 4.0), SimFaults::default());
    let stats = run(&mut device, &program).expect("runs");
    assert_eq!(stats.seconds, count * 4.0 + 1.0);
    // Ops are slower: after the first copy they follow each other.
    device.set_costs(costs(4.0, 1.0));
    let stats = run(&mut device, &program).expect("runs");
    assert_eq!(stats.seconds, 1.0 + count * 4.0);
    assert_eq!(stats.marks, [stats.seconds]);
    // Copy 0 and 1 at once, then copy n begins as op n - 2 ends.
    let starts: Vec<f64> = stats
        .spans
        .iter()
        .filter(|span| span.kind == SpanKind::Copy)
        .map(|span| span.start)
        .take(4)
        .collect();
    assert_eq!(starts, [0.0, 1.0, 5.0, 9.0]);
    // Copies that cost nothing: the ops alone.
    device.set_costs(costs(2.0, 0.0));
    assert_eq!(run(&mut device, &program).expect("runs").seconds, count * 2.0);
}

#[test]
fn a_copy_takes_its_share_of_the_ops_beside_it() {
    let source = [0u8; 256];
    let program = two_slots(&source);
    let count = f64::from(BLOCKS * STEPS);
    let seconds = |op, copy, copy_share| {
        let costs = SimCosts { copy_share, ..costs(op, copy) };
        let mut device = SimDevice::new(768, costs, SimFaults::default());
        run(&mut device, &program).expect("runs").seconds
    };
    // Every copy but the first runs beside an op and takes half of its own time from it.
    assert_eq!(seconds(4.0, 1.0, 0.5), 1.0 + count * 4.0 + (count - 1.0) * 0.5);
    assert_eq!(seconds(4.0, 1.0, 1.0), 1.0 + count * 4.0 + (count - 1.0));
    // Where ops wait for copies anyway there is nothing to take.
    assert_eq!(seconds(1.0, 4.0, 0.5), count * 4.0 + 1.0);
}

#[test]
fn counts_bytes_marks_and_spans() {
    let source = [0u8; 256];
    let program = two_slots(&source);
    let mut device = SimDevice::new(4096, costs(1.0, 2.0), SimFaults::default());
    let stats = run(&mut device, &program).expect("runs");
    assert_eq!(stats.copied_bytes, u64::from(BLOCKS * STEPS) * 256);
    assert_eq!(stats.copied_bytes_by_step, vec![u64::from(BLOCKS) * 256; STEPS as usize]);
    assert_eq!(stats.high_water_bytes, 768);
    assert_eq!(stats.spans.len() as u32, 2 * BLOCKS * STEPS + 2);
    assert!(stats.spans.is_sorted_by(|a, b| a.end <= b.end));
    assert_eq!(*program.outputs[0].bytes.lock().expect("lock"), vec![0; 256].into());
}

#[test]
fn a_good_program_passes_under_a_thousand_seeds() {
    let source = [0u8; 256];
    let program = two_slots(&source);
    let mut device = SimDevice::new(768, costs(1.0, 1.0), SimFaults::default());
    let quick = run(&mut device, &program).expect("runs").seconds;
    let mut longest = 0.0f64;
    for seed in 0..1000 {
        let faults = SimFaults {
            seed,
            copy_delay_seconds: 5.0,
            op_delay_seconds: f64::from(u32::from(seed % 2 == 0)) * 3.0,
            dropped_wait: None,
        };
        device.set_faults(faults);
        let stats = run(&mut device, &program).expect("no hazard");
        assert!(stats.seconds >= quick);
        longest = longest.max(stats.seconds);
        if seed % 100 == 0 {
            assert_eq!(stats, run(&mut device, &program).expect("no hazard"));
        }
    }
    assert!(longest > 2.0 * quick, "the delays do not matter: {longest}");
}

#[test]
fn each_missing_wait_is_found_at_any_speed() {
    let source = [0u8; 256];
    let program = two_slots(&source);
    let waits = u64::from(BLOCKS * STEPS * 2 - 2);
    let mut device = SimDevice::new(768, SimCosts::default(), SimFaults::default());
    let mut harmless = Vec::new();
    for dropped in 0..waits {
        for (op, copy) in [(1.0, 1.0), (1.0, 100.0), (100.0, 1.0)] {
            device.set_costs(costs(op, copy));
            device.set_faults(SimFaults { dropped_wait: Some(dropped), ..SimFaults::default() });
            match run(&mut device, &program) {
                Err(DeviceError::Hazard { first, second, offset }) => {
                    assert_ne!(first, second);
                    assert!((256..768).contains(&offset), "{offset}");
                }
                Err(other) => panic!("wait {dropped}: {other}"),
                Ok(_) => harmless.push(dropped),
            }
        }
    }
    assert_eq!(harmless, [] as [u64; 0]);
    device.set_faults(SimFaults { dropped_wait: Some(waits), ..SimFaults::default() });
    assert!(run(&mut device, &program).is_ok(), "there is no such wait");
}

#[test]
fn the_host_waits_in_time_but_orders_nothing() {
    let source = [0u8; 256];
    let program = two_slots(&source);
    let mut device = SimDevice::new(768, costs(1.0, 3.0), SimFaults::default());
    let mut seen = (0, 0.0, 0);
    let late = device.run(&program, &Control::default(), &mut |queue| {
        queue.enqueue(Lane::Copy, Command::Copy { copy: 0, step: None })?;
        queue.enqueue(Lane::Copy, Command::Signal)?;
        seen.0 = queue.copied_bytes();
        queue.wait(Lane::Copy, 1)?;
        (seen.1, seen.2) = (queue.seconds(), queue.copied_bytes());
        queue.enqueue(Lane::Compute, Command::Run { op: 0, step: 0 })?;
        queue.enqueue(Lane::Compute, Command::Wait { lane: Lane::Copy, count: 1 })?;
        queue.enqueue(Lane::Compute, Command::Run { op: 1, step: 0 })
    });
    let late = late.expect("ordered by the lane's own wait");
    assert_eq!(seen, (0, 3.0, 256));
    assert_eq!(late.spans[1].start, 3.0, "the input is issued after the host has waited");
    assert_eq!(late.copied_bytes_by_step, [0, 0, 0]);
    let unordered = device.run(&program, &Control::default(), &mut |queue| {
        queue.enqueue(Lane::Compute, Command::Run { op: 0, step: 0 })?;
        queue.enqueue(Lane::Copy, Command::Copy { copy: 0, step: None })?;
        queue.enqueue(Lane::Copy, Command::Signal)?;
        queue.wait(Lane::Copy, 1)?;
        queue.enqueue(Lane::Compute, Command::Run { op: 1, step: 0 })
    });
    assert!(matches!(unordered, Err(DeviceError::Hazard { .. })), "{unordered:?}");
}

/// Runs copies, then ops behind a wait; gives the message.
fn contents(program: &Program<'_>, copies: &[u32], ops: &[u32]) -> Result<RunStats, String> {
    let costs = SimCosts {
        op_seconds: vec![1.0; program.ops.len()],
        copy_seconds: vec![1.0; program.copies.len()],
        copy_share: 0.0,
    };
    let mut device = SimDevice::new(4096, costs, SimFaults::default());
    let stats = device.run(program, &Control::default(), &mut |queue| {
        for copy in copies {
            queue.enqueue(Lane::Copy, Command::Copy { copy: *copy, step: None })?;
        }
        queue.enqueue(Lane::Copy, Command::Signal)?;
        queue.enqueue(Lane::Compute, Command::Wait { lane: Lane::Copy, count: 1 })?;
        for op in ops {
            queue.enqueue(Lane::Compute, Command::Run { op: *op, step: 0 })?;
        }
        Ok(())
    });
    stats.map_err(|error| error.to_string())
}

#[test]
fn an_op_must_find_its_operands() {
    let source = [0u8; 768];
    let mut program = two_slots(&source[..256]);
    // Copy 4 brings 256 bytes, padding of 256, 128 bytes of bf16 from f32.
    let mut wide = copy("wide", &source[..256], 1024);
    wide.target.bytes = 640;
    wide.segments.push(Segment {
        source: &source[..256],
        source_dtype: HostDType::F32,
        target: 1536,
        target_dtype: DType::BF16,
    });
    wide.weights.push(Region { offset: 1536, bytes: 128 });
    program.copies.push(wide);
    // Ops 6 to 9 read weights at these offsets into row 0.
    for offset in [1024, 1280, 1152, 0] {
        let kind = OpKind::AddWeight { a: row(0), weight: row(offset), out: row(0) };
        program.ops.push(op(&format!("at.{offset}"), kind));
    }
    // Op 10 scribbles over slot 256, op 11 over the tensor.
    for offset in [256, 0] {
        let mut scribble = op("scribble", OpKind::Output { output: OutputId(0), x: row(2048) });
        scribble.op.kind = OpKind::Input { input: InputId(0), out: row(2048) };
        scribble.workspace = Region { offset, bytes: 16 };
        program.ops.push(scribble);
    }
    // Op 12 reads the segment of bf16, op 13 its second half, where no segment begins.
    let mut half = row(1536);
    half.dtype = DType::BF16;
    program.ops.push(op("bf16", OpKind::AddWeight { a: row(0), weight: half, out: row(0) }));
    half.offset += 64;
    half.cols = 32;
    let narrow = Mat { cols: 32, ..row(0) };
    program.ops.push(op("half", OpKind::AddWeight { a: narrow, weight: half, out: narrow }));

    let all = [0, 1, 4];
    let good = contents(&program, &all, &[0, 1, 2, 6, 12, 5]).expect("finds everything");
    assert_eq!(good.copied_bytes, 256 + 256 + 256 + 128);
    assert_eq!(good.high_water_bytes, 1536 + 256);
    for (copies, ops, expected) in [
        (
            &all[..],
            &[1][..],
            "op add.0 at step 0 reads byte 0, which holds nothing that was written",
        ),
        (&[1], &[0, 1], "op add.0 at step 0 reads byte 256, which holds nothing that was written"),
        (&all, &[0, 7], "op at.1280 at step 0 reads byte 1280, which holds padding of copy wide"),
        (&all, &[0, 8], "op at.1152 at step 0 reads byte 1280, which holds padding of copy wide"),
        (&all, &[0, 9], "op at.0 at step 0 reads byte 0, which holds a result of op input"),
        (
            &all,
            &[0, 10, 1],
            "op add.0 at step 0 reads byte 256, which holds scratch of op scribble",
        ),
        (&all, &[0, 11, 1], "op add.0 at step 0 reads byte 0, which holds scratch of op scribble"),
        (
            &all,
            &[0, 13],
            "op half at step 0 reads byte 1600, which holds weights of copy wide that are not its own",
        ),
    ] {
        assert_eq!(contents(&program, copies, ops).expect_err("wrong"), expected);
    }
}

#[test]
fn the_bytes_between_two_rows_need_not_be_written() {
    let source = [0u8; 256];
    // A `[4, 64]` buffer at 0 of which the first 32 columns are written in two halves, then read.
    let view = |first: u64, rows: u64, cols: u64| Mat { rows, cols, ..row(first * 256) };
    let mut program = two_slots(&source);
    program.ops = vec![
        op("top", OpKind::Input { input: InputId(0), out: view(0, 2, 32) }),
        op("bottom", OpKind::Input { input: InputId(0), out: view(2, 2, 32) }),
        op("narrow", OpKind::Output { output: OutputId(0), x: view(0, 4, 32) }),
        op("wide", OpKind::Output { output: OutputId(0), x: view(0, 4, 33) }),
    ];
    contents(&program, &[], &[0, 1, 2]).expect("all that is read was written");
    let error = contents(&program, &[], &[0, 1, 3]).expect_err("column 33");
    assert_eq!(error, "op wide at step 0 reads byte 384, which holds nothing that was written");
}

#[test]
fn a_rectangle_touches_its_rows_only() {
    // Rows of 3 bytes, 10 apart, from 100 on.
    let rect = operands::Rect { offset: 100, rows: 3, row_bytes: 3, pitch: 10, step_bytes: 1000 };
    assert_eq!(rect.extent(2), Region { offset: 2100, bytes: 23 });
    for start in 95..130u64 {
        for end in start..130 {
            let by_byte = (start..end)
                .any(|byte| (0..3).any(|row| (100 + row * 10..103 + row * 10).contains(&byte)));
            assert_eq!(rect.touches(0, start, end), by_byte, "{start}..{end}");
        }
    }
}

#[test]
fn what_breaks_the_contract_is_refused() {
    let source = [0u8; 256];
    let program = two_slots(&source);
    let refused = |commands: &[(Lane, Command)]| {
        let mut device = SimDevice::new(768, costs(1.0, 1.0), SimFaults::default());
        let error = device
            .run(&program, &Control::default(), &mut |queue| {
                // Going on after a failure does not hide it.
                for (lane, command) in commands {
                    let _ignored = queue.enqueue(*lane, *command);
                }
                Ok(())
            })
            .expect_err("refused");
        error.to_string()
    };
    let wait = |lane, count| Command::Wait { lane, count };
    for (lane, command, expected) in [
        (Lane::Copy, Command::Run { op: 0, step: 0 }, "the copy lane stopped: Run"),
        (Lane::Compute, Command::Copy { copy: 0, step: None }, "the compute lane stopped: Copy"),
        (Lane::Compute, Command::Run { op: 9, step: 0 }, "there is no op 9"),
        (Lane::Compute, Command::Run { op: 0, step: STEPS }, "step 3 of 3"),
        (Lane::Copy, Command::Copy { copy: 9, step: None }, "there is no copy 9"),
        (Lane::Copy, Command::Mark(1), "it has no mark 1"),
        (Lane::Copy, wait(Lane::Copy, 1), "it waits for itself"),
        (
            Lane::Copy,
            wait(Lane::Compute, 1),
            "signal 1 of the compute lane is awaited, 0 are issued",
        ),
    ] {
        let found = refused(&[(lane, command), (Lane::Copy, Command::Signal)]);
        assert!(found.contains(expected), "{found}");
    }
    assert!(
        run(&mut SimDevice::new(767, costs(1.0, 1.0), SimFaults::default()), &program).is_err()
    );
    let mut device = SimDevice::new(768, SimCosts::default(), SimFaults::default());
    assert!(matches!(run(&mut device, &program), Err(DeviceError::Unsupported { .. })));
}

#[test]
fn programs_that_leave_the_arena_are_refused() {
    let source = [0u8; 256];
    let build = |change: &dyn Fn(&mut Program<'_>)| {
        let mut program = two_slots(&source);
        change(&mut program);
        run(&mut SimDevice::new(768, costs(1.0, 1.0), SimFaults::default()), &program)
    };
    let input = |out: Mat| OpKind::Input { input: InputId(0), out };
    assert!(build(&|_| {}).is_ok());
    for change in [
        // The last step's row is outside.
        &(|p: &mut Program<'_>| p.ops[0].op.kind = input(Mat { step_bytes: 257, ..row(0) }))
            as &dyn Fn(&mut Program<'_>),
        &|p| p.ops[0].op.kind = input(row(513)),
        &|p| p.ops[0].op.kind = input(row(u64::MAX)),
        &|p| p.ops[0].op.kind = input(Mat { cols: u64::MAX / 2, ..row(0) }),
        &|p| p.ops[0].op.kind = input(Mat { rows: u64::MAX, ..row(0) }),
        &|p| p.ops[0].workspace = Region { offset: 768, bytes: 1 },
        &|p| p.copies[0].target.offset = 600,
        &|p| p.copies[0].segments[0].target = 255,
    ] {
        assert!(matches!(build(change), Err(DeviceError::OutOfArena { .. })));
    }
    let overlapping = Mat { rows: 2, stride: 63, ..row(0) };
    for change in [
        &(|p: &mut Program<'_>| p.ops[0].op.kind = input(overlapping)) as &dyn Fn(&mut Program<'_>),
        &|p| p.outputs.clear(),
        &|p| p.inputs.clear(),
    ] {
        assert!(matches!(build(change), Err(DeviceError::Unsupported { .. })));
    }
}

#[test]
fn a_segment_of_two_weights_is_read_weight_by_weight() {
    let source = [0u8; 768];
    let mut program = two_slots(&source[..256]);
    // Two weights of 256 bytes with as much between them, in one segment.
    let mut both = copy("both", &source, 1024);
    both.segments = vec![Segment::of_bytes(&source, 1024)];
    both.weights = [1024, 1536].map(|offset| Region { offset, bytes: 256 }).to_vec();
    program.copies.push(both);
    // Ops 6 to 9: the one, the other, what lies between them, and half of each.
    for offset in [1024, 1536, 1280, 1152] {
        let kind = OpKind::AddWeight { a: row(0), weight: row(offset), out: row(0) };
        program.ops.push(op(&format!("at.{offset}"), kind));
    }
    let good = contents(&program, &[4], &[0, 6, 7]).expect("finds both");
    assert_eq!(good.copied_bytes, 512, "what lies between them is no weight");
    assert_eq!(good.high_water_bytes, 1024 + 768);
    for wrong in [8, 9] {
        let refused = contents(&program, &[4], &[0, wrong]).expect_err("no weight lies there");
        assert!(refused.contains("weights of copy both that are not its own"), "{refused}");
    }
}

#[test]
fn a_cancelled_device_runs_again() {
    let source = [0u8; 256];
    let program = two_slots(&source);
    let mut device = SimDevice::new(768, costs(1.0, 1.0), SimFaults::default());
    let control = Control::default();
    let cancelled = device.run(&program, &control, &mut |queue| {
        queue.enqueue(Lane::Compute, Command::Run { op: 0, step: 0 })?;
        control.cancel();
        queue.enqueue(Lane::Compute, Command::Signal)
    });
    assert!(matches!(cancelled, Err(DeviceError::Cancelled)));
    assert!(run(&mut device, &program).is_ok());
    assert_eq!((device.name(), device.arena_bytes()), ("sim", 768));
}

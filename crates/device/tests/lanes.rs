//! Order, events, cancelling, refusals and dying lanes.

#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]
#![allow(missing_docs)]

mod common;

use std::sync::Mutex;
use std::time::{Duration, Instant};

use common::{Random, bound, contract, unit};
use plimsoll_device::cpu::{CpuDevice, bound_workspace_bytes};
use plimsoll_device::{
    Command, Control, Device, DeviceError, HostDType, Lane, Mat, OutputBuffer, Program, Queue,
    Region, RunStats, Segment, SpanKind,
};
use plimsoll_graph::{Activation, DType, OpKind, OutputId};

fn mat(offset: u64, rows: u64, cols: u64, dtype: DType) -> Mat {
    Mat { offset, rows, cols, stride: cols, dtype, step_bytes: 0 }
}

const STEPS: u32 = 6;
const LAYERS: u64 = 5;
const SIDE: u64 = 128;

/// A stack of square layers whose weights are streamed through two slots, for some steps.
struct Stream {
    weights: Vec<Vec<u8>>,
    start: Vec<u8>,
    slot: [u64; 2],
    x: [Mat; 2],
    workspace: Region,
    arena_bytes: u64,
}

impl Stream {
    fn new() -> Self {
        let mut random = Random(5);
        let mut bytes = |count: u64| -> Vec<u8> {
            (0..count).flat_map(|_| (random.unit() as f32 * 0.15).to_le_bytes()).collect()
        };
        let weight_bytes = SIDE * SIDE * 4;
        let x0 = mat(2 * weight_bytes, 64, SIDE, DType::F32);
        let x1 = mat(2 * weight_bytes + 64 * SIDE * 4, 64, SIDE, DType::F32);
        let mut stream = Self {
            weights: (0..LAYERS).map(|_| bytes(SIDE * SIDE)).collect(),
            start: bytes(64 * SIDE),
            slot: [0, weight_bytes],
            x: [x0, x1],
            workspace: Region::default(),
            arena_bytes: 0,
        };
        let offset = 2 * weight_bytes + 2 * 64 * SIDE * 4;
        let bytes = bound_workspace_bytes(&stream.layer(0));
        stream.workspace = Region { offset, bytes };
        stream.arena_bytes = stream.workspace.end().next_multiple_of(256);
        stream
    }

    fn layer(&self, at: u64) -> OpKind<Mat, Mat> {
        OpKind::Linear {
            x: self.x[(at % 2) as usize],
            weight: mat(self.slot[(at % 2) as usize], SIDE, SIDE, DType::F32),
            weight_scale: None,
            bias: None,
            activation: Activation::Silu,
            residual: None,
            out: self.x[((at + 1) % 2) as usize],
        }
    }

    fn program(&self) -> Program<'_> {
        let f32_unit = |source, target| {
            unit(Segment { source, source_dtype: HostDType::F32, target, target_dtype: DType::F32 })
        };
        let total = LAYERS * u64::from(STEPS);
        let copies = (0..total)
            .map(|at| {
                f32_unit(&self.weights[(at % LAYERS) as usize][..], self.slot[(at % 2) as usize])
            })
            .chain([f32_unit(&self.start, self.x[0].offset)])
            .collect();
        let mut ops: Vec<_> = (0..total).map(|at| bound(self.layer(at), self.workspace)).collect();
        let last = self.x[(total % 2) as usize];
        ops.push(bound(OpKind::Output { output: OutputId(0), x: last }, Region::default()));
        Program {
            ops,
            copies,
            outputs: vec![OutputBuffer {
                bytes: Mutex::new(vec![0; (64 * SIDE * 4) as usize].into()),
            }],
            steps: STEPS,
            mark_count: 2,
            trace: true,
            command_count: 2 * total + 2,
            ..Program::default()
        }
    }

    fn drive(&self, queue: &dyn Queue) -> Result<(), DeviceError> {
        let total = (LAYERS * u64::from(STEPS)) as u32;
        queue.enqueue(Lane::Compute, Command::Mark(0))?;
        queue.enqueue(Lane::Copy, Command::Copy { copy: total, step: None })?;
        for at in 0..total {
            let step = at / LAYERS as u32;
            if at >= 2 {
                // The slot's last reader is done.
                let count = u64::from(at) - 1;
                queue.enqueue(Lane::Copy, Command::Wait { lane: Lane::Compute, count })?;
            }
            queue.enqueue(Lane::Copy, Command::Copy { copy: at, step: Some(step) })?;
            queue.enqueue(Lane::Copy, Command::Signal)?;
            let wait = Command::Wait { lane: Lane::Copy, count: u64::from(at) + 1 };
            queue.enqueue(Lane::Compute, wait)?;
            queue.enqueue(Lane::Compute, Command::Run { op: at, step })?;
            queue.enqueue(Lane::Compute, Command::Signal)?;
        }
        queue.enqueue(Lane::Compute, Command::Run { op: total, step: 0 })?;
        queue.enqueue(Lane::Compute, Command::Mark(1))?;
        queue.wait(Lane::Compute, u64::from(total))
    }

    fn run(
        &self,
        device: &mut CpuDevice,
        control: &Control,
    ) -> Result<(RunStats, Vec<u8>), DeviceError> {
        let program = self.program();
        let stats = device.run(&program, control, &mut |queue| self.drive(queue))?;
        let bytes = program.outputs[0].bytes.lock().unwrap().to_vec();
        Ok((stats, bytes))
    }
}

#[test]
fn streaming_waits_for_its_events() {
    let stream = Stream::new();
    let mut device = CpuDevice::new(stream.arena_bytes, 2).unwrap();
    let (stats, first) = stream.run(&mut device, &Control::default()).unwrap();
    let per_step = LAYERS * SIDE * SIDE * 4;
    assert_eq!(stats.copied_bytes_by_step, vec![per_step; STEPS as usize]);
    assert_eq!(stats.copied_bytes, per_step * u64::from(STEPS) + 64 * SIDE * 4);
    assert_eq!(stats.high_water_bytes, stream.arena_bytes);
    assert!(stats.marks[0] <= stats.marks[1] && stats.seconds > 0.0);
    let total = (LAYERS * u64::from(STEPS)) as usize;
    assert_eq!(stats.spans.len(), 2 * total + 2);
    let span = |kind, index: usize| {
        *stats.spans.iter().find(|s| s.kind == kind && s.index as usize == index).unwrap()
    };
    for at in 0..total {
        let (copy, op) = (span(SpanKind::Copy, at), span(SpanKind::Op, at));
        assert!(copy.end <= op.start, "op {at} began before its weights were there");
        if at >= 2 {
            let reader = span(SpanKind::Op, at - 2);
            assert!(reader.end <= copy.start, "copy {at} overran a reader");
        }
    }
    for workers in [1, 3] {
        let mut device = CpuDevice::new(stream.arena_bytes, workers).unwrap();
        assert!(stream.run(&mut device, &Control::default()).unwrap().1 == first);
    }
}

#[test]
fn a_cancelled_device_runs_again_with_the_same_bits() {
    let stream = Stream::new();
    let mut device = CpuDevice::new(stream.arena_bytes, 2).unwrap();
    let begin = Instant::now();
    let (_, whole) = stream.run(&mut device, &Control::default()).unwrap();
    let usual = begin.elapsed();
    let mut random = Random(8);
    let mut cancelled = 0;
    for _ in 0..40 {
        let control = Control::default();
        let delay = usual.mul_f64(random.below(1000) as f64 / 1000.0);
        let result = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(delay);
                control.cancel();
            });
            stream.run(&mut device, &control)
        });
        match result {
            Err(DeviceError::Cancelled) => cancelled += 1,
            Ok((_, bytes)) => assert!(bytes == whole),
            Err(other) => panic!("{other}"),
        }
        let (_, again) = stream.run(&mut device, &Control::default()).unwrap();
        assert!(again == whole, "other bits after a cancelled run");
    }
    assert!(cancelled > 0, "no run was cancelled in time");
    let control = Control::default();
    control.cancel();
    assert!(matches!(stream.run(&mut device, &control), Err(DeviceError::Cancelled)));
}

#[test]
fn cancelling_wakes_a_lane_that_waits_for_ever() {
    let stream = Stream::new();
    let mut device = CpuDevice::new(stream.arena_bytes, 1).unwrap();
    contract::cancelling_wakes_a_lane_that_waits_for_ever(&mut device, &stream.program());
}

#[test]
fn a_full_ring_makes_the_caller_wait() {
    let stream = Stream::new();
    let mut device = CpuDevice::new(stream.arena_bytes, 1).unwrap();
    contract::a_full_ring_makes_the_caller_wait(&mut device, &stream.program());
}

#[test]
fn a_caller_is_told_of_a_signal_in_the_middle_of_much_work() {
    // The lane has more left to do than the caller is woken for, and no other signal: it looks by itself. Until it has,
    // the rest waits for it, so that no clock decides.
    let stream = Stream::new();
    let program = stream.program();
    let mut device = CpuDevice::new(stream.arena_bytes, 1).unwrap();
    let control = Control::default();
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let control = &control;
        scope.spawn(move || {
            if is_done.recv_timeout(Duration::from_secs(20)).is_err() {
                control.cancel();
            }
        });
        let ran = device.run(&program, control, &mut |queue| {
            let wait = |count| Command::Wait { lane: Lane::Copy, count };
            for command in [wait(1), Command::Signal, wait(2)] {
                queue.enqueue(Lane::Compute, command)?;
            }
            for op in 0..400 {
                queue.enqueue(Lane::Compute, Command::Run { op: op % 5, step: 0 })?;
            }
            queue.enqueue(Lane::Compute, Command::Signal)?;
            for count in 1..=2 {
                queue.enqueue(Lane::Copy, Command::Signal)?;
                queue.wait(Lane::Compute, count)?;
            }
            Ok(())
        });
        done.send(()).unwrap();
        assert!(ran.is_ok(), "told of the first signal only with the last");
    });
}

#[test]
fn a_lane_that_dies_is_an_error() {
    let stream = Stream::new();
    let mut device = CpuDevice::new(stream.arena_bytes, 2).unwrap();
    contract::a_lane_that_fails_is_an_error(&mut device, &stream.program());
    stream.run(&mut device, &Control::default()).unwrap();
}

#[test]
fn copies_cast_to_nearest_even() {
    let mut device = CpuDevice::new(512 * 1024, 1).unwrap();
    contract::copies_cast_to_nearest_even(&mut device, 5000);
}

#[test]
fn a_program_cannot_leave_the_arena() {
    let stream = Stream::new();
    let mut device = CpuDevice::new(stream.arena_bytes, 1).unwrap();
    let refuse = |device: &mut CpuDevice, what: &str, change: &dyn Fn(&mut Program<'_>)| {
        let mut program = stream.program();
        change(&mut program);
        let result = device.run(&program, &Control::default(), &mut |_| panic!("it was started"));
        assert!(matches!(result, Err(DeviceError::OutOfArena { .. })), "{what}: {result:?}");
    };
    let with_out = |program: &mut Program<'_>, change: &dyn Fn(&mut Mat)| {
        if let OpKind::Linear { out, .. } = &mut program.ops[3].op.kind {
            change(out);
        }
    };
    refuse(&mut device, "past the end", &|program| with_out(program, &|out| out.offset += 1 << 40));
    refuse(&mut device, "overflow", &|program| with_out(program, &|out| out.offset = u64::MAX - 3));
    refuse(&mut device, "many rows", &|program| with_out(program, &|out| out.rows = u64::MAX));
    refuse(&mut device, "steps", &|program| with_out(program, &|out| out.step_bytes = 1 << 30));
    refuse(&mut device, "odd offset", &|program| with_out(program, &|out| out.offset += 2));
    refuse(&mut device, "overlapping rows", &|program| with_out(program, &|out| out.stride = 5));
    refuse(&mut device, "result in x", &|program| {
        if let OpKind::Linear { x, out, .. } = &mut program.ops[3].op.kind {
            *out = *x;
        }
    });
    refuse(&mut device, "small scratch", &|program| program.ops[0].workspace.bytes -= 4);
    refuse(&mut device, "scratch in x", &|program| program.ops[0].workspace.offset -= 256);
    refuse(&mut device, "index as number", &|program| {
        with_out(program, &|out| out.dtype = DType::U32)
    });
    refuse(&mut device, "copy target", &|program| program.copies[0].target.offset = 1 << 40);
    refuse(&mut device, "segment", &|program| program.copies[0].segments[0].target += 256);
    refuse(&mut device, "cast of an index", &|program| {
        program.copies[0].segments[0].source_dtype = HostDType::U32;
    });
    refuse(&mut device, "host memory", &|program| {
        program.outputs[0] = OutputBuffer { bytes: Mutex::new(vec![0; 7].into()) };
    });
    let (_, bytes) = stream.run(&mut device, &Control::default()).unwrap();
    assert!(!bytes.is_empty());
}

#[test]
fn an_arena_that_cannot_be_had_is_refused() {
    let refused = CpuDevice::new(1 << 62, 1);
    assert!(matches!(refused, Err(DeviceError::Arena { bytes, .. }) if bytes == 1 << 62));
    assert!(matches!(CpuDevice::new(u64::MAX, 1), Err(DeviceError::Arena { .. })));
    assert_eq!(CpuDevice::new(0, 0).unwrap().arena_bytes(), 0);
}

#[test]
fn the_high_water_mark_is_found_by_the_pattern() {
    let mut device = CpuDevice::new(10_001, 1).unwrap();
    assert_eq!(device.high_water_bytes(), 0);
    contract::the_high_water_mark_is_found_by_the_pattern(&mut device, CpuDevice::reset_pattern);
}

#[test]
fn another_arena_is_taken_in_the_place_of_the_first() {
    let stream = Stream::new();
    let mut device = CpuDevice::new(stream.arena_bytes, 2).unwrap();
    let (_, first) = stream.run(&mut device, &Control::default()).unwrap();
    for arena_bytes in [0, 1 << 20, 1 << 26, stream.arena_bytes] {
        device.retake(arena_bytes).unwrap();
        assert_eq!((device.arena_bytes(), device.high_water_bytes()), (arena_bytes, 0));
    }
    assert!(stream.run(&mut device, &Control::default()).unwrap().1 == first);
    assert!(matches!(device.retake(1 << 62), Err(DeviceError::Arena { .. })));
    device.retake(stream.arena_bytes).unwrap();
    assert!(stream.run(&mut device, &Control::default()).unwrap().1 == first);
}

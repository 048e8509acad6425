//! What every device that runs programs in lanes keeps to: the same checks for the CPU and for a card.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use half::{bf16, f16};
use plimsoll_device::{
    Command, Control, Device, DeviceError, HostDType, Lane, Mat, OutputBuffer, Program, Queue,
    Region, Segment,
};
use plimsoll_graph::{DType, OpKind, OutputId};

use super::{bound, run_all, unit};

/// A lane that waits for a signal which never comes is woken by a stop.
pub fn cancelling_wakes_a_lane_that_waits_for_ever(device: &mut dyn Device, program: &Program<'_>) {
    let control = Control::default();
    let begin = Instant::now();
    let result = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(30));
            control.cancel();
        });
        device.run(program, &control, &mut |queue| {
            queue.enqueue(Lane::Copy, Command::Wait { lane: Lane::Compute, count: 1 })?;
            queue.wait(Lane::Copy, 1)
        })
    });
    assert!(matches!(result, Err(DeviceError::Cancelled)));
    assert!(begin.elapsed() < Duration::from_millis(500));
}

/// Far more commands than rings and pools of events hold.
pub fn a_full_ring_makes_the_caller_wait(device: &mut dyn Device, program: &Program<'_>) {
    let stats = device
        .run(program, &Control::default(), &mut |queue| {
            for count in 1..=20_000u64 {
                queue.enqueue(Lane::Copy, Command::Signal)?;
                queue.enqueue(Lane::Compute, Command::Wait { lane: Lane::Copy, count })?;
                queue.enqueue(Lane::Compute, Command::Signal)?;
            }
            queue.wait(Lane::Compute, 20_000)?;
            // Counts that were passed long ago order nothing.
            queue.enqueue(Lane::Copy, Command::Wait { lane: Lane::Compute, count: 1 })?;
            queue.wait(Lane::Copy, 3)
        })
        .unwrap();
    assert_eq!((stats.copied_bytes, stats.high_water_bytes), (0, 0), "nothing was touched");
}

/// A lane that dies, a command of the other lane and a caller that fails are errors, told to the caller.
pub fn a_lane_that_fails_is_an_error(device: &mut dyn Device, program: &Program<'_>) {
    let died = device.run(program, &Control::default(), &mut |queue| {
        queue.enqueue(Lane::Compute, Command::Run { op: 9999, step: 0 })?;
        let told = queue.wait(Lane::Compute, 1);
        assert!(matches!(told, Err(DeviceError::LaneDied { .. })), "{told:?}");
        told
    });
    assert!(matches!(died, Err(DeviceError::LaneDied { lane: "compute", .. })), "{died:?}");
    let wrong = device.run(program, &Control::default(), &mut |queue| {
        queue.enqueue(Lane::Copy, Command::Run { op: 0, step: 0 })
    });
    assert!(matches!(wrong, Err(DeviceError::Unsupported { .. })), "{wrong:?}");
    let own = device.run(program, &Control::default(), &mut |queue| {
        queue.enqueue(Lane::Copy, Command::Copy { copy: 0, step: None })?;
        Err(DeviceError::RowOutOfTable { row: 1, rows: 1 })
    });
    assert!(matches!(own, Err(DeviceError::RowOutOfTable { .. })), "{own:?}");
}

/// The mark is found by the arena's pattern, which `reset` lays again; the arena has 10,001 bytes.
pub fn the_high_water_mark_is_found_by_the_pattern<D: Device>(
    device: &mut D,
    reset: impl Fn(&mut D),
) {
    for (offset, expected) in [(0u64, 256u64), (252, 256), (256, 512), (9_996, 10_240)] {
        reset(device);
        let program = Program {
            copies: vec![unit(Segment {
                source: &[0; 4],
                source_dtype: HostDType::F32,
                target: offset,
                target_dtype: DType::F32,
            })],
            ..Program::default()
        };
        let drive = &mut |queue: &dyn Queue| run_all(queue, &program);
        let stats = device.run(&program, &Control::default(), drive).unwrap();
        assert_eq!(stats.high_water_bytes, expected);
    }
}

/// Copies round as the reference does: `count` numbers of f32, and every half.
pub fn copies_cast_to_nearest_even(device: &mut dyn Device, count: u32) {
    let numbers: Vec<f32> = (0..count)
        .map(|at| f32::from_bits(0x3F80_0000 + at.wrapping_mul(0x1FFF) % 0x4000_0000))
        .chain([f32::INFINITY, -0.0, f32::MIN_POSITIVE / 8.0, 65520.0])
        .collect();
    let halves: Vec<u16> = (0..=u16::MAX).filter(|bits| !f16::from_bits(*bits).is_nan()).collect();
    let as_f32: Vec<u8> = numbers.iter().flat_map(|v| v.to_le_bytes()).collect();
    let as_f16: Vec<u8> = halves.iter().flat_map(|v| v.to_le_bytes()).collect();
    let as_bf16: Vec<u8> = numbers.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect();
    for (source, source_dtype, target_dtype) in [
        (&as_f32, HostDType::F32, DType::BF16),
        (&as_f16, HostDType::F16, DType::BF16),
        (&as_f16, HostDType::F16, DType::F32),
        (&as_bf16, HostDType::BF16, DType::F32),
        (&as_f32, HostDType::F32, DType::F32),
        (&as_f32, HostDType::U32, DType::U32),
    ] {
        // An odd address: files promise nothing.
        let shifted: Vec<u8> = std::iter::once(0).chain(source.iter().copied()).collect();
        let cols = source.len() as u64 / source_dtype.bytes();
        let target =
            Mat { offset: 256, rows: 1, cols, stride: cols, dtype: target_dtype, step_bytes: 0 };
        let bytes = cols * target_dtype.bytes();
        let program = Program {
            copies: vec![unit(Segment {
                source: &shifted[1..],
                source_dtype,
                target: 256,
                target_dtype,
            })],
            ops: vec![bound(OpKind::Output { output: OutputId(0), x: target }, Region::default())],
            outputs: vec![OutputBuffer { bytes: Mutex::new(vec![0; bytes as usize].into()) }],
            ..Program::default()
        };
        let drive = &mut |queue: &dyn Queue| run_all(queue, &program);
        let stats = device.run(&program, &Control::default(), drive).unwrap();
        assert_eq!(stats.copied_bytes, bytes);
        let value = |at: usize| match source_dtype {
            HostDType::F16 => f16::from_bits(halves[at]).to_f32(),
            HostDType::BF16 => bf16::from_f32(numbers[at]).to_f32(),
            _ => numbers[at],
        };
        let expected: Vec<u8> = (0..cols as usize)
            .flat_map(|at| match target_dtype {
                DType::BF16 => bf16::from_f32(value(at)).to_le_bytes().to_vec(),
                _ => value(at).to_le_bytes().to_vec(),
            })
            .collect();
        let found = program.outputs[0].bytes.lock().unwrap();
        assert!(found[..] == expected[..], "{source_dtype:?} to {target_dtype:?}");
    }
}

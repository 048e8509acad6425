//! A stop is heard in the middle of an op that takes seconds.

#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]
#![allow(missing_docs)]

mod common;

use std::time::{Duration, Instant};

use common::bound;
use plimsoll_device::cpu::{CpuDevice, bound_workspace_bytes};
use plimsoll_device::{Command, Control, Device, DeviceError, Lane, Mat, Program, Region};
use plimsoll_graph::{Activation, DType, OpKind};

/// What a stop may take.
const MOST: Duration = Duration::from_millis(500);

/// Places one after the other.
#[derive(Default)]
struct Places(u64);

impl Places {
    fn mat(&mut self, rows: u64, cols: u64) -> Mat {
        let dtype = DType::BF16;
        let offset = self.0;
        self.0 += (rows * cols * dtype.bytes()).next_multiple_of(256);
        Mat { offset, rows, cols, stride: cols, dtype, step_bytes: 0 }
    }
}

/// Runs the op alone, asks for a stop after a moment, and gives the time until the device came back.
fn stopped(places: &Places, kind: OpKind<Mat, Mat>, workers: usize) -> Duration {
    let workspace = Region { offset: places.0, bytes: bound_workspace_bytes(&kind) };
    let mut device = CpuDevice::new(workspace.end().next_multiple_of(256), workers).unwrap();
    let program =
        Program { ops: vec![bound(kind, workspace)], command_count: 1, ..Program::default() };
    let control = Control::default();
    let (result, taken) = std::thread::scope(|scope| {
        let asked = scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(150));
            control.cancel();
            Instant::now()
        });
        let result = device.run(&program, &control, &mut |queue| {
            queue.enqueue(Lane::Compute, Command::Run { op: 0, step: 0 })?;
            queue.enqueue(Lane::Compute, Command::Signal)?;
            queue.wait(Lane::Compute, 1)
        });
        let ended = Instant::now();
        (result, ended.saturating_duration_since(asked.join().unwrap()))
    });
    assert!(matches!(result, Err(DeviceError::Cancelled)), "it was done too soon: {result:?}");
    taken
}

#[test]
fn a_linear_layer_stops_between_tiles() {
    for workers in [1, 2] {
        let mut places = Places::default();
        // 0.5 TFLOP.
        let (x, weight) = (places.mat(4096, 8192), places.mat(8192, 8192));
        let kind = OpKind::Linear {
            x,
            weight,
            weight_scale: None,
            bias: None,
            activation: Activation::None,
            residual: None,
            out: places.mat(4096, 8192),
        };
        let taken = stopped(&places, kind, workers);
        assert!(taken < MOST, "{taken:?} with {workers} workers");
    }
}

#[test]
fn attention_stops_between_blocks_of_keys() {
    // As of the decoder at 2048x2048 pixels: one wide head over 65,536 pixels, 9 TFLOP. And as of a transformer.
    for (rows, cols, heads) in [(65_536, 512, 1), (16_384, 2048, 16)] {
        let mut places = Places::default();
        let q = places.mat(rows, cols);
        let kind = OpKind::Attention {
            q,
            k: q,
            v: q,
            heads,
            scale: 0.05,
            causal: false,
            bias: None,
            out: places.mat(rows, cols),
        };
        let taken = stopped(&places, kind, 2);
        assert!(taken < MOST, "{taken:?} with {heads} heads");
    }
}

#[test]
fn a_convolution_stops_between_tiles() {
    let mut places = Places::default();
    // 512x512 pixels of 512 channels, 1.2 TFLOP.
    let x = places.mat(512 * 512, 512);
    let kind = OpKind::Conv3x3 {
        x,
        height: 512,
        width: 512,
        upscale: 1,
        margin: [0, 0],
        weight: places.mat(512, 512 * 9),
        bias: places.mat(1, 512),
        residual: None,
        out: places.mat(512 * 512, 512),
    };
    let taken = stopped(&places, kind, 2);
    assert!(taken < MOST, "{taken:?}");
}

//! Times ops of the CPU device at the demo model's shapes and at FLUX's.
//!
//! `cargo run --release -p plimsoll-device --example bench_ops [workers] [filter]`

#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

use std::time::Instant;

use plimsoll_device::cpu::{CpuDevice, bound_workspace_bytes};
use plimsoll_device::{
    BoundCopy, BoundOp, Command, Control, Device, HostDType, Lane, Mat, Program, Queue, Region,
    Segment,
};
use plimsoll_graph::{Activation, DType, Norm, Op, OpKind, RelativeBias, Residual};

/// Lays operands out one after the other.
#[derive(Default)]
struct Layout {
    end: u64,
}

impl Layout {
    fn mat(&mut self, rows: u64, cols: u64, dtype: DType) -> Mat {
        let offset = self.end;
        self.end += (rows * cols * dtype.bytes()).next_multiple_of(256);
        Mat { offset, rows, cols, stride: cols, dtype, step_bytes: 0 }
    }
}

/// Nanoseconds that this process's threads have spent on a processor (Linux), whatever else the machine did.
fn cpu_ns() -> u64 {
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else { return 0 };
    threads
        .flatten()
        .filter_map(|thread| std::fs::read_to_string(thread.path().join("schedstat")).ok())
        .filter_map(|text| text.split(' ').next()?.parse::<u64>().ok())
        .sum()
}

/// Least seconds of an op over runs that last about `budget` seconds in all, and its processor seconds.
fn time(kind: OpKind<Mat, Mat>, layout: &Layout, workers: usize, budget: f64) -> [f64; 2] {
    let workspace = Region { offset: layout.end, bytes: bound_workspace_bytes(&kind) };
    let Ok(mut device) = CpuDevice::new(workspace.end().next_multiple_of(256), workers) else {
        return [f64::NAN; 2];
    };
    let op = BoundOp { op: Op { name: "bench".to_owned(), kind }, workspace };
    let most = 200u32;
    // Ordinary numbers everywhere: the arena's pattern holds denormals, which are slow.
    let floats: Vec<u8> = (0..layout.end / 4).flat_map(number).collect();
    let segment = Segment {
        source: &floats,
        source_dtype: HostDType::F32,
        target: 0,
        target_dtype: DType::F32,
    };
    let target = Region { offset: 0, bytes: layout.end };
    let copy = BoundCopy {
        name: "operands".to_owned(),
        segments: vec![segment],
        weights: vec![target],
        target,
        uses: 1,
        from_disk: false,
    };
    let program =
        Program { ops: vec![op], copies: vec![copy], mark_count: most + 1, ..Program::default() };
    let mut marks = Vec::new();
    let (mut cpu, mut runs) = (0, 0u32);
    let ran = device.run(&program, &Control::default(), &mut |queue: &dyn Queue| {
        queue.enqueue(Lane::Copy, Command::Copy { copy: 0, step: None })?;
        queue.enqueue(Lane::Copy, Command::Signal)?;
        queue.wait(Lane::Copy, 1)?;
        let begin = Instant::now();
        let before = cpu_ns();
        for at in 0..most {
            queue.enqueue(Lane::Compute, Command::Mark(at))?;
            for _ in 0..REPEAT {
                queue.enqueue(Lane::Compute, Command::Run { op: 0, step: 0 })?;
            }
            queue.enqueue(Lane::Compute, Command::Mark(at + 1))?;
            queue.enqueue(Lane::Compute, Command::Signal)?;
            queue.wait(Lane::Compute, u64::from(at) + 1)?;
            runs = (at + 1) * REPEAT;
            if begin.elapsed().as_secs_f64() > budget && at >= 2 {
                break;
            }
        }
        cpu = cpu_ns().saturating_sub(before);
        Ok(())
    });
    if let Ok(stats) = ran {
        marks = stats.marks;
    }
    let mut times: Vec<f64> = marks
        .windows(2)
        .filter(|pair| pair[1] > pair[0])
        .map(|pair| (pair[1] - pair[0]) / f64::from(REPEAT))
        .collect();
    times.sort_by(f64::total_cmp);
    [times.first().copied().unwrap_or(f64::NAN), cpu as f64 * 1e-9 / f64::from(runs)]
}

/// Two `bf16` or one `f32` of magnitude 0.25 to 0.5 and either sign.
fn number(at: u64) -> [u8; 4] {
    let bits = at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    ((bits as u32 & 0x807F_807F) | 0x3E80_3E80).to_le_bytes()
}

/// Runs between two marks: ops follow each other as in a step.
const REPEAT: u32 = 4;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let workers: usize = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(2);
    let filter = arguments.next().unwrap_or_default();
    let report = |name: &str, kind: OpKind<Mat, Mat>, layout: &Layout, flops: u64| {
        if !name.contains(&filter) {
            return;
        }
        let [seconds, cpu] = time(kind.clone(), layout, workers, 0.4);
        let scratch = bound_workspace_bytes(&kind) as f64 / 1024.0;
        let rate = flops as f64 / seconds / 1e9;
        let cpu_rate = flops as f64 / cpu / 1e9;
        println!(
            "{name:40} {:10.1} us {rate:7.1} GFLOP/s | cpu {:10.1} us {cpu_rate:7.1} | {scratch:6.0} KiB",
            seconds * 1e6,
            cpu * 1e6
        );
    };
    for (act, tag) in [(DType::F32, "f32"), (DType::BF16, "bf16")] {
        linears(act, tag, &report);
        attentions(act, tag, &report);
        rows(act, tag, &report);
        pictures(act, tag, &report);
    }
}

type Report<'r> = &'r dyn Fn(&str, OpKind<Mat, Mat>, &Layout, u64);

fn linears(act: DType, tag: &str, report: Report<'_>) {
    for (m, n, k, gated) in [
        (96, 576, 192, false),
        (32, 576, 192, false),
        (64, 576, 192, false),
        (64, 192, 192, true),
        (64, 768, 192, false),
        (64, 192, 768, true),
        (96, 1344, 192, false),
        (96, 192, 960, true),
        (1, 1152, 192, false),
        (32, 384, 128, false),
        (77, 384, 128, false),
        (64, 64, 192, false),
        (512, 3072, 3072, false),
        (4608, 3072, 3072, true),
        (1, 18432, 3072, false),
    ] {
        let mut layout = Layout::default();
        let x = layout.mat(m, k, act);
        let weight = layout.mat(n, k, DType::BF16);
        let vector = layout.mat(1, n, DType::BF16);
        let out = layout.mat(m, n, act);
        let kind = OpKind::Linear {
            x,
            weight,
            weight_scale: None,
            bias: Some(vector),
            activation: if gated { Activation::None } else { Activation::GeluTanh },
            residual: gated.then_some(Residual { base: out, gate: Some(vector) }),
            out,
        };
        report(&format!("linear {tag} {m}x{k} -> {n}"), kind, &layout, 2 * m * n * k);
    }
}

fn attentions(act: DType, tag: &str, report: Report<'_>) {
    for (rows, heads, head_dim, biased) in [
        (96, 3, 64, false),
        (77, 4, 32, false),
        (32, 4, 32, true),
        (256, 1, 96, false),
        (4608, 24, 128, false),
    ] {
        let mut layout = Layout::default();
        let cols = heads * head_dim;
        let (q, k, v) =
            (layout.mat(rows, cols, act), layout.mat(rows, cols, act), layout.mat(rows, cols, act));
        let bias = layout.mat(heads, 2 * rows - 1, DType::F32);
        let out = layout.mat(rows, cols, act);
        let kind = OpKind::Attention {
            q,
            k,
            v,
            heads,
            scale: 0.1,
            causal: false,
            bias: biased.then_some(RelativeBias { bias }),
            out,
        };
        let name = format!("attention {tag} {rows} x {heads} heads of {head_dim}");
        report(&name, kind, &layout, 4 * rows * rows * cols);
    }
}

fn rows(act: DType, tag: &str, report: Report<'_>) {
    for (m, cols) in [(64, 192), (96, 192), (4608, 3072)] {
        let mut layout = Layout::default();
        let (x, row) = (layout.mat(m, cols, act), layout.mat(1, cols, act));
        let rope = layout.mat(m, 64, DType::F32);
        let weight = layout.mat(1, 64, DType::BF16);
        let (out, k) = (layout.mat(m, cols, act), layout.mat(m, cols, act));
        let wide = layout.mat(m, 2 * cols, act);
        let norm = Norm::LayerModulated { eps: 1e-6, scale: row, shift: row };
        let elements = m * cols;
        report(&format!("norm {tag} {m}x{cols}"), OpKind::Norm { x, norm, out }, &layout, elements);
        let heads = cols / 64;
        let kind = OpKind::QkNormRope {
            q: out,
            k,
            q_weight: weight,
            k_weight: weight,
            rope,
            heads,
            eps: 1e-6,
        };
        report(&format!("qk_norm_rope {tag} {m}x{cols}"), kind, &layout, 2 * elements);
        let kind = OpKind::Activate { x, activation: Activation::GeluTanh, out };
        report(&format!("gelu {tag} {m}x{cols}"), kind, &layout, elements);
        let kind = OpKind::GluGelu { x: wide, out };
        report(&format!("glu {tag} {m}x{cols}"), kind, &layout, elements);
        let kind = OpKind::Copy { x, out };
        report(&format!("copy {tag} {m}x{cols}"), kind, &layout, elements);
    }
}

fn pictures(act: DType, tag: &str, report: Report<'_>) {
    for (side, upscale, channels, out_channels) in [
        (16, 1, 16, 96),
        (16, 1, 96, 96),
        (16, 2, 96, 96),
        (32, 1, 96, 96),
        (64, 1, 96, 64),
        (64, 1, 64, 64),
        (128, 1, 64, 32),
        (128, 1, 32, 32),
        (128, 1, 32, 3),
        (64, 2, 96, 96),
        (128, 1, 512, 512),
    ] {
        let mut layout = Layout::default();
        let pixels = side * side * upscale * upscale;
        let x = layout.mat(side * side, channels, act);
        let weight = layout.mat(out_channels, channels * 9, DType::BF16);
        let bias = layout.mat(1, out_channels, DType::BF16);
        let out = layout.mat(pixels, out_channels, act);
        let kind = OpKind::Conv3x3 {
            x,
            height: side,
            width: side,
            upscale,
            margin: [0, 0],
            weight,
            bias,
            residual: None,
            out,
        };
        let name = format!("conv {tag} {side}^2 x{upscale}, {channels} -> {out_channels}");
        report(&name, kind, &layout, 18 * pixels * channels * out_channels);
    }
    for (side, channels) in [(16, 96), (64, 96), (128, 32), (128, 64)] {
        let mut layout = Layout::default();
        let pixels = side * side;
        let x = layout.mat(pixels, channels, act);
        let weight = layout.mat(1, channels, DType::BF16);
        let out = layout.mat(pixels, channels, act);
        let kind =
            OpKind::GroupNorm { x, weight, bias: weight, groups: 32, eps: 1e-6, silu: true, out };
        report(
            &format!("group_norm {tag} {side}^2 x {channels}"),
            kind,
            &layout,
            pixels * channels,
        );
    }
}

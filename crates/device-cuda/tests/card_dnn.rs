//! Attention of cuDNN on a card: against sums in `f64`, and rows of queries with the same bits beside any others.
//!
//! Run the test's binary on a machine with a card: `card_dnn-HASH --ignored --nocapture`.

#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

mod rig;

use half::bf16;
use plimsoll_cuda_kernels::{Matrix, Sdpa};
use plimsoll_device_cuda::CudaError;
use plimsoll_device_cuda::dnn::{Dnn, PreparedSdpa};
use plimsoll_graph::DType;
use plimsoll_plan::Region;
use rig::{Rig, random, relative_error, seed, values};

const WORKSPACE_BYTES: u64 = 1 << 20;
const SAMPLES: u64 = 48;

#[derive(Clone, Copy, Debug)]
struct Shape {
    name: &'static str,
    heads: u64,
    head_dim: u64,
    queries: u64,
    keys: u64,
    /// Columns of the buffer that q, k and v are views of, and of the result's.
    strides: [u64; 2],
}

const fn shape(name: &'static str, heads: u64, head_dim: u64, queries: u64, keys: u64) -> Shape {
    let cols = heads * head_dim;
    Shape { name, heads, head_dim, queries, keys, strides: [3 * cols, cols] }
}

fn shapes() -> Vec<Shape> {
    vec![
        shape("flux double", 24, 128, 4608, 4608),
        Shape { strides: [9216, 15360], ..shape("flux single", 24, 128, 4608, 4608) },
        shape("flux 512x512", 24, 128, 1536, 1536),
        shape("odd lengths", 24, 128, 1000, 777),
        shape("two queries", 2, 128, 2, 333),
        shape("heads of 64", 20, 64, 1024, 1024),
        shape("cross, 64", 20, 64, 4096, 77),
        shape("two samples", 24, 128, 9216, 9216),
    ]
}

struct Case {
    shape: Shape,
    qkv: u64,
    out: u64,
    workspace: u64,
}

impl Case {
    fn sdpa(&self, queries: u64, first: u64) -> Sdpa {
        let Shape { heads, head_dim, keys, strides, .. } = self.shape;
        let cols = heads * head_dim;
        let matrix =
            |offset: u64, rows, stride| Matrix { offset, rows, cols, stride, dtype: DType::BF16 };
        Sdpa {
            q: matrix(self.qkv + first * strides[0] * 2, queries, strides[0]),
            k: matrix(self.qkv + cols * 2, keys, strides[0]),
            v: matrix(self.qkv + 4 * cols, keys, strides[0]),
            out: matrix(self.out + first * strides[1] * 2, queries, strides[1]),
            heads,
            scale: 1.0 / (head_dim as f32).sqrt(),
            workspace: Region { offset: self.workspace, bytes: WORKSPACE_BYTES },
        }
    }

    /// Runs an attention over poison.
    fn run<'r>(
        &self,
        rig: &'r Rig,
        dnn: &Dnn,
        prepared: &PreparedSdpa,
        (rows, first): (u64, u64),
    ) -> &'r [u8] {
        let cols = self.shape.heads * self.shape.head_dim;
        let pitch = self.shape.strides[1] * 2;
        rig.poison(self.out, (first + rows) * pitch);
        // SAFETY: the stream is alive and every operand lies in the rig's allocation.
        unsafe { dnn.launch(prepared, rig.base, rig.stream) }.unwrap();
        rig.read(self.out + first * pitch, rows, cols * 2, pitch)
    }
}

/// One row of one head in `f64`.
fn reference(shape: &Shape, qkv: &[bf16], row: u64, head: u64) -> Vec<f64> {
    let Shape { heads, head_dim, keys, strides, .. } = *shape;
    let cols = heads * head_dim;
    let at = |part: u64, row: u64| {
        let start = (row * strides[0] + part * cols + head * head_dim) as usize;
        qkv[start..start + head_dim as usize].iter().map(|value| value.to_f64())
    };
    let scale = 1.0 / (head_dim as f64).sqrt();
    let q: Vec<f64> = at(0, row).collect();
    let scores: Vec<f64> = (0..keys)
        .map(|key| q.iter().zip(at(1, key)).map(|(q, k)| q * k).sum::<f64>() * scale)
        .collect();
    let most = scores.iter().copied().fold(f64::MIN, f64::max);
    let powers: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
    let total: f64 = powers.iter().sum();
    let mut out = vec![0.0; head_dim as usize];
    for (key, power) in powers.iter().enumerate() {
        for (out, v) in out.iter_mut().zip(at(2, key as u64)) {
            *out += power / total * v;
        }
    }
    out
}

#[test]
#[ignore = "needs a card with cuDNN"]
fn attention_is_right_and_queries_have_the_same_bits_beside_any_others() {
    let mut rig = Rig::new(2 << 30);
    let libraries = rig.libraries();
    let dnn = libraries.dnn.as_ref().expect("cuDNN");
    let seed = seed();
    let (mut table, mut failures) = (Vec::new(), Vec::new());
    for shape in shapes() {
        let Shape { name, heads, head_dim, queries, keys, strides } = shape;
        rig.release_all();
        let rows = queries.max(keys);
        let mut case = Case { shape, qkv: 0, out: 0, workspace: 0 };
        case.qkv = rig.take(rows * strides[0] * 2);
        case.out = rig.take(rows * strides[1] * 2);
        case.workspace = rig.take(WORKSPACE_BYTES);
        let qkv = random(rows * strides[0], seed, 2.0);
        rig.write(case.qkv, &qkv);
        rig.synchronize();
        let started = std::time::Instant::now();
        let whole = dnn.prepare(&case.sdpa(queries, 0)).unwrap();
        let built = started.elapsed().as_secs_f64();
        let expected = case.run(&rig, dnn, &whole, (queries, 0)).to_vec();
        let found = values(&expected, false);
        let cols = heads * head_dim;
        let mut pairs = Vec::new();
        for sample in 0..SAMPLES {
            let (row, head) = (sample * 7919 % queries, sample * 31 % heads);
            let reference = reference(&shape, &qkv, row, head);
            let start = (row * cols + head * head_dim) as usize;
            pairs.extend(found[start..].iter().copied().zip(reference));
        }
        let error = relative_error(&pairs);
        if error.is_nan() || error > 5e-3 {
            failures.push(format!("{name}: relative error {error:.1e}"));
        }
        let row_bytes = (cols * 2) as usize;
        let (mut tried, mut refused) = (0, 0);
        for rows in [1, 2, 77, 256, 512, 1024, 4096] {
            for first in [0, queries.saturating_sub(rows) / 8 * 8] {
                if first + rows > queries {
                    continue;
                }
                let part = match dnn.prepare(&case.sdpa(rows, first)) {
                    // An engine with other bits is all that is offered for one query: refused is right.
                    Err(CudaError::Unsupported { .. }) if rows == 1 => {
                        refused += 1;
                        continue;
                    }
                    part => part.unwrap(),
                };
                let got = case.run(&rig, dnn, &part, (rows, first));
                tried += 1;
                if got != &expected[first as usize * row_bytes..][..got.len()] {
                    failures
                        .push(format!("{name}: {rows} queries from {first} by {}", part.engine()));
                }
            }
        }
        let seconds = rig.seconds(10, || {
            // SAFETY: as in `run`.
            unsafe { dnn.launch(&whole, rig.base, rig.stream) }.unwrap();
        });
        table.push(format!(
            "{name:14} {heads} x {queries} x {keys} x {head_dim} error {error:.1e} | {tried} parts, {refused} refused | {:8.1} us, {:.0} TFLOP/s | {} ws {} | built in {built:.3} s",
            seconds * 1e6,
            4.0 * (queries * keys * cols) as f64 / seconds / 1e12,
            whole.engine(),
            whole.workspace_bytes(),
        ));
    }
    println!("{}", table.join("\n"));
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

#[test]
#[ignore = "needs a card with cuDNN"]
fn what_does_not_serve_is_refused_with_its_figures() {
    let mut rig = Rig::new(64 << 20);
    let libraries = rig.libraries();
    let dnn = libraries.dnn.as_ref().expect("cuDNN");
    let shape = shape("small", 2, 128, 64, 64);
    let case = Case {
        shape,
        qkv: rig.take(1 << 20),
        out: rig.take(1 << 20),
        workspace: rig.take(1 << 20),
    };
    let good = case.sdpa(64, 0);
    dnn.prepare(&good).unwrap();
    let refused = [
        ("heads", Sdpa { heads: 3, ..good }),
        ("head size", Sdpa { heads: 8, ..good }),
        ("type", Sdpa { v: Matrix { dtype: DType::F32, ..good.v }, ..good }),
        ("offset", Sdpa { q: Matrix { offset: good.q.offset + 2, ..good.q }, ..good }),
        ("keys", Sdpa { v: Matrix { rows: 63, ..good.v }, ..good }),
        ("scratch", Sdpa { workspace: Region { offset: 0, bytes: 0 }, ..good }),
    ];
    for (what, sdpa) in refused {
        let error = dnn.prepare(&sdpa).expect_err(what);
        println!("{what}: {error}");
    }
}

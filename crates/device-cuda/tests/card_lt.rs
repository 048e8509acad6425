//! Products of cuBLASLt on a card: against sums in `f64`, and bits that do not depend on the number of rows.
//!
//! Run the test's binary on a machine with a card: `card_lt-HASH --ignored --nocapture`.

#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

mod rig;

use half::bf16;
use plimsoll_cuda_kernels::{Gemm, GemmActivation, Matrix, RowScales};
use plimsoll_device_cuda::lt::{Lt, PreparedGemm, REFERENCE_ROWS};
use plimsoll_graph::DType;
use plimsoll_plan::Region;
use plimsoll_weights::{f8_decode, f8_encode};
use rig::{Rig, random, relative_error, seed, values};

/// Two samples at 1024x1024, or the pixels of a latent.
const ROWS_MOST: u64 = 16384;
/// What a task gives: no algorithm without a split was seen to ask for more than 4 bytes.
const WORKSPACE_BYTES: u64 = 256;
/// Elements of a result that are summed again in `f64`.
const SAMPLES: u64 = 256;

/// A layer: columns, depth, and what follows the product.
#[derive(Clone, Copy, Debug)]
struct Layer {
    name: &'static str,
    n: u64,
    k: u64,
    bias: bool,
    gelu: bool,
    add: bool,
    out: DType,
    /// e4m3 operands with a scale a row.
    narrow: bool,
    /// Elements between rows of `a` and of `out` beyond their columns.
    wider: [u64; 2],
}

const fn layer(name: &'static str, n: u64, k: u64) -> Layer {
    Layer {
        name,
        n,
        k,
        bias: true,
        gelu: false,
        add: false,
        out: DType::BF16,
        narrow: false,
        wider: [0, 0],
    }
}

fn layers() -> Vec<Layer> {
    vec![
        layer("flux qkv", 9216, 3072),
        layer("flux out", 3072, 3072),
        Layer { gelu: true, ..layer("flux mlp.0", 12288, 3072) },
        Layer { gelu: true, wider: [0, 3072], ..layer("flux mlp in wide", 12288, 3072) },
        layer("flux mlp.2", 3072, 12288),
        layer("flux single out", 3072, 15360),
        Layer { wider: [12288, 0], ..layer("flux out of wide", 3072, 3072) },
        layer("flux modulation", 18432, 3072),
        layer("flux context", 3072, 4096),
        layer("flux x_embedder", 3072, 64),
        Layer { out: DType::F32, ..layer("flux velocity", 64, 3072) },
        layer("flux velocity bf16", 64, 3072),
        Layer { bias: false, ..layer("t5 q", 4096, 4096) },
        Layer { bias: false, add: true, ..layer("t5 o", 4096, 4096) },
        Layer { bias: false, ..layer("t5 wi", 10240, 4096) },
        Layer { bias: false, add: true, ..layer("t5 wo", 4096, 10240) },
        layer("clip", 768, 768),
        Layer { add: true, ..layer("clip fc2", 768, 3072) },
        layer("vae 1x1", 512, 512),
        Layer { add: true, ..layer("vae out", 512, 512) },
        Layer { narrow: true, ..layer("f8 qkv", 9216, 3072) },
        Layer { narrow: true, ..layer("f8 out", 3072, 3072) },
        Layer { narrow: true, gelu: true, ..layer("f8 mlp.0", 12288, 3072) },
        Layer {
            narrow: true,
            gelu: true,
            wider: [0, 3072],
            ..layer("f8 mlp in wide", 12288, 3072)
        },
        Layer { narrow: true, ..layer("f8 mlp.2", 3072, 12288) },
        Layer { narrow: true, ..layer("f8 single out", 3072, 15360) },
    ]
}

struct Case {
    layer: Layer,
    a: u64,
    b: u64,
    bias: u64,
    add: u64,
    out: u64,
    scales: [u64; 2],
    workspace: u64,
}

impl Case {
    fn a_stride(&self) -> u64 {
        self.layer.k + self.layer.wider[0]
    }

    fn out_stride(&self) -> u64 {
        self.layer.n + self.layer.wider[1]
    }

    fn new(rig: &mut Rig, layer: Layer) -> Self {
        rig.release_all();
        let width = layer.out.bytes();
        let a_bytes = ROWS_MOST * (layer.k + layer.wider[0]) * 2;
        let out_bytes = ROWS_MOST * (layer.n + layer.wider[1]) * width;
        let mut case =
            Self { layer, a: 0, b: 0, bias: 0, add: 0, out: 0, scales: [0; 2], workspace: 0 };
        case.a = rig.take(a_bytes);
        case.b = rig.take(layer.n * layer.k * 2);
        case.bias = rig.take(layer.n * 4);
        case.out = rig.take(out_bytes);
        case.add = rig.take(out_bytes);
        case.scales = [ROWS_MOST, layer.n].map(|count| rig.take(count * 4));
        case.workspace = rig.take(WORKSPACE_BYTES);
        case
    }

    /// The product of rows from `first`.
    fn gemm(&self, first: u64, rows: u64) -> Gemm {
        let Layer { n, k, bias, gelu, add, out, narrow, .. } = self.layer;
        let (a_stride, out_stride) = (self.a_stride(), self.out_stride());
        let row = |base: u64, stride: u64, width: u64| base + first * stride * width;
        let result = |base| Matrix {
            offset: row(base, out_stride, out.bytes()),
            rows,
            cols: n,
            stride: out_stride,
            dtype: out,
        };
        let dtype = if narrow { DType::F8E4M3 } else { DType::BF16 };
        let offset = row(self.a, a_stride, dtype.bytes());
        let [a_scales, b_scales] = self.scales;
        Gemm {
            a: Matrix { offset, rows, cols: k, stride: a_stride, dtype },
            b: Matrix { offset: self.b, rows: n, cols: k, stride: k, dtype },
            scales: narrow.then_some(RowScales { a: a_scales + 4 * first, b: b_scales }),
            bias: bias.then_some(self.bias),
            activation: if gelu { GemmActivation::GeluTanh } else { GemmActivation::None },
            add: add.then(|| result(self.add)),
            out: result(self.out),
            workspace: Region { offset: self.workspace, bytes: WORKSPACE_BYTES },
        }
    }

    /// Runs a product over poison; gives its first `rows_read` rows.
    fn run<'r>(
        &self,
        rig: &'r Rig,
        lt: &Lt,
        prepared: &PreparedGemm,
        (first, rows, rows_read): (u64, u64, u64),
    ) -> &'r [u8] {
        let width = self.layer.out.bytes();
        let (pitch, row_bytes) = (self.out_stride() * width, self.layer.n * width);
        rig.poison(self.out, (first + rows) * pitch);
        // SAFETY: the stream is alive and every operand lies in the rig's allocation.
        unsafe { lt.launch(prepared, rig.base, rig.stream) }.unwrap();
        rig.read(self.out + first * pitch, rows_read, row_bytes, pitch)
    }
}

fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).tanh())
}

#[test]
#[ignore = "needs a card with cuBLASLt"]
fn products_are_right_and_rows_have_the_same_bits_beside_any_others() {
    let mut rig = Rig::new(6 << 30);
    let libraries = rig.libraries();
    let lt = libraries.lt.as_ref().expect("cuBLASLt");
    let seed = seed();
    // One pool of values; each operand is a part of it.
    let pool = random(96 << 20, seed, 1.0);
    let mut table = Vec::new();
    let mut failures = Vec::new();
    for layer in layers() {
        let case = Case::new(&mut rig, layer);
        let started = std::time::Instant::now();
        let part = |offset: u64, count: u64| &pool[offset as usize..(offset + count) as usize];
        // The 16384 rows are only used by the narrow layers; the others have rows for two samples.
        let rows_most = if layer.k + layer.wider[0] <= 768 { ROWS_MOST } else { 9216 };
        let a_count = (rows_most * case.a_stride()).min(pool.len() as u64 - 1);
        let rows_most = a_count / case.a_stride();
        // 8-bit operands: the codes of the values, and the values are what the codes say.
        let codes = |values: &[bf16]| -> Vec<u8> {
            values.iter().map(|value| f8_encode(value.to_f32())).collect()
        };
        let value = |stored: bf16| {
            if layer.narrow {
                f64::from(f8_decode(f8_encode(stored.to_f32())))
            } else {
                stored.to_f64()
            }
        };
        if layer.narrow {
            rig.write(case.a, &codes(part(0, a_count)));
        } else {
            rig.write(case.a, part(0, a_count));
        }
        // Weights are small, as in a model, so that results are of the size of one.
        let spread = 1.7 / (layer.k as f32).sqrt();
        let b = random(layer.n * layer.k, seed + 1, if layer.narrow { 1.0 } else { spread });
        // Factors of rows, for each operand its own.
        let scales = [rows_most, layer.n].map(|count| -> Vec<f32> {
            (0..count).map(|row| 0.5 + (row * 37 % 64) as f32 / 64.0).collect()
        });
        let scales = [scales[0].clone(), scales[1].iter().map(|scale| scale * spread).collect()];
        if layer.narrow {
            rig.write(case.b, &codes(&b));
            rig.write(case.scales[0], &scales[0]);
            rig.write(case.scales[1], &scales[1]);
        } else {
            rig.write(case.b, &b);
        }
        let (bias, add) =
            (part(777, layer.n), part(99_991, rows_most.min(4608) * case.out_stride()));
        let bias_wide: Vec<f32> = bias.iter().map(|value| value.to_f32()).collect();
        if layer.out == DType::F32 {
            rig.write(case.bias, &bias_wide)
        } else {
            rig.write(case.bias, bias)
        }
        assert!(!(layer.add && layer.out == DType::F32), "no addend in f32 here");
        // The addend beyond the reference's rows repeats it.
        for first in (0..rows_most).step_by(4608).filter(|_| layer.add) {
            let count = (rows_most - first).min(4608) * case.out_stride();
            rig.write(case.add + first * case.out_stride() * 2, &add[..count as usize]);
        }
        rig.synchronize();

        let reference = lt.prepare(&case.gemm(0, REFERENCE_ROWS)).unwrap();
        let expected = case.run(&rig, lt, &reference, (0, REFERENCE_ROWS, REFERENCE_ROWS)).to_vec();
        let found = values(&expected, layer.out == DType::F32);
        let pairs: Vec<(f64, f64)> = (0..SAMPLES)
            .map(|sample| {
                let (row, col) = (sample * 7919 % REFERENCE_ROWS, sample * 104_729 % layer.n);
                let a = &pool[(row * case.a_stride()) as usize..][..layer.k as usize];
                let b = &b[(col * layer.k) as usize..][..layer.k as usize];
                let sum: f64 = a.iter().zip(b).map(|(a, b)| value(*a) * value(*b)).sum();
                let scale = f64::from(scales[0][row as usize]) * f64::from(scales[1][col as usize]);
                let sum = if layer.narrow { sum * scale } else { sum };
                let sum = if layer.bias { sum + bias[col as usize].to_f64() } else { sum };
                let sum = if layer.gelu { gelu(sum) } else { sum };
                let add = add[(row * case.out_stride() + col) as usize].to_f64();
                (found[(row * layer.n + col) as usize], if layer.add { sum + add } else { sum })
            })
            .collect();
        let error = relative_error(&pairs);
        let limit = match layer.out {
            DType::F32 => 1e-5,
            // Sums stay in the tensor cores.
            _ if layer.narrow => 5e-3,
            _ => 3e-3,
        };
        if error.is_nan() || error > limit {
            failures.push(format!("{}: relative error {error:.1e}", layer.name));
        }

        let row_bytes = (layer.n * layer.out.bytes()) as usize;
        let (mut tried, mut distinct) = (0, std::collections::BTreeSet::new());
        for rows in [1, 2, 77, 256, 333, 512, 1024, 4096, REFERENCE_ROWS, 9216, 16384] {
            if rows > rows_most {
                continue;
            }
            for first in [0, REFERENCE_ROWS.saturating_sub(rows) / 8 * 8] {
                for prepared in lt.prepare_each(&case.gemm(first, rows)).unwrap() {
                    let shared = rows.min(REFERENCE_ROWS - first);
                    let got = case.run(&rig, lt, &prepared, (first, rows, shared));
                    tried += 1;
                    distinct.insert(prepared.algorithm());
                    if got != &expected[first as usize * row_bytes..][..got.len()] {
                        let algorithm = prepared.algorithm();
                        failures.push(format!(
                            "{}: {rows} rows from {first} by {algorithm}",
                            layer.name
                        ));
                    }
                }
            }
        }
        let mut times = String::new();
        for rows in [1, 77, 512, 4096, 4608] {
            let prepared = lt.prepare(&case.gemm(0, rows)).unwrap();
            let seconds = rig.seconds(20, || {
                // SAFETY: as in `run`.
                unsafe { lt.launch(&prepared, rig.base, rig.stream) }.unwrap();
            });
            times += &format!(" {:8.1}", seconds * 1e6);
        }
        let prepared = lt.prepare(&case.gemm(0, 512)).unwrap();
        table.push(format!(
            "{:20} error {error:.1e} | {tried} results of {} algorithms | us at 1 77 512 4096 4608:{times} | {} at 4608, {} at 512 | {:.1} s",
            layer.name,
            distinct.len(),
            reference.algorithm(),
            prepared.algorithm(),
            started.elapsed().as_secs_f64(),
        ));
    }
    println!("{}", table.join("\n"));
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

#[test]
#[ignore = "needs a card with cuBLASLt"]
fn what_does_not_serve_is_refused_with_its_figures() {
    let mut rig = Rig::new(1 << 30);
    let libraries = rig.libraries();
    let lt = libraries.lt.as_ref().expect("cuBLASLt");
    let case = Case::new(&mut rig, layer("small", 256, 256));
    let good = case.gemm(0, 128);
    lt.prepare(&good).unwrap();
    let refused = [
        ("stride", Gemm { a: Matrix { stride: 257, ..good.a }, ..good }),
        ("offset", Gemm { b: Matrix { offset: good.b.offset + 2, ..good.b }, ..good }),
        ("rows", Gemm { out: Matrix { rows: 127, ..good.out }, ..good }),
        ("type", Gemm { a: Matrix { dtype: DType::F32, ..good.a }, ..good }),
        (
            "empty",
            Gemm { a: Matrix { rows: 0, ..good.a }, out: Matrix { rows: 0, ..good.out }, ..good },
        ),
        ("scales", Gemm { scales: Some(RowScales { a: 0, b: 0 }), ..good }),
        ("addend", Gemm { activation: GemmActivation::GeluTanh, add: Some(good.out), ..good }),
    ];
    for (what, gemm) in refused {
        let error = lt.prepare(&gemm).expect_err(what);
        println!("{what}: {error}");
    }
}

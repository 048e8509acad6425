//! Rule of rows, and the same bits for any number of workers.

#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]
#![allow(missing_docs)]

mod common;

use common::{Lab, Tensor};
use plimsoll_device::Mat;
use plimsoll_graph::{Activation, DType, Norm, OpKind, Residual};

const TYPES: [DType; 2] = [DType::F32, DType::BF16];

fn rows(mat: Mat, rows: u64) -> Mat {
    Mat { rows, ..mat }
}

/// Runs `kind(rows)` for each number of rows and compares with the first rows of the run over all.
fn check_rows(
    what: &str,
    lab: &Lab,
    out: &Tensor,
    counts: &[u64],
    kind: &dyn Fn(u64) -> OpKind<Mat, Mat>,
) {
    let all = lab.run(kind(out.mat.rows), out, 2);
    assert!(all.values.iter().all(|value| !value.is_nan()), "{what}");
    for &count in counts {
        let part = lab.run(kind(count), out, 2);
        let bytes = (count * out.mat.cols * out.mat.dtype.bytes()) as usize;
        assert!(all.bytes[..bytes] == part.bytes[..bytes], "{what}: {count} rows have other bits");
    }
}

#[test]
fn a_row_of_a_linear_layer_stands_alone() {
    let counts = [1, 2, 3, 7, 15, 16, 17, 31, 33, 63, 64, 65, 77, 96, 191, 193, 256, 257, 385, 511];
    for (n, k) in
        [(192, 192), (576, 192), (1, 1), (3, 7), (97, 383), (100, 385), (31, 769), (700, 64)]
    {
        for dtype in TYPES {
            for weight_dtype in TYPES {
                let mut lab = Lab::new(n * 1000 + k);
                let x = lab.random(512, k, dtype);
                let weight = lab.random(n, k, weight_dtype);
                let bias = lab.random(1, n, weight_dtype);
                let gate = lab.random(1, n, dtype);
                let base = lab.random(512, n, dtype);
                let out = lab.empty(512, n, dtype);
                let what = format!("{k} to {n}, {dtype:?}, {weight_dtype:?}");
                check_rows(&what, &lab, &out, &counts, &|count| OpKind::Linear {
                    x: rows(x.mat, count),
                    weight: weight.mat,
                    weight_scale: None,
                    bias: Some(bias.mat),
                    activation: Activation::GeluTanh,
                    residual: Some(Residual { base: rows(base.mat, count), gate: Some(gate.mat) }),
                    out: rows(out.mat, count),
                });
            }
        }
    }
}

#[test]
fn a_row_over_an_eight_bit_weight_stands_alone() {
    for (n, k) in [(192, 192), (97, 383), (31, 769)] {
        for dtype in TYPES {
            let mut lab = Lab::new(n * 1000 + k);
            let x = lab.random(300, k, dtype);
            let weight = lab.random(n, k, DType::F8E4M3);
            let scale = lab.random(1, n, DType::F32);
            let out = lab.empty(300, n, dtype);
            let what = format!("{k} to {n}, {dtype:?}, 8 bits");
            check_rows(&what, &lab, &out, &[1, 2, 16, 17, 64, 96, 257], &|count| OpKind::Linear {
                x: rows(x.mat, count),
                weight: weight.mat,
                weight_scale: Some(scale.mat),
                bias: None,
                activation: Activation::Silu,
                residual: None,
                out: rows(out.mat, count),
            });
        }
    }
}

#[test]
fn a_query_stands_alone() {
    for dtype in TYPES {
        for (keys, heads, head_dim) in [(96, 3, 64), (200, 2, 6)] {
            let mut lab = Lab::new(keys);
            let cols = heads * head_dim;
            let q = lab.random(300, cols, dtype);
            let k = lab.random(keys, cols, dtype);
            let v = lab.random(keys, cols, dtype);
            let out = lab.empty(300, cols, dtype);
            let counts = [1, 2, 15, 16, 17, 63, 64, 65, 96, 128, 257, 299];
            check_rows("attention", &lab, &out, &counts, &|count| OpKind::Attention {
                q: rows(q.mat, count),
                k: k.mat,
                v: v.mat,
                heads,
                scale: 0.125,
                causal: false,
                bias: None,
                out: rows(out.mat, count),
            });
            // A causal query does not depend on the keys after it either.
            let k = lab.random(300, cols, dtype);
            let v = lab.random(300, cols, dtype);
            check_rows("causal attention", &lab, &out, &counts, &|count| OpKind::Attention {
                q: rows(q.mat, count),
                k: rows(k.mat, count),
                v: rows(v.mat, count),
                heads,
                scale: 0.125,
                causal: true,
                bias: None,
                out: rows(out.mat, count),
            });
        }
    }
}

#[test]
fn a_row_of_the_other_ops_stands_alone() {
    for dtype in TYPES {
        let mut lab = Lab::new(1);
        let (all, cols) = (400, 192);
        let x = lab.random(all, 2 * cols, dtype);
        let one = lab.random(1, cols, dtype);
        let weight = lab.random(all, cols, DType::BF16);
        let rope = lab.random(all, 64, DType::F32);
        let out = lab.empty(all, cols, dtype);
        let counts = [1, 2, 17, 96, 399];
        let first = x.cols(0, cols);
        check_rows("norm", &lab, &out, &counts, &|count| OpKind::Norm {
            x: rows(first, count),
            norm: Norm::LayerModulated { eps: 1e-6, scale: one.mat, shift: one.mat },
            out: rows(out.mat, count),
        });
        check_rows("rms", &lab, &out, &counts, &|count| OpKind::Norm {
            x: rows(first, count),
            norm: Norm::Rms { eps: 1e-6, weight: rows(weight.mat, 1) },
            out: rows(out.mat, count),
        });
        check_rows("glu", &lab, &out, &counts, &|count| OpKind::GluGelu {
            x: rows(x.mat, count),
            out: rows(out.mat, count),
        });
        check_rows("add weight", &lab, &out, &counts, &|count| OpKind::AddWeight {
            a: rows(first, count),
            weight: weight.mat,
            out: rows(out.mat, count),
        });
        let qk = lab.random(all, 2 * cols, dtype);
        let (q, k) = (qk.cols(0, cols), qk.cols(cols, cols));
        check_rows("head norm", &lab, &qk, &counts, &|count| OpKind::QkNormRope {
            q: rows(q, count),
            k: rows(k, count),
            q_weight: Mat { rows: 1, cols: 64, ..weight.mat },
            k_weight: Mat { rows: 1, cols: 64, ..weight.mat },
            rope: rows(rope.mat, count),
            heads: 3,
            eps: 1e-6,
        });
    }
}

#[test]
fn workers_do_not_change_bits() {
    for dtype in TYPES {
        let mut lab = Lab::new(77);
        let x = lab.random(1024, 96, dtype);
        let square = lab.random(96, 96, DType::BF16);
        let kernel = lab.random(96, 96 * 9, DType::BF16);
        let vector = lab.random(1, 96, DType::BF16);
        let wide = lab.empty(1024, 96, dtype);
        let enlarged = lab.empty(4096, 96, dtype);
        let linear = OpKind::Linear {
            x: x.mat,
            weight: square.mat,
            weight_scale: None,
            bias: Some(vector.mat),
            activation: Activation::Silu,
            residual: None,
            out: wide.mat,
        };
        let attention = OpKind::Attention {
            q: x.mat,
            k: x.mat,
            v: x.mat,
            heads: 3,
            scale: 0.2,
            causal: false,
            bias: None,
            out: wide.mat,
        };
        let group_norm = OpKind::GroupNorm {
            x: x.mat,
            weight: vector.mat,
            bias: vector.mat,
            groups: 32,
            eps: 1e-6,
            silu: true,
            out: wide.mat,
        };
        let norm = OpKind::Norm {
            x: x.mat,
            norm: Norm::LayerAffine { eps: 1e-6, weight: vector.mat, bias: vector.mat },
            out: wide.mat,
        };
        let conv = OpKind::Conv3x3 {
            x: x.mat,
            height: 32,
            width: 32,
            upscale: 2,
            margin: [0, 0],
            weight: kernel.mat,
            bias: vector.mat,
            residual: None,
            out: enlarged.mat,
        };
        for (kind, out) in [
            (linear, &wide),
            (attention, &wide),
            (group_norm, &wide),
            (norm, &wide),
            (conv, &enlarged),
        ] {
            let one = lab.run(kind.clone(), out, 1);
            assert!(one.values.iter().all(|value| !value.is_nan()));
            for workers in [2, 3, 5] {
                let other = lab.run(kind.clone(), out, workers);
                assert!(one.bytes == other.bytes, "{} with {workers} workers", kind.label());
                assert_eq!(one.stats.high_water_bytes, other.stats.high_water_bytes);
            }
        }
    }
}

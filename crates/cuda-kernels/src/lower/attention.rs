//! Attention: a library or an own kernel for heads of 64 and 128 columns in bf16, and products over bands of
//! queries for all others.
//!
//! A band's scores are in scratch: `q k^T` in `f32`, weights in their place, weights times values (whose columns
//! were laid out as rows once). The band's height comes from the number of keys alone and changes no bit.

use plimsoll_device::{BoundOp, Mat, Region};
use plimsoll_graph::{Activation, DType, OpKind};

use super::product::{Product, Tail, is_for_tensor_cores, launch, number, require_plain};
use crate::shape::Shape;
use crate::task::{Arg, AttentionBackend, Backends, Launch, Matrix, Sdpa, Task, Unsupported};

/// Scratch of the library; 256 bytes were the most it took.
const LIBRARY_BYTES: u64 = 1024;

/// Queries and keys of a block of `attention_64` and `attention_128`.
const QUERIES: u64 = 128;
const KEYS: u64 = 64;

/// Most bytes of a band's scores.
const BAND_BYTES: u64 = 64 << 20;

/// Alignment of parts of the scratch.
const SCRATCH_ALIGNMENT: u64 = 256;

/// Who computes an attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    /// A library.
    Library,
    /// An own kernel that keeps no scores.
    Blocks,
    /// Own products over bands of queries.
    Bands(Bands),
}

/// Sizes of the scratch of bands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bands {
    /// Queries of a band.
    rows: u64,
    /// Keys, rounded up so that rows of scores and of turned values are aligned.
    padded: u64,
    /// Bytes of the turned values, `[columns of v, padded]`.
    turned_bytes: u64,
}

impl Bands {
    fn of(queries: u64, keys: u64, v: &Shape) -> Self {
        let padded = keys.next_multiple_of(8);
        let most = (BAND_BYTES / (4 * padded.max(1))).max(1);
        let whole = if most >= QUERIES { most - most % QUERIES } else { most };
        let turned_bytes = (v.cols * padded * v.dtype.bytes()).next_multiple_of(SCRATCH_ALIGNMENT);
        Self { rows: whole.min(queries), padded, turned_bytes }
    }

    fn bytes(&self) -> u64 {
        self.turned_bytes + self.rows * self.padded * 4
    }
}

/// What of an op decides its route.
struct Question<'s> {
    shapes: [&'s Shape; 4],
    heads: u64,
    scale: f32,
    causal: bool,
    has_bias: bool,
}

impl Question<'_> {
    fn route(&self, backends: Backends) -> Route {
        let [q, k, v, _] = self.shapes;
        let head_dim = q.cols.checked_div(self.heads).unwrap_or(0);
        let is_plain = !self.causal && !self.has_bias;
        let is_bf16 = self.shapes.iter().all(|shape| shape.dtype == DType::BF16);
        if !is_bf16 || ![64, 128].contains(&head_dim) {
            return Route::Bands(Bands::of(q.rows, k.rows, v));
        }
        // For a single query cuDNN has another engine only, with other bits.
        if is_plain && q.rows > 1 && backends.attention == AttentionBackend::Cudnn {
            return Route::Library;
        }
        // The kernel finds the highest score before it scales; FLUX has no wide heads with a mask.
        if self.scale > 0.0 && (is_plain || head_dim == 64) {
            return Route::Blocks;
        }
        Route::Bands(Bands::of(q.rows, k.rows, v))
    }
}

pub(super) fn workspace_bytes(op: &OpKind<Shape, Shape>, backends: Backends) -> u64 {
    let OpKind::Attention { q, k, v, heads, scale, causal, bias, out } = op else { return 0 };
    let question = Question {
        shapes: [q, k, v, out],
        heads: *heads,
        scale: *scale,
        causal: *causal,
        has_bias: bias.is_some(),
    };
    match question.route(backends) {
        Route::Library => LIBRARY_BYTES,
        Route::Blocks => 0,
        Route::Bands(bands) => bands.bytes(),
    }
}

pub(super) fn tasks(op: &BoundOp, backends: Backends) -> Result<Vec<Task>, Unsupported> {
    let name = op.op.name.as_str();
    let OpKind::Attention { q, k, v, heads, scale, causal, bias, out } = &op.op.kind else {
        return Err(Unsupported { what: name.to_owned() });
    };
    require_plain(name, &[q, k, v, out])?;
    let bias = bias.as_ref().map(|bias| &bias.bias);
    let attention =
        Attention { name, q, k, v, heads: *heads, scale: *scale, causal: *causal, bias, out };
    attention.require_shapes()?;
    let shape = |mat: &Mat| Shape { rows: mat.rows, cols: mat.cols, dtype: mat.dtype };
    let shapes = [q, k, v, out].map(shape);
    let question = Question {
        shapes: shapes.each_ref(),
        heads: *heads,
        scale: *scale,
        causal: *causal,
        has_bias: bias.is_some(),
    };
    let route = question.route(backends);
    let needed = match route {
        Route::Library => LIBRARY_BYTES,
        Route::Blocks => 0,
        Route::Bands(bands) => bands.bytes(),
    };
    let is_aligned = [q, k, v, out].into_iter().all(is_for_tensor_cores);
    if op.workspace.bytes < needed || (!is_aligned && !matches!(route, Route::Bands(_))) {
        return Err(Unsupported { what: format!("{name}: operands at these addresses") });
    }
    let scratch = op.workspace.offset;
    match route {
        Route::Library => Ok(vec![attention.with_library(scratch)]),
        Route::Blocks => Ok(vec![Task::Launch(attention.in_blocks()?)]),
        Route::Bands(bands) => attention.in_bands(&bands, scratch),
    }
}

#[derive(Clone, Copy)]
struct Attention<'a> {
    name: &'a str,
    q: &'a Mat,
    k: &'a Mat,
    v: &'a Mat,
    heads: u64,
    scale: f32,
    causal: bool,
    bias: Option<&'a Mat>,
    out: &'a Mat,
}

impl Attention<'_> {
    fn head_dim(&self) -> u64 {
        self.q.cols / self.heads
    }

    fn require_shapes(&self) -> Result<(), Unsupported> {
        let Self { q, k, v, heads, out, .. } = self;
        let is_whole = *heads > 0 && q.cols.is_multiple_of(*heads) && k.rows > 0;
        let is_same = k.cols == q.cols && v.cols == q.cols && out.cols == q.cols;
        let has_rows = k.rows == v.rows && q.rows == out.rows;
        // A row of the bias reaches every pair, and the next head's begins right after it.
        let has_bias = self.bias.is_none_or(|bias| {
            bias.dtype == DType::F32
                && bias.rows == *heads
                && bias.stride == bias.cols
                && bias.cols % 2 == 1
                && bias.cols.div_ceil(2) >= q.rows.max(k.rows)
                && bias.step_bytes == 0
        });
        if is_whole && is_same && has_rows && has_bias {
            Ok(())
        } else {
            Err(Unsupported { what: format!("{}: operands of these shapes", self.name) })
        }
    }

    fn with_library(&self, scratch: u64) -> Task {
        let matrix = |mat: &Mat| Matrix {
            offset: mat.offset,
            rows: mat.rows,
            cols: mat.cols,
            stride: mat.stride,
            dtype: mat.dtype,
        };
        Task::Sdpa(Sdpa {
            q: matrix(self.q),
            k: matrix(self.k),
            v: matrix(self.v),
            out: matrix(self.out),
            heads: self.heads,
            scale: self.scale,
            workspace: Region { offset: scratch, bytes: LIBRARY_BYTES },
        })
    }

    /// Address and elements between heads of the bias.
    fn bias_args(&self, head: u64) -> Result<[Arg; 2], Unsupported> {
        Ok(match self.bias {
            Some(bias) => [
                Arg::Arena(bias.offset + head * bias.stride * bias.dtype.bytes()),
                Arg::U32(number(self.name, bias.stride)?),
            ],
            None => [Arg::Null, Arg::U32(0)],
        })
    }

    fn in_blocks(&self) -> Result<Launch, Unsupported> {
        let head_dim = self.head_dim();
        let is_masked = self.causal || self.bias.is_some();
        let size = |value| number(self.name, value);
        let mut args = Vec::with_capacity(14);
        for mat in [self.q, self.k, self.v, self.out] {
            args.extend([Arg::Arena(mat.offset), Arg::U32(size(mat.stride)?)]);
        }
        args.extend([Arg::U32(size(self.q.rows)?), Arg::U32(size(self.k.rows)?)]);
        args.push(Arg::F32(self.scale));
        args.extend(self.bias_args(0)?);
        args.push(Arg::U32(u32::from(self.causal)));
        Ok(Launch {
            kernel: match (head_dim, is_masked) {
                (128, _) => "attention_128",
                (_, false) => "attention_64",
                (_, true) => "attention_64_masked",
            },
            grid: [size(self.q.rows.div_ceil(QUERIES))?, size(self.heads)?, 1],
            block: [128, 1, 1],
            // Queries, and keys and values twice.
            shared_bytes: size((QUERIES + 4 * KEYS) * head_dim * 2)?,
            args,
        })
    }

    fn in_bands(&self, bands: &Bands, scratch: u64) -> Result<Vec<Task>, Unsupported> {
        let Self { name, q, k, v, out, .. } = *self;
        let head_dim = self.head_dim();
        let scores_at = scratch + bands.turned_bytes;
        let mut tasks = vec![Task::Launch(self.turn(bands, scratch)?)];
        for head in 0..self.heads {
            let col = head * head_dim;
            let part = |mat: &Mat, row: u64, rows: u64| Mat {
                offset: mat.offset + (row * mat.stride + col) * mat.dtype.bytes(),
                rows,
                cols: head_dim,
                ..*mat
            };
            for first in (0..q.rows).step_by(usize::try_from(bands.rows).unwrap_or(usize::MAX)) {
                let rows = bands.rows.min(q.rows - first);
                let scores = Mat {
                    offset: scores_at,
                    rows,
                    cols: k.rows,
                    stride: bands.padded,
                    dtype: DType::F32,
                    step_bytes: 0,
                };
                // A weight takes the first bytes of its score's row.
                let weights = Mat {
                    cols: bands.padded,
                    stride: bands.padded * 4 / v.dtype.bytes(),
                    dtype: v.dtype,
                    ..scores
                };
                let turned = Mat {
                    offset: scratch + col * bands.padded * v.dtype.bytes(),
                    rows: head_dim,
                    cols: bands.padded,
                    stride: bands.padded,
                    ..*v
                };
                let (queries, keys) = (part(q, first, rows), part(k, 0, k.rows));
                let result = part(out, first, rows);
                tasks.push(product(name, &queries, &keys, &scores)?);
                tasks.push(Task::Launch(self.softmax(&scores, first, head)?));
                tasks.push(product(name, &weights, &turned, &result)?);
            }
        }
        Ok(tasks)
    }

    /// Columns of `v` as rows.
    fn turn(&self, bands: &Bands, to: u64) -> Result<Launch, Unsupported> {
        let Self { name, v, .. } = *self;
        let size = |value| number(name, value);
        Ok(Launch {
            kernel: "attention_transpose",
            grid: [size(bands.padded.div_ceil(32))?, size(v.cols.div_ceil(32))?, 1],
            block: [256, 1, 1],
            shared_bytes: 0,
            args: vec![
                Arg::Arena(v.offset),
                Arg::U32(size(v.stride)?),
                Arg::Arena(to),
                Arg::U32(size(v.rows)?),
                Arg::U32(size(v.cols)?),
                Arg::U32(size(bands.padded)?),
                Arg::U32(u32::from(v.dtype == DType::F32)),
            ],
        })
    }

    /// Scores of queries from `first` on to weights.
    fn softmax(&self, scores: &Mat, first: u64, head: u64) -> Result<Launch, Unsupported> {
        let size = |value| number(self.name, value).map(Arg::U32);
        let [bias, bias_stride] = self.bias_args(head)?;
        Ok(Launch {
            kernel: "attention_softmax",
            grid: [number(self.name, scores.rows)?, 1, 1],
            block: [256, 1, 1],
            shared_bytes: 0,
            args: vec![
                Arg::Arena(scores.offset),
                size(scores.stride)?,
                size(scores.cols)?,
                size(scores.stride)?,
                Arg::F32(self.scale),
                bias,
                bias_stride,
                size(first)?,
                Arg::U32(u32::from(self.causal)),
                Arg::U32(u32::from(self.v.dtype == DType::F32)),
            ],
        })
    }
}

fn product(name: &str, x: &Mat, w: &Mat, out: &Mat) -> Result<Task, Unsupported> {
    let tail = Tail { bias: None, activation: Activation::None, gate: None, base: None, out };
    Ok(Task::Launch(launch(name, &Product { x, w, tail })?))
}

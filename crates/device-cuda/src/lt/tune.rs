//! Which algorithm of a family is the quickest for a layer on this very card, found by trying.
//!
//! Algorithms of a proven family have the same bits, so a choice among them is one of time alone: no plan and no id
//! depends on it. It is made on a warm card, where power and not the number of multiprocessors bounds a product, and
//! the heuristic, which knows cards by their shapes, is up to 6 % from the best (`bench/runs/2026-11-30-h200`).

use cudarc::driver::sys::{CUdeviceptr, CUstream};
use plimsoll_cuda_kernels::{Gemm, GemmActivation, Matrix};
use plimsoll_graph::DType;
use plimsoll_plan::Region;
use serde::{Deserialize, Serialize};

use super::product::{Class, Format};
use super::{Lt, PreparedGemm};
use crate::CudaError;

/// Most choices that a file may hold.
pub const TUNED_MOST: usize = 4096;

/// Another than the first offer is taken only where it is quicker by more than this part: less is noise.
const GAIN_LEAST: f64 = 0.01;
/// Times each candidate is timed; the median counts.
const ROUNDS: usize = 5;
/// Products in a row of one timing.
const IN_A_ROW: u32 = 8;
/// Products that warm the card.
const WARMING: u32 = 800;
/// Scratch of a product.
const WORKSPACE_BYTES: u64 = 256;

/// The quickest algorithm of a layer in bf16 at one number of rows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TunedProduct {
    /// Version of cuBLASLt in which the algorithm has its number.
    #[serde(rename = "library")]
    pub version: String,
    /// Rows.
    pub rows: u64,
    /// Columns.
    pub n: u64,
    /// Depth.
    pub k: u64,
    /// Whether GELU follows the bias.
    pub gelu: bool,
    /// The algorithm's fields, as [`PreparedGemm::algorithm`] gives them.
    pub algorithm: String,
}

impl TunedProduct {
    /// Whether the choice is of a product of this class, with so many rows.
    pub(super) fn is_of(&self, class: &Class, rows: u64) -> bool {
        class.format == Format::Bf16
            && class.has_bias
            && !class.has_add
            && (self.rows, self.n, self.k) == (rows, class.n, class.k)
            && self.gelu == (class.activation == GemmActivation::GeluTanh)
    }
}

/// A layer that is tried.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layer {
    rows: u64,
    n: u64,
    k: u64,
    gelu: bool,
}

/// Layers of FLUX.1's blocks at 1024x1024 in bf16: the text's 512 tokens, the picture's 4096, and both.
pub(crate) fn layers() -> Vec<Layer> {
    const WIDTH: u64 = 3072;
    let layer = |rows, n, k, gelu| Layer { rows, n, k, gelu };
    let double = [512, 4096].into_iter().flat_map(|rows| {
        [
            layer(rows, 3 * WIDTH, WIDTH, false),
            layer(rows, WIDTH, WIDTH, false),
            layer(rows, 4 * WIDTH, WIDTH, true),
            layer(rows, WIDTH, 4 * WIDTH, false),
        ]
    });
    let single = [
        layer(4608, 3 * WIDTH, WIDTH, false),
        layer(4608, 4 * WIDTH, WIDTH, true),
        layer(4608, WIDTH, 5 * WIDTH, false),
        // The last one's, of the picture alone.
        layer(4096, WIDTH, 5 * WIDTH, false),
    ];
    double.chain(single).collect()
}

impl Layer {
    /// Bytes of operands, result and scratch.
    fn bytes(&self) -> u64 {
        self.gemm().workspace.end()
    }

    /// The product over memory that begins at 0.
    fn gemm(&self) -> Gemm {
        let &Self { rows, n, k, gelu } = self;
        let mut end = 0;
        let mut matrix = |rows: u64, cols: u64| {
            let offset = end;
            end = (end + rows * cols * 2).next_multiple_of(256);
            Matrix { offset, rows, cols, stride: cols, dtype: DType::BF16 }
        };
        let (a, b) = (matrix(rows, k), matrix(n, k));
        let (bias, out) = (matrix(1, n), matrix(rows, n));
        Gemm {
            a,
            b,
            scales: None,
            bias: Some(bias.offset),
            activation: if gelu { GemmActivation::GeluTanh } else { GemmActivation::None },
            add: None,
            out,
            workspace: Region { offset: end, bytes: WORKSPACE_BYTES },
        }
    }
}

/// Bytes that [`Lt::tune`] needs.
pub(crate) fn tuning_bytes() -> u64 {
    layers().iter().map(Layer::bytes).max().unwrap_or(0)
}

/// Index of the quickest by the medians of its times, of the first where none is quicker by enough.
fn quickest(times: &mut [Vec<f64>]) -> usize {
    let medians: Vec<f64> = times
        .iter_mut()
        .map(|times| {
            times.sort_by(f64::total_cmp);
            times.get(times.len() / 2).copied().unwrap_or(f64::INFINITY)
        })
        .collect();
    let best = medians.iter().enumerate().min_by(|(_, a), (_, b)| a.total_cmp(b));
    match (best, medians.first()) {
        (Some((at, seconds)), Some(first)) if *seconds < first * (1.0 - GAIN_LEAST) => at,
        _ => 0,
    }
}

impl Lt {
    /// Tries the families of [`layers`] over random operands at `base`, of [`tuning_bytes`]; gives the choices that are
    /// not the heuristic's. None where no family is proven.
    ///
    /// # Errors
    /// The library's or the driver's failure.
    ///
    /// # Safety
    /// `stream` is a live stream of the current context, and `base` so many bytes that outlive its work.
    pub(crate) unsafe fn tune(
        &self,
        base: CUdeviceptr,
        stream: CUstream,
        synchronize: &dyn Fn() -> Result<(), CudaError>,
    ) -> Result<Vec<TunedProduct>, CudaError> {
        let repeat = |prepared: &PreparedGemm, count: u32| {
            // SAFETY: as this function's; a layer's operands lie within the bytes.
            (0..count).try_for_each(|_| unsafe { self.launch(prepared, base, stream) })
        };
        let mut tuned = Vec::new();
        for (index, layer) in layers().into_iter().enumerate() {
            let candidates = self.family(&layer.gemm())?;
            let Some(first) = candidates.first() else { continue };
            if index == 0 {
                let warming = self.prepare(&Layer { rows: 4608, ..layer }.gemm())?;
                repeat(&warming, WARMING)?;
            }
            let mut times = vec![Vec::new(); candidates.len()];
            for _ in 0..ROUNDS {
                for (candidate, times) in candidates.iter().zip(&mut times) {
                    repeat(candidate, 1)?;
                    synchronize()?;
                    let began = std::time::Instant::now();
                    repeat(candidate, IN_A_ROW)?;
                    synchronize()?;
                    times.push(began.elapsed().as_secs_f64());
                }
            }
            let best = &candidates[quickest(&mut times)];
            if best.algorithm() != first.algorithm() {
                let Layer { rows, n, k, gelu } = layer;
                let (version, algorithm) = (self.version(), best.algorithm());
                tuned.push(TunedProduct { version, rows, n, k, gelu, algorithm });
            }
        }
        Ok(tuned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_clear_gain_is_one() {
        let times = |of: [f64; 3]| of.map(|seconds| vec![seconds, 9.0, seconds]).to_vec();
        assert_eq!(quickest(&mut times([1.0, 0.995, 1.2])), 0);
        assert_eq!(quickest(&mut times([1.0, 0.97, 0.96])), 2);
        assert_eq!(quickest(&mut []), 0);
        // One slow round is no matter.
        assert_eq!(quickest(&mut [vec![1.0, 1.0, 1.0], vec![0.9, 3.0, 0.9]]), 1);
    }

    #[test]
    fn operands_of_a_layer_lie_side_by_side() {
        for layer in layers() {
            let gemm = layer.gemm();
            let ends = [gemm.a, gemm.b].map(|matrix| matrix.offset + matrix.rows * matrix.cols * 2);
            assert!(ends[0] <= gemm.b.offset && Some(ends[1]) <= gemm.bias);
            assert!(gemm.out.offset + gemm.out.rows * gemm.out.cols * 2 <= gemm.workspace.offset);
            assert!(layer.bytes() <= tuning_bytes());
        }
        assert!(tuning_bytes() < 1 << 30);
    }
}

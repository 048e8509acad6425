//! What happens to a tile of sums before it is stored: bias, activation, residual.

use plimsoll_graph::Activation;

use super::arena::{MatMut, MatRef};
use super::elementwise::activate_chunk;
use super::simd::Isa;
use super::transpose::{Block, SIDE, transposed};

/// `out = base + gate * activation(sums + bias)`.
#[derive(Clone, Copy)]
pub(crate) struct Epilogue<'a> {
    /// `[1, cols]`.
    pub(crate) bias: Option<MatRef<'a>>,
    pub(crate) activation: Activation,
    /// As `out`; may be the very place.
    pub(crate) base: Option<MatRef<'a>>,
    /// `[1, cols]`.
    pub(crate) gate: Option<MatRef<'a>>,
}

/// Where a tile lies in the whole result.
#[derive(Clone, Copy)]
pub(crate) struct TilePlace {
    /// Row and column in the whole result, by which bias, base and gate are read.
    pub(crate) whole: [usize; 2],
    /// The same place in the strand's part of it.
    pub(crate) part: [usize; 2],
    /// Rows and columns.
    pub(crate) size: [usize; 2],
}

impl Epilogue<'_> {
    /// Stores a tile of sums, `[cols][stride]` with rows as lanes.
    #[inline(always)]
    pub(crate) fn store(
        &self,
        isa: Isa,
        sums: &[f32],
        stride: usize,
        place: TilePlace,
        out: &mut MatMut<'_>,
    ) {
        let [rows, cols] = place.size;
        for col in (0..cols).step_by(SIDE) {
            let across = SIDE.min(cols - col);
            let whole_col = place.whole[1] + col;
            let (mut bias, mut gate) = ([0.0; SIDE], [1.0; SIDE]);
            if let Some(source) = &self.bias {
                source.load(0, whole_col, &mut bias[..across]);
            }
            if let Some(source) = &self.gate {
                source.load(0, whole_col, &mut gate[..across]);
            }
            for row in (0..rows).step_by(SIDE) {
                let count = SIDE.min(rows - row);
                // Columns are lines here: a column has one bias.
                let mut columns: Block = [[0.0; SIDE]; SIDE];
                let lines = sums[col * stride + row..].chunks(stride).take(across);
                for ((target, line), bias) in columns.iter_mut().zip(lines).zip(&bias) {
                    // By value, or the compiler fears that target and line overlap.
                    let mut values = [0.0; SIDE];
                    values.copy_from_slice(&line[..SIDE]);
                    for value in &mut values {
                        *value += *bias;
                    }
                    *target = values;
                }
                activate_chunk(self.activation, columns.as_flattened_mut());
                let mut block = transposed(isa, &columns);
                if let Some(source) = &self.base {
                    let base =
                        source.load_block([place.whole[0] + row, whole_col], [count, across]);
                    for (line, base) in block.iter_mut().zip(&base) {
                        for ((value, base), gate) in line.iter_mut().zip(base).zip(&gate) {
                            *value = *base + *gate * *value;
                        }
                    }
                }
                out.store_block(
                    [place.part[0] + row, place.part[1] + col],
                    [count, across],
                    &block,
                );
            }
        }
    }
}

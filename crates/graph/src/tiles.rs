//! Ops of a picture that is decoded in tiles: a part of the latent out, a part of the picture back in.
//!
//! Tiles overlap, and where two of them meet their results are blended: each pixel is a sum over tiles whose weights
//! add up to 1. The picture begins as zeros and takes one tile after the other, so that no tile is kept.

use crate::DType;
use crate::access::{Access, READ, UPDATE, WRITE};
use crate::graph::{Graph, View};

/// Which pixels of a tile count along one side, and how they pass into its neighbours.
///
/// Of the tile's pixels, `skip` are left out, then come those of the view that they are added to. The first `rise` of
/// these gain weight, `(i + 0.5) / rise`, and the last `fall` lose it, by the same numbers in the other order; where a
/// tile's fall is the next one's rise, the two weights add up to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Fade {
    /// Pixels of the tile before the first that counts.
    pub skip: u64,
    /// Pixels that gain weight.
    pub rise: u64,
    /// Pixels that lose it.
    pub fall: u64,
}

impl Fade {
    fn fits(&self, pixels: u64, side: u64) -> bool {
        let end = self.skip.checked_add(pixels);
        end.is_some_and(|end| end <= side)
            && self.rise.checked_add(self.fall).is_some_and(|faded| faded <= pixels)
    }
}

/// Kind and operands; see [`crate::OpKind`] for how shapes are given.
#[derive(Clone, Debug, PartialEq)]
pub enum TileOp<V = View> {
    /// Fills `out` with zeros.
    Clear {
        /// Any shape.
        out: V,
    },
    /// A rectangle of pixels.
    Crop {
        /// `[height * width, channels]`.
        x: V,
        /// Pixels of a row of `x`.
        width: u64,
        /// First row.
        top: u64,
        /// First column.
        left: u64,
        /// Pixels of a row of `out`.
        out_width: u64,
        /// `[rows * out_width, channels]`.
        out: V,
    },
    /// `out += weight * tile`, where each pixel's weight is that of its row times that of its column.
    Blend {
        /// `[height * width, channels]` in `f32`.
        tile: V,
        /// Pixels of a row of the tile.
        width: u64,
        /// Which rows count.
        rows: Fade,
        /// Which columns count.
        cols: Fade,
        /// `[rows, pixels * channels]` in `f32`, read and written: a rectangle of the picture.
        out: V,
    },
}

impl<V> TileOp<V> {
    /// Stable name of the kind.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Clear { .. } => "clear",
            Self::Crop { .. } => "crop",
            Self::Blend { .. } => "blend",
        }
    }

    /// See [`crate::OpKind::map`].
    pub(crate) fn map<V2>(&self, view: &mut impl FnMut(&V, Access) -> V2) -> TileOp<V2> {
        match self {
            Self::Clear { out } => TileOp::Clear { out: view(out, WRITE) },
            Self::Crop { x, width, top, left, out_width, out } => TileOp::Crop {
                x: view(x, READ),
                width: *width,
                top: *top,
                left: *left,
                out_width: *out_width,
                out: view(out, WRITE),
            },
            Self::Blend { tile, width, rows, cols, out } => TileOp::Blend {
                tile: view(tile, READ),
                width: *width,
                rows: *rows,
                cols: *cols,
                out: view(out, UPDATE),
            },
        }
    }
}

impl TileOp<View> {
    /// Floating-point operations.
    pub(crate) fn flops(&self) -> u64 {
        match self {
            Self::Clear { .. } | Self::Crop { .. } => 0,
            Self::Blend { out, .. } => 3 * out.rows * out.cols,
        }
    }

    /// What does not fit together.
    pub(crate) fn misfit(&self, graph: &Graph) -> Option<String> {
        let shape = |view: &View| [view.rows, view.cols];
        let dtype = |view: &View| graph.tensor(view.tensor).dtype;
        match self {
            Self::Clear { out } => (dtype(out) == DType::U32).then(|| "indices".to_owned()),
            Self::Crop { x, out, .. } => {
                (!self.fits(&shape)).then(|| format!("{:?} out of {:?}", shape(out), shape(x)))
            }
            Self::Blend { tile, out, .. } => {
                if dtype(tile) != DType::F32 || dtype(out) != DType::F32 {
                    return Some("pixels that are not f32".to_owned());
                }
                (!self.fits(&shape)).then(|| format!("{:?} into {:?}", shape(tile), shape(out)))
            }
        }
    }
}

impl<V> TileOp<V> {
    /// Whether the op's numbers lie in its operands, whose rows and columns `shape` tells.
    pub fn fits(&self, shape: &dyn Fn(&V) -> [u64; 2]) -> bool {
        match self {
            Self::Clear { .. } => true,
            Self::Crop { x, width, top, left, out_width, out } => {
                let ([pixels, channels], [out_pixels, out_channels]) = (shape(x), shape(out));
                let (Some(height), Some(rows)) =
                    (pixels.checked_div(*width), out_pixels.checked_div(*out_width))
                else {
                    return false;
                };
                channels == out_channels
                    && pixels.is_multiple_of(*width)
                    && out_pixels.is_multiple_of(*out_width)
                    && top.checked_add(rows).is_some_and(|end| end <= height)
                    && left.checked_add(*out_width).is_some_and(|end| end <= *width)
            }
            Self::Blend { tile, width, rows, cols, out } => {
                let ([pixels, channels], [out_rows, out_cols]) = (shape(tile), shape(out));
                let (Some(height), Some(columns)) =
                    (pixels.checked_div(*width), out_cols.checked_div(channels))
                else {
                    return false;
                };
                pixels.is_multiple_of(*width)
                    && out_cols.is_multiple_of(channels)
                    && rows.fits(out_rows, height)
                    && cols.fits(columns, *width)
            }
        }
    }
}

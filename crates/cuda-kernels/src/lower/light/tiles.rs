//! A picture in tiles, an element a thread (`kernels/light_tiles.cu`).

use plimsoll_device::Mat;
use plimsoll_graph::{DType, TileOp};

use super::operands::{Arguments, THREADS, blocks, require_numbers};
use crate::task::{Launch, Unsupported};

pub(super) fn launch(name: &str, op: &TileOp<Mat>) -> Result<Launch, Unsupported> {
    let refuse = |what: &str| Err(Unsupported { what: format!("{name}: {what}") });
    if !op.fits(&|mat: &Mat| [mat.rows, mat.cols]) {
        return refuse("a tile outside of its picture");
    }
    match op {
        TileOp::Clear { out } => {
            require_numbers(name, &[out])?;
            let arguments = Arguments::new(name).matrix(out)?.u32(out.rows)?.u32(out.cols)?;
            let count = out.rows.saturating_mul(out.cols);
            Ok(arguments.launch("tile_clear", blocks(name, count)?, THREADS))
        }
        TileOp::Crop { x, width, top, left, out_width, out } => {
            require_numbers(name, &[x, out])?;
            let arguments = Arguments::new(name).matrix(x)?.matrix(out)?;
            let arguments = arguments.u32(out.rows)?.u32(out.cols)?;
            let arguments = arguments.u32(*width)?.u32(*top)?.u32(*left)?.u32(*out_width)?;
            let count = out.rows.saturating_mul(out.cols);
            Ok(arguments.launch("tile_crop", blocks(name, count)?, THREADS))
        }
        TileOp::Blend { tile, width, rows, cols, out } => {
            if tile.dtype != DType::F32 || out.dtype != DType::F32 {
                return refuse("pixels that are not f32");
            }
            let mut arguments = Arguments::new(name).matrix(tile)?.matrix(out)?;
            for number in [out.rows, out.cols / tile.cols, tile.cols, *width] {
                arguments = arguments.u32(number)?;
            }
            for fade in [rows, cols] {
                arguments = arguments.u32(fade.skip)?.u32(fade.rise)?.u32(fade.fall)?;
            }
            let count = out.rows.saturating_mul(out.cols);
            Ok(arguments.launch("tile_blend", blocks(name, count)?, THREADS))
        }
    }
}

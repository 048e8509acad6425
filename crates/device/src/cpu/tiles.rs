//! A picture in tiles: cutting them out, adding them up.

use plimsoll_graph::Fade;

use super::arena::{MatMut, MatRef};
use super::elementwise::map;
use super::parallel::Task;

/// `out = 0`.
pub(crate) fn clear(task: Task<'_>, out: MatMut<'_>) {
    map(
        task,
        out,
        #[inline(always)]
        |_, _, chunk, _| chunk.fill(0.0),
    );
}

/// Where a tile is cut out.
pub(crate) struct Corner {
    /// Pixels of a row of the source.
    pub(crate) width: usize,
    /// First row.
    pub(crate) top: usize,
    /// First column.
    pub(crate) left: usize,
    /// Pixels of a row of the tile.
    pub(crate) out_width: usize,
}

/// A rectangle of pixels.
pub(crate) fn crop(task: Task<'_>, x: MatRef<'_>, at: &Corner, out: MatMut<'_>) {
    map(
        task,
        out,
        #[inline(always)]
        |pixel, col, chunk, _| {
            let (row, column) = (pixel / at.out_width, pixel % at.out_width);
            x.load((at.top + row) * at.width + at.left + column, col, chunk);
        },
    );
}

/// The weight of pixel `at` of `pixels`.
#[inline(always)]
#[expect(clippy::cast_precision_loss, reason = "sides of pictures are far below 2^24")]
fn weight(fade: Fade, at: usize, pixels: usize) -> f32 {
    let (at, pixels) = (at as u64, pixels as u64);
    if at < fade.rise {
        (at as f32 + 0.5) / fade.rise as f32
    } else if at >= pixels - fade.fall {
        ((pixels - 1 - at) as f32 + 0.5) / fade.fall as f32
    } else {
        1.0
    }
}

/// `out = picture + weight * tile`; `picture` is `out` as it was.
pub(crate) fn blend(
    task: Task<'_>,
    tile: MatRef<'_>,
    width: usize,
    [rows, cols]: [Fade; 2],
    picture: MatRef<'_>,
    out: MatMut<'_>,
) {
    let channels = tile.cols();
    let [height, columns] = [out.rows(), out.cols() / channels];
    let skip = |fade: Fade| usize::try_from(fade.skip).unwrap_or(usize::MAX);
    let (skip_rows, skip_cols) = (skip(rows), skip(cols));
    map(
        task,
        out,
        #[inline(always)]
        |row, col, chunk, _| {
            picture.load(row, col, chunk);
            let of_row = weight(rows, row, height);
            for (at, value) in chunk.iter_mut().enumerate() {
                let (column, channel) = ((col + at) / channels, (col + at) % channels);
                let pixel = (skip_rows + row) * width + skip_cols + column;
                *value += of_row * weight(cols, column, columns) * tile.at(pixel, channel);
            }
        },
    );
}

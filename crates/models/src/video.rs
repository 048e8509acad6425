//! What models of pictures and of video ask alike: sizes, frames, branches of guidance.

use plimsoll_graph::DType;

use crate::ModelError;

/// Largest side, in pixels.
const SIDE_MAX: u64 = 16_384;
/// Most frames.
const FRAMES_MAX: u64 = 1_025;

/// What a run asks of a model with guidance: of SDXL one frame, of Wan and HunyuanVideo several.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct VideoRun {
    /// Width in pixels, a multiple of 16 (SDXL: 8).
    pub width: u64,
    /// Height in pixels, likewise.
    pub height: u64,
    /// Frames, `4n + 1`.
    pub frames: u64,
    /// Steps.
    pub steps: u32,
    /// Pictures or films made together.
    pub samples: u32,
    /// Dtype of activations.
    pub dtype: DType,
    /// Take out of the step loop what does not depend on the latent.
    pub hoist: bool,
    /// Pieces of the tokens of a step that are taken one after the other where each row stands for itself (projections,
    /// feed-forward, queries): fewer bytes, the same bits, the same operations.
    pub row_chunks: u64,
    /// Side of the decoder's tile in pixels; 0 for whole frames.
    pub tile: u64,
}

/// How a film is decoded: the graph holds one tile, and this many are decoded one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiles {
    /// Frames, height and width of a tile of latents.
    pub size: [u64; 3],
    /// Number of tiles.
    pub count: u64,
}

impl VideoRun {
    /// Latent frames, rows and columns; `unit` is the pixels of a side that a token stands for.
    ///
    /// # Errors
    /// [`ModelError::Request`] for a side or number of frames that the model cannot take, with the nearest it can.
    pub(crate) fn check(&self, unit: u64, has_frames: bool) -> Result<(), ModelError> {
        let refuse = |what: &str, value: u64, expected: String| {
            Err(ModelError::Request { what: what.to_owned(), value: value.to_string(), expected })
        };
        for (what, side) in [("width", self.width), ("height", self.height)] {
            if side == 0 || side % unit != 0 || side > SIDE_MAX {
                let expected = format!("a multiple of {unit} from {unit} to {SIDE_MAX} is needed");
                return refuse(what, side, expected);
            }
        }
        if has_frames && (self.frames % 4 != 1 || self.frames > FRAMES_MAX) {
            let below = self.frames.clamp(1, FRAMES_MAX).saturating_sub(1) / 4 * 4 + 1;
            let above = (below + 4).min(FRAMES_MAX);
            let expected = format!("4n + 1 is needed, such as {below} or {above}");
            return refuse("number of frames", self.frames, expected);
        }
        if !has_frames && self.frames != 1 {
            return refuse("number of frames", self.frames, "this model makes 1".to_owned());
        }
        if self.steps == 0 || self.steps > 1_000 {
            return refuse("steps", u64::from(self.steps), "1 to 1000 is needed".to_owned());
        }
        if self.samples == 0 || self.samples > 64 {
            let value = u64::from(self.samples);
            return refuse("number of pictures", value, "1 to 64 is needed".to_owned());
        }
        check_tile(self.tile)?;
        if self.row_chunks == 0 || self.row_chunks > 1_024 {
            return refuse("row chunks", self.row_chunks, "1 to 1024 is needed".to_owned());
        }
        Ok(())
    }

    /// Latent frames.
    pub(crate) fn latent_frames(&self) -> u64 {
        1 + (self.frames - 1) / 4
    }
}

/// Least side of a decoder's tile, in pixels.
const TILE_LEAST: u64 = 64;

/// Refuses a tile that no decoder can take.
fn check_tile(tile: u64) -> Result<(), ModelError> {
    if tile == 0 || (tile.is_multiple_of(8) && (TILE_LEAST..=SIDE_MAX).contains(&tile)) {
        return Ok(());
    }
    Err(ModelError::Request {
        what: "side of a tile".to_owned(),
        value: tile.to_string(),
        expected: format!(
            "a multiple of 8 from {TILE_LEAST} to {SIDE_MAX} is needed, or 0 for none"
        ),
    })
}

/// How a picture of `[height, width]` latents is decoded in tiles of so many pixels, of which three quarters are new on
/// each axis, as in the reference.
///
/// # Errors
/// [`ModelError::Request`] for a tile that no decoder can take.
pub(crate) fn picture_tiles([height, width]: [u64; 2], tile: u64) -> Result<Tiles, ModelError> {
    check_tile(tile)?;
    let side = tile / 8;
    if side == 0 || (side >= height && side >= width) {
        return Ok(Tiles { size: [1, height, width], count: 1 });
    }
    let stride = (side * 3 / 4).max(1);
    let count = height.div_ceil(stride) * width.div_ceil(stride);
    Ok(Tiles { size: [1, side.min(height), side.min(width)], count })
}

/// `rows` in at most `chunks` pieces of one size but the last: first row and number of rows of each.
pub(crate) fn pieces(rows: u64, chunks: u64) -> impl Iterator<Item = (u64, u64)> {
    let step = rows.div_ceil(chunks.max(1)).max(1);
    (0..rows.div_ceil(step)).map(move |at| (at * step, step.min(rows - at * step)))
}

#[cfg(test)]
mod tests {
    use super::pieces;

    #[test]
    fn pieces_cover_every_row_once() {
        for (rows, chunks) in [(75_600, 1), (75_600, 8), (10, 3), (3, 8), (1, 1)] {
            let all: Vec<_> = pieces(rows, chunks).collect();
            assert!(all.len() as u64 <= chunks);
            let mut next = 0;
            for (start, count) in all {
                assert_eq!(start, next);
                assert!(count > 0);
                next += count;
            }
            assert_eq!(next, rows);
        }
    }
}

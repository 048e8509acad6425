//! How a picture is cut into tiles for its decoder.
//!
//! All tiles have one size, overlap their neighbours by a quarter at least and lie evenly, so that the last one is as
//! large as the others: its GroupNorm and attention see as much of the picture as theirs. In the middle of each overlap
//! a quarter of a tile's side passes from one tile to the next; what lies nearer to a tile's edge than that is not used.

use plimsoll_graph::Fade;

/// Smallest edge of a tile in tokens: below it the decoder sees hardly anything of its picture.
pub(crate) const EDGE_TOKENS_MIN: u64 = 4;

/// Most tiles side by side: a proof tells 64 bands of a picture's columns apart, and where tiles lie over each other is a
/// band of its own.
const ACROSS_MOST: u64 = 32;

/// Most tiles of all pictures of a run: each has all ops of a decoder in the plan, some 100 kB.
const COUNT_MOST: u64 = 4096;

/// A tile's place along one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// First latent pixel.
    pub(crate) start: u64,
    /// First picture pixel that it adds to.
    pub(crate) first: u64,
    /// Picture pixels that it adds to.
    pub(crate) pixels: u64,
    /// Which of its own they are, and their weights.
    pub(crate) fade: Fade,
}

/// Latent pixels that neighbours share.
fn overlap(edge: u64) -> u64 {
    (edge / 4).max(1)
}

/// How many tiles of at most `edge` latent pixels lie along a side of `length` latent pixels.
fn count(length: u64, edge: u64) -> u64 {
    if length <= edge { 1 } else { (length - edge).div_ceil(edge - overlap(edge)) + 1 }
}

/// Whether so many pictures of `size` latent pixels can be decoded in tiles of `edge`, which is 2 or more.
pub(crate) fn are_few(size: [u64; 2], edge: u64, pictures: u64) -> bool {
    let [rows, cols] = size.map(|length| count(length, edge));
    let all = rows.saturating_mul(cols).saturating_mul(pictures);
    // A single tile is the whole picture, of which there are as many as were asked for.
    rows.max(cols) <= ACROSS_MOST && (all <= COUNT_MOST || rows * cols == 1)
}

/// Latent pixels of a tile's side, and the places of all tiles, along a side of `length` latent pixels, each `unit`
/// picture pixels; no tile is longer than `edge` latent pixels.
pub(crate) fn side(length: u64, edge: u64, unit: u64) -> (u64, Vec<Place>) {
    if length <= edge {
        let fade = Fade::default();
        return (length, vec![Place { start: 0, first: 0, pixels: length * unit, fade }]);
    }
    let (overlap, gaps) = (overlap(edge), count(length, edge) - 1);
    let start = |tile: u64| tile * (length - edge) / gaps;
    let faded = overlap * unit;
    // Where tile and the next change over: in the middle of what both have.
    let change = |tile: u64| (start(tile + 1) + start(tile) + edge) * unit / 2 - faded / 2;
    let places = (0..=gaps).map(|tile| {
        let first = if tile == 0 { 0 } else { change(tile - 1) };
        let end = if tile == gaps { length * unit } else { change(tile) + faded };
        let fade = Fade {
            skip: first - start(tile) * unit,
            rise: if tile == 0 { 0 } else { faded },
            fall: if tile == gaps { 0 } else { faded },
        };
        Place { start: start(tile), first, pixels: end - first, fade }
    });
    (edge, places.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every pixel's weights add up to 1, come from two tiles at most, and lie in their tiles.
    #[test]
    fn weights_add_up_to_one() {
        for unit in [1, 2, 8] {
            for edge in (8..=128).step_by(2) {
                for length in (2..300).step_by(2) {
                    let (size, places) = side(length, edge, unit);
                    assert_eq!(size, length.min(edge));
                    let mut sums =
                        vec![(0.0f64, 0); usize::try_from(length * unit).expect("small")];
                    for place in &places {
                        let Place { start, first, pixels, fade } = *place;
                        assert_eq!(first, start * unit + fade.skip);
                        assert!(start + size <= length && fade.skip + pixels <= size * unit);
                        assert!(fade.rise + fade.fall <= pixels, "{length} {edge} {place:?}");
                        for at in 0..pixels {
                            let rises = (at as f64 + 0.5) / fade.rise as f64;
                            let falls = ((pixels - 1 - at) as f64 + 0.5) / fade.fall as f64;
                            let weight = match () {
                                () if at < fade.rise => rises,
                                () if at >= pixels - fade.fall => falls,
                                () => 1.0,
                            };
                            let sum = &mut sums[usize::try_from(first + at).expect("small")];
                            *sum = (sum.0 + weight, sum.1 + 1);
                        }
                    }
                    for (sum, count) in sums {
                        assert!((sum - 1.0).abs() < 1e-9 && count <= 2, "{length} {edge} {unit}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_picture_of_a_megapixel_in_tiles_of_512() {
        let (size, places) = side(128, 64, 8);
        let starts: Vec<u64> = places.iter().map(|place| place.start).collect();
        assert_eq!((size, starts), (64, vec![0, 32, 64]));
        let fade = Fade { skip: 128, rise: 128, fall: 128 };
        assert_eq!(
            places[1],
            Place { start: 32, first: 320, pixels: 384, fade: Fade { skip: 64, ..fade } }
        );
    }
}

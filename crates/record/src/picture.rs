//! What can be said of a picture without looking: whether it is one at all, and how far from another.
//!
//! Pictures are RGB bytes, row by row from the top.

use crate::record::Finding;
use crate::words::FindingCode;

/// Bytes up to which a picture is black, counted from 0, and white, counted from 255.
///
/// A decoder that fails gives 0 or 255 exactly; two more are rounding.
const FLAT_TOLERANCE: u8 = 2;

/// Standard deviation of the brightness, of 255, under which a picture shows nothing.
///
/// A clear sky with a gradient has about 10; a decoder that lost its input about 1.
const CONSTANT_DEVIATION: f64 = 2.0;

/// A picture that cannot be what was asked for, whatever was asked for.
pub fn degenerate(rgb: &[u8]) -> Option<Finding> {
    let (min, max) =
        rgb.iter().fold((u8::MAX, 0), |(min, max), byte| (min.min(*byte), max.max(*byte)));
    let deviation = deviation(rgb);
    let (code, text) = if rgb.is_empty() {
        return None;
    } else if max <= FLAT_TOLERANCE {
        (FindingCode::AllBlack, format!("all black: no byte is above {max}"))
    } else if min >= u8::MAX - FLAT_TOLERANCE {
        (FindingCode::AllWhite, format!("all white: no byte is under {min}"))
    } else if deviation < CONSTANT_DEVIATION {
        let text = format!(
            "near-constant: the brightness deviates by {deviation:.2} of 255, under {CONSTANT_DEVIATION}"
        );
        (FindingCode::NearConstant, text)
    } else {
        return None;
    };
    Some(Finding { code, text })
}

/// Standard deviation of the brightness.
fn deviation(rgb: &[u8]) -> f64 {
    let brightness = brightness(rgb);
    let count = brightness.len().max(1) as f64;
    let mean = brightness.iter().sum::<f64>() / count;
    (brightness.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count).sqrt()
}

/// Brightness of each pixel (ITU-R BT.601).
fn brightness(rgb: &[u8]) -> Vec<f64> {
    let (pixels, _) = rgb.as_chunks::<3>();
    pixels
        .iter()
        .map(|&[r, g, b]| 0.299 * f64::from(r) + 0.587 * f64::from(g) + 0.114 * f64::from(b))
        .collect()
}

/// Peak signal-to-noise ratio in dB over all channels; `None` for equal pictures, whose ratio is infinite.
pub fn psnr_db(a: &[u8], b: &[u8]) -> Option<f64> {
    let squares = a.iter().zip(b).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2));
    let error = squares.sum::<f64>() / a.len().max(1) as f64;
    (error > 0.0).then(|| 10.0 * (255.0 * 255.0 / error).log10())
}

/// Side of the window in pixels, and its deviation: the published ones.
const WINDOW: usize = 11;
const WINDOW_DEVIATION: f64 = 1.5;

/// Mean structural similarity of the brightness of two pictures of `width` columns, 1 for equal ones.
///
/// Memory: 7 f64 a pixel. Over the places where the whole window lies in the picture; a picture smaller than
/// the window is one window without weights.
///
/// # Source
/// Wang, Bovik, Sheikh, Simoncelli, "Image quality assessment: from error visibility to structural
/// similarity", 2004: Gaussian window of 11 x 11, sigma 1.5, K1 = 0.01, K2 = 0.03.
pub fn ssim(a: &[u8], b: &[u8], width: usize) -> f64 {
    let (a, b) = (brightness(a), brightness(b));
    let height = a.len() / width.max(1);
    if a.is_empty() || a.len() != b.len() {
        return 0.0;
    }
    let weights: Vec<f64> = if width < WINDOW || height < WINDOW {
        Vec::new()
    } else {
        let middle = (WINDOW / 2) as f64;
        let raw: Vec<f64> = (0..WINDOW)
            .map(|at| (-(at as f64 - middle).powi(2) / (2.0 * WINDOW_DEVIATION.powi(2))).exp())
            .collect();
        let sum: f64 = raw.iter().sum();
        raw.iter().map(|weight| weight / sum).collect()
    };
    let mean = |values: &[f64]| filter(values, width, height, &weights);
    let product = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x * y).collect::<Vec<_>>();
    let (mean_a, mean_b) = (mean(&a), mean(&b));
    let (square_a, square_b) = (mean(&product(&a, &a)), mean(&product(&b, &b)));
    let both = mean(&product(&a, &b));
    let (c1, c2) = ((0.01f64 * 255.0).powi(2), (0.03f64 * 255.0).powi(2));
    let sum: f64 = (0..mean_a.len())
        .map(|at| {
            let (ma, mb) = (mean_a[at], mean_b[at]);
            let (va, vb) = (square_a[at] - ma * ma, square_b[at] - mb * mb);
            let covariance = both[at] - ma * mb;
            (2.0 * ma * mb + c1) * (2.0 * covariance + c2)
                / ((ma * ma + mb * mb + c1) * (va + vb + c2))
        })
        .sum();
    sum / mean_a.len() as f64
}

/// Weighted means over the window, first along rows, then along columns; without weights, the one mean.
fn filter(values: &[f64], width: usize, height: usize, weights: &[f64]) -> Vec<f64> {
    if weights.is_empty() {
        return vec![values.iter().sum::<f64>() / values.len() as f64];
    }
    let columns = width - WINDOW + 1;
    let mut rows = Vec::with_capacity(columns * height);
    for row in values.chunks_exact(width) {
        rows.extend(row.windows(WINDOW).map(|window| {
            window.iter().zip(weights).map(|(value, weight)| value * weight).sum::<f64>()
        }));
    }
    (0..(height - WINDOW + 1) * columns)
        .map(|at| {
            weights.iter().enumerate().map(|(k, weight)| rows[at + k * columns] * weight).sum()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noisy(width: usize, height: usize, amplitude: f64) -> Vec<u8> {
        let mut state = 1u32;
        (0..width * height * 3)
            .map(|at| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let noise = f64::from(state >> 8) / f64::from(1 << 24) - 0.5;
                let ramp = 40.0 + 150.0 * (at % (width * 3)) as f64 / (width * 3) as f64;
                (ramp + amplitude * noise) as u8
            })
            .collect()
    }

    #[test]
    fn pictures_that_show_nothing_are_found() {
        let code = |rgb: &[u8]| degenerate(rgb).map(|finding| finding.code);
        assert_eq!(code(&[0; 300]), Some(FindingCode::AllBlack));
        assert_eq!(code(&[2; 300]), Some(FindingCode::AllBlack));
        assert_eq!(code(&[255; 300]), Some(FindingCode::AllWhite));
        assert_eq!(code(&[128; 300]), Some(FindingCode::NearConstant));
        let nearly: Vec<u8> = (0..300).map(|at| 128 + (at / 3 % 3) as u8).collect();
        assert_eq!(code(&nearly), Some(FindingCode::NearConstant));
        assert_eq!(code(&noisy(16, 16, 4.0)), None);
        // One bright pixel in the dark, as a starry night: a picture.
        let mut stars = vec![0; 300];
        stars[..30].fill(255);
        assert_eq!(code(&stars), None);
        assert_eq!(code(&[]), None);
    }

    #[test]
    fn psnr_is_the_formula() {
        assert_eq!(psnr_db(&[7; 30], &[7; 30]), None);
        // One step everywhere: 20 log10 255.
        let one = psnr_db(&[7; 30], &[8; 30]).unwrap();
        assert!((one - 48.130_803_6).abs() < 1e-6, "{one}");
        assert_eq!(psnr_db(&[0; 30], &[255; 30]), Some(0.0));
    }

    #[test]
    fn ssim_is_one_for_equal_pictures_and_falls_with_noise() {
        let clean = noisy(32, 24, 0.0);
        assert!((ssim(&clean, &clean, 32) - 1.0).abs() < 1e-12);
        let mut before = 1.0;
        for amplitude in [4.0, 16.0, 64.0] {
            let now = ssim(&clean, &noisy(32, 24, amplitude), 32);
            assert!(now < before, "{now} at {amplitude}");
            before = now;
        }
        // Two constant pictures: only the term of brightness is left.
        let (a, b) = (vec![100; 32 * 24 * 3], vec![120; 32 * 24 * 3]);
        let c1 = (0.01f64 * 255.0).powi(2);
        let expected = (2.0 * 100.0 * 120.0 + c1) / (100.0f64.powi(2) + 120.0f64.powi(2) + c1);
        assert!((ssim(&a, &b, 32) - expected).abs() < 1e-9);
        assert!((ssim(&[10; 27], &[10; 27], 3) - 1.0).abs() < 1e-12, "smaller than the window");
        assert_eq!(ssim(&[10; 27], &[10; 30], 3), 0.0, "sizes differ");
    }
}

//! Cutting tiles out of a picture and adding them up, against a plain reference in double precision.

#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]
#![allow(missing_docs)]

mod common;

use common::Lab;
use plimsoll_device::{DeviceError, Mat};
use plimsoll_graph::{DType, Fade, OpKind, TileOp};

#[test]
fn a_tile_is_cut_out_where_it_lies() {
    for (source, target) in [
        (DType::F32, DType::F32),
        (DType::BF16, DType::BF16),
        (DType::F32, DType::BF16),
        (DType::BF16, DType::F32),
    ] {
        for workers in [1, 2] {
            let mut lab = Lab::new(7);
            let (width, channels) = (11, 700);
            let x = lab.random(9 * width, channels, source);
            let (top, left, out_width) = (3, 4, 7);
            let out = lab.empty(5 * out_width, channels, target);
            let op = TileOp::Crop { x: x.mat, width, top, left, out_width, out: out.mat };
            let reference: Vec<f64> = (0..5 * out_width)
                .flat_map(|pixel| (0..channels).map(move |channel| (pixel, channel)))
                .map(|(pixel, channel)| {
                    let (row, column) = (pixel / out_width, pixel % out_width);
                    x.at((top + row) * width + left + column, channel)
                })
                .collect();
            lab.run(OpKind::Tile(op), &out, workers).check("crop", &reference, target);
        }
    }
}

#[test]
fn a_tile_is_added_with_its_weights_and_nothing_beside_it_changes() {
    let mut lab = Lab::new(8);
    let (height, width, channels) = (16, 12, 3);
    let tile = lab.random(height * width, channels, DType::F32);
    let picture = lab.random(20, 40 * channels, DType::F32);
    let rows = Fade { skip: 2, rise: 4, fall: 3 };
    let cols = Fade { skip: 1, rise: 2, fall: 4 };
    let (top, left, used_rows, used_cols) = (5, 9, 12, 10);
    let out = Mat {
        offset: picture.mat.offset + (top * 40 + left) * channels * 4,
        rows: used_rows,
        cols: used_cols * channels,
        ..picture.mat
    };
    let op = TileOp::Blend { tile: tile.mat, width, rows, cols, out };
    let weight = |fade: Fade, at: u64, pixels: u64| {
        if at < fade.rise {
            (at as f64 + 0.5) / fade.rise as f64
        } else if at >= pixels - fade.fall {
            1.0 - (((at - (pixels - fade.fall)) as f64) + 0.5) / fade.fall as f64
        } else {
            1.0
        }
    };
    let mut reference = picture.values.clone();
    for row in 0..used_rows {
        for column in 0..used_cols {
            let of = weight(rows, row, used_rows) * weight(cols, column, used_cols);
            let pixel = (row + rows.skip) * width + column + cols.skip;
            for channel in 0..channels {
                let at = ((top + row) * 40 + left + column) * channels + channel;
                reference[at as usize] += of * tile.at(pixel, channel);
            }
        }
    }
    for workers in [1, 2] {
        let outcome = lab.run(OpKind::Tile(op.clone()), &picture, workers);
        outcome.check("blend", &reference, DType::F32);
    }
    let cleared = vec![0.0; picture.values.len()];
    let op = TileOp::Clear { out: picture.mat };
    lab.run(OpKind::Tile(op), &picture, 1).check("clear", &cleared, DType::F32);
}

#[test]
fn what_lies_outside_is_refused() {
    let mut lab = Lab::new(9);
    let x = lab.random(8 * 8, 3, DType::F32);
    let out = lab.empty(4 * 4, 3, DType::F32);
    let crop = |width, top, left, out_width| {
        OpKind::Tile(TileOp::Crop { x: x.mat, width, top, left, out_width, out: out.mat })
    };
    let blend = |width, skip, rise| {
        let fade = Fade { skip, rise, fall: 0 };
        let out = Mat { rows: 4, cols: 12, stride: 12, ..out.mat };
        OpKind::Tile(TileOp::Blend { tile: x.mat, width, rows: fade, cols: fade, out })
    };
    for kind in [crop(8, 5, 0, 4), crop(8, 0, 5, 4), crop(0, 0, 0, 4), crop(8, u64::MAX, 0, 4)] {
        assert!(matches!(lab.try_run(kind, &out, 1), Err(DeviceError::OutOfArena { .. })));
    }
    for kind in [blend(8, 5, 0), blend(8, 0, 5), blend(7, 0, 0), blend(8, u64::MAX, 0)] {
        assert!(matches!(lab.try_run(kind, &out, 1), Err(DeviceError::OutOfArena { .. })));
    }
}

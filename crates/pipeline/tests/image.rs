//! Pictures have the bytes of diffusers, and a file of one is whole or absent.
#![allow(clippy::unwrap_used)] // In tests, helper functions too.

use std::fs;
use std::path::Path;

use half::bf16;
use plimsoll_pipeline::error::{Fault, ImageError};
use plimsoll_pipeline::noise::TorchGenerator;
use plimsoll_pipeline::{Picture, check_writable};

fn picture() -> Picture {
    let rgb = (0..5 * 4 * 3).map(|index| (index * 4) as u8).collect();
    Picture::from_rgb(rgb, 5, 4).unwrap()
}

fn entries(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// `VaeImageProcessor.postprocess` of diffusers 0.42.1 on `0.8 * randn` of seed 3, 64 x 64.
#[test]
fn values_become_the_bytes_of_the_reference() {
    let mut values = vec![0.0; 3 * 64 * 64];
    TorchGenerator::new(3).fill_f32(&mut values);
    values.iter_mut().for_each(|value| *value *= 0.8);
    assert_eq!(
        Picture::from_f32(&values, 64, 64).unwrap().sha256(),
        "06097a9f6fdb7a35ef240a709c65a8f56dc3df0ffd888cf4638e238ed9d14c84"
    );
    let values: Vec<bf16> = values.into_iter().map(bf16::from_f32).collect();
    assert_eq!(
        Picture::from_bf16(&values, 64, 64).unwrap().sha256(),
        "86de1d761ed4ccc6f3cb6e1341c6fba37e49c55585774d600c44e5d8ac8586ac"
    );
}

#[test]
fn ends_ties_and_infinities() {
    // 0.5 * 255 = 127.5 is a tie, to 128; the next tie below, 126.5, goes to 126.
    let tie = (126.5 / 255.0_f32 - 0.5) * 2.0;
    let values = [-1.0, 1.0, 0.0, -3.0, 3.0, tie, f32::INFINITY, f32::NEG_INFINITY, -0.0];
    let rgb = Picture::from_f32(&values, 3, 1).unwrap().rgb().to_vec();
    assert_eq!(rgb, [0, 255, 128, 0, 255, 126, 255, 0, 128]);
}

#[test]
fn wrong_sizes_and_missing_numbers_are_errors() {
    for (width, height) in [(0, 0), (1, 1), (2, 2), (u32::MAX, u32::MAX), (3, 0)] {
        let error = Picture::from_f32(&[0.0; 9], width, height).unwrap_err();
        assert!(matches!(error, ImageError::SizeMismatch { .. }), "{error}");
    }
    let mut values = [0.0; 9];
    values[5] = f32::NAN;
    values[8] = f32::NAN;
    let error = Picture::from_f32(&values, 3, 1).unwrap_err();
    assert!(matches!(error, ImageError::NotANumber { count: 2, pixel: 1 }), "{error}");
}

#[test]
fn a_png_reads_back_with_its_notes() {
    let notes = [
        ("prompt", "ice cream, naïve café\n2nd line"),
        ("model", "東京 🍦"),
        ("seed", "42"),
        ("odd", "nul \0 here"),
        ("empty", ""),
    ];
    let bytes = picture().encode_png(&notes).unwrap();
    let mut reader = png::Decoder::new(std::io::Cursor::new(bytes)).read_info().unwrap();
    let mut rgb = vec![0; reader.output_buffer_size().unwrap()];
    let frame = reader.next_frame(&mut rgb).unwrap();
    assert_eq!((frame.width, frame.height, frame.color_type), (5, 4, png::ColorType::Rgb));
    assert_eq!(rgb, picture().rgb());
    let info = reader.info();
    let latin: Vec<(&str, &str)> = info
        .uncompressed_latin1_text
        .iter()
        .map(|chunk| (chunk.keyword.as_str(), chunk.text.as_str()))
        .collect();
    assert_eq!(latin, [notes[0], notes[2], notes[4]]);
    let utf8: Vec<String> = info.utf8_text.iter().map(|chunk| chunk.get_text().unwrap()).collect();
    assert_eq!(utf8, ["東京 🍦", "nul \u{fffd} here"]);

    let keyword = "k".repeat(80);
    let error = picture().encode_png(&[(&keyword, "x")]).unwrap_err();
    assert!(matches!(error, ImageError::Encode { .. }), "{error}");
}

#[test]
fn a_file_is_written_whole_and_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.png");
    check_writable(&path).unwrap();
    assert!(entries(folder.path()).is_empty(), "the trial leaves nothing");
    picture().write_png(&path, &[("seed", "1")]).unwrap();
    assert_eq!(entries(folder.path()), ["out.png"]);
    let first = fs::read(&path).unwrap();
    assert_eq!(first, picture().encode_png(&[("seed", "1")]).unwrap());
    check_writable(&path).unwrap();
    assert_eq!(fs::read(&path).unwrap(), first, "the trial changes nothing");
    picture().write_png(&path, &[]).unwrap();
    assert_ne!(fs::read(&path).unwrap(), first);
    assert_eq!(entries(folder.path()), ["out.png"]);
}

#[test]
fn an_error_leaves_the_folder_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.png");
    fs::write(&path, "before").unwrap();
    let keyword = "k".repeat(80);
    picture().write_png(&path, &[(&keyword, "x")]).unwrap_err();
    assert_eq!(fs::read(&path).unwrap(), b"before");
    assert_eq!(entries(folder.path()), ["out.png"]);
}

#[test]
fn paths_that_cannot_be_written_are_found_before_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("folder")).unwrap();
    fs::write(at("locked.png"), "x").unwrap();
    let mut permissions = fs::metadata(at("locked.png")).unwrap().permissions();
    permissions.set_readonly(true);
    fs::set_permissions(at("locked.png"), permissions).unwrap();

    let both = |path: &Path| {
        let tried = check_writable(path).unwrap_err();
        let written = picture().write_png(path, &[]).unwrap_err();
        assert_eq!(tried.to_string(), written.to_string());
        tried
    };
    let error = both(&at("missing/out.png"));
    assert!(matches!(error, ImageError::FolderMissing { .. }), "{error}");
    assert_eq!(error.fault(), Fault::Caller);
    for path in [at("folder"), folder.path().join("folder/"), "/".into(), "..".into()] {
        let error = both(&path);
        assert!(matches!(error, ImageError::NotAFile { .. }), "{error}");
    }
    for path in [at("none/"), "".into()] {
        let error = both(&path);
        assert!(matches!(error, ImageError::NoFileName { .. }), "{error}");
    }
    let error = both(&at("locked.png"));
    assert!(matches!(error, ImageError::ReadOnly { .. }), "{error}");
    let error = both(&at("locked.png/out.png"));
    assert!(matches!(error, ImageError::FolderMissing { .. }), "{error}");
    let error = both(&at(&"n".repeat(300)));
    assert!(matches!(error, ImageError::Write { .. }), "{error}");
    assert_eq!(error.fault(), Fault::Disk);
    assert_eq!(entries(folder.path()), ["folder", "locked.png"]);
}

#[cfg(unix)]
#[test]
fn links_are_followed_and_devices_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("deep")).unwrap();
    fs::write(at("deep/real.png"), "x").unwrap();
    std::os::unix::fs::symlink(at("deep/real.png"), at("link.png")).unwrap();
    picture().write_png(&at("link.png"), &[]).unwrap();
    assert!(fs::symlink_metadata(at("link.png")).unwrap().is_symlink());
    assert_eq!(fs::read(at("deep/real.png")).unwrap(), picture().encode_png(&[]).unwrap());
    assert_eq!(entries(&at("deep")), ["real.png"]);

    std::os::unix::fs::symlink(at("nowhere"), at("dangling.png")).unwrap();
    let error = check_writable(&at("dangling.png")).unwrap_err();
    assert!(matches!(error, ImageError::Write { .. }), "{error}");
    let error = picture().write_png(Path::new("/dev/null"), &[]).unwrap_err();
    assert!(matches!(error, ImageError::NotAFile { .. }), "{error}");
}

#[test]
fn what_a_killed_process_left_is_swept_and_what_a_living_one_holds_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let hour_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
    let part = |name: &str| {
        let path = folder.path().join(name);
        let file = std::fs::File::create(&path).unwrap();
        file.set_modified(hour_ago).unwrap();
        (path, file)
    };
    let (dead, _) = part(".plimsoll-123-0.part");
    let (held, file) = part(".plimsoll-124-7.part");
    let (other, _) = part(".plimsoll-notes.part");
    file.lock().unwrap();
    let fresh = folder.path().join(".plimsoll-125-0.part");
    std::fs::write(&fresh, "").unwrap();
    check_writable(&folder.path().join("out.png")).unwrap();
    assert!(!dead.exists());
    assert!(held.exists() && other.exists() && fresh.exists());
}

//! A profile's file: written whole, read back the same, refused where it is something else.

#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

use plimsoll_device_cuda::lt::TunedProduct;
use plimsoll_device_cuda::profile::{CardProfile, ProfileError, RowRate};

#[test]
fn what_is_saved_is_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let profile = CardProfile { link_bytes_per_second: 54.321e9, ..CardProfile::h200() };
    let inner = folder.path().join("made/on/the/way");
    assert!(CardProfile::load(&inner, "NVIDIA H200").unwrap().is_none());
    let path = profile.save(&inner).unwrap();
    assert_eq!(path.file_name().unwrap(), "nvidia-h200.json");
    assert_eq!(CardProfile::load(&inner, "NVIDIA H200").unwrap(), Some(profile.clone()));
    assert_eq!(inner.read_dir().unwrap().count(), 1, "nothing beside it");
    let tuned = TunedProduct {
        version: "13.1.0".to_owned(),
        rows: 4608,
        n: 12_288,
        k: 3072,
        gelu: true,
        algorithm: "66/495/35/1/0/0/7/0/5".to_owned(),
    };
    let again = CardProfile { copy_share: 0.01, tuned: vec![tuned], ..profile };
    again.save(&inner).unwrap();
    assert_eq!(CardProfile::load(&inner, "NVIDIA H200").unwrap(), Some(again));
}

#[test]
fn another_version_another_card_and_wrong_figures_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let name = "NVIDIA H200";
    let profile = CardProfile { copy_share: 0.006, ..CardProfile::h200() };
    let file = profile.save(folder.path()).unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    let cases = [
        text.replace("\"version\": 3", "\"version\": 2"),
        text.replace("NVIDIA H200", "NVIDIA H100"),
        text.replace("\"copy_share\": 0.006", "\"copy_share\": 1.5"),
        text.replace("\"rows\": 4608", "\"rows\": 1"),
        text.replace("\"launch_seconds\"", "\"lunch_seconds\""),
        text.replace("\"tuned\": []", "\"tuned\": [{\"rows\": -1}]"),
        text[..text.len() / 2].to_owned(),
        "[]".to_owned(),
    ];
    for case in cases {
        assert_ne!(case, text);
        std::fs::write(&file, &case).unwrap();
        let error = CardProfile::load(folder.path(), name).unwrap_err();
        assert!(matches!(error, ProfileError::Content { .. }), "{error}");
        assert!(!error.to_string().contains('\n'), "{error}");
    }
    // A file from before there were choices of algorithms has none.
    std::fs::write(&file, text.replace(",\n  \"tuned\": []", "")).unwrap();
    assert_eq!(CardProfile::load(folder.path(), name).unwrap(), Some(profile));
    std::fs::write(&file, vec![b' '; 2 << 20]).unwrap();
    assert!(matches!(CardProfile::load(folder.path(), name), Err(ProfileError::File { .. })));
}

#[test]
fn a_name_cannot_leave_the_folder() {
    let folder = std::path::Path::new("/cards");
    let file = CardProfile::file(folder, "../../etc/Passwd\0 \u{1F600}");
    assert_eq!(file.parent(), Some(folder));
    assert!(file.to_str().unwrap().bytes().all(|b| b.is_ascii_graphic()), "{file:?}");
}

#[test]
fn rates_between_rows_lie_between() {
    let rates = CardProfile::h200().libraries.unwrap();
    let at = |rows| rates.gemm_flops_per_second(rows);
    for &RowRate { rows, flops_per_second } in &rates.gemm {
        assert!((at(rows) / flops_per_second - 1.0).abs() < 1e-12, "{rows}");
    }
    assert!(at(20) > at(1) && at(20) < at(77));
    assert!((at(100_000) / at(4608) - 1.0).abs() < 1e-12, "the last one holds beyond");
    // Few rows: the time is that of the weights, nearly the same for 1 and 77.
    let seconds = |rows: u64| rows as f64 / at(rows);
    assert!((seconds(77) / seconds(1) - 1.0).abs() < 0.1);
    assert!((seconds(8) / seconds(1) - 1.0).abs() < 0.1);
}

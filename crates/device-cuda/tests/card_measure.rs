//! A card's own profile: measured in time, and of the size of what the driver says of it.
//!
//! Run the test's binary on a machine with a card: `card_measure-HASH --ignored --nocapture`.

#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

mod card;

use std::path::Path;
use std::time::Instant;

use plimsoll_device_cuda::measure::{Effort, measure};
use plimsoll_device_cuda::profile::CardProfile;

#[test]
#[ignore = "needs a card"]
fn a_card_is_measured_within_twenty_seconds() {
    let folder = tempfile::tempdir_in(Path::new("/dev/shm")).unwrap();
    let started = Instant::now();
    let profile = measure(0, &card::options(), &Effort::full(), folder.path()).unwrap();
    let seconds = started.elapsed().as_secs_f64();
    let file = profile.save(folder.path()).unwrap();
    println!("{} in {seconds:.1} s", std::fs::read_to_string(file).unwrap());
    assert_eq!(CardProfile::load(folder.path(), &profile.name).unwrap(), Some(profile.clone()));
    assert!(seconds < 20.0, "{seconds} s");
    assert!((1e9..1e12).contains(&profile.link_bytes_per_second));
    assert!((5e10..2e13).contains(&profile.memory_bytes_per_second));
    for rates in std::iter::once(&profile.own).chain(&profile.libraries) {
        let last = rates.gemm.last().unwrap().flops_per_second;
        assert!((1e12..5e15).contains(&last), "{last}");
        assert!((1e12..5e15).contains(&rates.attention_flops_per_second));
    }
    let names: Vec<_> =
        folder.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 1, "the file of random values is gone: {names:?}");
}

//! Bytes from the disk are those of the mapping, and a file that has become shorter is an error and not a signal.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use plimsoll_host::{
    DiskFiles, HostError, READERS, ReadAhead, Scratch, SharedMapping, measure_disk,
};

/// splitmix64.
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.bits() % bound as u64) as usize
    }
}

/// Files of random bytes, none a multiple of a sector, where the test's other output is: on a disk, mostly.
fn files(folder: &Path, random: &mut Random, sizes: &[usize]) -> Vec<SharedMapping> {
    let write = |(at, bytes): (usize, &usize)| {
        let path = folder.join(format!("{at}.bin"));
        let content: Vec<u8> =
            (0..bytes.div_ceil(8)).flat_map(|_| random.bits().to_le_bytes()).collect();
        std::fs::File::create(&path).unwrap().write_all(&content[..*bytes]).unwrap();
        SharedMapping::open(&path).unwrap()
    };
    sizes.iter().enumerate().map(write).collect()
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

const SIZES: [usize; 3] = [12_345_679, 1, 5_000_001];

/// A range, at times of no byte, at times to the end.
fn range<'m>(random: &mut Random, mappings: &'m [SharedMapping]) -> &'m [u8] {
    let bytes = mappings[random.below(mappings.len())].bytes();
    let start = random.below(bytes.len());
    let most = bytes.len() - start;
    let length = if random.below(4) == 0 { most } else { random.below(most + 1) };
    &bytes[start..start + length]
}

#[test]
fn any_range_is_read_as_it_lies_in_its_file() {
    let (folder, mut random) = (folder(), Random(1));
    let mappings = files(folder.path(), &mut random, &SIZES);
    let disk = DiskFiles::open(&mappings).unwrap();
    println!("past the page cache: {}", disk.is_direct());
    assert_eq!(disk.bytes(), SIZES.iter().sum::<usize>() as u64);
    for bytes in [1, 4096, 100_000, 1 << 20] {
        let mut scratch = Scratch::new(bytes).unwrap();
        for _ in 0..60 {
            let source = range(&mut random, &mappings);
            assert!(disk.holds(source));
            let mut found: Vec<Vec<u8>> = Vec::new();
            disk.read(source, &mut scratch, &mut |part| {
                found.push(part.to_vec());
                true
            })
            .unwrap();
            assert!(found.concat() == source);
            let whole = &found[..found.len().saturating_sub(1)];
            assert!(whole.iter().all(|part| part.len().is_multiple_of(4)), "an element is cut");
        }
    }
    let elsewhere = [1u8, 2, 3];
    assert!(!disk.holds(&elsewhere));
    let mut found = Vec::new();
    let mut keep = |part: &[u8]| {
        found.extend_from_slice(part);
        true
    };
    disk.read(&elsewhere, &mut Scratch::new(1).unwrap(), &mut keep).unwrap();
    assert_eq!(found, elsewhere);
    let rate = disk.measure(3, Duration::from_secs(2)).unwrap().unwrap();
    println!("{:.2} GB/s", rate / 1e9);
    assert!(
        rate > 0.0 && DiskFiles::open(&[]).unwrap().measure(1, Duration::ZERO).unwrap().is_none()
    );
}

#[test]
fn a_disk_is_measured_by_its_folder_and_nothing_is_left_there() {
    let folder = folder();
    match measure_disk(folder.path()).unwrap() {
        Some(rate) => println!("{:.2} GB/s", rate / 1e9),
        None => println!("not read past the page cache"),
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    let missing = measure_disk(&folder.path().join("missing"));
    assert!(matches!(missing, Err(HostError::Io { .. })), "{missing:?}");
}

#[test]
fn reader_threads_give_the_same_bytes_in_order() {
    let (folder, mut random) = (folder(), Random(2));
    let mappings = files(folder.path(), &mut random, &[23_456_789, 7, 4096]);
    let disk = DiskFiles::open(&mappings).unwrap();
    let ahead = ReadAhead::new(&disk).unwrap();
    std::thread::scope(|scope| {
        (0..READERS).for_each(|_| {
            scope.spawn(|| ahead.serve());
        });
        for round in 0..120 {
            let source = range(&mut random, &mappings);
            if round % 3 == 0 {
                // One that is left off in the middle leaves nothing behind.
                let stop = AtomicBool::new(false);
                let whole = ahead.read(source, &|| stop.load(Ordering::SeqCst), &mut |_| {
                    stop.store(true, Ordering::SeqCst);
                });
                assert!(whole.unwrap() || source.len() > 2 << 20);
            }
            let mut found = Vec::new();
            let whole = ahead.read(source, &|| false, &mut |part| found.extend_from_slice(part));
            assert!(whole.unwrap() && found == source, "round {round}");
        }
        ahead.close();
    });
}

#[test]
fn a_file_that_has_become_shorter_is_told_by_name() {
    let (folder, mut random) = (folder(), Random(3));
    let mappings = files(folder.path(), &mut random, &[9_000_000]);
    let disk = DiskFiles::open(&mappings).unwrap();
    let path = folder.path().join("0.bin");
    for length in [8_999_999u64, 5_000_704, 4096, 0] {
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(length).unwrap();
        let mut scratch = Scratch::new(1 << 20).unwrap();
        let read = disk.read(mappings[0].bytes(), &mut scratch, &mut |_| true);
        let Err(HostError::LengthChanged { bytes_before, bytes_now, path: told }) = read else {
            panic!("{read:?}")
        };
        assert_eq!((bytes_before, bytes_now, told), (9_000_000, length, path.clone()));
        let ahead = ReadAhead::new(&disk).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| ahead.serve());
            let read = ahead.read(mappings[0].bytes(), &|| false, &mut |_| ());
            assert!(matches!(read, Err(HostError::LengthChanged { .. })), "{read:?}");
            ahead.close();
        });
        let again = DiskFiles::open(&mappings);
        assert!(matches!(again, Err(HostError::LengthChanged { .. })), "{again:?}");
    }
}

//! Which copies come from the disk, where RAM cannot hold all that is streamed.
//!
//! What stays in RAM stays for the whole run, so that the page cache is never asked to keep a cyclic scan; the copies
//! from the disk are spread evenly among the others, so that the disk is busy all the time and no stretch of a step
//! has to wait for it alone.

use std::collections::HashMap;

use plimsoll_device::Program;

/// Marks the copies of `program` that come from its disk, so that the weights which are copied again and again and
/// stay in RAM take at most `ram_bytes`. What is copied once comes from the disk too: its pages would push others out.
///
/// Bytes are those of the files; what lies in no file of the disk is left alone.
pub fn choose_disk(program: &mut Program<'_>, ram_bytes: u64) {
    let Some(disk) = program.disk else { return };
    // A unit may have several slots, and is then kept or not for all of them: known by where its bytes lie.
    let mut sources: Vec<Source> = Vec::new();
    let mut known: HashMap<usize, usize> = HashMap::new();
    let mut of_copies: Vec<Option<usize>> = Vec::with_capacity(program.copies.len());
    for copy in &program.copies {
        let held: Vec<&[u8]> = copy
            .segments
            .iter()
            .map(|segment| segment.source)
            .filter(|source| disk.holds(source))
            .collect();
        let Some(first) = held.first() else {
            of_copies.push(None);
            continue;
        };
        let at = *known.entry(first.as_ptr() as usize).or_insert_with(|| {
            let bytes = held.iter().map(|source| source.len() as u64).sum();
            sources.push(Source { bytes, uses: 0 });
            sources.len() - 1
        });
        sources[at].uses += copy.uses;
        of_copies.push(Some(at));
    }
    let kept = spread(&sources, ram_bytes);
    for (copy, source) in program.copies.iter_mut().zip(of_copies) {
        copy.from_disk = source.is_some_and(|at| !kept[at]);
    }
}

/// Bytes of a file that are copied together.
#[derive(Clone, Copy, Debug)]
struct Source {
    bytes: u64,
    uses: u64,
}

/// Which sources stay in RAM: at most `ram_bytes` of those that are used more than once, evenly spread.
fn spread(sources: &[Source], ram_bytes: u64) -> Vec<bool> {
    let total: u128 =
        sources.iter().filter(|source| source.uses > 1).map(|s| u128::from(s.bytes)).sum();
    let share = u128::from(ram_bytes).min(total);
    // Of every `total` bytes that pass, `share` may stay: what is owed is carried on to the next source.
    let (mut owed, mut left) = (0u128, u128::from(ram_bytes));
    sources
        .iter()
        .map(|source| {
            if source.uses < 2 {
                return false;
            }
            let bytes = u128::from(source.bytes);
            owed += bytes * share;
            let is_kept = owed >= bytes * total && bytes <= left;
            if is_kept {
                owed -= bytes * total;
                left -= bytes;
            }
            is_kept
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(bytes: &[u64]) -> Vec<Source> {
        bytes.iter().map(|bytes| Source { bytes: *bytes, uses: 8 }).collect()
    }

    #[test]
    fn what_stays_fits_and_is_evenly_spread() {
        let all = sources(&[10; 60]);
        for ram_bytes in [0, 9, 10, 95, 300, 450, 599, 600, u64::MAX] {
            let kept = spread(&all, ram_bytes);
            let count = kept.iter().filter(|kept| **kept).count() as u64;
            assert_eq!(count, (ram_bytes / 10).min(60), "{ram_bytes} bytes");
            // No stretch of ten sources has more than one above its share.
            for stretch in kept.windows(10) {
                let found = stretch.iter().filter(|kept| **kept).count() as f64;
                let due = 10.0 * count as f64 / 60.0;
                assert!((found - due).abs() <= 1.01, "{found} of {due} in ten");
            }
        }
    }

    #[test]
    fn sizes_count_and_what_is_used_once_does_not_stay() {
        let mut mixed = sources(&[100, 1, 50, 1, 100, 1, 50]);
        mixed[0].uses = 1;
        for ram_bytes in 0..=210 {
            let kept = spread(&mixed, ram_bytes);
            let bytes: u64 =
                mixed.iter().zip(&kept).filter(|(_, kept)| **kept).map(|(s, _)| s.bytes).sum();
            assert!(bytes <= ram_bytes && !kept[0], "{bytes} of {ram_bytes}");
            assert!(ram_bytes < 203 || kept[1..].iter().all(|kept| *kept), "all fits");
        }
    }
}

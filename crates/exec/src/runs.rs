//! Host bytes of weights, and joining those that are adjacent on both sides into one copy.
//!
//! Slots are laid out by the plan alone: each weight at a multiple of 256 bytes, its parts end to end. A file whose
//! tensors lie in the same order and at the same distances (as `plimsoll pack` writes it) therefore gives one run a
//! unit, and any other file as many as its order asks for; the bytes that ops read are the same.

use plimsoll_device::{HostDType, Segment, is_plain};
use plimsoll_graph::DType;

/// A run of bytes inside of a file, or of bytes built into the program.
#[derive(Clone, Copy, Debug)]
pub struct HostRun<'h> {
    blob: &'h [u8],
    start: usize,
    end: usize,
}

impl<'h> HostRun<'h> {
    /// `bytes` bytes of `blob` from `offset` on; `None` where it does not have them.
    pub fn new(blob: &'h [u8], offset: u64, bytes: u64) -> Option<Self> {
        let start = usize::try_from(offset).ok()?;
        let end = usize::try_from(offset.checked_add(bytes)?).ok()?;
        (end <= blob.len()).then_some(Self { blob, start, end })
    }

    /// The bytes.
    pub fn bytes(&self) -> &'h [u8] {
        &self.blob[self.start..self.end]
    }

    /// How many they are.
    pub(crate) fn len(&self) -> u64 {
        (self.end - self.start) as u64
    }

    fn is_of_blob(&self, other: &Self) -> bool {
        std::ptr::eq(self.blob, other.blob)
    }
}

/// A segment in the making.
#[derive(Clone, Copy)]
struct Run<'h> {
    host: HostRun<'h>,
    target: u64,
    source_dtype: HostDType,
    target_dtype: DType,
    /// Of several types, or with bytes between two weights.
    is_joined: bool,
}

/// Runs of one copy, in ascending order of their targets.
#[derive(Default)]
pub(crate) struct Runs<'h> {
    runs: Vec<Run<'h>>,
}

impl<'h> Runs<'h> {
    /// Adds bytes for `target`, to the run before where they continue it: the same distance from it in the file and in
    /// the slot, and no cast on either side.
    ///
    /// What lies between two weights of a slot belongs to nobody, so it may be filled from the file; never past `end`,
    /// the slot's end.
    pub(crate) fn add(
        &mut self,
        host: HostRun<'h>,
        [target, end]: [u64; 2],
        source_dtype: HostDType,
        target_dtype: DType,
    ) {
        let is_as_it_is = is_plain(source_dtype, target_dtype);
        if let Some(last) = self.runs.last_mut()
            && is_as_it_is
            && is_plain(last.source_dtype, last.target_dtype)
            && last.host.is_of_blob(&host)
            && host.start >= last.host.end
            && (host.start - last.host.start) as u64 == target - last.target
            && target + host.len() <= end
        {
            last.is_joined |= host.start > last.host.end || source_dtype != last.source_dtype;
            last.host.end = host.end;
            return;
        }
        self.runs.push(Run { host, target, source_dtype, target_dtype, is_joined: false });
    }

    /// The segments.
    pub(crate) fn segments(self) -> Vec<Segment<'h>> {
        let segment = |run: Run<'h>| {
            let Run { host, target, source_dtype, target_dtype, is_joined } = run;
            match is_joined {
                true => Segment::of_bytes(host.bytes(), target),
                false => Segment { source: host.bytes(), source_dtype, target, target_dtype },
            }
        };
        self.runs.into_iter().map(segment).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: u64 = 4096;

    fn joined(parts: &[(u64, u64, u64, HostDType, DType)]) -> Vec<(usize, u64)> {
        let blob = vec![0u8; 4096];
        let mut runs = Runs::default();
        for (offset, bytes, target, from, to) in parts {
            let run = HostRun::new(&blob, *offset, *bytes).expect("inside of the blob");
            runs.add(run, [*target, END], *from, *to);
        }
        let segments = runs.segments();
        segments.iter().map(|segment| (segment.source.len(), segment.target)).collect()
    }

    #[test]
    fn adjacent_weights_are_one_copy() {
        let (bf16, f8) = ((HostDType::BF16, DType::BF16), (HostDType::F8E4M3, DType::F8E4M3));
        let single = (HostDType::F32, DType::F32);
        // Parts of one weight, then a weight of another type at the next multiple of 256, with filler between.
        let parts = [
            (256, 100, 1024, f8.0, f8.1),
            (356, 28, 1124, f8.0, f8.1),
            (512, 64, 1280, single.0, single.1),
            (768, 10, 1536, bf16.0, bf16.1),
        ];
        assert_eq!(joined(&parts), [(522, 1024)]);
    }

    #[test]
    fn what_is_not_adjacent_on_both_sides_stays_apart() {
        let bf16 = |offset, bytes, target| (offset, bytes, target, HostDType::BF16, DType::BF16);
        // Another distance in the file; before it in the file; a cast.
        assert_eq!(joined(&[bf16(0, 64, 0), bf16(128, 64, 256)]), [(64, 0), (64, 256)]);
        assert_eq!(joined(&[bf16(512, 64, 0), bf16(256, 64, 256)]), [(64, 0), (64, 256)]);
        let cast = [bf16(0, 64, 0), (64, 128, 64, HostDType::F32, DType::BF16)];
        assert_eq!(joined(&cast), [(64, 0), (128, 64)]);
        let cast = [(0, 64, 0, HostDType::F32, DType::BF16), bf16(32, 64, 32)];
        assert_eq!(joined(&cast), [(64, 0), (64, 32)]);
        assert!(HostRun::new(&[0; 8], 4, 5).is_none());
        assert!(HostRun::new(&[0; 8], u64::MAX, 2).is_none());
    }

    #[test]
    fn two_blobs_stay_apart() {
        let (one, other) = (vec![0u8; 64], vec![0u8; 64]);
        let mut runs = Runs::default();
        for (blob, target) in [(&one, 0), (&other, 32)] {
            let run = HostRun::new(blob, target, 32).expect("inside of the blob");
            runs.add(run, [target, END], HostDType::BF16, DType::BF16);
        }
        assert_eq!(runs.segments().len(), 2);
    }
}

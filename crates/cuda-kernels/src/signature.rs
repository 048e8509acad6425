//! Parameters of the kernels in a cubin, so that tests can hold launches against them.
//!
//! A cubin is an ELF file with a section `.nv.info.NAME` for each kernel: a list of attributes, among them the
//! position and size of each parameter and the most threads of a block.

use std::collections::BTreeMap;

use crate::task::{Arg, Launch};

/// What a kernel takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Signature {
    /// Bytes of each parameter, in their order.
    pub(crate) parameters: Vec<u32>,
    /// Threads of a block, at most.
    pub(crate) threads_most: u32,
}

impl Signature {
    /// What is wrong with a launch of the kernel.
    pub(crate) fn fault(&self, launch: &Launch) -> Option<String> {
        let sizes: Vec<u32> = launch.args.iter().map(size).collect();
        let threads: u32 = launch.block.iter().product();
        if sizes != self.parameters {
            return Some(format!("arguments of {sizes:?} bytes for {:?}", self.parameters));
        }
        (threads == 0 || threads > self.threads_most || launch.grid.contains(&0))
            .then(|| format!("{:?} blocks of {threads} threads", launch.grid))
    }
}

fn size(arg: &Arg) -> u32 {
    match arg {
        Arg::Arena(_) | Arg::Step | Arg::Null | Arg::U64(_) => 8,
        Arg::U32(_) | Arg::F32(_) => 4,
    }
}

fn number<const N: usize>(image: &[u8], at: usize) -> u64 {
    let bytes: [u8; N] = image[at..at + N].try_into().unwrap();
    bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

fn word(image: &[u8], at: usize) -> usize {
    usize::try_from(number::<4>(image, at)).unwrap()
}

/// Bytes of an ELF section and its name.
fn sections(image: &[u8]) -> Vec<(String, &[u8])> {
    assert_eq!(&image[..4], b"\x7fELF");
    let long = |at: usize| usize::try_from(number::<8>(image, at)).unwrap();
    let short = |at: usize| usize::try_from(number::<2>(image, at)).unwrap();
    let headers = long(0x28);
    let header = |index: usize| headers + index * short(0x3a);
    let names = long(header(short(0x3e)) + 0x18);
    let name = |at: usize| {
        let bytes = image[names + at..].iter().take_while(|byte| **byte != 0);
        bytes.map(|byte| char::from(*byte)).collect()
    };
    // Type 8 takes no room in the file.
    (0..short(0x3c))
        .map(header)
        .filter(|at| word(image, at + 4) != 8)
        .map(|at| (name(word(image, at)), &image[long(at + 0x18)..][..long(at + 0x20)]))
        .collect()
}

/// The kernels of a cubin.
pub(crate) fn signatures(image: &[u8]) -> BTreeMap<String, Signature> {
    let mut found = BTreeMap::new();
    for (name, info) in sections(image) {
        let Some(kernel) = name.strip_prefix(".nv.info.") else { continue };
        found.insert(kernel.to_owned(), signature(info));
    }
    found
}

/// From a kernel's attributes: format, number, then 2 bytes of value, or their length and as many bytes.
fn signature(info: &[u8]) -> Signature {
    const SIZED: u8 = 4;
    const PARAMETER: u8 = 0x17;
    const THREADS_MOST: u8 = 0x05;
    let mut parameters = BTreeMap::new();
    let mut found = Signature::default();
    let mut at = 0;
    while at < info.len() {
        let (format, attribute) = (info[at], info[at + 1]);
        let length = usize::try_from(number::<2>(info, at + 2)).unwrap();
        let value = at + 4;
        match attribute {
            PARAMETER => {
                let bytes = u32::try_from(word(info, value + 8) >> 18).unwrap();
                parameters.insert(number::<2>(info, value + 4), bytes);
            }
            THREADS_MOST => {
                let sides = [0, 4, 8].map(|side| word(info, value + side));
                found.threads_most = u32::try_from(sides.iter().product::<usize>()).unwrap();
            }
            _ => {}
        }
        at = value + if format == SIZED { length } else { 0 };
    }
    found.parameters = parameters.into_values().collect();
    found
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use super::{Signature, signatures};
    use crate::Arch;

    const ARCHS: [Arch; 6] =
        [Arch::Sm80, Arch::Sm86, Arch::Sm89, Arch::Sm90a, Arch::Sm100a, Arch::Sm120a];

    fn kernels(arch: Arch) -> BTreeMap<String, Signature> {
        arch.cubins().iter().flat_map(|cubin| signatures(cubin.image)).collect()
    }

    #[test]
    fn a_kernel_takes_the_same_on_every_architecture() {
        let mut all: BTreeMap<String, Signature> = BTreeMap::new();
        for arch in ARCHS {
            let found = kernels(arch);
            let count: usize =
                arch.cubins().iter().map(|cubin| signatures(cubin.image).len()).sum();
            assert_eq!(found.len(), count, "{}: a name twice", arch.name());
            for (name, signature) in found {
                assert!(!signature.parameters.is_empty(), "{name}");
                let first = all.entry(name.clone()).or_insert_with(|| signature.clone());
                assert_eq!(*first, signature, "{name} for {}", arch.name());
            }
        }
    }

    #[test]
    fn every_source_is_embedded() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        for arch in ARCHS {
            let embedded: Vec<&str> = arch.cubins().iter().map(|cubin| cubin.name).collect();
            for entry in std::fs::read_dir(folder.join("cubin").join(arch.name())).unwrap() {
                let file = entry.unwrap().file_name().into_string().unwrap();
                let name = file.strip_suffix(".cubin").unwrap();
                assert!(embedded.contains(&name), "{name} for {}", arch.name());
            }
        }
    }

    #[test]
    fn compute_capabilities_have_their_kernels() {
        for (capability, arch) in
            [((8, 0), "sm_80"), ((8, 7), "sm_86"), ((9, 0), "sm_90a"), ((12, 0), "sm_120a")]
        {
            assert_eq!(Arch::of(capability.0, capability.1).unwrap().name(), arch);
        }
        for (major, minor) in [(7, 5), (10, 3), (12, 1), (13, 0)] {
            assert_eq!(Arch::of(major, minor), None, "{major}.{minor}");
        }
    }
}

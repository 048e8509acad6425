//! Every kernel of a card's architecture, loaded when the card is opened.
//!
//! The driver puts a kernel on the device when it is first asked for by name; so all are asked for here, by the
//! names that the images themselves state, and nothing is loaded while a program runs.

use std::collections::HashMap;
use std::sync::Arc;

use plimsoll_cuda_kernels::{Arch, Cubin};

use crate::CudaError;
use crate::driver::{Context, Function, Module};

/// Dynamic shared memory that a kernel may have without asking.
const SHARED_BYTES_DEFAULT: u32 = 48 << 10;

/// Loaded kernels by name.
#[derive(Debug)]
pub(crate) struct Kernels {
    arch: Arch,
    functions: HashMap<String, Function>,
    /// Keeps the functions valid.
    _modules: Vec<Module>,
}

impl Kernels {
    /// Loads every image of an architecture.
    pub(crate) fn load(context: &Arc<Context>, arch: Arch) -> Result<Self, CudaError> {
        let mut modules = Vec::new();
        let mut functions = HashMap::new();
        for Cubin { name: file, image } in arch.cubins() {
            let names = kernel_names(image).ok_or_else(|| CudaError::Unsupported {
                what: format!("the image of {file} for {}, which is damaged,", arch.name()),
            })?;
            let module = Module::new(context, image)?;
            for name in names {
                functions.insert(name.to_owned(), module.function(name)?);
            }
            modules.push(module);
        }
        Ok(Self { arch, functions, _modules: modules })
    }

    /// The architecture whose kernels these are.
    pub(crate) fn arch(&self) -> Arch {
        self.arch
    }

    /// A kernel that a launch with `shared_bytes` of dynamic shared memory may use.
    pub(crate) fn function(&self, name: &str, shared_bytes: u32) -> Result<Function, CudaError> {
        let function = self.functions.get(name).ok_or_else(|| CudaError::NoKernel {
            kernel: name.to_owned(),
            arch: self.arch.name(),
        })?;
        if shared_bytes > SHARED_BYTES_DEFAULT {
            function.allow_shared_bytes(shared_bytes)?;
        }
        Ok(*function)
    }
}

/// Names of the kernels in an image: each has a section `.text.NAME`. `None` where the image is no 64-bit ELF.
fn kernel_names(image: &[u8]) -> Option<Vec<&str>> {
    /// Bytes of a section's header.
    const HEADER_BYTES: usize = 64;
    let word = |at: usize| -> Option<usize> {
        usize::try_from(u64::from_le_bytes(*image.get(at..)?.first_chunk()?)).ok()
    };
    let short = |at: usize| -> Option<usize> {
        Some(usize::from(u16::from_le_bytes(*image.get(at..)?.first_chunk()?)))
    };
    if image.get(..6)? != b"\x7fELF\x02\x01" || short(0x3A)? != HEADER_BYTES {
        return None;
    }
    let (first, count, names_index) = (word(0x28)?, short(0x3C)?, short(0x3E)?);
    let header = |index: usize| first.checked_add(index.checked_mul(HEADER_BYTES)?);
    let names = header(names_index)?;
    let start = word(names.checked_add(0x18)?)?;
    let end = start.checked_add(word(names.checked_add(0x20)?)?)?;
    let names = image.get(start..end)?;
    let mut found = Vec::new();
    for index in 0..count {
        let at: [u8; 4] = *image.get(header(index)?..)?.first_chunk()?;
        let name = names.get(usize::try_from(u32::from_le_bytes(at)).ok()?..)?;
        let name = name.split(|byte| *byte == 0).next()?;
        if let Some(kernel) = name.strip_prefix(b".text.") {
            found.push(std::str::from_utf8(kernel).ok()?);
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

    use super::*;

    const ALL: [Arch; 6] =
        [Arch::Sm80, Arch::Sm86, Arch::Sm89, Arch::Sm90a, Arch::Sm100a, Arch::Sm120a];

    #[test]
    fn every_image_names_its_kernels() {
        for arch in ALL {
            let mut all = std::collections::BTreeSet::new();
            for cubin in arch.cubins() {
                let names = kernel_names(cubin.image).unwrap();
                assert!(!names.is_empty(), "{} has no kernel", cubin.name);
                for name in names {
                    assert!(all.insert(name), "{name} is there twice for {}", arch.name());
                }
            }
            for name in ["runtime_fill", "runtime_scan", "runtime_delay"] {
                assert!(all.contains(name), "{name} is missing for {}", arch.name());
            }
        }
    }

    #[test]
    fn a_damaged_image_is_refused_or_read_but_never_panics() {
        let image = Arch::Sm80.cubins()[0].image;
        for end in 0..image.len() {
            let _names = kernel_names(&image[..end]);
        }
        let mut damaged = image.to_vec();
        for at in (0..64).chain(image.len() - 512..image.len()) {
            let kept = std::mem::replace(&mut damaged[at], 0xFF);
            let _names = kernel_names(&damaged);
            damaged[at] = kept;
        }
        assert_eq!(kernel_names(b"\x7fELF"), None);
    }
}

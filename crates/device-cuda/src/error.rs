//! What can go wrong with a card.

use plimsoll_device::{DeviceError, Memory, Shortage};
use plimsoll_host::HostError;

/// Failures of a card, its driver or its libraries.
///
/// `Clone`, because a failure of one lane is told to the caller, to the other lane and to every later run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// There is no driver on this machine.
    #[error(
        "no NVIDIA driver: libcuda.so.1 was not found; use the CPU device, or install a driver of CUDA 12.0 or newer"
    )]
    NoDriver,
    /// The driver is older than what the kernels are built for.
    #[error(
        "the NVIDIA driver speaks CUDA {}.{}, and 12.0 is needed: install driver 525 or newer",
        version / 1000,
        version % 1000 / 10
    )]
    OldDriver {
        /// As the driver gives it: 11040 for 11.4.
        version: u32,
    },
    /// The driver lacks a function that this program calls.
    #[error("the NVIDIA driver cannot be used: {cause}")]
    DriverUnusable {
        /// What the loader said.
        cause: String,
    },
    /// There are fewer cards.
    #[error("there is no CUDA device {index}: this machine has {count}")]
    NoSuchDevice {
        /// Asked for.
        index: u32,
        /// On this machine.
        count: u32,
    },
    /// No kernels are built for the card.
    #[error(
        "{name} has compute capability {major}.{minor}, for which there are no kernels: 8.0 to 9.0, 10.0 and 12.0 work{}; \
         use the CPU device on this machine",
        older_dtypes(*major)
    )]
    UnsupportedCard {
        /// The card's name.
        name: String,
        /// Of its compute capability.
        major: u32,
        /// Of its compute capability.
        minor: u32,
    },
    /// Others hold memory that this process was to have; it may be free later.
    #[error(
        "the card is busy: {needed_bytes} more bytes are needed and {free_bytes} of {total_bytes} are free; \
         end other programs on it or lower the line"
    )]
    Busy {
        /// What was to be taken.
        needed_bytes: u64,
        /// Free on the device now.
        free_bytes: u64,
        /// Of the device.
        total_bytes: u64,
    },
    /// A driver call failed.
    #[error("{call} failed: {code}: {text}")]
    Driver {
        /// Name of the call.
        call: &'static str,
        /// The driver's number.
        code: u32,
        /// The driver's words.
        text: String,
    },
    /// A library call failed.
    #[error("{library}: {call} failed: {status}")]
    Library {
        /// Name of the library.
        library: &'static str,
        /// Name of the call, and what it was about.
        call: String,
        /// The library's number; none where we refused by ourselves.
        code: Option<i32>,
        /// The library's words.
        status: String,
    },
    /// A kernel that a task names is in no module of the card's architecture.
    #[error("kernel {kernel} is not among those built for {arch}")]
    NoKernel {
        /// Its name.
        kernel: String,
        /// Architecture.
        arch: &'static str,
    },
    /// Something that this room does not do.
    #[error("{what} is not supported by the CUDA device")]
    Unsupported {
        /// Op and operands, or the missing part of the system.
        what: String,
    },
    /// A weight file could not be read from the disk.
    #[error("{cause}")]
    HostRead {
        /// The file and what is wrong with it.
        cause: String,
    },
    /// An earlier error has made the context unusable; the process has to be started again.
    #[error("the card stopped after an earlier error: {cause}")]
    Poisoned {
        /// The earlier error.
        cause: String,
    },
}

/// Which dtypes the arithmetic of a card has that is too old for bf16.
fn older_dtypes(major: u32) -> &'static str {
    if major < 8 { " in bf16, and the card itself has f16 and f32 only" } else { "" }
}

impl CudaError {
    /// Whether nothing can be done with the card any more in this process.
    pub fn is_sticky(&self) -> bool {
        match self {
            // ECC, NVLink and contained errors, a context that is gone, and everything a kernel does wrong.
            Self::Driver { code, .. } => {
                matches!(code, 4 | 201 | 214 | 220..=223 | 700 | 702 | 709 | 710 | 714..=719 | 721 | 999)
            }
            Self::Poisoned { .. } => true,
            _ => false,
        }
    }
}

/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: u32 = 2;

/// `CUBLAS_STATUS_ALLOC_FAILED`: of its own device memory.
const LT_ALLOC_FAILED: i32 = 3;

/// `CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED`.
const DNN_HOST_ALLOC_FAILED: i32 = 4003;

/// `CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED`.
const DNN_DEVICE_ALLOC_FAILED: i32 = 4004;

impl CudaError {
    /// Which memory ran short, by the number of the driver or library; `None` for every other failure.
    pub fn shortage(&self) -> Option<Shortage> {
        match self {
            Self::Busy { needed_bytes, free_bytes, .. } => Some(Shortage {
                memory: Memory::Device,
                needed_bytes: Some(*needed_bytes),
                free_bytes: Some(*free_bytes),
            }),
            Self::Driver { call, code: OUT_OF_MEMORY, .. } => {
                // What locks host pages says the same number.
                let is_pinned = call.starts_with("cuMemHost");
                Some(Shortage::of(if is_pinned { Memory::Pinned } else { Memory::Device }))
            }
            Self::Library { library: "cuDNN", code: Some(DNN_HOST_ALLOC_FAILED), .. } => {
                Some(Shortage::of(Memory::Host))
            }
            Self::Library { library: "cuDNN", code: Some(DNN_DEVICE_ALLOC_FAILED), .. } => {
                Some(Shortage::of(Memory::Device))
            }
            Self::Library { library: "cuBLASLt", code: Some(LT_ALLOC_FAILED), .. } => {
                Some(Shortage::of(Memory::Device))
            }
            _ => None,
        }
    }
}

impl From<CudaError> for DeviceError {
    fn from(error: CudaError) -> Self {
        if let Some(shortage) = error.shortage() {
            let cause = error.to_string();
            return Self::OutOfMemory { device: "cuda".to_owned(), shortage, cause };
        }
        match error {
            CudaError::Unsupported { what } => {
                Self::Unsupported { what, device: "cuda".to_owned() }
            }
            CudaError::HostRead { cause } => Self::HostRead { cause },
            other => Self::Driver {
                device: "cuda".to_owned(),
                is_lost: other.is_sticky(),
                cause: other.to_string(),
            },
        }
    }
}

impl From<HostError> for CudaError {
    fn from(error: HostError) -> Self {
        Self::HostRead { cause: error.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn driver(code: u32) -> CudaError {
        CudaError::Driver { call: "cuLaunchKernel", code, text: "words".to_owned() }
    }

    #[test]
    fn a_card_is_lost_by_what_ends_its_context_only() {
        // Illegal address, launch failure, ECC, illegal instruction.
        for code in [700, 719, 214, 715] {
            let lost = DeviceError::from(driver(code));
            assert!(matches!(lost, DeviceError::Driver { is_lost: true, .. }), "{code}");
        }
        // Invalid value, no permission, not supported.
        for code in [1, 800, 801] {
            let kept = DeviceError::from(driver(code));
            assert!(matches!(kept, DeviceError::Driver { is_lost: false, .. }), "{code}");
        }
        let again = DeviceError::from(CudaError::Poisoned { cause: "words".to_owned() });
        assert!(matches!(again, DeviceError::Driver { is_lost: true, .. }));
    }

    #[test]
    fn a_shortage_is_told_by_number_and_call() {
        let refused = |call, code| CudaError::Driver { call, code, text: "words".to_owned() };
        let library = |library, code| CudaError::Library {
            library,
            call: "a call".to_owned(),
            code: Some(code),
            status: "words".to_owned(),
        };
        let busy = CudaError::Busy { needed_bytes: 9, free_bytes: 4, total_bytes: 10 };
        for (error, memory) in [
            (refused("cuMemAlloc_v2", 2), Memory::Device),
            (refused("cuModuleLoadData", 2), Memory::Device),
            (refused("cuMemHostAlloc", 2), Memory::Pinned),
            (refused("cuMemHostRegister_v2", 2), Memory::Pinned),
            (library("cuBLASLt", 3), Memory::Device),
            (library("cuDNN", 4003), Memory::Host),
            (library("cuDNN", 4004), Memory::Device),
            (busy.clone(), Memory::Device),
        ] {
            assert_eq!(error.shortage().map(|found| found.memory), Some(memory), "{error}");
            // It stays what it is on its way to whoever writes the record.
            let told = DeviceError::from(error.clone());
            assert_eq!(told.shortage(), error.shortage(), "{error}");
            assert!(told.to_string().contains(&error.to_string()), "{told}");
        }
        let numbers = busy.shortage().map(|found| (found.needed_bytes, found.free_bytes));
        assert_eq!(numbers, Some((Some(9), Some(4))));
        // The number of one library means something else in another.
        assert_eq!(library("cuDNN", 3).shortage(), None);
        assert_eq!(refused("cuMemAlloc_v2", 1).shortage(), None);
    }

    #[test]
    fn versions_are_said_as_people_write_them() {
        let text = CudaError::OldDriver { version: 11_040 }.to_string();
        assert!(text.contains("CUDA 11.4,") && text.contains("525"), "{text}");
    }
}

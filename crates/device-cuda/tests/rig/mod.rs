//! A card for tests of the libraries: one stream, one allocation, host values to it and back.
//!
//! Allocations start as NaN bytes (0xFF), so that what is not written shows.

#![allow(dead_code, reason = "each test uses a part")]
#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]
#![allow(unreachable_pub, reason = "each test is a crate")]

use std::ptr;

use cudarc::driver::sys;
use half::bf16;
use plimsoll_cuda_kernels::Arch;
use plimsoll_device_cuda::loader::{Libraries, LibraryOptions};

macro_rules! driver {
    ($call:ident ( $($argument:expr),* $(,)? )) => {{
        // SAFETY: handles are the rig's own and pointers outlive the call.
        let status = unsafe { sys::$call($($argument),*) };
        assert_eq!(status, sys::CUresult::CUDA_SUCCESS, stringify!($call));
    }};
}

pub struct Rig {
    pub stream: sys::CUstream,
    pub base: u64,
    bytes: u64,
    taken: u64,
    /// Pinned: results come back at the link's rate.
    back: *mut u8,
}

/// Most bytes of a result.
const BACK_BYTES: u64 = 400 << 20;

impl Rig {
    pub fn new(bytes: u64) -> Self {
        driver!(cuInit(0));
        let (mut device, mut context) = (0, ptr::null_mut());
        driver!(cuDeviceGet(&mut device, 0));
        driver!(cuDevicePrimaryCtxRetain(&mut context, device));
        driver!(cuCtxSetCurrent(context));
        let (mut stream, mut base) = (ptr::null_mut(), 0);
        driver!(cuStreamCreate(&mut stream, 1));
        driver!(cuMemAlloc_v2(&mut base, bytes as usize));
        let mut back = ptr::null_mut();
        driver!(cuMemHostAlloc(&mut back, BACK_BYTES as usize, 0));
        Self { stream, base, bytes, taken: 0, back: back.cast() }
    }

    pub fn libraries(&self) -> Libraries {
        let (mut device, mut major, mut minor) = (0, 0, 0);
        use sys::CUdevice_attribute as A;
        driver!(cuDeviceGet(&mut device, 0));
        driver!(cuDeviceGetAttribute(
            &mut major,
            A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            device
        ));
        driver!(cuDeviceGetAttribute(
            &mut minor,
            A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            device
        ));
        let arch = Arch::of(major as u32, minor as u32);
        let libraries = Libraries::open(&LibraryOptions { arch, ..LibraryOptions::default() });
        for report in &libraries.reports {
            println!("{report}");
        }
        libraries
    }

    /// Offset of `bytes` of the allocation.
    pub fn take(&mut self, bytes: u64) -> u64 {
        let offset = self.taken.next_multiple_of(256);
        self.taken = offset + bytes;
        assert!(self.taken <= self.bytes, "{} bytes of {}", self.taken, self.bytes);
        offset
    }

    pub fn release_all(&mut self) {
        self.taken = 0;
    }

    pub fn poison(&self, offset: u64, bytes: u64) {
        driver!(cuMemsetD8Async(self.base + offset, 0xFF, bytes as usize, self.stream));
    }

    pub fn write<T: Copy>(&self, offset: u64, values: &[T]) {
        driver!(cuMemcpyHtoDAsync_v2(
            self.base + offset,
            values.as_ptr().cast(),
            size_of_val(values),
            self.stream
        ));
    }

    /// Bytes of a matrix, rows together; valid until the next read.
    pub fn read(&self, offset: u64, rows: u64, row_bytes: u64, pitch_bytes: u64) -> &[u8] {
        let bytes = rows * row_bytes;
        assert!(bytes <= BACK_BYTES, "{bytes} bytes");
        let plan = sys::CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
            srcHost: ptr::null(),
            srcDevice: self.base + offset,
            srcArray: ptr::null_mut(),
            srcPitch: pitch_bytes as usize,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_HOST,
            dstHost: self.back.cast(),
            dstDevice: 0,
            dstArray: ptr::null_mut(),
            dstPitch: row_bytes as usize,
            WidthInBytes: row_bytes as usize,
            Height: rows as usize,
        };
        driver!(cuMemcpy2DAsync_v2(&plan, self.stream));
        self.synchronize();
        // SAFETY: so many bytes were just written there.
        unsafe { std::slice::from_raw_parts(self.back, bytes as usize) }
    }

    pub fn synchronize(&self) {
        driver!(cuStreamSynchronize(self.stream));
    }

    /// Seconds of one of `count` calls, by events: the median of 5.
    pub fn seconds(&self, count: u32, mut call: impl FnMut()) -> f64 {
        let (mut begin, mut end) = (ptr::null_mut(), ptr::null_mut());
        driver!(cuEventCreate(&mut begin, 0));
        driver!(cuEventCreate(&mut end, 0));
        call();
        let mut times: Vec<f64> = (0..5)
            .map(|_| {
                driver!(cuEventRecord(begin, self.stream));
                (0..count).for_each(|_| call());
                driver!(cuEventRecord(end, self.stream));
                driver!(cuEventSynchronize(end));
                let mut milliseconds = 0.0_f32;
                driver!(cuEventElapsedTime_v2(&mut milliseconds, begin, end));
                f64::from(milliseconds) / 1e3 / f64::from(count)
            })
            .collect();
        times.sort_by(f64::total_cmp);
        times[2]
    }
}

/// Values in -1..1 with every mantissa bit of bf16 in use, another sequence for each seed.
pub fn random(count: u64, seed: u64, size: f32) -> Vec<bf16> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..count)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let unit = (state >> 40) as f32 / (1_u64 << 23) as f32 - 1.0;
            bf16::from_f32(unit * size)
        })
        .collect()
}

/// A seed that differs from run to run, said so that a failure can be had again.
pub fn seed() -> u64 {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        now.subsec_nanos().into()
    });
    println!("SEED={seed}");
    seed
}

pub fn values(bytes: &[u8], is_f32: bool) -> Vec<f64> {
    if is_f32 {
        let chunks = bytes.as_chunks::<4>().0;
        chunks.iter().map(|bytes| f32::from_le_bytes(*bytes).into()).collect()
    } else {
        let chunks = bytes.as_chunks::<2>().0;
        chunks.iter().map(|bytes| bf16::from_le_bytes(*bytes).to_f64()).collect()
    }
}

/// `|found - expected| / |expected|` over pairs.
pub fn relative_error(pairs: &[(f64, f64)]) -> f64 {
    let (mut off, mut size) = (0.0, 0.0);
    for (found, expected) in pairs {
        off += (found - expected) * (found - expected);
        size += expected * expected;
    }
    (off / size).sqrt()
}

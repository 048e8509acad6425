//! The arena: the one block of memory that the CPU device computes in, and the only way to reach it.
//!
//! One of the two files of this crate with `unsafe` (the other calls the GEMM kernels). Ops never hold a
//! reference into the arena's matrices: they load elements into buffers of their own and store them back, so
//! that an op may be given the same place for its input and its output.
//!
//! Invariants that the `unsafe` blocks below rely on:
//! - A. `base` is valid for reads and writes of `bytes` bytes as long as the [`Arena`] lives, and all of it was
//!   written (with the pattern) when it was taken; any bit pattern is a valid `u8`, `u16`, `u32` and `f32`.
//! - B. A matrix or region is made only after its last byte was compared with `bytes` ([`Space::part`]), and
//!   offsets are multiples of the element's size, while `base` is aligned to a page.
//! - C. Two [`MatMut`] of one op share no element but between strands, which store to rectangles of their own: `check` refuses a program whose op writes what another of its
//!   operands holds, but for the in-place pairs that the op set names; an in-place op loads an element before the same strand stores it.
//! - D. Scratch shares no byte with its op's operands (`check`). Each strand of an op takes its own part of it, once a
//!   phase; in a later phase all may read what was written in an earlier one and is not taken any more.
//! - E. The two lanes do not touch the same bytes at the same time: this is what `verify` proves of a plan. A
//!   program that was not verified may race here, as it may on a GPU; it can not leave the arena.

use std::alloc::{Layout, alloc, dealloc};
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use plimsoll_graph::DType;

use super::math::{bf16_bits, bf16_value, f8_value};
use super::transpose::{Block, SIDE};
use crate::{DeviceError, Mat, Region};

/// Alignment of the base: a page, and a large page from [`LARGE`] bytes on.
const PAGE: usize = 4096;
const LARGE_PAGE: usize = 2 << 20;
/// Size from which on large pages are asked for: products over a large arena run up to a quarter faster on them.
const LARGE: usize = 2 * LARGE_PAGE;

/// Granularity of [`Arena::high_water_bytes`].
const GRAIN: u64 = 256;

/// Bytes of all arenas that the process holds.
static HELD_BYTES: AtomicU64 = AtomicU64::new(0);

/// Bytes of all arenas that the process holds now.
pub(crate) fn held_bytes() -> u64 {
    HELD_BYTES.load(Ordering::SeqCst)
}

/// Memory of exactly the size asked for, filled with a pattern.
pub(crate) struct Arena {
    base: NonNull<u8>,
    bytes: usize,
    layout: Layout,
}

// SAFETY: an arena owns its memory and has no thread-bound state; access to it is ruled by E.
unsafe impl Send for Arena {}

impl Arena {
    /// Takes the memory and fills it.
    pub(crate) fn new(bytes: u64) -> Result<Self, DeviceError> {
        let refused = || DeviceError::Arena { device: "cpu".to_owned(), bytes };
        let size = usize::try_from(bytes).map_err(|_| refused())?;
        let layout =
            Layout::from_size_align(size.max(1), if size < LARGE { PAGE } else { LARGE_PAGE })
                .map_err(|_| refused())?;
        // SAFETY: the layout's size is at least 1.
        let base = NonNull::new(unsafe { alloc(layout) }).ok_or_else(refused)?;
        HELD_BYTES.fetch_add(bytes, Ordering::SeqCst);
        advise_large_pages(base, size);
        let mut arena = Self { base, bytes: size, layout };
        arena.reset_pattern();
        Ok(arena)
    }

    /// Size in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// Fills the arena with its pattern: afterwards nothing counts as touched.
    pub(crate) fn reset_pattern(&mut self) {
        let words = self.bytes / 8;
        for index in 0..words {
            let word = pattern_word(index as u64).to_le_bytes();
            // SAFETY: `index * 8 + 8 <= bytes` (A); bytes have no alignment.
            unsafe {
                std::ptr::copy_nonoverlapping(word.as_ptr(), self.base.as_ptr().add(index * 8), 8);
            }
        }
        let tail = pattern_word(words as u64).to_le_bytes();
        for (at, byte) in (words * 8..self.bytes).zip(tail) {
            // SAFETY: `at < bytes` (A).
            unsafe { self.base.as_ptr().add(at).write(byte) };
        }
    }

    /// One past the highest byte that differs from the pattern, rounded up to 256.
    ///
    /// A touched byte is missed only if all bytes above it in its grain were left alone and it happens to equal
    /// the pattern; for a whole word the chance is 2^-64.
    pub(crate) fn high_water_bytes(&mut self) -> u64 {
        // SAFETY: A; `&mut self` says that no lane runs.
        let bytes = unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.bytes) };
        let (words, tail) = bytes.as_chunks::<8>();
        let pattern = pattern_word(words.len() as u64).to_le_bytes();
        let highest = match tail.iter().zip(pattern).rposition(|(found, fill)| *found != fill) {
            Some(at) => Some(words.len() * 8 + at),
            None => words
                .iter()
                .enumerate()
                .rposition(|(at, word)| u64::from_le_bytes(*word) != pattern_word(at as u64))
                .map(|at| at * 8 + 7),
        };
        let end = highest.map_or(0, |at| at as u64 + 1);
        end.next_multiple_of(GRAIN)
    }

    /// A handle for the lanes.
    pub(crate) fn space(&mut self) -> Space<'_> {
        Space { base: self.base, bytes: self.bytes as u64, arena: PhantomData }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: `base` came from `alloc` with this layout, and no handle outlives the arena.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
        HELD_BYTES.fetch_sub(self.bytes as u64, Ordering::SeqCst);
    }
}

/// Asks the kernel for large pages; without them everything works as well, but slower.
fn advise_large_pages(base: NonNull<u8>, size: usize) {
    #[cfg(target_os = "linux")]
    if size >= LARGE {
        // SAFETY: the range is ours, whole pages of it begin at `base`, and the advice changes no contents.
        let _advised = unsafe { libc::madvise(base.as_ptr().cast(), size, libc::MADV_HUGEPAGE) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (base, size); // No such advice elsewhere.
}

/// The pattern's word at a position: splitmix64's finaliser, so that no run of equal words can match.
#[inline(always)]
fn pattern_word(index: u64) -> u64 {
    let mut word = index.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    word ^ (word >> 31)
}

/// The arena as the lanes see it.
#[derive(Clone, Copy)]
pub(crate) struct Space<'a> {
    base: NonNull<u8>,
    bytes: u64,
    arena: PhantomData<&'a Arena>,
}

// SAFETY: a handle is an address; what is done through it is ruled by C, D and E.
unsafe impl Send for Space<'_> {}
// SAFETY: as above.
unsafe impl Sync for Space<'_> {}

impl<'a> Space<'a> {
    /// Address of a region, which must lie in the arena (B).
    #[expect(clippy::cast_possible_truncation, reason = "compared with the arena's size, a usize")]
    fn part(&self, region: Region, width: u64) -> *mut u8 {
        let inside = region.offset.checked_add(region.bytes).is_some_and(|end| end <= self.bytes);
        assert!(inside && region.offset.is_multiple_of(width), "a region outside of the arena");
        // SAFETY: the offset is at most `bytes` (A).
        unsafe { self.base.as_ptr().add(region.offset as usize) }
    }

    /// A matrix to load from, at `step`.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "inside of the arena, whose size is a usize"
    )]
    pub(crate) fn reader(&self, mat: &Mat, step: u32) -> MatRef<'a> {
        let base = self.part(mat.region(step), mat.dtype.bytes());
        MatRef {
            base,
            rows: mat.rows as usize,
            cols: mat.cols as usize,
            stride: mat.stride as usize,
            dtype: mat.dtype,
            arena: PhantomData,
        }
    }

    /// A matrix to store to, at `step`, which is not of 8-bit numbers. The caller is the one op that writes it (C).
    pub(crate) fn writer(&self, mat: &Mat, step: u32) -> MatMut<'a> {
        assert!(mat.dtype != DType::F8E4M3, "8-bit numbers are read only");
        MatMut { view: self.reader(mat, step) }
    }

    /// Writes the last 256 bytes of an op's scratch: so the arena's high-water mark shows the scratch that was
    /// planned, whichever part of it the op needs last.
    pub(crate) fn touch_scratch(&self, region: Region) {
        let bytes = region.bytes.min(GRAIN);
        self.fill(region.end() - bytes, &[0; GRAIN as usize][..bytes as usize]);
    }

    /// Some floats of an op's scratch. The caller is the one strand that they belong to (D).
    pub(crate) fn scratch(&self, region: Region, first: usize, count: usize) -> &'a mut [f32] {
        if count == 0 {
            return &mut [];
        }
        let base = self.scratch_floats(region, first, count);
        // SAFETY: `scratch_floats` has checked the range; exclusive by D.
        unsafe { std::slice::from_raw_parts_mut(base, count) }
    }

    /// Floats of an op's scratch that an earlier phase of it wrote and this one only reads (D).
    pub(crate) fn scratch_written(&self, region: Region, first: usize, count: usize) -> &'a [f32] {
        let base = self.scratch_floats(region, first, count);
        // SAFETY: `scratch_floats` has checked the range; nobody writes it in this phase (D).
        unsafe { std::slice::from_raw_parts(base, count) }
    }

    /// Address of some floats of a region, checked against it and the arena.
    fn scratch_floats(&self, region: Region, first: usize, count: usize) -> *mut f32 {
        let (first, count) = (first as u64, count as u64);
        assert!((first + count) * 4 <= region.bytes, "a part outside of the scratch");
        self.part(Region { offset: region.offset + first * 4, bytes: count * 4 }, 4).cast()
    }

    /// Copies bytes to a place in the arena.
    pub(crate) fn fill(&self, offset: u64, bytes: &[u8]) {
        let target = self.part(Region { offset, bytes: bytes.len() as u64 }, 1);
        // SAFETY: B; host memory and the arena are different allocations.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) };
    }
}

/// A matrix to load from: `rows x cols`, `stride` elements from row to row.
#[derive(Clone, Copy)]
pub(crate) struct MatRef<'a> {
    base: *mut u8,
    rows: usize,
    cols: usize,
    stride: usize,
    dtype: DType,
    arena: PhantomData<&'a Arena>,
}

// SAFETY: loads are ruled by C and E.
unsafe impl Send for MatRef<'_> {}
// SAFETY: as above.
unsafe impl Sync for MatRef<'_> {}

impl MatRef<'_> {
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn cols(&self) -> usize {
        self.cols
    }

    /// Bytes of an element.
    #[inline(always)]
    fn width(&self) -> usize {
        match self.dtype {
            DType::F8E4M3 => 1,
            DType::BF16 => 2,
            DType::F32 | DType::U32 => 4,
        }
    }

    /// Address of an element inside the matrix, or one past its end.
    #[inline(always)]
    fn address(&self, row: usize, col: usize) -> *mut u8 {
        self.base.wrapping_add((row * self.stride + col) * self.width())
    }

    /// Address of `count` elements of a row, checked.
    #[inline(always)]
    fn run(&self, row: usize, col: usize, count: usize) -> *mut u8 {
        assert!(row < self.rows && col + count <= self.cols, "elements outside of a matrix");
        self.address(row, col)
    }

    /// Loads elements `col ..` of a row as `f32`.
    #[inline(always)]
    pub(crate) fn load(&self, row: usize, col: usize, out: &mut [f32]) {
        let source = self.run(row, col, out.len());
        if self.dtype == DType::BF16 {
            let source = source.cast::<u16>().cast_const();
            for (at, value) in out.iter_mut().enumerate() {
                // SAFETY: `run` has checked the elements; 2-aligned by B.
                *value = bf16_value(unsafe { source.add(at).read() });
            }
        } else if self.dtype == DType::F8E4M3 {
            for (at, value) in out.iter_mut().enumerate() {
                // SAFETY: `run` has checked the elements.
                *value = f8_value(unsafe { source.add(at).read() });
            }
        } else {
            // SAFETY: `run` has checked the elements; 4-aligned by B; `out` is not arena memory but for scratch,
            // which shares no byte with a matrix (D).
            unsafe {
                std::ptr::copy_nonoverlapping(source.cast::<f32>(), out.as_mut_ptr(), out.len());
            }
        }
    }

    /// Loads `rows x cols` elements, at most 16x16, into the upper left of a block; the rest of it is zero.
    ///
    /// One check for all rows, and for a whole block loops of constant length: this feeds every product.
    #[inline(always)]
    pub(crate) fn load_block(&self, [row, col]: [usize; 2], [rows, cols]: [usize; 2]) -> Block {
        assert!(rows > 0 && row + rows <= self.rows && rows <= SIDE && cols <= SIDE, "a block");
        let mut block: Block = [[0.0; SIDE]; SIDE];
        if cols < SIDE || self.dtype == DType::F8E4M3 {
            for (at, line) in block.iter_mut().take(rows).enumerate() {
                self.load(row + at, col, &mut line[..cols]);
            }
            return block;
        }
        let first = self.run(row, col, cols);
        if rows == SIDE {
            for (at, line) in block.iter_mut().enumerate() {
                *line = self.line(first, at);
            }
        } else {
            for (at, line) in block.iter_mut().take(rows).enumerate() {
                *line = self.line(first, at);
            }
        }
        block
    }

    /// 16 elements `at` rows below `first`, which the caller has checked.
    #[inline(always)]
    fn line(&self, first: *mut u8, at: usize) -> [f32; SIDE] {
        if self.dtype == DType::BF16 {
            let source = first.cast::<[u16; SIDE]>().wrapping_byte_add(at * self.stride * 2);
            // SAFETY: checked by `load_block`; an array has its element's alignment (B).
            unsafe { source.read() }.map(bf16_value)
        } else {
            let source = first.cast::<[f32; SIDE]>().wrapping_byte_add(at * self.stride * 4);
            // SAFETY: as above.
            unsafe { source.read() }
        }
    }

    /// One element as `f32`.
    #[inline(always)]
    pub(crate) fn at(&self, row: usize, col: usize) -> f32 {
        let mut value = [0.0];
        self.load(row, col, &mut value);
        value[0]
    }

    /// One index.
    pub(crate) fn index_at(&self, row: usize, col: usize) -> u32 {
        assert!(self.dtype == DType::U32, "an index from a matrix of numbers");
        // SAFETY: `run` has checked the element; 4-aligned by B.
        unsafe { self.run(row, col, 1).cast::<u32>().read() }
    }

    /// The bytes of a row, copied out.
    pub(crate) fn row_bytes(&self, row: usize, out: &mut [u8]) {
        let source = self.run(row, 0, self.cols);
        assert!(out.len() == self.cols * self.width(), "a row of another size");
        // SAFETY: `run` has checked the row; `out` is host memory.
        unsafe { std::ptr::copy_nonoverlapping(source, out.as_mut_ptr(), out.len()) };
    }
}

/// A matrix to store to; also loads, for ops that work in place.
pub(crate) struct MatMut<'a> {
    view: MatRef<'a>,
}

impl<'a> MatMut<'a> {
    pub(crate) fn rows(&self) -> usize {
        self.view.rows
    }

    pub(crate) fn cols(&self) -> usize {
        self.view.cols
    }

    pub(crate) fn dtype(&self) -> DType {
        self.view.dtype
    }

    /// Loads elements `col ..` of a row as `f32`.
    #[inline(always)]
    pub(crate) fn load(&self, row: usize, col: usize, out: &mut [f32]) {
        self.view.load(row, col, out);
    }

    /// A rectangle of it. Strands of one op take rectangles that share no element (C).
    pub(crate) fn rectangle(self, [row, col]: [usize; 2], [rows, cols]: [usize; 2]) -> Self {
        let inside = row + rows <= self.view.rows && col + cols <= self.view.cols;
        assert!(inside, "a rectangle outside of a matrix");
        Self { view: MatRef { base: self.view.address(row, col), rows, cols, ..self.view } }
    }

    /// Stores `values` at elements `col ..` of a row, rounded to nearest even where the matrix is `bf16`.
    #[inline(always)]
    pub(crate) fn store(&mut self, row: usize, col: usize, values: &[f32]) {
        let target = self.view.run(row, col, values.len());
        if self.view.dtype == DType::BF16 {
            let target = target.cast::<u16>();
            for (at, value) in values.iter().enumerate() {
                // SAFETY: `run` has checked the elements; 2-aligned by B; ours alone by C.
                unsafe { target.add(at).write(bf16_bits(*value)) };
            }
        } else {
            // SAFETY: `run` has checked the elements; 4-aligned by B; ours alone by C.
            unsafe {
                std::ptr::copy_nonoverlapping(values.as_ptr(), target.cast::<f32>(), values.len());
            }
        }
    }

    /// Stores the upper left `rows x cols` of a block, rounded as [`MatMut::store`] does.
    #[inline(always)]
    pub(crate) fn store_block(
        &mut self,
        [row, col]: [usize; 2],
        [rows, cols]: [usize; 2],
        block: &Block,
    ) {
        assert!(
            rows > 0 && row + rows <= self.view.rows && rows <= SIDE && cols <= SIDE,
            "a block"
        );
        if cols < SIDE {
            for (at, line) in block.iter().take(rows).enumerate() {
                self.store(row + at, col, &line[..cols]);
            }
            return;
        }
        let first = self.view.run(row, col, cols);
        let stride = self.view.stride;
        if self.view.dtype == DType::BF16 {
            for (at, line) in block.iter().take(rows).enumerate() {
                let target = first.cast::<[u16; SIDE]>().wrapping_byte_add(at * stride * 2);
                // SAFETY: the rows and `run` have checked the elements; 2-aligned by B; ours alone by C.
                unsafe { target.write(line.map(bf16_bits)) };
            }
        } else {
            for (at, line) in block.iter().take(rows).enumerate() {
                let target = first.cast::<[f32; SIDE]>().wrapping_byte_add(at * stride * 4);
                // SAFETY: as above, 4-aligned.
                unsafe { target.write(*line) };
            }
        }
    }

    /// Sets a row's bytes.
    pub(crate) fn set_row_bytes(&mut self, row: usize, bytes: &[u8]) {
        let target = self.view.run(row, 0, self.view.cols);
        assert!(bytes.len() == self.view.cols * self.view.width(), "a row of another size");
        // SAFETY: `run` has checked the row; ours alone by C; `bytes` is host memory.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) };
    }
}

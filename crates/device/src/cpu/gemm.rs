//! Matrix products in `f32`: the micro-kernels of the GEMM crate under a driver of our own.
//!
//! Why not the crate's own driver: it takes another path (and gives other bits) for one row, chooses its K-blocks
//! by the caches of the machine, and packs into heap memory. Its micro-kernels do none of this. Driven from
//! here a product uses no memory but its operands, and each element is one chain of fused multiply-adds over
//! `k` in ascending order, whatever the number of rows and columns beside it: the rule of rows holds by
//! construction, and AVX-512, AVX2 and NEON give the same bits.
//!
//! Layout: rows are the vector lanes. A product is `dst[j][i] (+)= scale * sum_p lhs[p][i] * rhs(p, j)` where `i`
//! counts rows (a multiple of [`LANES`], contiguous), so that softmax over keys, bias and activation work on whole vectors.
//!
//! Invariants that the `unsafe` block below relies on:
//! - A. The kernels read `lhs[p * lhs_stride + i]` and `rhs[p * rhs_step + j * rhs_stride]` and write
//!   `dst[j * dst_stride + i]` for `p < k`, `j < n`, `i < m` and nothing else (gemm-common 0.19.0,
//!   `microkernel.rs`); [`product`] compares the largest of each index with its slice.
//! - B. A kernel is called only where the processor has its instructions (`Kernels::detect`).

use std::sync::LazyLock;

use gemm_f32::microkernel;

/// Rows are padded to a multiple of this; a multiple of every kernel's vector length.
pub(crate) const LANES: usize = 16;

/// The crate's signature of a micro-kernel.
type Kernel = unsafe fn(
    usize,
    usize,
    usize,
    *mut f32,
    *const f32,
    *const f32,
    isize,
    isize,
    isize,
    isize,
    isize,
    f32,
    f32,
    u8,
    bool,
    bool,
    bool,
    *const f32,
);

/// The widest set of kernels that the processor has.
struct Kernels {
    /// Rows of one vector.
    vector: usize,
    /// Most columns of a kernel.
    columns: usize,
    /// By vectors less one, then columns less one.
    table: &'static [Kernel],
}

impl Kernels {
    fn detect() -> Self {
        macro_rules! set {
            ($isa:ident, $vector:expr) => {{
                use microkernel::$isa::f32::{MR_DIV_N, NR, UKR};
                static TABLE: [[Kernel; NR]; MR_DIV_N] = UKR;
                Self { vector: $vector, columns: NR, table: TABLE.as_flattened() }
            }};
        }
        #[cfg(target_arch = "x86_64")]
        {
            if std::is_x86_feature_detected!("avx512f") && std::is_x86_feature_detected!("fma") {
                return set!(avx512f, 16);
            }
            if std::is_x86_feature_detected!("fma") && std::is_x86_feature_detected!("avx") {
                return set!(fma, 8);
            }
            set!(scalar, 1)
        }
        #[cfg(target_arch = "aarch64")]
        {
            set!(neon, 4)
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        {
            set!(scalar, 1)
        }
    }
}

/// Chosen once; does not change while the process lives.
static KERNELS: LazyLock<Kernels> = LazyLock::new(Kernels::detect);

/// A left operand: `k` vectors of rows.
#[derive(Clone, Copy)]
pub(crate) struct Lhs<'a> {
    /// `[k][stride]`.
    pub(crate) values: &'a [f32],
    /// Floats from one `p` to the next.
    pub(crate) stride: usize,
}

/// A right operand.
#[derive(Clone, Copy)]
pub(crate) struct Rhs<'a> {
    /// Element `(p, j)` at `p * step + j * stride`.
    pub(crate) values: &'a [f32],
    /// Floats from one `p` to the next.
    pub(crate) step: usize,
    /// Floats from one column to the next.
    pub(crate) stride: usize,
}

/// What becomes of the sums.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Store {
    /// `dst = scale * sum`.
    Set(f32),
    /// `dst += sum`.
    Add,
}

/// `dst[j * dst_stride + i] (+)= sum_p lhs[p][i] * rhs(p, j)` for `i < m`, `j < n`, `p < k`.
///
/// `m` is a multiple of [`LANES`].
///
/// # Panics
/// If an operand is shorter than the sizes say; our bug.
pub(crate) fn product(
    [m, n, k]: [usize; 3],
    dst: &mut [f32],
    dst_stride: usize,
    lhs: Lhs<'_>,
    rhs: Rhs<'_>,
    store: Store,
) {
    if m == 0 || n == 0 || k == 0 {
        assert!(k > 0 || m == 0 || n == 0, "a product over nothing");
        return;
    }
    assert!(m.is_multiple_of(LANES) && dst_stride >= m, "rows that are not padded");
    assert!(dst.len() >= (n - 1) * dst_stride + m, "a short result");
    assert!(lhs.values.len() >= (k - 1) * lhs.stride + m, "a short left operand");
    assert!(rhs.values.len() > (k - 1) * rhs.step + (n - 1) * rhs.stride, "a short right operand");
    let (alpha, beta, status) = match store {
        Store::Set(scale) => (0.0, scale, 0),
        Store::Add => (1.0, 1.0, 1),
    };
    let kernels = &*KERNELS;
    let rows_most = kernels.table.len() / kernels.columns * kernels.vector;
    for j in (0..n).step_by(kernels.columns) {
        let columns = kernels.columns.min(n - j);
        for i in (0..m).step_by(rows_most) {
            let rows = rows_most.min(m - i);
            let vectors = rows.div_ceil(kernels.vector);
            let kernel = kernels.table[(vectors - 1) * kernels.columns + columns - 1];
            // SAFETY: A with the sizes asserted above, for rows `i .. i + rows <= m` and columns
            // `j .. j + columns <= n`; B.
            unsafe {
                kernel(
                    rows,
                    columns,
                    k,
                    dst.as_mut_ptr().add(j * dst_stride + i),
                    lhs.values.as_ptr().add(i),
                    rhs.values.as_ptr().add(j * rhs.stride),
                    dst_stride.cast_signed(),
                    1,
                    lhs.stride.cast_signed(),
                    rhs.step.cast_signed(),
                    rhs.stride.cast_signed(),
                    alpha,
                    beta,
                    status,
                    false,
                    false,
                    false,
                    std::ptr::null(),
                );
            }
        }
    }
}

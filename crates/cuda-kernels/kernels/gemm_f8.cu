// Only for: sm_89 sm_90a sm_120a
//
// out = base + gate * activation(x w^T * x_scale[row] * w_scale[col] + bias), x and w in e4m3
//
// Parameters are those of gemm.cu and the scales, `m` and `n` of them. x does not move with the step. Rows of x and w
// begin at multiples of 16 bytes, and k is a multiple of 16. Every tile of an architecture has the same instruction along k
// in the same order, so an element's bits depend on neither the tile nor the rows beside it: on Hopper that is wgmma,
// elsewhere mma; the two keep different parts of a sum.
//
// Not for sm_100a: compiled for it, mma of 8 bits takes twice the registers and spills, so nothing would be gained on bf16.

#include "gemm_f8.cuh"
#include "hopper.cuh"

using namespace heavy;

extern __shared__ __align__(1024) unsigned char shared[];

template <class T>
__device__ __forceinline__ void gemm(GEMM_F8_PARAMETERS) {
    GEMM_F8_AT_STEP;
    uint32_t tile_m, tile_n;
    place_tile(blockIdx.x, (m + T::BM - 1) / T::BM, (n + T::BN - 1) / T::BN, tile_m, tile_n);
    const uint32_t row = tile_m * T::BM, col = tile_n * T::BN;
    RowCopy<T::BM, T::THREADS> a(x_pairs, x_stride / 2, row, m);
    RowCopy<T::BN, T::THREADS> b(w_pairs, w_stride / 2, col, n);
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    if constexpr (T::BN == 128) {
        product_hopper<E4m3>(a, b, e, shared, k / 2, row, m, col);
    } else {
        product_wide<T, E4m3>(a, b, e, shared, k / 2, row, m, col);
    }
#else
    float sums[T::MT][T::NT][4];
    sum_tile<T, E4m3>(sums, a, b, shared_address(shared), k / 2);
    store_tile<T>(sums, e, shared, row, m, col);
#endif
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
using Large = Hopper;
using Small = SmallHopper;
#else
using Large = Tile<128, 128, 64, 64, 3>;
using Small = Tile<64, 64, 32, 32, 4>;
#endif

extern "C" __global__ void __launch_bounds__(128, 2) gemm_f8_128x128(GEMM_F8_PARAMETERS) {
    gemm<Large>(GEMM_F8_ARGUMENTS);
}

extern "C" __global__ void __launch_bounds__(128, 3) gemm_f8_64x64(GEMM_F8_PARAMETERS) {
    gemm<Small>(GEMM_F8_ARGUMENTS);
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
// Variants of gemm_f8_128x128 for results with many tiles.
extern "C" __global__ void __launch_bounds__(256, 1) gemm_f8_128x256(GEMM_F8_PARAMETERS) {
    gemm<WideHopper<128>>(GEMM_F8_ARGUMENTS);
}

extern "C" __global__ void __launch_bounds__(384, 1) gemm_f8_192x256(GEMM_F8_PARAMETERS) {
    gemm<WideHopper<192>>(GEMM_F8_ARGUMENTS);
}
#endif

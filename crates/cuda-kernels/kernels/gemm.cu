// out = base + gate * activation(x w^T + bias)
//
// x [m, k], w [n, k], bias and gate [n], base and out [m, n]; rows are `*_stride` elements apart. What may stand
// in a row of a table by step has its `*_step` in bytes. `base` may be `out`.
// gemm_MxN: bf16 x and w, 16-byte aligned rows, k a multiple of 8. gemm_any: any element types and strides.

#include "gemm.cuh"
#include "hopper.cuh"

using namespace heavy;


extern __shared__ __align__(1024) unsigned char shared[];

template <class T>
__device__ __forceinline__ void gemm(GEMM_PARAMETERS) {
    GEMM_AT_STEP;
    uint32_t tile_m, tile_n;
    place_tile(blockIdx.x, (m + T::BM - 1) / T::BM, (n + T::BN - 1) / T::BN, tile_m, tile_n);
    const uint32_t row = tile_m * T::BM, col = tile_n * T::BN;
    RowCopy<T::BM, T::THREADS> a(reinterpret_cast<const uint16_t*>(x), x_stride, row, m);
    RowCopy<T::BN, T::THREADS> b(reinterpret_cast<const uint16_t*>(w), w_stride, col, n);
    float sums[T::MT][T::NT][4];
    sum_tile<T>(sums, a, b, shared_address(shared), k);
    store_tile<T>(sums, e, shared, row, m, col);
}

using Large = Tile<128, 128, 64, 64, 3>;
using Middle = Tile<64, 64, 32, 32, 4>;
using Thin = Tile<16, 32, 16, 8, 7>;

extern "C" __global__ void __launch_bounds__(Large::THREADS, 2) gemm_128x128(GEMM_PARAMETERS) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) && !defined(NO_WGMMA)
    GEMM_AT_STEP;
    uint32_t tile_m, tile_n;
    place_tile(blockIdx.x, (m + 127) / 128, (n + 127) / 128, tile_m, tile_n);
    RowCopy<128, 128> left(reinterpret_cast<const uint16_t*>(x), x_stride, tile_m * 128, m);
    RowCopy<128, 128> right(reinterpret_cast<const uint16_t*>(w), w_stride, tile_n * 128, n);
    product_hopper(left, right, e, shared, k, tile_m * 128, m, tile_n * 128);
#else
    gemm<Large>(GEMM_ARGUMENTS);
#endif
}

extern "C" __global__ void __launch_bounds__(Middle::THREADS, 3) gemm_64x64(GEMM_PARAMETERS) {
    gemm<Middle>(GEMM_ARGUMENTS);
}

// For a few rows: the time is that of reading w.
extern "C" __global__ void __launch_bounds__(Thin::THREADS, 5) gemm_16x32(GEMM_PARAMETERS) {
    gemm<Thin>(GEMM_ARGUMENTS);
}

extern "C" __global__ void __launch_bounds__(256) gemm_any(GEMM_PARAMETERS) {
    GEMM_AT_STEP;
    const auto left = [=](uint32_t row, uint32_t col) {
        return row < m && col < k ? element(x, size_t(row) * x_stride + col, flags & FLAG_X_F32) : 0.0f;
    };
    const auto right = [=](uint32_t row, uint32_t col) {
        return row < n && col < k ? element(w, size_t(row) * w_stride + col, flags & FLAG_W_F32) : 0.0f;
    };
    uint32_t tile_m, tile_n;
    place_tile(blockIdx.x, (m + 63) / 64, (n + 63) / 64, tile_m, tile_n);
    product_any(left, right, e, m, k, tile_m * 64, tile_n * 64);
}

// Only for: sm_90a
//
// Variants of gemm_128x128 and conv_128x128 for results with many tiles: the same arguments and the same bits.

#include "conv.cuh"
#include "gemm.cuh"
#include "hopper.cuh"

using namespace heavy;

extern __shared__ __align__(1024) unsigned char shared[];

template <class T>
__device__ __forceinline__ void gemm(GEMM_PARAMETERS) {
    GEMM_AT_STEP;
    uint32_t tile_m, tile_n;
    place_tile(blockIdx.x, (m + T::BM - 1) / T::BM, (n + T::BN - 1) / T::BN, tile_m, tile_n);
    RowCopy<T::BM, T::THREADS> left(reinterpret_cast<const uint16_t*>(x), x_stride, tile_m * T::BM, m);
    RowCopy<T::BN, T::THREADS> right(reinterpret_cast<const uint16_t*>(w), w_stride, tile_n * T::BN, n);
    product_wide<T>(left, right, e, shared, k, tile_m * T::BM, m, tile_n * T::BN);
}

template <class T>
__device__ __forceinline__ void conv(CONV_PARAMETERS) {
    const Epilogue e = {bias, nullptr, base, out, base_stride, out_stride, n, flags};
    uint32_t tile_m, tile_n;
    place_tile(blockIdx.x, (rows + T::BM - 1) / T::BM, (n + T::BN - 1) / T::BN, tile_m, tile_n);
    PixelCopy<T::BM, T::THREADS> left(reinterpret_cast<const uint16_t*>(x), x_stride, height, width, shift, channels,
                                      first + tile_m * T::BM, first + rows);
    RowCopy<T::BN, T::THREADS> right(reinterpret_cast<const uint16_t*>(w), w_stride, tile_n * T::BN, n);
    product_wide<T>(left, right, e, shared, 9 * channels, tile_m * T::BM, rows, tile_n * T::BN);
}

extern "C" __global__ void __launch_bounds__(256, 1) gemm_128x256(GEMM_PARAMETERS) {
    gemm<WideHopper<128>>(GEMM_ARGUMENTS);
}

extern "C" __global__ void __launch_bounds__(384, 1) gemm_192x256(GEMM_PARAMETERS) {
    gemm<WideHopper<192>>(GEMM_ARGUMENTS);
}

extern "C" __global__ void __launch_bounds__(256, 1) conv_128x256(CONV_PARAMETERS) {
    conv<WideHopper<128>>(CONV_ARGUMENTS);
}

extern "C" __global__ void __launch_bounds__(384, 1) conv_192x256(CONV_PARAMETERS) {
    conv<WideHopper<192>>(CONV_ARGUMENTS);
}

// 3x3 convolution, stride 1, zero padding 1, of an input enlarged `1 << shift` times (nearest): a product whose
// left rows are gathered pixel by pixel.
//
// x [height * width, channels], out and base [rows, n]: pixels `first` .. `first + rows` of the enlarged input, which
// are all of them, or those of a band whose first and last row of x are only seen. The sum runs tap by tap
// and channel by channel within a tap. conv_MxN: bf16, 16-byte aligned rows, channels a multiple of 8, and the
// weight brought into that order by conv_weights: [n, 9 * channels], column tap * channels + c. conv_any: any
// element types, and the weight as it is stored, column c * 9 + tap.

#include "conv.cuh"
#include "hopper.cuh"

using namespace heavy;

extern __shared__ __align__(1024) unsigned char shared[];

template <class T>
__device__ __forceinline__ void conv(CONV_PARAMETERS) {
    const Epilogue e = {bias, nullptr, base, out, base_stride, out_stride, n, flags};
    uint32_t tile_m, tile_n;
    place_tile(blockIdx.x, (rows + T::BM - 1) / T::BM, (n + T::BN - 1) / T::BN, tile_m, tile_n);
    const uint32_t row = tile_m * T::BM, col = tile_n * T::BN;
    PixelCopy<T::BM, T::THREADS> a(reinterpret_cast<const uint16_t*>(x), x_stride, height, width, shift, channels,
                                   first + row, first + rows);
    RowCopy<T::BN, T::THREADS> b(reinterpret_cast<const uint16_t*>(w), w_stride, col, n);
    float sums[T::MT][T::NT][4];
    sum_tile<T>(sums, a, b, shared_address(shared), 9 * channels);
    store_tile<T>(sums, e, shared, row, rows, col);
}

using Large = Tile<128, 128, 64, 64, 3>;
using Narrow = Tile<128, 16, 32, 16, 4>;

extern "C" __global__ void __launch_bounds__(Large::THREADS, 2) conv_128x128(CONV_PARAMETERS) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    const Epilogue e = {bias, nullptr, base, out, base_stride, out_stride, n, flags};
    uint32_t tile_m, tile_n;
    place_tile(blockIdx.x, (rows + 127) / 128, (n + 127) / 128, tile_m, tile_n);
    PixelCopy<128, 128> a(reinterpret_cast<const uint16_t*>(x), x_stride, height, width, shift, channels,
                          first + tile_m * 128, first + rows);
    RowCopy<128, 128> b(reinterpret_cast<const uint16_t*>(w), w_stride, tile_n * 128, n);
    product_hopper(a, b, e, shared, 9 * channels, tile_m * 128, rows, tile_n * 128);
#else
    conv<Large>(CONV_ARGUMENTS);
#endif
}

// For the last layer, three channels wide.
extern "C" __global__ void __launch_bounds__(Narrow::THREADS, 3) conv_128x16(CONV_PARAMETERS) {
    conv<Narrow>(CONV_ARGUMENTS);
}

extern "C" __global__ void __launch_bounds__(256) conv_any(CONV_PARAMETERS) {
    const Epilogue e = {bias, nullptr, base, out, base_stride, out_stride, n, flags};
    const uint32_t high = height << shift, wide = width << shift, depth = 9 * channels;
    const auto left = [=](uint32_t row, uint32_t k) {
        const uint32_t pixel = first + row, tap = k / channels;
        const uint32_t y = pixel / wide + tap / 3 - 1, at = pixel % wide + tap % 3 - 1;
        if (k >= depth || row >= rows || y >= high || at >= wide) return 0.0f;
        const size_t source = size_t((y >> shift) * width + (at >> shift)) * x_stride + k % channels;
        return element(x, source, flags & FLAG_X_F32);
    };
    const auto right = [=](uint32_t row, uint32_t k) {
        if (k >= depth || row >= n) return 0.0f;
        return element(w, size_t(row) * w_stride + k % channels * 9 + k / channels, flags & FLAG_W_F32);
    };
    uint32_t tile_m, tile_n;
    place_tile(blockIdx.x, (rows + 63) / 64, (n + 63) / 64, tile_m, tile_n);
    product_any(left, right, e, rows, depth, tile_m * 64, tile_n * 64);
}

// to[o, tap * channels + c] = from[o, c * 9 + tap], bf16.
extern "C" __global__ void __launch_bounds__(256)
    conv_weights(const uint16_t* from, uint32_t from_stride, uint16_t* to, uint32_t n, uint32_t channels) {
    const uint32_t depth = 9 * channels, count = n * depth;
    for (uint32_t at = blockIdx.x * blockDim.x + threadIdx.x; at < count; at += gridDim.x * blockDim.x) {
        const uint32_t row = at / depth, k = at % depth;
        to[at] = from[size_t(row) * from_stride + k % channels * 9 + k / channels];
    }
}

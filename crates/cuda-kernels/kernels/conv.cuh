// The parameters of the convolution kernels, see conv.cu, and the gather of their left rows.

#pragma once

#include "tile.cuh"

namespace heavy {

// Copies gathered rows, as RowCopy does those of a matrix.
template <int ROWS, int THREADS>
struct PixelCopy {
    static constexpr int COUNT = ROWS * 8 / THREADS, STRIDE = THREADS / 8;
    const uint16_t* x;
    uint32_t pitch, width, shift, channels;
    uint32_t high, wide;  // of the enlarged input
    uint32_t to;
    uint32_t channel, tap;  // of this thread's piece in the next step
    uint32_t pixels[COUNT];  // y in the high half, x in the low one; beyond the picture where there is none

    // The rows of the tile are pixels `first`, `first + 1`, ... of the enlarged input, of those before `end`.
    __device__ __forceinline__ PixelCopy(const uint16_t* x, uint32_t pitch, uint32_t height, uint32_t width,
                                         uint32_t shift, uint32_t channels, uint32_t first, uint32_t end)
        : x(x), pitch(pitch), width(width), shift(shift), channels(channels), high(height << shift), wide(width << shift) {
        const uint32_t row = threadIdx.x / 8, piece = threadIdx.x % 8;
        to = row * PITCH + ((piece ^ (row & 7)) << 4);
        channel = piece * 8, tap = 0;
        wrap();
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const uint32_t pixel = first + row + i * STRIDE;
            pixels[i] = pixel < end ? pixel / wide << 16 | pixel % wide : 0x7fff7fffu;
        }
    }

    __device__ __forceinline__ void wrap() {
        while (channel >= channels) channel -= channels, ++tap;
    }

    __device__ __forceinline__ void issue(uint32_t slot, uint32_t, uint32_t) {
        const uint32_t down = tap / 3, across = tap % 3;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            // Wraps round below zero: too large as well.
            const uint32_t y = (pixels[i] >> 16) + down - 1, at = (pixels[i] & 0xffff) + across - 1;
            const bool within = tap < 9 && y < high && at < wide;
            const size_t source = within ? size_t((y >> shift) * width + (at >> shift)) * pitch + channel : 0;
            copy16(slot + to + i * STRIDE * PITCH, x + source, within ? 16 : 0);
        }
        channel += DEPTH;
        wrap();
    }
};

}  // namespace heavy

#define CONV_PARAMETERS                                                                                           \
    const char *x, uint32_t x_stride, uint32_t height, uint32_t width, uint32_t shift, uint32_t first,            \
        uint32_t rows, uint32_t channels, const char *w, uint32_t w_stride, const char *bias, const char *base,       \
        uint32_t base_stride, char *out, uint32_t out_stride, uint32_t n, uint32_t flags

#define CONV_ARGUMENTS                                                                                            \
    x, x_stride, height, width, shift, first, rows, channels, w, w_stride, bias, base, base_stride, out, out_stride, n, \
        flags

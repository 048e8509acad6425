// A picture in tiles: cutting them out, adding them up. An element a thread.
#include "common.cuh"

constexpr uint32_t THREADS = 256;

// out = 0.
extern "C" __global__ void __launch_bounds__(THREADS)
    tile_clear(MATRIX(out), uint32_t rows, uint32_t cols, uint32_t f32, const uint32_t *step) {
  const uint32_t index = blockIdx.x * THREADS + threadIdx.x;
  const uint32_t row = index / cols;
  if (row >= rows) return;
  const float zero[1] = {0.0f};
  store<1>(OPERAND(out, 0), row, index - row * cols, zero);
}

// A rectangle of pixels; out_width and width are pixels of a row of the tile and of the source.
extern "C" __global__ void __launch_bounds__(THREADS)
    tile_crop(MATRIX(x), MATRIX(out), uint32_t pixels, uint32_t channels, uint32_t width, uint32_t top,
              uint32_t left, uint32_t out_width, uint32_t f32, const uint32_t *step) {
  const uint32_t index = blockIdx.x * THREADS + threadIdx.x;
  const uint32_t pixel = index / channels, channel = index - pixel * channels;
  if (pixel >= pixels) return;
  const uint32_t row = pixel / out_width, column = pixel - row * out_width;
  float v[1];
  load<1>(OPERAND(x, 0), (top + row) * width + left + column, channel, v);
  store<1>(OPERAND(out, 1), pixel, channel, v);
}

// The weight of pixel `at` of `pixels`: the first `rise` gain it, the last `fall` lose it.
__device__ __forceinline__ float fade(uint32_t at, uint32_t pixels, uint32_t rise, uint32_t fall) {
  if (at < rise) return __fdiv_rn(__fadd_rn(float(at), 0.5f), float(rise));
  if (at >= pixels - fall) return __fdiv_rn(__fadd_rn(float(pixels - 1 - at), 0.5f), float(fall));
  return 1.0f;
}

// out += weight * tile, the weight that of the row times that of the column.
extern "C" __global__ void __launch_bounds__(THREADS)
    tile_blend(MATRIX(tile), MATRIX(out), uint32_t rows, uint32_t columns, uint32_t channels, uint32_t width,
               uint32_t skip_rows, uint32_t rise_rows, uint32_t fall_rows, uint32_t skip_cols,
               uint32_t rise_cols, uint32_t fall_cols, uint32_t f32, const uint32_t *step) {
  const uint32_t index = blockIdx.x * THREADS + threadIdx.x;
  const uint32_t cols = columns * channels;
  const uint32_t row = index / cols, col = index - row * cols;
  if (row >= rows) return;
  const uint32_t column = col / channels, channel = col - column * channels;
  const Matrix picture = OPERAND(out, 1);
  float v[1], w[1];
  load<1>(picture, row, col, v);
  load<1>(OPERAND(tile, 0), (skip_rows + row) * width + skip_cols + column, channel, w);
  const float weight = __fmul_rn(fade(row, rows, rise_rows, fall_rows), fade(column, columns, rise_cols, fall_cols));
  v[0] = __fadd_rn(v[0], __fmul_rn(weight, w[0]));
  store<1>(picture, row, col, v);
}

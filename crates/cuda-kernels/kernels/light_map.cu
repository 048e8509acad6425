// Ops that compute each element from the same element of their operands.
//
// A thread computes `W` neighbours of a row: 8 with 16-byte accesses where all operands are aligned for
// it, else 1. Whole matrices without gaps are given as one long row. `out` may be the first operand.
#include "common.cuh"

constexpr uint32_t THREADS = 256;

struct Place {
  uint32_t row, col;
  bool inside;
};

template <int W>
__device__ __forceinline__ Place place(uint32_t rows, uint32_t cols) {
  const uint32_t index = blockIdx.x * THREADS + threadIdx.x;
  const uint32_t per_row = cols / W;
  if (rows == 1) return {0, index * W, index < per_row};
  const uint32_t row = index / per_row;
  return {row, (index - row * per_row) * W, row < rows};
}

// out = x, cast where the types differ; bits that are not numbers pass as f32.
template <int W>
__device__ __forceinline__ void copy(const Matrix &x, const Matrix &out, uint32_t rows, uint32_t cols) {
  const Place at = place<W>(rows, cols);
  if (!at.inside) return;
  float v[W];
  load<W>(x, at.row, at.col, v);
  store<W>(out, at.row, at.col, v);
}

// out = a + b; a `b` of one row (`b_rows` 1) is added to every row.
template <int W>
__device__ __forceinline__ void add(const Matrix &a, const Matrix &b, const Matrix &out, uint32_t rows,
                                    uint32_t cols, uint32_t b_rows) {
  const Place at = place<W>(rows, cols);
  if (!at.inside) return;
  float v[W], w[W];
  load<W>(a, at.row, at.col, v);
  load<W>(b, b_rows == 1 ? 0 : at.row, at.col, w);
#pragma unroll
  for (int i = 0; i < W; i++) v[i] = __fadd_rn(v[i], w[i]);
  store<W>(out, at.row, at.col, v);
}

// out = activation(x).
template <int W>
__device__ __forceinline__ void activation(const Matrix &x, const Matrix &out, uint32_t rows, uint32_t cols,
                                           uint32_t kind) {
  const Place at = place<W>(rows, cols);
  if (!at.inside) return;
  float v[W];
  load<W>(x, at.row, at.col, v);
#pragma unroll
  for (int i = 0; i < W; i++) v[i] = activate(v[i], kind);
  store<W>(out, at.row, at.col, v);
}

// out[:, j] = gelu_tanh(x[:, j]) * x[:, cols + j].
template <int W>
__device__ __forceinline__ void glu_gelu(const Matrix &x, const Matrix &out, uint32_t rows, uint32_t cols) {
  const Place at = place<W>(rows, cols);
  if (!at.inside) return;
  float v[W], w[W];
  load<W>(x, at.row, at.col, v);
  load<W>(x, at.row, cols + at.col, w);
#pragma unroll
  for (int i = 0; i < W; i++) v[i] = __fmul_rn(gelu_tanh(v[i]), w[i]);
  store<W>(out, at.row, at.col, v);
}

// out = base + gate * x with one factor a column; a null gate is 1. `out` may be `base` or `x`.
template <int W>
__device__ __forceinline__ void gated_residual(const Matrix &base, const Matrix &x, const Matrix &gate,
                                               const Matrix &out, uint32_t rows, uint32_t cols) {
  const Place at = place<W>(rows, cols);
  if (!at.inside) return;
  float v[W], w[W], factor[W];
  load<W>(x, at.row, at.col, v);
  load<W>(base, at.row, at.col, w);
  if (gate.base != nullptr) {
    load_parameter<W>(gate, at.col, factor);
#pragma unroll
    for (int i = 0; i < W; i++) v[i] = __fmul_rn(v[i], factor[i]);
  }
#pragma unroll
  for (int i = 0; i < W; i++) v[i] = __fadd_rn(w[i], v[i]);
  store<W>(out, at.row, at.col, v);
}

// latent += dsigma * velocity.
template <int W>
__device__ __forceinline__ void euler(const Matrix &latent, const Matrix &velocity, const Matrix &dsigma,
                                      uint32_t rows, uint32_t cols) {
  const Place at = place<W>(rows, cols);
  if (!at.inside) return;
  float v[W], w[W], slope[1];
  load_parameter<1>(dsigma, 0, slope);
  load<W>(latent, at.row, at.col, v);
  load<W>(velocity, at.row, at.col, w);
#pragma unroll
  for (int i = 0; i < W; i++) v[i] = __fadd_rn(v[i], __fmul_rn(slope[0], w[i]));
  store<W>(latent, at.row, at.col, v);
}

#define KERNELS(W)                                                                                           \
  extern "C" __global__ void __launch_bounds__(THREADS)                                                      \
      copy_##W(MATRIX(x), MATRIX(out), uint32_t rows, uint32_t cols, uint32_t f32, const uint32_t *step) {   \
    copy<W>(OPERAND(x, 0), OPERAND(out, 1), rows, cols);                                                     \
  }                                                                                                          \
  extern "C" __global__ void __launch_bounds__(THREADS)                                                      \
      add_##W(MATRIX(a), MATRIX(b), MATRIX(out), uint32_t rows, uint32_t cols, uint32_t b_rows,              \
              uint32_t f32, const uint32_t *step) {                                                          \
    add<W>(OPERAND(a, 0), OPERAND(b, 1), OPERAND(out, 2), rows, cols, b_rows);                               \
  }                                                                                                          \
  extern "C" __global__ void __launch_bounds__(THREADS)                                                      \
      activate_##W(MATRIX(x), MATRIX(out), uint32_t rows, uint32_t cols, uint32_t kind, uint32_t f32,        \
                   const uint32_t *step) {                                                                   \
    activation<W>(OPERAND(x, 0), OPERAND(out, 1), rows, cols, kind);                                         \
  }                                                                                                          \
  extern "C" __global__ void __launch_bounds__(THREADS)                                                      \
      glu_gelu_##W(MATRIX(x), MATRIX(out), uint32_t rows, uint32_t cols, uint32_t f32,                       \
                   const uint32_t *step) {                                                                   \
    glu_gelu<W>(OPERAND(x, 0), OPERAND(out, 1), rows, cols);                                                 \
  }                                                                                                          \
  extern "C" __global__ void __launch_bounds__(THREADS)                                                      \
      gated_residual_##W(MATRIX(base), MATRIX(x), MATRIX(gate), MATRIX(out), uint32_t rows, uint32_t cols,   \
                         uint32_t f32, const uint32_t *step) {                                               \
    gated_residual<W>(OPERAND(base, 0), OPERAND(x, 1), OPERAND(gate, 2), OPERAND(out, 3), rows, cols);       \
  }                                                                                                          \
  extern "C" __global__ void __launch_bounds__(THREADS)                                                      \
      euler_##W(MATRIX(latent), MATRIX(velocity), MATRIX(dsigma), uint32_t rows, uint32_t cols,              \
                uint32_t f32, const uint32_t *step) {                                                        \
    euler<W>(OPERAND(latent, 0), OPERAND(velocity, 1), OPERAND(dsigma, 2), rows, cols);                      \
  }

KERNELS(1)
KERNELS(8)

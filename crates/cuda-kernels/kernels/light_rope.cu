// RMS norm of each head of Q and K, then rotary embedding of adjacent pairs, in place.
//
// A thread takes 8 neighbours of a head of Q and the same of K, so the rotation is read once for both;
// `G` threads make a head. Heads of other widths have a warp each (`qk_norm_rope_any`).
#include "common.cuh"

constexpr uint32_t THREADS = 256;

__device__ __forceinline__ float inverse_root_mean(float squares, uint32_t head_dim, float eps) {
  return __frsqrt_rn(__fadd_rn(__fdiv_rn(squares, float(head_dim)), eps));
}

// Turns a pair by an angle.
__device__ __forceinline__ void turn(float &a, float &b, float cos, float sin) {
  const float first = __fmaf_rn(b, -sin, __fmul_rn(a, cos));
  b = __fmaf_rn(a, sin, __fmul_rn(b, cos));
  a = first;
}

template <int G>
__device__ __forceinline__ void normalise(float (&v)[8], const Matrix &weight, uint32_t col, float eps) {
  float squares = 0.0f, w[8];
#pragma unroll
  for (int i = 0; i < 8; i++) squares = __fmaf_rn(v[i], v[i], squares);
  const float scale = inverse_root_mean(sum_lanes<G>(squares), G * 8, eps);
  load_parameter<8>(weight, col, w);
#pragma unroll
  for (int i = 0; i < 8; i++) v[i] = __fmul_rn(__fmul_rn(v[i], scale), w[i]);
}

template <int G>
__device__ __forceinline__ void qk_norm_rope(const Matrix &q, const Matrix &k, const Matrix &q_weight,
                                             const Matrix &k_weight, const Matrix &rope, uint32_t rows,
                                             uint32_t heads, float eps) {
  const uint32_t index = blockIdx.x * THREADS + threadIdx.x;
  const uint32_t lane = index % G, row = index / G / heads, head = index / G - row * heads;
  // All lanes of a warp take part in its sums.
  const bool inside = row < rows;
  const uint32_t within = lane * 8, col = head * (G * 8) + within;
  float a[8] = {}, b[8] = {}, cos[4] = {}, sin[4] = {};
  if (inside) {
    load<8>(q, row, col, a);
    load<8>(k, row, col, b);
    unpack_4(load_16_shared(rope.at(row, lane * 4)), cos);
    unpack_4(load_16_shared(rope.at(row, G * 4 + lane * 4)), sin);
  }
  normalise<G>(a, q_weight, within, eps);
  normalise<G>(b, k_weight, within, eps);
  if (!inside) return;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    turn(a[2 * i], a[2 * i + 1], cos[i], sin[i]);
    turn(b[2 * i], b[2 * i + 1], cos[i], sin[i]);
  }
  store<8>(q, row, col, a);
  store<8>(k, row, col, b);
}

// A warp a head, pair by pair; `x` is Q or K by the grid's second dimension.
__device__ __forceinline__ void any_head(const Matrix &x, const Matrix &weight, const Matrix &rope,
                                         uint32_t rows, uint32_t heads, uint32_t head_dim, float eps) {
  const uint32_t unit = blockIdx.x * (THREADS / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t row = unit / heads, first = (unit - row * heads) * head_dim;
  if (row >= rows) return;
  float squares = 0.0f;
  for (uint32_t pair = lane; pair < head_dim / 2; pair += 32) {
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
      float v[1];
      load<1>(x, row, first + 2 * pair + i, v);
      squares = __fmaf_rn(v[0], v[0], squares);
    }
  }
  const float scale = inverse_root_mean(sum_lanes<32>(squares), head_dim, eps);
  for (uint32_t pair = lane; pair < head_dim / 2; pair += 32) {
    float v[2][1], cos[1], sin[1];
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
      float w[1];
      load<1>(x, row, first + 2 * pair + i, v[i]);
      load_parameter<1>(weight, 2 * pair + i, w);
      v[i][0] = __fmul_rn(__fmul_rn(v[i][0], scale), w[0]);
    }
    load<1>(rope, row, pair, cos);
    load<1>(rope, row, head_dim / 2 + pair, sin);
    turn(v[0][0], v[1][0], cos[0], sin[0]);
    store<1>(x, row, first + 2 * pair, v[0]);
    store<1>(x, row, first + 2 * pair + 1, v[1]);
  }
}

#define ROPE_PARAMETERS                                                                                      \
  MATRIX(q), MATRIX(k), MATRIX(q_weight), MATRIX(k_weight), MATRIX(rope), uint32_t rows, uint32_t heads,     \
      uint32_t head_dim, float eps, uint32_t f32, const uint32_t *step

#define ROPE(G)                                                                                              \
  extern "C" __global__ void __launch_bounds__(THREADS) qk_norm_rope_##G(ROPE_PARAMETERS) {                  \
    qk_norm_rope<G>(OPERAND(q, 0), OPERAND(k, 1), OPERAND(q_weight, 2), OPERAND(k_weight, 3),                \
                    OPERAND(rope, 4), rows, heads, eps);                                                     \
  }

ROPE(4)
ROPE(8)
ROPE(16)

extern "C" __global__ void __launch_bounds__(THREADS) qk_norm_rope_any(ROPE_PARAMETERS) {
  const Matrix rotation = OPERAND(rope, 4);
  if (blockIdx.y == 0)
    any_head(OPERAND(q, 0), OPERAND(q_weight, 2), rotation, rows, heads, head_dim, eps);
  else
    any_head(OPERAND(k, 1), OPERAND(k_weight, 3), rotation, rows, heads, head_dim, eps);
}

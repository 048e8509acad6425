// Norms of rows: a block a row.
//
// Where all operands are bf16, aligned and not too wide, the row stays in registers, as it is in memory, from
// its only read to its only write (`norm_V`: `V` vectors of 8 a thread); else it is read once a pass
// (`norm_wide_W`). The mean is taken off before the squares are summed. `out` may be `x`: a thread reads and
// writes the same elements.
#include "common.cuh"

// Which norm, as `lower` numbers them.
enum NormKind : uint32_t { LAYER_MODULATED = 0, LAYER_AFFINE = 1, RMS = 2 };

// What a row is normalised with.
struct Normal {
  uint32_t kind;
  float mean, scale;
  bool rounded;

  // `addend` is not looked at in an RMS norm.
  __device__ __forceinline__ float apply(float x, float factor, float addend) const {
    if (kind == RMS) {
      const float normal = __fmul_rn(x, scale);
      return __fmul_rn(rounded ? bf16_round(normal) : normal, factor);
    }
    const float normal = __fmul_rn(__fsub_rn(x, mean), scale);
    return __fmaf_rn(normal, kind == LAYER_MODULATED ? __fadd_rn(1.0f, factor) : factor, addend);
  }
};

__device__ __forceinline__ float inverse_deviation(float squares, uint32_t cols, float eps) {
  return __frsqrt_rn(__fadd_rn(__fdiv_rn(squares, float(cols)), eps));
}

// Every operand is bf16.
template <int V, int THREADS>
__device__ __forceinline__ void norm(const Matrix &x, const Matrix &factor, const Matrix &addend,
                                     const Matrix &out, uint32_t cols, uint32_t kind, float eps) {
  __shared__ float scratch[2][THREADS / 32];
  const uint32_t row = blockIdx.x;
  uint4 packed[V], factors[V], addends[V];
#pragma unroll
  for (int j = 0; j < V; j++) {
    const uint32_t col = (j * THREADS + threadIdx.x) * 8;
    packed[j] = col < cols ? load_16(x.at(row, col)) : make_uint4(0, 0, 0, 0);
  }
  // On their way while the sums are taken.
#pragma unroll
  for (int j = 0; j < V; j++) {
    const uint32_t col = (j * THREADS + threadIdx.x) * 8;
    if (col >= cols) break;
    factors[j] = load_16_shared(factor.at(0, col));
    if (kind != RMS) addends[j] = load_16_shared(addend.at(0, col));
  }
  float mean = 0.0f;
  if (kind != RMS) {
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < V; j++) {
      float v[8];
      unpack_8(packed[j], v);
#pragma unroll
      for (int i = 0; i < 8; i++) sum = __fadd_rn(sum, v[i]);
    }
    mean = __fdiv_rn(sum_block<THREADS>(sum, scratch[0]), float(cols));
  }
  float squares = 0.0f;
#pragma unroll
  for (int j = 0; j < V; j++) {
    if ((j * THREADS + threadIdx.x) * 8 >= cols) break;
    float v[8];
    unpack_8(packed[j], v);
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const float d = __fsub_rn(v[i], mean);
      squares = __fmaf_rn(d, d, squares);
    }
  }
  squares = sum_block<THREADS>(squares, scratch[1]);
  const Normal normal{kind, mean, inverse_deviation(squares, cols, eps), true};
#pragma unroll
  for (int j = 0; j < V; j++) {
    const uint32_t col = (j * THREADS + threadIdx.x) * 8;
    if (col >= cols) break;
    float v[8], f[8], a[8] = {};
    unpack_8(packed[j], v);
    unpack_8(factors[j], f);
    if (kind != RMS) unpack_8(addends[j], a);
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = normal.apply(v[i], f[i], a[i]);
    store<8>(out, row, col, v);
  }
}

template <int W, int THREADS>
__device__ __forceinline__ void norm_wide(const Matrix &x, const Matrix &factor, const Matrix &addend,
                                          const Matrix &out, uint32_t cols, uint32_t kind, float eps) {
  __shared__ float scratch[2][THREADS / 32];
  const uint32_t row = blockIdx.x;
  float v[W];
  float mean = 0.0f;
  if (kind != RMS) {
    float sum = 0.0f;
    for (uint32_t col = threadIdx.x * W; col < cols; col += THREADS * W) {
      load<W>(x, row, col, v);
#pragma unroll
      for (int i = 0; i < W; i++) sum = __fadd_rn(sum, v[i]);
    }
    mean = __fdiv_rn(sum_block<THREADS>(sum, scratch[0]), float(cols));
  }
  float squares = 0.0f;
  for (uint32_t col = threadIdx.x * W; col < cols; col += THREADS * W) {
    load<W>(x, row, col, v);
#pragma unroll
    for (int i = 0; i < W; i++) {
      const float d = __fsub_rn(v[i], mean);
      squares = __fmaf_rn(d, d, squares);
    }
  }
  squares = sum_block<THREADS>(squares, scratch[1]);
  const Normal normal{kind, mean, inverse_deviation(squares, cols, eps), !out.f32};
  for (uint32_t col = threadIdx.x * W; col < cols; col += THREADS * W) {
    float f[W], a[W] = {};
    load<W>(x, row, col, v);
    load_parameter<W>(factor, col, f);
    if (kind != RMS) load_parameter<W>(addend, col, a);
#pragma unroll
    for (int i = 0; i < W; i++) v[i] = normal.apply(v[i], f[i], a[i]);
    store<W>(out, row, col, v);
  }
}

#define NORM_PARAMETERS                                                                                      \
  MATRIX(x), MATRIX(factor), MATRIX(addend), MATRIX(out), uint32_t cols, uint32_t kind, float eps,           \
      uint32_t f32, const uint32_t *step

#define BF16(name) \
  Matrix { at_step(name, step, name##_step), name##_stride, false }

#define NORM(V, THREADS)                                                                                     \
  extern "C" __global__ void __launch_bounds__(THREADS) norm_##V(NORM_PARAMETERS) {                          \
    norm<V, THREADS>(BF16(x), BF16(factor), BF16(addend), BF16(out), cols, kind, eps);                       \
  }

#define NORM_WIDE(W)                                                                                         \
  extern "C" __global__ void __launch_bounds__(256, 4) norm_wide_##W(NORM_PARAMETERS) {                      \
    norm_wide<W, 256>(OPERAND(x, 0), OPERAND(factor, 1), OPERAND(addend, 2), OPERAND(out, 3), cols, kind,    \
                      eps);                                                                                  \
  }

NORM(1, 128)
NORM(2, 128)
NORM(3, 128)
NORM(4, 128)
NORM_WIDE(1)
NORM_WIDE(8)

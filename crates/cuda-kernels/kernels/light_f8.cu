// 8-bit numbers ("e4m3fn"): stored weights to bf16, for products that read bf16; rows of activations to 8 bits, for those that
// read 8.
//
// Unpacking: out[row][col] = bf16(f32(w[row][col]) * scale[row]), rounded to nearest even once: the CPU device's
// arithmetic, so a product over the result has the bits that it has over a weight stored as these bf16 numbers.
// A thread takes `W` neighbours of a row: 16 with one 16-byte load where rows begin at multiples of 16, else 1.
#include "common.cuh"

constexpr uint32_t THREADS = 256;

// Exact: exponent and mantissa get to their places in a single, and the product moves the bias from 7 to 127; subnormal
// numbers become subnormal singles on the way.
__device__ __forceinline__ float f8_value(uint32_t bits) {
  const uint32_t magnitude = bits & 0x7fu;
  const float finite = __fmul_rn(__uint_as_float(magnitude << 20), 0x1p120f);
  const uint32_t value = magnitude == 0x7fu ? 0x7fc00000u : __float_as_uint(finite);
  return __uint_as_float(value | (bits & 0x80u) << 24);
}

// `count` is rows * cols / W; `cols_per` is cols / W.
extern "C" __global__ void __launch_bounds__(THREADS)
    unpack_f8_16(const char *w, const float *scale, char *out, uint32_t count, uint32_t cols_per) {
  const uint32_t index = blockIdx.x * THREADS + threadIdx.x;
  if (index >= count) return;
  const float factor = __ldg(scale + index / cols_per);
  const uint4 packed = load_16(w + uint64_t(index) * 16);
  const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
  uint32_t pairs[8];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    float v[4];
#pragma unroll
    for (int j = 0; j < 4; j++) v[j] = __fmul_rn(f8_value(words[i] >> (8 * j)), factor);
    pairs[2 * i] = bf16_pair(v[0], v[1]);
    pairs[2 * i + 1] = bf16_pair(v[2], v[3]);
  }
  uint4 *target = reinterpret_cast<uint4 *>(out + uint64_t(index) * 32);
  target[0] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
  target[1] = make_uint4(pairs[4], pairs[5], pairs[6], pairs[7]);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    unpack_f8_1(const char *w, const float *scale, char *out, uint32_t count, uint32_t cols_per) {
  const uint32_t index = blockIdx.x * THREADS + threadIdx.x;
  if (index >= count) return;
  const float value = f8_value(reinterpret_cast<const uint8_t *>(w)[index]);
  reinterpret_cast<uint16_t *>(out)[index] = bf16_bits(__fmul_rn(value, __ldg(scale + index / cols_per)));
}

// --- rows of an activation to 8 bits ------------------------------------------------------------------
//
// scale[row] = max|x[row]| / 448, out[row][col] = e4m3(x[row][col] * (448 / max|x[row]|)), nearest, ties to even. A row of
// zeros has the scale 0 and stays zeros. A block a row, so a row's numbers are its own business.
//
// Blocks from `rows` on fold the gate of a residual into what the product multiplies its columns with and adds to them:
// gated_scale[col] = w_scale[col] * gate[col], gated_bias[col] = bf16(bias[col] * gate[col]).

// Two numbers, `low` in the low byte; what is greater than 448 becomes 448, NaN stays one.
__device__ __forceinline__ uint32_t f8_pair(float low, float high) {
#if __CUDA_ARCH__ >= 890
  uint16_t bits;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(bits) : "f"(high), "f"(low));
  return bits;
#else
  const float values[2] = {low, high};
  uint32_t both = 0;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const uint32_t bits = __float_as_uint(values[i]), magnitude = bits & 0x7fffffffu;
    const float size = __uint_as_float(magnitude);
    uint32_t code;
    if (!(size == size)) {
      code = 0x7fu;
    } else if (size >= 448.0f) {
      code = 0x7eu;
    } else if (size < 0x1p-6f) {
      // 1.5 * 2^14: adding it rounds to multiples of 2^-9, whose count is left in the low bits.
      code = __float_as_uint(__fadd_rn(size, 0x1.8p14f)) - __float_as_uint(0x1.8p14f);
    } else {
      code = ((magnitude + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20) - (120u << 3);
    }
    both |= (code | (bits >> 24 & 0x80u)) << (8 * i);
  }
  return both;
#endif
}

constexpr uint32_t ROW_THREADS = 128;

// Greatest of a block; all get it. NaN is greater than all: magnitudes are compared as integers.
__device__ __forceinline__ uint32_t greatest(uint32_t x) {
  __shared__ uint32_t scratch[ROW_THREADS / 32];
  x = __reduce_max_sync(0xffffffffu, x);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
  __syncthreads();
  uint32_t most = scratch[0];
#pragma unroll
  for (int warp = 1; warp < int(ROW_THREADS / 32); warp++) most = max(most, scratch[warp]);
  return most;
}

// From the greatest magnitude's bf16 bits: the factor, and the scale that undoes it, written by one thread.
__device__ __forceinline__ float factor_of(uint32_t most, float *scale) {
  const float size = bf16_value(uint16_t(most));
  if (threadIdx.x == 0) scale[blockIdx.x] = __fdiv_rn(size, 448.0f);
  return size == 0.0f ? 0.0f : __fdiv_rn(448.0f, size);
}

// What a product of 8 bits does after its sums, by column: `n` bf16 numbers of `gate`, which may move with the step, and of
// `bias`, which may be absent.
struct Gate {
  const float *w_scale;
  const char *gate, *bias;
  float *scale;
  char *gated_bias;
  uint32_t n;

  // True in a block that stands behind those of the rows.
  __device__ __forceinline__ bool fold(uint32_t rows) const {
    if (blockIdx.x < rows) return false;
    const uint32_t col = (blockIdx.x - rows) * ROW_THREADS + threadIdx.x;
    if (col < n) {
      const float factor = bf16_value(reinterpret_cast<const uint16_t *>(gate)[col]);
      scale[col] = __fmul_rn(w_scale[col], factor);
      if (bias != nullptr) {
        const float addend = bf16_value(reinterpret_cast<const uint16_t *>(bias)[col]);
        reinterpret_cast<uint16_t *>(gated_bias)[col] = bf16_bits(__fmul_rn(addend, factor));
      }
    }
    return true;
  }
};

#define QUANTIZE_PARAMETERS                                                                                       \
  char *x, uint32_t stride, uint32_t step_bytes, float *scale, char *out, uint32_t cols, uint32_t rows,            \
      const float *w_scale, char *gate, uint32_t gate_step, const char *bias, float *gated_scale, char *gated_bias, \
      uint32_t n, const uint32_t *step

#define FOLD_GATE                                                                                    \
  const Gate gated{w_scale, at_step(gate, step, gate_step), bias, gated_scale, gated_bias, n}; \
  if (gated.fold(rows)) return

// `V` vectors of 8 a thread; rows begin at multiples of 16 bytes.
template <int V>
__device__ __forceinline__ void quantize(const char *x, uint32_t stride, float *scale, char *out, uint32_t cols) {
  const char *row = x + uint64_t(blockIdx.x) * stride * 2;
  uint4 packed[V];
#pragma unroll
  for (int j = 0; j < V; j++) {
    const uint32_t col = (j * ROW_THREADS + threadIdx.x) * 8;
    packed[j] = col < cols ? load_16(row + uint64_t(col) * 2) : make_uint4(0, 0, 0, 0);
  }
  uint32_t most = 0;
#pragma unroll
  for (int j = 0; j < V; j++) {
    const uint32_t words[4] = {packed[j].x, packed[j].y, packed[j].z, packed[j].w};
#pragma unroll
    for (int i = 0; i < 4; i++) most = max(most, max(words[i] & 0x7fffu, words[i] >> 16 & 0x7fffu));
  }
  const float factor = factor_of(greatest(most), scale);
#pragma unroll
  for (int j = 0; j < V; j++) {
    const uint32_t col = (j * ROW_THREADS + threadIdx.x) * 8;
    if (col >= cols) break;
    float v[8];
    unpack_8(packed[j], v);
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = __fmul_rn(v[i], factor);
    *reinterpret_cast<uint2 *>(out + uint64_t(blockIdx.x) * cols + col) =
        make_uint2(f8_pair(v[0], v[1]) | f8_pair(v[2], v[3]) << 16, f8_pair(v[4], v[5]) | f8_pair(v[6], v[7]) << 16);
  }
}

extern "C" __global__ void __launch_bounds__(ROW_THREADS)
    quantize_f8_4(QUANTIZE_PARAMETERS) {
  FOLD_GATE;
  quantize<4>(at_step(x, step, step_bytes), stride, scale, out, cols);
}

extern "C" __global__ void __launch_bounds__(ROW_THREADS)
    quantize_f8_16(QUANTIZE_PARAMETERS) {
  FOLD_GATE;
  quantize<16>(at_step(x, step, step_bytes), stride, scale, out, cols);
}

// Any stride, alignment and width; the row is read twice. `cols` is even.
extern "C" __global__ void __launch_bounds__(ROW_THREADS)
    quantize_f8_any(QUANTIZE_PARAMETERS) {
  FOLD_GATE;
  const uint16_t *row = reinterpret_cast<const uint16_t *>(at_step(x, step, step_bytes)) + uint64_t(blockIdx.x) * stride;
  uint32_t most = 0;
  for (uint32_t col = threadIdx.x; col < cols; col += ROW_THREADS) most = max(most, row[col] & 0x7fffu);
  const float factor = factor_of(greatest(most), scale);
  for (uint32_t col = threadIdx.x * 2; col < cols; col += ROW_THREADS * 2) {
    const float low = __fmul_rn(bf16_value(row[col]), factor), high = __fmul_rn(bf16_value(row[col + 1]), factor);
    reinterpret_cast<uint16_t *>(out + uint64_t(blockIdx.x) * cols)[col / 2] = uint16_t(f8_pair(low, high));
  }
}

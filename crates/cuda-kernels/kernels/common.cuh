// What every kernel here uses: bf16 by hand, operands, vector access, functions, sums over a warp and a block.
//
// - A matrix is row-major: a pointer, elements from one row to the next, and one bit that says f32 or bf16.
// - An operand that moves with the step of the loop is found by a counter on the device: a launch is a
//   constant of the plan, and a captured graph can replay it.
// - Sums and functions are in f32 with one rounding at the store. The functions are the CPU device's, operation
//   by operation (explicit fused multiply-adds, no approximate instruction), so their bits are the same
//   on every architecture.
// - The order of a sum depends on the number of columns alone, never on rows, grid or card.
#pragma once

using int8_t = signed char;
using uint8_t = unsigned char;
using int32_t = int;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
using int64_t = long long;
using uint64_t = unsigned long long;

// --- bf16 ---------------------------------------------------------------------------------------------

// Value of the low half of `bits`.
__device__ __forceinline__ float bf16_low(uint32_t bits) { return __uint_as_float(bits << 16); }

// Value of the high half of `bits`.
__device__ __forceinline__ float bf16_high(uint32_t bits) { return __uint_as_float(bits & 0xffff0000u); }

__device__ __forceinline__ float bf16_value(uint16_t bits) { return __uint_as_float(uint32_t(bits) << 16); }

// Nearest bf16, ties to even.
__device__ __forceinline__ uint16_t bf16_bits(float value) {
  uint16_t bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}

// Two of them, `low` in the low half.
__device__ __forceinline__ uint32_t bf16_pair(float low, float high) {
  uint32_t bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}

__device__ __forceinline__ float bf16_round(float value) { return bf16_value(bf16_bits(value)); }

// --- operands -----------------------------------------------------------------------------------------

// Kernel parameters of one operand: where it is at step 0, elements between rows, bytes from step to step.
#define MATRIX(name) char *name, uint32_t name##_stride, uint32_t name##_step

// The operand that they describe; bit `index` of the kernel's parameter `f32` says whether it is f32.
#define OPERAND(name, index) \
  Matrix { at_step(name, step, name##_step), name##_stride, ((f32 >> (index)) & 1u) != 0u }

// Address at this step; `step` is null where no operand moves.
__device__ __forceinline__ char *at_step(char *base, const uint32_t *step, uint32_t step_bytes) {
  return step_bytes == 0 ? base : base + uint64_t(*step) * step_bytes;
}

struct Matrix {
  char *base;
  uint32_t stride;
  bool f32;

  __device__ __forceinline__ char *at(uint32_t row, uint32_t col) const {
    return base + ((uint64_t(row) * stride + col) << (f32 ? 2 : 1));
  }
};

// 16 bytes that no one reads again soon: past the first cache, which is left to parameters.
__device__ __forceinline__ uint4 load_16(const void *at) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(at));
  return v;
}

// 16 bytes of a parameter that many blocks read, and that this kernel does not write.
__device__ __forceinline__ uint4 load_16_shared(const void *at) {
  return __ldg(reinterpret_cast<const uint4 *>(at));
}

__device__ __forceinline__ void unpack_8(uint4 v, float (&x)[8]) {
  const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; i++) {
    x[2 * i] = bf16_low(words[i]);
    x[2 * i + 1] = bf16_high(words[i]);
  }
}

__device__ __forceinline__ void unpack_4(uint4 v, float *x) {
  x[0] = __uint_as_float(v.x);
  x[1] = __uint_as_float(v.y);
  x[2] = __uint_as_float(v.z);
  x[3] = __uint_as_float(v.w);
}

// `W` elements from column `col` on: 8 (16-byte aligned) or 1.
template <int W>
__device__ __forceinline__ void load(const Matrix &m, uint32_t row, uint32_t col, float (&x)[W]) {
  const char *at = m.at(row, col);
  if constexpr (W == 8) {
    if (m.f32) {
      unpack_4(load_16(at), x);
      unpack_4(load_16(at + 16), x + 4);
    } else {
      unpack_8(load_16(at), x);
    }
  } else {
    x[0] = m.f32 ? *reinterpret_cast<const float *>(at) : bf16_value(*reinterpret_cast<const uint16_t *>(at));
  }
}

// The same for a parameter row.
template <int W>
__device__ __forceinline__ void load_parameter(const Matrix &m, uint32_t col, float (&x)[W]) {
  const char *at = m.at(0, col);
  if constexpr (W == 8) {
    if (m.f32) {
      unpack_4(load_16_shared(at), x);
      unpack_4(load_16_shared(at + 16), x + 4);
    } else {
      unpack_8(load_16_shared(at), x);
    }
  } else {
    x[0] = m.f32 ? __ldg(reinterpret_cast<const float *>(at))
                 : bf16_value(__ldg(reinterpret_cast<const uint16_t *>(at)));
  }
}

template <int W>
__device__ __forceinline__ void store(const Matrix &m, uint32_t row, uint32_t col, const float (&x)[W]) {
  char *at = m.at(row, col);
  if constexpr (W == 8) {
    if (m.f32) {
      reinterpret_cast<float4 *>(at)[0] = make_float4(x[0], x[1], x[2], x[3]);
      reinterpret_cast<float4 *>(at)[1] = make_float4(x[4], x[5], x[6], x[7]);
    } else {
      *reinterpret_cast<uint4 *>(at) = make_uint4(bf16_pair(x[0], x[1]), bf16_pair(x[2], x[3]),
                                                  bf16_pair(x[4], x[5]), bf16_pair(x[6], x[7]));
    }
  } else if (m.f32) {
    *reinterpret_cast<float *>(at) = x[0];
  } else {
    *reinterpret_cast<uint16_t *>(at) = bf16_bits(x[0]);
  }
}

// --- functions ----------------------------------------------------------------------------------------

// Below, `exp_f32` is 0.
constexpr float EXP_LOWEST = -87.33654f;

// A number between 1/2 and 2 or so, and the power of two that makes it e^x, for -87.3 <= x <= 88.3; their product is
// exact, and at most 1 unit in the last place off. Source: Cephes' expf.
struct Exponential {
  float value, power;
};

__device__ __forceinline__ Exponential exp_within(float x) {
  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits.
  const float round = 12582912.0f;
  const float shifted = __fmaf_rn(x, 1.44269504f, round);
  const float n = __fsub_rn(shifted, round);
  const float r = __fmaf_rn(n, 2.1219444e-4f, __fmaf_rn(n, -0.6933594f, x));
  float p = 1.9875691e-4f;
  p = __fmaf_rn(p, r, 1.3981999e-3f);
  p = __fmaf_rn(p, r, 8.333452e-3f);
  p = __fmaf_rn(p, r, 4.1665796e-2f);
  p = __fmaf_rn(p, r, 1.6666665e-1f);
  p = __fmaf_rn(p, r, 0.5f);
  const float value = __fadd_rn(__fmaf_rn(p, __fmul_rn(r, r), r), 1.0f);
  // The low bits of `shifted` hold `n`; the rest of them falls off the end.
  return {value, __uint_as_float(__float_as_uint(shifted) * (1u << 23) + (127u << 23))};
}

// e^x: exactly 0 below -87.3, constant above 88.3, NaN for NaN.
__device__ __forceinline__ float exp_f32(float x) {
  const float bounded = x > 88.3f ? 88.3f : x;
  const Exponential e = exp_within(bounded < EXP_LOWEST ? EXP_LOWEST : bounded);
  return x < EXP_LOWEST ? 0.0f : __fmul_rn(e.value, e.power);
}

// 1 / x for 1 <= x <= 2^120, about 1 unit in the last place off: each step cubes what the guess is off by.
__device__ __forceinline__ float reciprocal(float x) {
  float y = __uint_as_float(0x7ef311c7u - __float_as_uint(x));
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const float left = __fmaf_rn(y, -x, 1.0f);
    y = __fmaf_rn(__fmaf_rn(left, left, left), y, y);
  }
  return y;
}

// x / (1 + e^-z), about 3 units in the last place off. The bounds keep `reciprocal` in its range; that they turn a
// `z` that is not a number into one does no harm, since then `x` is none either.
__device__ __forceinline__ float gated(float x, float z) {
  const Exponential e = exp_within(fmaxf(fminf(-z, 80.0f), EXP_LOWEST));
  return __fmul_rn(x, reciprocal(__fmaf_rn(e.value, e.power, 1.0f)));
}

__device__ __forceinline__ float silu(float x) { return gated(x, x); }

// 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), as x * sigmoid(2 ...).
__device__ __forceinline__ float gelu_tanh(float x) {
  const float cubic = __fmaf_rn(__fmul_rn(__fmul_rn(0.044715f, x), x), x, x);
  return gated(x, __fmul_rn(1.595769f, cubic));
}

__device__ __forceinline__ float quick_gelu(float x) { return gated(x, __fmul_rn(1.702f, x)); }

// An activation by the number that `lower` gives it; none is 0 and not asked for here.
enum Activation : uint32_t { SILU = 1, GELU_TANH = 2, QUICK_GELU = 3 };

// One body for all: they differ in the gate's argument.
__device__ __forceinline__ float activate(float x, uint32_t activation) {
  const float cubic = __fmaf_rn(__fmul_rn(__fmul_rn(0.044715f, x), x), x, x);
  const float z = activation == SILU ? x : activation == GELU_TANH ? __fmul_rn(1.595769f, cubic) : __fmul_rn(1.702f, x);
  return gated(x, z);
}

// --- sums ---------------------------------------------------------------------------------------------

// Sum over the `N` neighbours (a power of two) that a lane is among; all get it.
template <int N>
__device__ __forceinline__ float sum_lanes(float x) {
#pragma unroll
  for (int distance = N / 2; distance > 0; distance /= 2)
    x = __fadd_rn(x, __shfl_xor_sync(0xffffffffu, x, distance));
  return x;
}

// Sum over a block of `THREADS`; all get it. `scratch` holds a float a warp and is free for use again after the
// next barrier.
template <int THREADS>
__device__ __forceinline__ float sum_block(float x, float *scratch) {
  x = sum_lanes<32>(x);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
  __syncthreads();
  float total = scratch[0];
#pragma unroll
  for (int warp = 1; warp < THREADS / 32; warp++) total = __fadd_rn(total, scratch[warp]);
  return total;
}

// Weights stored in 8 bits ("e4m3fn") to bf16, for products that read bf16.
//
// out[row][col] = bf16(f32(w[row][col]) * scale[row]), rounded to nearest even once: the CPU device's arithmetic, so a
// product over the result has the bits that it has over a weight stored as these bf16 numbers.
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

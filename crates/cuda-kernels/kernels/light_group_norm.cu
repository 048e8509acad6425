// GroupNorm over all pixels, then SiLU where asked, in three launches: sums of chunks of pixels, the
// statistics of each group from them, the result. `out` may be `x`.
//
// Every number of a chunk is taken less its group's first element of pixel 0, so that squares of
// deviations are summed, not of values that may be far from zero. Chunks depend on the shape alone and
// are added in their order, in f64: the bits know nothing of the card.
//
// Scratch: `[chunks][groups]` pairs of sums, then `[groups]` pairs of mean and factor, all f32.
#include "common.cuh"

constexpr uint32_t THREADS = 256;

// First and one past the last pixel of a chunk.
struct Range {
  uint32_t first, last;
};

__device__ __forceinline__ Range chunk_range(uint32_t chunk, uint32_t chunk_pixels, uint32_t pixels) {
  const uint32_t first = chunk * chunk_pixels;
  return {first, min(first + chunk_pixels, pixels)};
}

// Channels in vectors of 8, at most 256 of them: a thread keeps its channels and walks over pixels.
extern "C" __global__ void __launch_bounds__(THREADS)
    group_norm_sums_8(MATRIX(x), float *sums, uint32_t pixels, uint32_t channels, uint32_t groups,
                      uint32_t chunk_pixels, uint32_t f32, const uint32_t *step) {
  __shared__ float totals[THREADS * 8], squares[THREADS * 8];
  const Matrix in = OPERAND(x, 0);
  const uint32_t vectors = channels / 8, width = channels / groups, lanes = THREADS / vectors;
  const uint32_t lane = threadIdx.x / vectors, channel = (threadIdx.x - lane * vectors) * 8;
  const Range range = chunk_range(blockIdx.x, chunk_pixels, pixels);
  if (lane < lanes) {
    float pivot[8], total[8] = {}, square[8] = {};
#pragma unroll
    for (int i = 0; i < 8; i++) {
      float first[1];
      load<1>(in, 0, (channel + i) / width * width, first);
      pivot[i] = first[0];
    }
#pragma unroll 4
    for (uint32_t pixel = range.first + lane; pixel < range.last; pixel += lanes) {
      float v[8];
      load<8>(in, pixel, channel, v);
#pragma unroll
      for (int i = 0; i < 8; i++) {
        const float d = __fsub_rn(v[i], pivot[i]);
        total[i] = __fadd_rn(total[i], d);
        square[i] = __fmaf_rn(d, d, square[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
      totals[lane * channels + channel + i] = total[i];
      squares[lane * channels + channel + i] = square[i];
    }
  }
  // Over the lanes, channel by channel, then over the channels of each group.
  __syncthreads();
  for (uint32_t at = threadIdx.x; at < channels; at += THREADS) {
    float total = totals[at], square = squares[at];
    for (uint32_t other = at + channels; other < lanes * channels; other += channels) {
      total = __fadd_rn(total, totals[other]);
      square = __fadd_rn(square, squares[other]);
    }
    totals[at] = total;
    squares[at] = square;
  }
  __syncthreads();
  for (uint32_t group = threadIdx.x / 32; group < groups; group += THREADS / 32) {
    float total = 0.0f, square = 0.0f;
    for (uint32_t at = threadIdx.x % 32; at < width; at += 32) {
      total = __fadd_rn(total, totals[group * width + at]);
      square = __fadd_rn(square, squares[group * width + at]);
    }
    total = sum_lanes<32>(total);
    square = sum_lanes<32>(square);
    if (threadIdx.x % 32 == 0)
      reinterpret_cast<float2 *>(sums)[blockIdx.x * groups + group] = make_float2(total, square);
  }
}

// Any channels: a block a chunk and group.
extern "C" __global__ void __launch_bounds__(THREADS)
    group_norm_sums_1(MATRIX(x), float *sums, uint32_t pixels, uint32_t channels, uint32_t groups,
                      uint32_t chunk_pixels, uint32_t f32, const uint32_t *step) {
  __shared__ float scratch[2][THREADS / 32];
  const Matrix in = OPERAND(x, 0);
  const uint32_t width = channels / groups, group = blockIdx.y;
  const Range range = chunk_range(blockIdx.x, chunk_pixels, pixels);
  float pivot[1], total = 0.0f, square = 0.0f;
  load<1>(in, 0, group * width, pivot);
  for (uint32_t at = threadIdx.x; at < (range.last - range.first) * width; at += THREADS) {
    float v[1];
    load<1>(in, range.first + at / width, group * width + at % width, v);
    const float d = __fsub_rn(v[0], pivot[0]);
    total = __fadd_rn(total, d);
    square = __fmaf_rn(d, d, square);
  }
  total = sum_block<THREADS>(total, scratch[0]);
  square = sum_block<THREADS>(square, scratch[1]);
  if (threadIdx.x == 0)
    reinterpret_cast<float2 *>(sums)[blockIdx.x * groups + group] = make_float2(total, square);
}

// A block a group: mean and 1 / sqrt(variance + eps).
extern "C" __global__ void __launch_bounds__(THREADS)
    group_norm_statistics(MATRIX(x), const float *sums, float *statistics, uint32_t pixels, uint32_t channels,
                          uint32_t groups, uint32_t chunks, float eps, uint32_t f32, const uint32_t *step) {
  __shared__ double totals[THREADS], squares[THREADS];
  const Matrix in = OPERAND(x, 0);
  const uint32_t width = channels / groups, group = blockIdx.x;
  double total = 0.0, square = 0.0;
  for (uint32_t chunk = threadIdx.x; chunk < chunks; chunk += THREADS) {
    const float2 both = reinterpret_cast<const float2 *>(sums)[chunk * groups + group];
    total += both.x;
    square += both.y;
  }
  totals[threadIdx.x] = total;
  squares[threadIdx.x] = square;
  for (uint32_t half = THREADS / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) {
      totals[threadIdx.x] += totals[threadIdx.x + half];
      squares[threadIdx.x] += squares[threadIdx.x + half];
    }
  }
  if (threadIdx.x != 0) return;
  float pivot[1];
  load<1>(in, 0, group * width, pivot);
  const double count = double(pixels) * width;
  const double distance = totals[0] / count;
  const double variance = fmax(squares[0] / count - distance * distance, 0.0);
  reinterpret_cast<float2 *>(statistics)[group] =
      make_float2(float(pivot[0] + distance), float(1.0 / sqrt(variance + eps)));
}

template <int W>
struct Affine {
  float mean[W], factor[W], addend[W];

  __device__ __forceinline__ Affine(const float *statistics, const Matrix &weight, const Matrix &bias,
                                    uint32_t channel, uint32_t width) {
    load_parameter<W>(weight, channel, factor);
    load_parameter<W>(bias, channel, addend);
#pragma unroll
    for (int i = 0; i < W; i++) {
      const float2 both = reinterpret_cast<const float2 *>(statistics)[(channel + i) / width];
      mean[i] = both.x;
      factor[i] = __fmul_rn(both.y, factor[i]);
    }
  }

  __device__ __forceinline__ void apply(float (&v)[W], uint32_t with_silu) const {
#pragma unroll
    for (int i = 0; i < W; i++) v[i] = __fmaf_rn(__fsub_rn(v[i], mean[i]), factor[i], addend[i]);
    if (with_silu) {
#pragma unroll
      for (int i = 0; i < W; i++) v[i] = silu(v[i]);
    }
  }
};

#define APPLY_PARAMETERS                                                                                     \
  MATRIX(x), MATRIX(weight), MATRIX(bias), MATRIX(out), const float *statistics, uint32_t pixels,            \
      uint32_t channels, uint32_t groups, uint32_t chunk_pixels, uint32_t with_silu, uint32_t f32,           \
      const uint32_t *step

extern "C" __global__ void __launch_bounds__(THREADS) group_norm_apply_8(APPLY_PARAMETERS) {
  const Matrix in = OPERAND(x, 0), result = OPERAND(out, 3);
  const uint32_t vectors = channels / 8, lanes = THREADS / vectors;
  const uint32_t lane = threadIdx.x / vectors, channel = (threadIdx.x - lane * vectors) * 8;
  if (lane >= lanes) return;
  const Affine<8> affine(statistics, OPERAND(weight, 1), OPERAND(bias, 2), channel, channels / groups);
  // From the last chunk to the first: the last read are the likeliest to be in the cache still.
  const Range range = chunk_range(gridDim.x - 1 - blockIdx.x, chunk_pixels, pixels);
  for (uint32_t pixel = range.first + lane; pixel < range.last; pixel += 2 * lanes) {
    const uint32_t next = pixel + lanes;
    float v[8], w[8];
    load<8>(in, pixel, channel, v);
    if (next < range.last) load<8>(in, next, channel, w);
    affine.apply(v, with_silu);
    store<8>(result, pixel, channel, v);
    if (next < range.last) {
      affine.apply(w, with_silu);
      store<8>(result, next, channel, w);
    }
  }
}

// A block a chunk, element by element.
extern "C" __global__ void __launch_bounds__(THREADS) group_norm_apply_1(APPLY_PARAMETERS) {
  const Matrix in = OPERAND(x, 0), result = OPERAND(out, 3), factor = OPERAND(weight, 1), addend = OPERAND(bias, 2);
  const Range range = chunk_range(blockIdx.x, chunk_pixels, pixels);
#pragma unroll 1
  for (uint32_t pixel = range.first; pixel < range.last; pixel++) {
#pragma unroll 1
    for (uint32_t channel = threadIdx.x; channel < channels; channel += THREADS) {
      float v[1];
      load<1>(in, pixel, channel, v);
      Affine<1>(statistics, factor, addend, channel, channels / groups).apply(v, with_silu);
      store<1>(result, pixel, channel, v);
    }
  }
}

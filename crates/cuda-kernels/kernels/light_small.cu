// Ops on little data: an element a thread.
#include "common.cuh"

constexpr uint32_t THREADS = 256;

// Index operands are 32 bits wide.
__device__ __forceinline__ uint32_t index_at(const Matrix &m, uint32_t row) {
  return *reinterpret_cast<const uint32_t *>(m.at(row, 0));
}

// e^x for |x| < 700.
__device__ __forceinline__ double exp_f64(double x) {
  const double n = rint(x * 1.4426950408889634);
  const double r = (x - n * 0.6931471803691238) - n * 1.9082149292705877e-10;
  double term = 1.0, value = 1.0;
  for (int k = 1; k < 18; k++) {
    term = term * r / k;
    value += term;
  }
  return value * __longlong_as_double((1023 + int64_t(n)) << 52);
}

// Cosine and sine for |x| < 1e6, pi / 2 in three parts (fdlibm's).
__device__ __forceinline__ double2 cos_sin_f64(double x) {
  const double quadrant = rint(x * 0.6366197723675814);
  const double r = ((x - quadrant * 1.5707963267341256) - quadrant * 6.077100506303966e-11) -
                   quadrant * 2.0222662487959507e-21;
  double cos = 1.0, sin = r, term = r, even = 1.0;
  for (int i = 1; i < 12; i++) {
    const double k = i;
    even = -even * r * r / ((2.0 * k - 1.0) * (2.0 * k));
    term = -term * r * r / ((2.0 * k) * (2.0 * k + 1.0));
    cos += even;
    sin += term;
  }
  switch (int64_t(quadrant) & 3) {
    case 0: return make_double2(cos, sin);
    case 1: return make_double2(-sin, cos);
    case 2: return make_double2(-cos, -sin);
    default: return make_double2(sin, -cos);
  }
}

// Timestep embedding: cosines, then sines. Frequency, its product with the time and the angle are rounded to f32
// where diffusers rounds them (`get_timestep_embedding`, `downscale_freq_shift` 0).
extern "C" __global__ void __launch_bounds__(THREADS)
    sinusoid(MATRIX(x), MATRIX(out), uint32_t rows, uint32_t half, uint32_t f32, const uint32_t *step) {
  const uint32_t index = blockIdx.x * THREADS + threadIdx.x;
  const uint32_t row = index / half, k = index - row * half;
  if (row >= rows) return;
  float time[1];
  load<1>(OPERAND(x, 0), row, 0, time);
  // ln 10000.
  const float exponent = __fdiv_rn(__fmul_rn(-9.2103404f, float(k)), float(half));
  const float frequency = float(exp_f64(exponent));
  const double2 wave = cos_sin_f64(__fmul_rn(__fmul_rn(1000.0f, time[0]), frequency));
  const float cos[1] = {float(wave.x)}, sin[1] = {float(wave.y)};
  const Matrix result = OPERAND(out, 1);
  store<1>(result, row, k, cos);
  store<1>(result, row, half + k, sin);
}

// out[h, r] = weight[buckets[r], h]; a bucket past the end takes the last row.
extern "C" __global__ void __launch_bounds__(THREADS)
    expand_bias(MATRIX(weight), MATRIX(buckets), MATRIX(out), uint32_t weight_rows, uint32_t heads,
                uint32_t positions, uint32_t f32, const uint32_t *step) {
  const uint32_t index = blockIdx.x * THREADS + threadIdx.x;
  const uint32_t head = index / positions, position = index - head * positions;
  if (head >= heads) return;
  const uint32_t bucket = min(index_at(OPERAND(buckets, 1), position), weight_rows - 1);
  float v[1];
  load<1>(OPERAND(weight, 0), bucket, head, v);
  store<1>(OPERAND(out, 2), head, position, v);
}

// out = x[index]; an index past the end takes the last row.
extern "C" __global__ void __launch_bounds__(THREADS)
    select_row(MATRIX(x), MATRIX(index), MATRIX(out), uint32_t x_rows, uint32_t cols, uint32_t f32,
               const uint32_t *step) {
  const uint32_t col = blockIdx.x * THREADS + threadIdx.x;
  if (col >= cols) return;
  float v[1];
  load<1>(OPERAND(x, 0), min(index_at(OPERAND(index, 1), 0), x_rows - 1), col, v);
  store<1>(OPERAND(out, 2), 0, col, v);
}

// Packed tokens to pixels: out = x / scale + shift.
extern "C" __global__ void __launch_bounds__(THREADS)
    unpatchify(MATRIX(x), MATRIX(out), uint32_t pixels, uint32_t channels, uint32_t width, float scale,
               float shift, uint32_t f32, const uint32_t *step) {
  const uint32_t index = blockIdx.x * THREADS + threadIdx.x;
  const uint32_t pixel = index / channels, channel = index - pixel * channels;
  if (pixel >= pixels) return;
  const uint32_t y = pixel / width, x_at = pixel - y * width;
  const uint32_t token = y / 2 * (width / 2) + x_at / 2, corner = y % 2 * 2 + x_at % 2;
  float v[1];
  load<1>(OPERAND(x, 0), token, channel * 4 + corner, v);
  v[0] = __fadd_rn(__fdiv_rn(v[0], scale), shift);
  store<1>(OPERAND(out, 1), pixel, channel, v);
}

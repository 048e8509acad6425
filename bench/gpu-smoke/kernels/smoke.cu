// Kernels of the smoke run: random operands, references in double precision, bit comparison, time stamps.
// Built ahead by build.py into smoke.sm_90.cubin, so that the binary needs the driver and nothing else.
// No headers: the types are decoded by hand, which keeps NVRTC free of include paths.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

static __device__ __forceinline__ u64 mix(u64 z) {  // splitmix64 finaliser
    z += 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

// Sum of four 16-bit uniforms: bell-shaped with unit variance, cheap, and the same on every run.
static __device__ __forceinline__ float bell(u64 index, u64 seed) {
    u64 r = mix(index ^ (seed << 40));
    float sum = (float)(r & 0xffff) + (float)((r >> 16) & 0xffff) + (float)((r >> 32) & 0xffff) + (float)(r >> 48);
    return (sum * (1.0f / 65536.0f) - 2.0f) * 1.7320508f;
}

static __device__ __forceinline__ float bf16_to_f32(u16 bits) { return __uint_as_float((u32)bits << 16); }

static __device__ __forceinline__ u16 f32_to_bf16(float value) {  // finite values only; nearest even
    u32 bits = __float_as_uint(value);
    return (u16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

static __device__ __forceinline__ float e4m3_to_f32(u8 bits) {
    u32 exponent = (bits >> 3) & 15u, mantissa = bits & 7u;
    float magnitude = exponent == 0 ? (float)mantissa * 0.001953125f  // subnormal: m * 2^-9
                                    : __uint_as_float(((exponent + 120u) << 23) | (mantissa << 20));
    return (bits & 0x80u) ? -magnitude : magnitude;
}

static __device__ __forceinline__ u8 f32_to_e4m3(float value) {
    u16 pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(value));
    return (u8)(pair & 0xff);
}

extern "C" __global__ void fill_bf16(u16* target, u64 count, u64 seed, float scale) {
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < count; i += (u64)gridDim.x * blockDim.x)
        target[i] = f32_to_bf16(bell(i, seed) * scale);
}

extern "C" __global__ void fill_e4m3(u8* target, u64 count, u64 seed, float scale) {
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < count; i += (u64)gridDim.x * blockDim.x)
        target[i] = f32_to_e4m3(bell(i, seed) * scale);
}

// Scales spread over a factor of four, so that a scale applied to the wrong row shows.
extern "C" __global__ void fill_scale(float* target, u64 count, u64 seed, float low) {
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < count; i += (u64)gridDim.x * blockDim.x)
        target[i] = low * (1.0f + 3.0f * (float)(mix(i ^ (seed << 40)) & 0xffffff) / 16777216.0f);
}

extern "C" __global__ void count_unequal(const u32* left, const u32* right, u64 words, u64* unequal) {
    u32 found = 0;
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < words; i += (u64)gridDim.x * blockDim.x)
        found += left[i] != right[i];
    if (found) atomicAdd(unequal, (u64)found);
}

// Position-weighted sum modulo 2^64: independent of the order in which threads add.
extern "C" __global__ void checksum(const u32* source, u64 words, u64* sum) {
    u64 part = 0;
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < words; i += (u64)gridDim.x * blockDim.x)
        part += (u64)source[i] * (mix(i) | 1ull);
    for (int lane = 16; lane; lane >>= 1) part += __shfl_down_sync(0xffffffffu, part, lane);
    if ((threadIdx.x & 31) == 0) atomicAdd(sum, part);
}

// Compares one block's sum with what a run without overlap gave, counts a difference, and clears the sum.
extern "C" __global__ void settle(u64* sum, const u64* expected, u64* wrong) {
    if (*sum != *expected) atomicAdd(wrong, 1ull);
    *sum = 0;
}

// Appends the GPU's clock in nanoseconds. The cursor lives on the device: no step number is baked into a graph.
extern "C" __global__ void stamp(u64* times, u64* cursor, u64 limit) {
    u64 now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    u64 at = (*cursor)++;
    if (at < limit) times[at] = now;
}

// One sampled output element a block: (reference in double, value found).
// kind 0: bf16; 1: e4m3 with a scale per row of x and of w; 2: e4m3 with one scale each.  gelu: tanh form.
extern "C" __global__ void gemm_sample(const void* x, const void* w, const u16* bias, const float* x_scale,
                                       const float* w_scale, const u16* out, u64 rows, u64 columns, u64 depth, int kind,
                                       int gelu, double* pairs) {
    u64 row = mix(blockIdx.x) % rows, column = mix(blockIdx.x + 77777ull) % columns;
    double part = 0.0;
    for (u64 k = threadIdx.x; k < depth; k += blockDim.x) {
        if (kind == 0)
            part += (double)bf16_to_f32(((const u16*)x)[row * depth + k]) *
                    (double)bf16_to_f32(((const u16*)w)[column * depth + k]);
        else
            part += (double)e4m3_to_f32(((const u8*)x)[row * depth + k]) *
                    (double)e4m3_to_f32(((const u8*)w)[column * depth + k]);
    }
    __shared__ double parts[128];
    parts[threadIdx.x] = part;
    __syncthreads();
    if (threadIdx.x != 0) return;
    double sum = 0.0;
    for (int i = 0; i < 128; i++) sum += parts[i];
    if (kind == 1) sum *= (double)x_scale[row] * (double)w_scale[column];
    if (kind == 2) sum *= (double)x_scale[0] * (double)w_scale[0];
    sum += (double)bf16_to_f32(bias[column]);
    if (gelu) sum = 0.5 * sum * (1.0 + tanh(0.7978845608028654 * (sum + 0.044715 * sum * sum * sum)));
    pairs[2 * blockIdx.x] = sum;
    pairs[2 * blockIdx.x + 1] = (double)bf16_to_f32(out[row * columns + column]);
}

// One sampled query row a block: 128 pairs (reference, value found). q, k, v, out: (heads, length, 128) bf16.
// Launched with 128 threads and length * 4 bytes of shared memory.
extern "C" __global__ void attention_sample(const u16* q, const u16* k, const u16* v, const u16* out, u64 heads,
                                            u64 length, float scale, double* pairs) {
    extern __shared__ float score[];
    __shared__ float query[128];
    __shared__ float best_of[128];
    __shared__ double sum_of[128];
    u64 head = mix(blockIdx.x) % heads, row = mix(blockIdx.x + 4242ull) % length, base = head * length * 128;
    query[threadIdx.x] = bf16_to_f32(q[base + row * 128 + threadIdx.x]);
    __syncthreads();
    float best = -3.0e38f;
    for (u64 j = threadIdx.x; j < length; j += 128) {
        double dot = 0.0;
        for (int d = 0; d < 128; d++) dot += (double)query[d] * (double)bf16_to_f32(k[base + j * 128 + d]);
        score[j] = (float)(dot * (double)scale);
        best = fmaxf(best, score[j]);
    }
    best_of[threadIdx.x] = best;
    __syncthreads();
    for (int i = 0; i < 128; i++) best = fmaxf(best, best_of[i]);
    double sum = 0.0;
    for (u64 j = threadIdx.x; j < length; j += 128) sum += exp((double)score[j] - (double)best);
    sum_of[threadIdx.x] = sum;
    __syncthreads();
    sum = 0.0;
    for (int i = 0; i < 128; i++) sum += sum_of[i];
    double value = 0.0;
    for (u64 j = 0; j < length; j++)
        value += exp((double)score[j] - (double)best) * (double)bf16_to_f32(v[base + j * 128 + threadIdx.x]);
    u64 at = 2 * ((u64)blockIdx.x * 128 + threadIdx.x);
    pairs[at] = value / sum;
    pairs[at + 1] = (double)bf16_to_f32(out[base + row * 128 + threadIdx.x]);
}

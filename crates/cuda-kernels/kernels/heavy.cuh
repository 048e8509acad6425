// What products, attention and convolution share: copies to shared memory, matrix instructions, and what
// happens to a sum before it is stored.
//
// Rule of rows: a sum is one chain of steps of one instruction (m16n8k16 in bf16) along k from 0 up, in every tile shape, so an element's
// bits depend on neither the tile nor the rows beside it.

#pragma once

#include "common.cuh"

namespace heavy {

constexpr uint32_t FLAG_ACTIVATION = 3;  // 0 none, 1 SiLU, 2 GELU (tanh), 3 quick GELU
constexpr uint32_t FLAG_BIAS_F32 = 1 << 2;
constexpr uint32_t FLAG_GATE_F32 = 1 << 3;
constexpr uint32_t FLAG_BASE_F32 = 1 << 4;
constexpr uint32_t FLAG_OUT_F32 = 1 << 5;
constexpr uint32_t FLAG_X_F32 = 1 << 6;
constexpr uint32_t FLAG_W_F32 = 1 << 7;
// n is a multiple of 8, and every row of bias, gate, base and out begins at a multiple of 16 bytes.
constexpr uint32_t FLAG_VECTOR = 1 << 8;

// ---- Copies and matrix instructions -------------------------------------------------------------------------

__device__ __forceinline__ uint32_t shared_address(const void* p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// 16 bytes to shared memory; zeros, and no read, where `bytes` is 0.
__device__ __forceinline__ void copy16(uint32_t to, const void* from, uint32_t bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int LEFT>
__device__ __forceinline__ void copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

__device__ __forceinline__ void load_x4(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

__device__ __forceinline__ void load_x4_transposed(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

__device__ __forceinline__ void load_x2(uint32_t& r0, uint32_t& r1, uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r0), "=r"(r1)
                 : "r"(address)
                 : "memory");
}

// What 16 bits of the operands are: a number, or two of 8 bits. Fragments, copies and swizzles are the same for both.
struct Bf16 {};
struct E4m3 {};

// sums[16 x 8] += a[16 x 16] b[8 x 16]^T.
__device__ __forceinline__ void multiply_add(Bf16, float (&sums)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#if __CUDA_ARCH__ >= 890
// sums[16 x 8] += a[16 x 32] b[8 x 32]^T.
__device__ __forceinline__ void multiply_add(E4m3, float (&sums)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#endif

// 2^x within two units in the last place.
__device__ __forceinline__ float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// ---- Before the store ----------------------------------------------------------------------------------------

// out = base + gate * activation(sum + bias)
struct Epilogue {
    const void* bias;
    const void* gate;
    const void* base;
    void* out;
    uint32_t base_stride;
    uint32_t out_stride;
    uint32_t cols;
    uint32_t flags;
};

__device__ __forceinline__ float element(const void* p, size_t at, bool is_f32) {
    if (is_f32) return static_cast<const float*>(p)[at];
    return bf16_value(static_cast<const uint16_t*>(p)[at]);
}

__device__ __forceinline__ void eight(const void* p, size_t at, bool is_f32, float (&values)[8]) {
    if (is_f32) {
        const float4* from = reinterpret_cast<const float4*>(static_cast<const float*>(p) + at);
        const float4 a = from[0], b = from[1];
        values[0] = a.x, values[1] = a.y, values[2] = a.z, values[3] = a.w;
        values[4] = b.x, values[5] = b.y, values[6] = b.z, values[7] = b.w;
    } else {
        const uint4 a = *reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(p) + at);
        const uint32_t pairs[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) values[2 * i] = bf16_low(pairs[i]), values[2 * i + 1] = bf16_high(pairs[i]);
    }
}

// x * sigmoid of something, by the activation's number.
__device__ __forceinline__ float activated(float x, uint32_t activation) {
    if (activation == 0) return x;
    float inner = x;
    // 2 sqrt(2 / pi) (x + 0.044715 x^3): the sigmoid form of 1 + tanh has no cancellation for negative x.
    if (activation == 2) inner = 1.595769122f * __fmaf_rn(0.044715f * x * x, x, x);
    if (activation == 3) inner = 1.702f * x;
    return __fdividef(x, 1.0f + power_of_two(-1.442695041f * inner));
}

__device__ __forceinline__ void store_one(const Epilogue& e, uint32_t row, uint32_t col, float sum) {
    if (e.bias) sum = __fadd_rn(sum, element(e.bias, col, e.flags & FLAG_BIAS_F32));
    sum = activated(sum, e.flags & FLAG_ACTIVATION);
    if (e.base) {
        const float gate = e.gate ? element(e.gate, col, e.flags & FLAG_GATE_F32) : 1.0f;
        sum = __fmaf_rn(gate, sum, element(e.base, size_t(row) * e.base_stride + col, e.flags & FLAG_BASE_F32));
    }
    const size_t at = size_t(row) * e.out_stride + col;
    if (e.flags & FLAG_OUT_F32) {
        static_cast<float*>(e.out)[at] = sum;
    } else {
        static_cast<uint16_t*>(e.out)[at] = bf16_bits(sum);
    }
}

// Eight sums of a row from a column that is a multiple of 8, where FLAG_VECTOR is set.
__device__ __forceinline__ void store_eight(const Epilogue& e, uint32_t row, uint32_t col, float (&sums)[8]) {
    float other[8];
    if (e.bias) {
        eight(e.bias, col, e.flags & FLAG_BIAS_F32, other);
#pragma unroll
        for (int i = 0; i < 8; ++i) sums[i] = __fadd_rn(sums[i], other[i]);
    }
    if (e.flags & FLAG_ACTIVATION) {
#pragma unroll
        for (int i = 0; i < 8; ++i) sums[i] = activated(sums[i], e.flags & FLAG_ACTIVATION);
    }
    if (e.base) {
        float gate[8];
        if (e.gate) {
            eight(e.gate, col, e.flags & FLAG_GATE_F32, gate);
        } else {
#pragma unroll
            for (int i = 0; i < 8; ++i) gate[i] = 1.0f;
        }
        eight(e.base, size_t(row) * e.base_stride + col, e.flags & FLAG_BASE_F32, other);
#pragma unroll
        for (int i = 0; i < 8; ++i) sums[i] = __fmaf_rn(gate[i], sums[i], other[i]);
    }
    const size_t at = size_t(row) * e.out_stride + col;
    if (e.flags & FLAG_OUT_F32) {
        float4* to = reinterpret_cast<float4*>(static_cast<float*>(e.out) + at);
        to[0] = make_float4(sums[0], sums[1], sums[2], sums[3]);
        to[1] = make_float4(sums[4], sums[5], sums[6], sums[7]);
    } else {
        uint4 packed;
        packed.x = bf16_pair(sums[0], sums[1]), packed.y = bf16_pair(sums[2], sums[3]);
        packed.z = bf16_pair(sums[4], sums[5]), packed.w = bf16_pair(sums[6], sums[7]);
        *reinterpret_cast<uint4*>(static_cast<uint16_t*>(e.out) + at) = packed;
    }
}

// out = base + gate * activation(sum * row_scale[row] * col_scale[col] + bias)
struct ScaledEpilogue : Epilogue {
    const float* row_scale;
    const float* col_scale;
};

__device__ __forceinline__ void store_one(const ScaledEpilogue& e, uint32_t row, uint32_t col, float sum) {
    sum = __fmul_rn(__fmul_rn(sum, e.row_scale[row]), e.col_scale[col]);
    store_one(static_cast<const Epilogue&>(e), row, col, sum);
}

__device__ __forceinline__ void store_eight(const ScaledEpilogue& e, uint32_t row, uint32_t col, float (&sums)[8]) {
    float scales[8];
    const float of_row = e.row_scale[row];
    eight(e.col_scale, col, true, scales);
#pragma unroll
    for (int i = 0; i < 8; ++i) sums[i] = __fmul_rn(__fmul_rn(sums[i], of_row), scales[i]);
    store_eight(static_cast<const Epilogue&>(e), row, col, sums);
}

}  // namespace heavy

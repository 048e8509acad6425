// Tiles with Hopper's wgmma, which reads both operands from shared memory in the very layout of tile.cuh (its
// 128-byte swizzle). Sums of bf16 have the bits of those of tile.cuh; those of 8-bit numbers have not.
//
// - 128 x 128 by one warpgroup: two blocks share a multiprocessor, and while one waits for its copies, the
//   other's products run. It is bound by reading shared memory: 160 bytes a cycle at full rate, of 128.
// - 128 or 192 x 256 by two or three warpgroups, which take a multiprocessor for themselves. These are bound by the
//   second cache: 192 rows read a fifth less from it for as many sums.

#pragma once

#include "tile.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace heavy {

// Rows of 128 bytes, 8 rows a group, pieces permuted by the row: stride between groups 1024 bytes.
__device__ __forceinline__ uint64_t described(uint32_t address) {
    return uint64_t((address & 0x3ffff) >> 4) | uint64_t(1) << 16 | uint64_t(1024 >> 4) << 32 | uint64_t(1) << 62;
}

__device__ __forceinline__ void warpgroup_arrive() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void warpgroup_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Until all but the last LEFT groups of this warp's products are done.
template <int LEFT>
__device__ __forceinline__ void warpgroup_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

// What this thread wrote to shared memory is there for wgmma once the next barrier is passed.
__device__ __forceinline__ void show_to_tensor_cores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Sums may be read from here on: keeps the compiler from reading them before a wait.
template <int COUNT>
__device__ __forceinline__ void settle(float (&sums)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

// Sums in registers as wgmma's text names them, and as its operands: 32, 64 or 128 of them.
#define SUMS_32 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
                "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SUMS_64 SUMS_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
                        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define SUMS_128 SUMS_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
                         "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
                         "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
                         "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define OF_4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define OF_16(d, i) OF_4(d, i), OF_4(d, i + 4), OF_4(d, i + 8), OF_4(d, i + 12)
#define OF_32(d) OF_16(d, 0), OF_16(d, 16)
#define OF_64(d) OF_32(d), OF_16(d, 32), OF_16(d, 48)
#define OF_128(d) OF_64(d), OF_16(d, 64), OF_16(d, 80), OF_16(d, 96), OF_16(d, 112)

// sums[64 x 128] += a[64 x 16] b[128 x 16]^T
__device__ __forceinline__ void warpgroup_multiply_add(Bf16, float (&d)[64], uint64_t a, uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" SUMS_64 "}, %64, %65, 1, 1, 1, 0, 0;"
        : OF_64(d) : "l"(a), "l"(b));
}

// sums[64 x 256] += a[64 x 16] b[256 x 16]^T
__device__ __forceinline__ void warpgroup_multiply_add(Bf16, float (&d)[128], uint64_t a, uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" SUMS_128 "}, %128, %129, 1, 1, 1, 0, 0;"
        : OF_128(d) : "l"(a), "l"(b));
}

// The same of 8-bit numbers: as many bytes along k.

// sums[64 x 64] += a[64 x 32] b[64 x 32]^T
__device__ __forceinline__ void warpgroup_multiply_add(E4m3, float (&d)[32], uint64_t a, uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {" SUMS_32 "}, %32, %33, 1, 1, 1;"
        : OF_32(d) : "l"(a), "l"(b));
}

// sums[64 x 128] += a[64 x 32] b[128 x 32]^T
__device__ __forceinline__ void warpgroup_multiply_add(E4m3, float (&d)[64], uint64_t a, uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {" SUMS_64 "}, %64, %65, 1, 1, 1;"
        : OF_64(d) : "l"(a), "l"(b));
}

// sums[64 x 256] += a[64 x 32] b[256 x 32]^T
__device__ __forceinline__ void warpgroup_multiply_add(E4m3, float (&d)[128], uint64_t a, uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n256k32.f32.e4m3.e4m3 {" SUMS_128 "}, %128, %129, 1, 1, 1;"
        : OF_128(d) : "l"(a), "l"(b));
}

struct Hopper {
    static constexpr int BM = 128, BN = 128, THREADS = 128, STAGES = 3;
    static constexpr int A_BYTES = BM * PITCH, STAGE_BYTES = (BM + BN) * PITCH;
};

template <class Numbers = Bf16, class Tail, class CopyA, class CopyB>
__device__ __forceinline__ void product_hopper(CopyA& a, CopyB& b, const Tail& e, unsigned char* shared,
                                               uint32_t depth, uint32_t first_row, uint32_t rows, uint32_t first_col) {
    using T = Hopper;
    const uint32_t base = shared_address(shared), steps = (depth + DEPTH - 1) / DEPTH;
#pragma unroll
    for (int step = 0; step < T::STAGES - 1; ++step) {
        if (step < steps) {
            a.issue(base + step * T::STAGE_BYTES, step * DEPTH, depth);
            b.issue(base + step * T::STAGE_BYTES + T::A_BYTES, step * DEPTH, depth);
        }
        copy_commit();
    }
    float sums[2][64];
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 64; ++j) sums[i][j] = 0.0f;

    uint32_t slot = 0, ahead = T::STAGES - 1;
    for (uint32_t step = 0; step < steps; ++step) {
        copy_wait<T::STAGES - 2>();
        show_to_tensor_cores();
        __syncthreads();
        const uint64_t left = described(base + slot * T::STAGE_BYTES);
        const uint64_t right = described(base + slot * T::STAGE_BYTES + T::A_BYTES);
        warpgroup_arrive();
#pragma unroll
        for (int part = 0; part < DEPTH / 16; ++part)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                // In units of 16 bytes: 64 rows down, 16 elements along.
                warpgroup_multiply_add(Numbers{}, sums[i], left + i * (64 * PITCH >> 4) + part * 2, right + part * 2);
            }
        warpgroup_commit();
        if (step + T::STAGES - 1 < steps) {
            const uint32_t to = base + ahead * T::STAGE_BYTES;
            a.issue(to, (step + T::STAGES - 1) * DEPTH, depth);
            b.issue(to + T::A_BYTES, (step + T::STAGES - 1) * DEPTH, depth);
        }
        copy_commit();
        warpgroup_wait<0>();
        slot = slot + 1 == T::STAGES ? 0 : slot + 1;
        ahead = ahead + 1 == T::STAGES ? 0 : ahead + 1;
    }
    settle(sums[0]);
    settle(sums[1]);
    copy_wait<0>();
    __syncthreads();

    // A warp has rows 16 * warp ... + 15 of each half.
    const uint32_t warp = threadIdx.x / 32;
    float* slab = reinterpret_cast<float*>(shared) + warp * 32 * (T::BN + 8);
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 16; ++j) to_slab<T::BN + 8>(slab, i, j, &sums[i][4 * j]);
    const uint32_t row = first_row + warp * 16;
    const auto row_of = [=](uint32_t line) { return row + line / 16 * 64 + line % 16; };
    store_slab<32, T::BN>(slab, e, row_of, rows, first_col);
}

// A quarter of a tile by one warpgroup, for results with few tiles.
struct SmallHopper {
    static constexpr int BM = 64, BN = 64, THREADS = 128, STAGES = 4;
    static constexpr int A_BYTES = BM * PITCH, STAGE_BYTES = (BM + BN) * PITCH;
};

template <int BM_>
struct WideHopper {
    static constexpr int BM = BM_, BN = 256, THREADS = BM * 2, STAGES = 4;
    static constexpr int A_BYTES = BM * PITCH, STAGE_BYTES = (BM + BN) * PITCH;
};

template <class T, class Numbers = Bf16, class Tail, class CopyA, class CopyB>
__device__ __forceinline__ void product_wide(CopyA& a, CopyB& b, const Tail& e, unsigned char* shared,
                                             uint32_t depth, uint32_t first_row, uint32_t rows, uint32_t first_col) {
    const uint32_t base = shared_address(shared), steps = (depth + DEPTH - 1) / DEPTH;
    const auto copy = [&](uint32_t step) {
        if (step < steps) {
            const uint32_t to = base + step % T::STAGES * T::STAGE_BYTES;
            a.issue(to, step * DEPTH, depth);
            b.issue(to + T::A_BYTES, step * DEPTH, depth);
        }
        copy_commit();
    };
    copy(0);
    copy(1);
    float sums[T::BN / 2];
#pragma unroll
    for (int j = 0; j < T::BN / 2; ++j) sums[j] = 0.0f;
    const uint32_t half = threadIdx.x / 128;

    for (uint32_t step = 0; step < steps; ++step) {
        copy_wait<1>();
        show_to_tensor_cores();
        // From here on every warp is done with the products of step - 2, whose place the next copy takes.
        __syncthreads();
        const uint32_t at = base + step % T::STAGES * T::STAGE_BYTES;
        const uint64_t left = described(at + half * 64 * PITCH), right = described(at + T::A_BYTES);
        warpgroup_arrive();
#pragma unroll
        for (int part = 0; part < DEPTH / 16; ++part) warpgroup_multiply_add(Numbers{}, sums, left + part * 2, right + part * 2);
        warpgroup_commit();
        copy(step + 2);
        warpgroup_wait<1>();
    }
    warpgroup_wait<0>();
    settle(sums);
    copy_wait<0>();
    __syncthreads();

    const uint32_t warp = threadIdx.x / 32;
    float* slab = reinterpret_cast<float*>(shared) + warp * 16 * (T::BN + 8);
#pragma unroll
    for (int j = 0; j < T::BN / 8; ++j) to_slab<T::BN + 8>(slab, 0, j, &sums[4 * j]);
    const uint32_t row = first_row + warp * 16;
    const auto row_of = [=](uint32_t line) { return row + line; };
    store_slab<16, T::BN>(slab, e, row_of, rows, first_col);
}

}  // namespace heavy

#endif

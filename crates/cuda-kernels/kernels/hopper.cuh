// Tiles with Hopper's wgmma, which reads both operands from shared memory in the very layout of tile.cuh (its
// 128-byte swizzle). Sums have the bits of those of tile.cuh.
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

// sums[64 x 128] += a[64 x 16] b[128 x 16]^T
__device__ __forceinline__ void warpgroup_multiply_add(Bf16, float (&d)[64], uint64_t a, uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, "
        "%8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, "
        "%24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, "
        "%56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, 1, 1, 1, 0, 0;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
        : "l"(a), "l"(b));
}

// sums[64 x 256] += a[64 x 16] b[256 x 16]^T
__device__ __forceinline__ void warpgroup_multiply_add(Bf16, float (&d)[128], uint64_t a, uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, "
        "%8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, "
        "%24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, "
        "%56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, "
        "%72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, "
        "%88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, "
        "%104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, "
        "%120, %121, %122, %123, %124, %125, %126, %127}, "
        "%128, %129, 1, 1, 1, 0, 0;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]),
          "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]),
          "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]),
          "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]),
          "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]),
          "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]),
          "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]),
          "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]),
          "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
        : "l"(a), "l"(b));
}

// The same of 8-bit numbers: as many bytes along k.

// sums[64 x 64] += a[64 x 32] b[64 x 32]^T
__device__ __forceinline__ void warpgroup_multiply_add(E4m3, float (&d)[32], uint64_t a, uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, "
        "%8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, "
        "%24, %25, %26, %27, %28, %29, %30, %31}, "
        "%32, %33, 1, 1, 1;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "l"(a), "l"(b));
}

// sums[64 x 128] += a[64 x 32] b[128 x 32]^T
__device__ __forceinline__ void warpgroup_multiply_add(E4m3, float (&d)[64], uint64_t a, uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, "
        "%8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, "
        "%24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, "
        "%56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, 1, 1, 1;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
        : "l"(a), "l"(b));
}

// sums[64 x 256] += a[64 x 32] b[256 x 32]^T
__device__ __forceinline__ void warpgroup_multiply_add(E4m3, float (&d)[128], uint64_t a, uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n256k32.f32.e4m3.e4m3 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, "
        "%8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, "
        "%24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, "
        "%56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, "
        "%72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, "
        "%88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, "
        "%104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, "
        "%120, %121, %122, %123, %124, %125, %126, %127}, "
        "%128, %129, 1, 1, 1;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]),
          "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]),
          "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]),
          "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]),
          "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]),
          "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]),
          "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]),
          "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]),
          "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
        : "l"(a), "l"(b));
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

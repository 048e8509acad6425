// A tile of a product on the tensor cores: operands in bf16 or e4m3, f32 sums.
//
// Both operands stand in shared memory as rows of 64 elements, or pairs of e4m3, (128 bytes) whose 16-byte pieces are permuted by
// the row (piece ^ (row & 7)), so that neither copies nor ldmatrix meet in a bank. Copies run STAGES - 1 steps
// of 64 ahead; one barrier a step.

#pragma once

#include "heavy.cuh"

namespace heavy {

constexpr int DEPTH = 64;  // elements of k in one step
constexpr int PITCH = 128;  // bytes of a row of them

template <int BM_, int BN_, int WM_, int WN_, int STAGES_>
struct Tile {
    static constexpr int BM = BM_, BN = BN_, WM = WM_, WN = WN_, STAGES = STAGES_;
    static constexpr int WARPS_N = BN / WN;
    static constexpr int THREADS = BM / WM * WARPS_N * 32;
    static constexpr int MT = WM / 16, NT = WN / 8;
    static constexpr int A_BYTES = BM * PITCH, STAGE_BYTES = (BM + BN) * PITCH;
    static constexpr int SHARED_BYTES = STAGES * STAGE_BYTES;
    static constexpr int SLAB_PITCH = WN + 8;  // floats; 8 more than a multiple of 32 or 16 spreads the banks
    static_assert(BM * 8 % THREADS == 0 && BN * 8 % THREADS == 0, "each thread copies as much");
    static_assert(THREADS / 32 * WM * SLAB_PITCH * 4 <= SHARED_BYTES, "the slabs fit where the stages were");
};

// Copies rows of a matrix: thread t takes piece t % 8 of rows t / 8, t / 8 + THREADS / 8, ...
template <int ROWS, int THREADS>
struct RowCopy {
    static constexpr int COUNT = (ROWS * 8 + THREADS - 1) / THREADS, STRIDE = THREADS / 8;
    const uint16_t* from;
    size_t stride;
    uint32_t to;
    uint32_t present;  // bit i: row i of this thread exists

    __device__ __forceinline__ RowCopy(const uint16_t* matrix, uint32_t pitch, uint32_t first, uint32_t rows) {
        const uint32_t row = threadIdx.x / 8, piece = threadIdx.x % 8;
        from = matrix + size_t(first + row) * pitch + piece * 8;
        stride = size_t(STRIDE) * pitch;
        to = row * PITCH + ((piece ^ (row & 7)) << 4);
        present = 0;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) present |= uint32_t(first + row + i * STRIDE < rows) << i;
    }

    // The step whose first column is `at`; steps are asked for in order.
    __device__ __forceinline__ void issue(uint32_t slot, uint32_t at, uint32_t depth) {
        const bool within = at + (threadIdx.x % 8) * 8 < depth;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            if (ROWS % STRIDE != 0 && threadIdx.x / 8 + i * STRIDE >= ROWS) break;
            copy16(slot + to + i * STRIDE * PITCH, from + i * stride, within && (present >> i & 1) ? 16 : 0);
        }
        from += DEPTH;
    }
};

// Sums of this warp's part of the tile over all of k. `depth` is a multiple of 8.
template <class T, class Numbers = Bf16, class CopyA, class CopyB>
__device__ __forceinline__ void sum_tile(float (&sums)[T::MT][T::NT][4], CopyA& a, CopyB& b, uint32_t shared,
                                         uint32_t depth) {
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t steps = (depth + DEPTH - 1) / DEPTH;
#pragma unroll
    for (int i = 0; i < T::MT; ++i)
#pragma unroll
        for (int j = 0; j < T::NT; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) sums[i][j][e] = 0.0f;

#pragma unroll
    for (int step = 0; step < T::STAGES - 1; ++step) {
        if (step < steps) {
            a.issue(shared + step * T::STAGE_BYTES, step * DEPTH, depth);
            b.issue(shared + step * T::STAGE_BYTES + T::A_BYTES, step * DEPTH, depth);
        }
        copy_commit();
    }

    // Where this lane's rows of the fragments begin, and their pieces before a step's own permutation.
    const uint32_t a_row = warp / T::WARPS_N * T::WM + (lane & 15);
    const uint32_t b_row = warp % T::WARPS_N * T::WN + (lane & 7) + (T::NT > 1 ? (lane >> 4) << 3 : 0);
    const uint32_t a_base = a_row * PITCH, a_piece = ((lane >> 4) ^ (lane & 7)) << 4;
    const uint32_t b_base = T::A_BYTES + b_row * PITCH, b_piece = (((lane >> 3) & 1) ^ (lane & 7)) << 4;

    uint32_t slot = 0, ahead = T::STAGES - 1;
    for (uint32_t step = 0; step < steps; ++step) {
        copy_wait<T::STAGES - 2>();
        __syncthreads();
        const uint32_t at = shared + slot * T::STAGE_BYTES;
        uint32_t fa[2][T::MT][4], fb[2][(T::NT + 1) / 2][4];
        const auto load = [&](int part, int side) {
#pragma unroll
            for (int i = 0; i < T::MT; ++i) {
                load_x4(fa[side][i], at + a_base + i * 16 * PITCH + (a_piece ^ (part << 5)));
            }
            if constexpr (T::NT == 1) {
                load_x2(fb[side][0][0], fb[side][0][1], at + b_base + (b_piece ^ (part << 5)));
            } else {
#pragma unroll
                for (int j = 0; j < T::NT / 2; ++j) {
                    load_x4(fb[side][j], at + b_base + j * 16 * PITCH + (b_piece ^ (part << 5)));
                }
            }
        };
        load(0, 0);
        if (step + T::STAGES - 1 < steps) {
            const uint32_t to = shared + ahead * T::STAGE_BYTES;
            a.issue(to, (step + T::STAGES - 1) * DEPTH, depth);
            b.issue(to + T::A_BYTES, (step + T::STAGES - 1) * DEPTH, depth);
        }
        copy_commit();
#pragma unroll
        for (int part = 0; part < DEPTH / 16; ++part) {
            const int side = part & 1;
            if (part + 1 < DEPTH / 16) load(part + 1, side ^ 1);
#pragma unroll
            for (int i = 0; i < T::MT; ++i)
#pragma unroll
                for (int j = 0; j < T::NT; ++j)
                    multiply_add(Numbers{}, sums[i][j], fa[side][i], fb[side][j / 2][j % 2 * 2], fb[side][j / 2][j % 2 * 2 + 1]);
        }
        slot = slot + 1 == T::STAGES ? 0 : slot + 1;
        ahead = ahead + 1 == T::STAGES ? 0 : ahead + 1;
    }
    copy_wait<0>();
    __syncthreads();
}

// Fragment (i, j) of 16 x 8 sums to its place in a slab.
template <int PITCH_FLOATS>
__device__ __forceinline__ void to_slab(float* slab, int i, int j, const float* sums) {
    const uint32_t lane = threadIdx.x % 32;
    float* to = slab + (i * 16 + lane / 4) * PITCH_FLOATS + j * 8 + lane % 4 * 2;
    *reinterpret_cast<float2*>(to) = make_float2(sums[0], sums[1]);
    *reinterpret_cast<float2*>(to + 8 * PITCH_FLOATS) = make_float2(sums[2], sums[3]);
}

// Stores a warp's slab of LINES x COLS sums; a lane has eight columns of a row. Line i is row `row_of(i)`.
template <int LINES, int COLS, class Tail, class RowOf>
__device__ __forceinline__ void store_slab(const float* slab, const Tail& e, const RowOf& row_of, uint32_t rows,
                                           uint32_t first_col) {
    constexpr uint32_t PITCH_FLOATS = COLS + 8;
    __syncwarp();
    // Loops that stay loops: unrolled, they are most of the kernel's code and no faster.
    if (e.flags & FLAG_VECTOR) {
#pragma unroll 1
        for (uint32_t at = threadIdx.x % 32; at < LINES * COLS / 8; at += 32) {
            const uint32_t line = at / (COLS / 8), within = at % (COLS / 8) * 8, row = row_of(line);
            if (row < rows && first_col + within < e.cols) {
                float values[8];
                eight(slab, line * PITCH_FLOATS + within, true, values);
                store_eight(e, row, first_col + within, values);
            }
        }
    } else {
#pragma unroll 1
        for (uint32_t at = threadIdx.x % 32; at < LINES * COLS; at += 32) {
            const uint32_t line = at / COLS, within = at % COLS, row = row_of(line);
            if (row < rows && first_col + within < e.cols) {
                store_one(e, row, first_col + within, slab[line * PITCH_FLOATS + within]);
            }
        }
    }
}

template <class T, class Tail>
__device__ __forceinline__ void store_tile(float (&sums)[T::MT][T::NT][4], const Tail& e, void* shared,
                                           uint32_t first_row, uint32_t rows, uint32_t first_col) {
    const uint32_t warp = threadIdx.x / 32;
    float* slab = static_cast<float*>(shared) + warp * T::WM * T::SLAB_PITCH;
#pragma unroll
    for (int i = 0; i < T::MT; ++i)
#pragma unroll
        for (int j = 0; j < T::NT; ++j) to_slab<T::SLAB_PITCH>(slab, i, j, sums[i][j]);
    const uint32_t row = first_row + warp / T::WARPS_N * T::WM;
    const auto row_of = [=](uint32_t line) { return row + line; };
    store_slab<T::WM, T::WN>(slab, e, row_of, rows, first_col + warp % T::WARPS_N * T::WN);
}

// The tile of a block: GROUP rows of tiles are walked column by column, so that blocks that run at the same time
// share rows of both operands.
__device__ __forceinline__ void place_tile(uint32_t index, uint32_t tiles_m, uint32_t tiles_n, uint32_t& m, uint32_t& n) {
    constexpr uint32_t GROUP = 12;
    const uint32_t group = index / (GROUP * tiles_n), within = index % (GROUP * tiles_n);
    const uint32_t high = min(tiles_m - group * GROUP, GROUP);
    m = group * GROUP + within % high;
    n = within / high;
}

// ---- Any element type: f32 arithmetic without tensor cores ---------------------------------------------------

// 64 x 64 sums by 256 threads: each sum is one chain of fused multiply-adds along k. `a` and `b` give the element
// at (row, k), zero outside of the matrix.
template <class A, class B>
__device__ __forceinline__ void product_any(const A& a, const B& b, const Epilogue& e, uint32_t rows, uint32_t depth,
                                            uint32_t first_row, uint32_t first_col) {
    constexpr int STEP = 16;
    __shared__ __align__(16) float left[STEP][64 + 4];
    __shared__ __align__(16) float right[STEP][64 + 4];
    const uint32_t t = threadIdx.x, k = t % STEP, line = t / STEP;
    float sums[4][4] = {};
    float next_a[4], next_b[4];
    const auto fetch = [&](uint32_t at) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            next_a[i] = a(first_row + line + 16 * i, at + k);
            next_b[i] = b(first_col + line + 16 * i, at + k);
        }
    };
    fetch(0);
    for (uint32_t at = 0; at < depth; at += STEP) {
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 4; ++i) left[k][line + 16 * i] = next_a[i], right[k][line + 16 * i] = next_b[i];
        __syncthreads();
        if (at + STEP < depth) fetch(at + STEP);
#pragma unroll
        for (int p = 0; p < STEP; ++p) {
            const float4 x = *reinterpret_cast<const float4*>(&left[p][t / 16 * 4]);
            const float4 y = *reinterpret_cast<const float4*>(&right[p][t % 16 * 4]);
            const float xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
            for (int i = 0; i < 4; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j) sums[i][j] = __fmaf_rn(xs[i], ys[j], sums[i][j]);
        }
    }
    // By way of shared memory, so that the code of the epilogue is there once.
    __shared__ float done[64][64];
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) done[t / 16 * 4 + i][t % 16 * 4 + j] = sums[i][j];
    __syncthreads();
#pragma unroll 1
    for (uint32_t at = t; at < 64 * 64; at += 256) {
        const uint32_t row = first_row + at / 64, col = first_col + at % 64;
        if (row < rows && col < e.cols) store_one(e, row, col, done[at / 64][at % 64]);
    }
}

}  // namespace heavy

// Only for: sm_90a
//
// attention_128 with Hopper's wgmma: 128 queries of a head by two warpgroups of 64, keys in blocks of 128. The two
// take turns: in each phase one has the tensor cores (values of the last block, scores of the next), while the other
// makes weights of its scores. A barrier ends a phase.
//
// Queries, keys and values stand in shared memory as two panels of 64 columns each, rows of 128 bytes with their
// pieces permuted by the row: for the first product k runs along a row, for the second down the rows.

#include "attention.cuh"
#include "hopper.cuh"

using namespace heavy;

extern __shared__ __align__(1024) unsigned char shared[];

constexpr int QUERIES = 128, KEYS = 128, WIDTH = 128, THREADS = 256;
constexpr uint32_t PANEL = 128 * PITCH, TILE = 2 * PANEL;

// scores[64 x 128] (+)= a[64 x 16] b[128 x 16]^T; starts from zero where ADD is 0.
template <int ADD>
__device__ __forceinline__ void multiply_rows(float (&d)[64], uint64_t a, uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" SUMS_64 "}, %64, %65, %66, 1, 1, 0, 0;"
        : OF_64(d) : "l"(a), "l"(b), "n"(ADD));
}

// sums[64 x 128] += a[64 x 16] b[16 x 128], a in registers.
__device__ __forceinline__ void multiply_weights(float (&d)[64], const uint32_t (&a)[4], uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" SUMS_64 "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
        : OF_64(d) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// Columns of a panel's rows as k: 64 columns further lie one panel on, 8 rows further 1024 bytes.
__device__ __forceinline__ uint64_t described_down(uint32_t address) {
    return uint64_t((address & 0x3ffff) >> 4) | uint64_t(PANEL >> 4) << 16 | uint64_t(1024 >> 4) << 32 | uint64_t(1) << 62;
}

// 128 rows of 128 columns from row `first` on, zeros past the last.
__device__ __forceinline__ void copy_tile(uint32_t to, const uint16_t* from, uint32_t stride, uint32_t first, uint32_t rows) {
    const uint32_t row = threadIdx.x / 16, piece = threadIdx.x % 16;
    const uint16_t* at = from + size_t(first + row) * stride + piece * 8;
    to += piece / 8 * PANEL + row * PITCH + (((piece ^ row) & 7) << 4);
#pragma unroll
    for (int i = 0; i < 8; ++i) copy16(to + i * 16 * PITCH, at + size_t(i) * 16 * stride, first + row + i * 16 < rows ? 16 : 0);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) attention_128_hopper(ATTENTION_PARAMETERS) {
    const uint32_t lane = threadIdx.x % 32, half = threadIdx.x / 128;
    const uint32_t head = blockIdx.y, first = blockIdx.x * QUERIES;
    q += head * WIDTH, k += head * WIDTH, v += head * WIDTH, out += head * WIDTH;
    const uint32_t q_at = shared_address(shared), stages = q_at + TILE;
    const uint32_t blocks = (keys + KEYS - 1) / KEYS;
    const float factor = scale * LOG2_E;

    copy_tile(q_at, q, q_stride, first, queries);
    copy_tile(stages, k, k_stride, 0, keys);
    copy_commit();

    float sums[64], scores[64], highest[2] = {NO_SCORE, NO_SCORE}, total[2] = {0.0f, 0.0f};
    // Weights in bf16 as fragments: [2 j + side] is row side * 8 + lane / 4, keys j * 8 + lane % 4 * 2 and the next.
    uint32_t weights[32];
#pragma unroll
    for (int i = 0; i < 64; ++i) sums[i] = 0.0f;
    const uint64_t queries_at = described(q_at + half * 64 * PITCH);

    // Scores of `block`, begun.
    const auto begin_scores = [&](uint32_t block) {
        const uint64_t keys_at = described(stages + (block & 1) * TILE);
        multiply_rows<0>(scores, queries_at, keys_at);
#pragma unroll
        for (int part = 1; part < WIDTH / 16; ++part) {
            const uint32_t along = part / 4 * (PANEL >> 4) + part % 4 * 2;
            multiply_rows<1>(scores, queries_at + along, keys_at + along);
        }
    };

    // Weights of `block` times its values, begun.
    const auto begin_sums = [&](uint32_t block) {
        const uint64_t values_at = described_down(stages + 2 * TILE + (block & 1) * TILE);
#pragma unroll
        for (int part = 0; part < KEYS / 16; ++part) {
            const uint32_t fragment[4] = {weights[4 * part], weights[4 * part + 1], weights[4 * part + 2],
                                          weights[4 * part + 3]};
            multiply_weights(sums, fragment, values_at + part * (16 * PITCH >> 4));
        }
    };

    const auto finish = [&] {
        warpgroup_commit();
        warpgroup_wait<0>();
        settle(sums);
        settle(scores);
    };

    // Scores of `block` to weights, and the sums so far to the new highest score.
    const auto weigh = [&](uint32_t block) {
        // Element 4 j + e: row e / 2 * 8 + lane / 4, key j * 8 + lane % 4 * 2 + e % 2.
        if (block * KEYS + KEYS > keys) {
            const uint32_t key = block * KEYS + lane % 4 * 2;
#pragma unroll
            for (int i = 0; i < 64; ++i) {
                if (key + i / 4 * 8 + i % 2 >= keys) scores[i] = NO_SCORE;
            }
        }
#pragma unroll
        for (int side = 0; side < 2; ++side) {
            float top = highest[side];
#pragma unroll
            for (int j = 0; j < 16; ++j) top = fmaxf(top, fmaxf(scores[4 * j + 2 * side], scores[4 * j + 2 * side + 1]));
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
            const float shrink = power_of_two((highest[side] - top) * factor), offset = top * factor;
            highest[side] = top;
            float sum = 0.0f;
#pragma unroll
            for (int j = 0; j < 16; ++j) {
                const float even = power_of_two(__fmaf_rn(scores[4 * j + 2 * side], factor, -offset));
                const float odd = power_of_two(__fmaf_rn(scores[4 * j + 2 * side + 1], factor, -offset));
                sum += even + odd;
                weights[2 * j + side] = bf16_pair(even, odd);
            }
            total[side] = __fmaf_rn(total[side], shrink, sum);
#pragma unroll
            for (int j = 0; j < 16; ++j) sums[4 * j + 2 * side] *= shrink, sums[4 * j + 2 * side + 1] *= shrink;
        }
    };

    // Phases 2 j and 2 j + 1 are the first warpgroup's products and weights of block j; the second is one behind.
    // Copies are begun in even phases for use two phases on: what stood there was needed last in the phase before.
    const auto phase = [&](bool is_even, uint32_t block) {
        if (is_even) {
            copy_wait<0>();
            show_to_tensor_cores();
        }
        asm volatile("bar.sync 1, 256;" ::: "memory");
        if (is_even) {
            if (block + 1 < blocks) copy_tile(stages + (~block & 1) * TILE, k, k_stride, (block + 1) * KEYS, keys);
            if (block < blocks) copy_tile(stages + 2 * TILE + (block & 1) * TILE, v, v_stride, block * KEYS, keys);
            copy_commit();
        }
    };

    if (half == 1) phase(true, 0);
    phase(half == 0, 0);
    warpgroup_arrive();
    begin_scores(0);
    finish();
    phase(half == 1, 1);
    weigh(0);
    for (uint32_t block = 1; block < blocks; ++block) {
        phase(half == 0, block);
        warpgroup_arrive();
        begin_sums(block - 1);
        begin_scores(block);
        finish();
        phase(half == 1, block + 1);
        weigh(block);
    }
    phase(half == 0, blocks);
    warpgroup_arrive();
    begin_sums(blocks - 1);
    finish();
    if (half == 0) phase(false, blocks);
    copy_wait<0>();

#pragma unroll
    for (int side = 0; side < 2; ++side) {
        float sum = total[side];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        const float inverse = 1.0f / sum;
        const uint32_t row = first + threadIdx.x / 32 * 16 + side * 8 + lane / 4;
        if (row < queries) {
            uint16_t* to = out + size_t(row) * out_stride + lane % 4 * 2;
#pragma unroll
            for (int j = 0; j < 16; ++j) {
                *reinterpret_cast<uint32_t*>(to + j * 8) =
                    bf16_pair(sums[4 * j + 2 * side] * inverse, sums[4 * j + 2 * side + 1] * inverse);
            }
        }
    }
}

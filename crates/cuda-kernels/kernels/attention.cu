// Softmax attention per head.
//
// attention_128, attention_64 and attention_64_masked (causal, or with a bias by relative position): heads of that
// width, bf16, 16-byte aligned rows. A block has 128 queries of a head; keys go by in blocks of 64 from the first on
// with a running maximum and sum, so a query's bits depend on the keys alone.
// Source: Dao, FlashAttention-2 (arXiv 2307.08691), algorithm 1.
//
// Anything else is made of products (gemm.cu) over a band of queries: attention_softmax makes weights of a band's
// scores where they stand, attention_transpose gives the values' columns as rows.

#include "attention.cuh"

using namespace heavy;

extern __shared__ __align__(1024) unsigned char shared[];

constexpr int QUERIES = 128, KEYS = 64, THREADS = 128;

// Copies `ROWS` rows of D elements from row `first` on; zeros past the last row. Pieces are permuted by the row.
template <int D, int ROWS>
__device__ __forceinline__ void copy_rows(uint32_t to, const uint16_t* from, uint32_t stride, uint32_t first, uint32_t rows) {
    constexpr int PIECES = D / 8, STEP = THREADS / PIECES;
    const uint32_t row = threadIdx.x / PIECES, piece = threadIdx.x % PIECES;
    const uint16_t* at = from + size_t(first + row) * stride + piece * 8;
    to += row * D * 2 + ((piece ^ (row & 7)) << 4);
#pragma unroll
    for (int i = 0; i < ROWS / STEP; ++i) {
        copy16(to + i * STEP * D * 2, at + size_t(i) * STEP * stride, first + row + i * STEP < rows ? 16 : 0);
    }
}

// A head of width D; MASKED: with a bias or causal. Scores are kept times log2(e).
template <int D, bool MASKED>
__device__ __forceinline__ void attention(ATTENTION_PARAMETERS) {
    constexpr int MT = 2, NT = KEYS / 8, DT = D / 8;
    constexpr uint32_t BLOCK = KEYS * D * 2;
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t head = blockIdx.y, first = blockIdx.x * QUERIES;
    q += head * D, k += head * D, v += head * D, out += head * D;
    if (MASKED && bias) bias += size_t(head) * bias_stride;
    const uint32_t q_at = shared_address(shared), k_at = q_at + QUERIES * D * 2, v_at = k_at + 2 * BLOCK;

    uint32_t seen = keys;
    if (MASKED && causal) seen = min(keys, first + QUERIES);
    const uint32_t blocks = (seen + KEYS - 1) / KEYS;

    copy_rows<D, QUERIES>(q_at, q, q_stride, first, queries);
    copy_rows<D, KEYS>(k_at, k, k_stride, 0, keys);
    copy_rows<D, KEYS>(v_at, v, v_stride, 0, keys);
    copy_commit();

    float sums[MT][DT][4] = {};
    float highest[MT][2], total[MT][2] = {};
#pragma unroll
    for (int i = 0; i < MT; ++i) highest[i][0] = highest[i][1] = NO_SCORE;
    const float factor = scale * LOG2_E;

    // Rows of fragments: of queries and values by lane & 15, of keys by n.
    const uint32_t q_base = q_at + (warp * 32 + (lane & 15)) * D * 2, k_row = (lane & 7) + ((lane >> 4) << 3);
    uint32_t q_piece = ((lane >> 4) ^ (lane & 7)) << 4, k_piece = (((lane >> 3) & 1) ^ (lane & 7)) << 4;

    for (uint32_t block = 0; block < blocks; ++block) {
        copy_wait<0>();
        __syncthreads();
        const uint32_t side = block & 1;
        if (block + 1 < blocks) {
            copy_rows<D, KEYS>(k_at + (side ^ 1) * BLOCK, k, k_stride, (block + 1) * KEYS, keys);
            copy_rows<D, KEYS>(v_at + (side ^ 1) * BLOCK, v, v_stride, (block + 1) * KEYS, keys);
        }
        copy_commit();

        // As if new in every round: the addresses made of them are not worth registers for all of the loop.
        asm volatile("" : "+r"(q_piece), "+r"(k_piece));

        float scores[MT][NT][4] = {};
        const uint32_t k_base = k_at + side * BLOCK + k_row * D * 2;
#pragma unroll
        for (int part = 0; part < D / 16; ++part) {
            uint32_t fq[MT][4];
#pragma unroll
            for (int i = 0; i < MT; ++i) load_x4(fq[i], q_base + i * 16 * D * 2 + (q_piece ^ (32 * part)));
#pragma unroll
            for (int j = 0; j < NT / 2; ++j) {
                uint32_t fk[4];
                load_x4(fk, k_base + j * 16 * D * 2 + (k_piece ^ (32 * part)));
#pragma unroll
                for (int i = 0; i < MT; ++i) {
                    multiply_add(Bf16{}, scores[i][2 * j], fq[i], fk[0], fk[1]);
                    multiply_add(Bf16{}, scores[i][2 * j + 1], fq[i], fk[2], fk[3]);
                }
            }
        }

        // Element e of a fragment: row e / 2 * 8 + lane / 4, column lane % 4 * 2 + e % 2.
        const uint32_t key = block * KEYS + lane % 4 * 2, query = first + warp * 32 + lane / 4;
        if constexpr (MASKED) {
#pragma unroll
            for (int i = 0; i < MT; ++i)
#pragma unroll
                for (int j = 0; j < NT; ++j)
#pragma unroll
                    for (int e = 0; e < 4; ++e) {
                        const uint32_t row = query + i * 16 + e / 2 * 8, col = key + j * 8 + e % 2;
                        float score = scores[i][j][e] * factor;
                        if (bias && row < queries && col < keys) {
                            score = __fmaf_rn(bias[col - row + (bias_stride - 1) / 2], LOG2_E, score);
                        }
                        scores[i][j][e] = col >= keys || (causal && col > row) ? NO_SCORE : score;
                    }
        } else if (block * KEYS + KEYS > keys) {
#pragma unroll
            for (int j = 0; j < NT; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e)
                    if (key + j * 8 + e % 2 >= keys) scores[0][j][e] = scores[1][j][e] = NO_SCORE;
        }
        const float times = MASKED ? 1.0f : factor;

        // Weights in bf16 as fragments: pair [j][half] of query row half * 8 + lane / 4.
        uint32_t weights[MT][NT][2];
#pragma unroll
        for (int i = 0; i < MT; ++i)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float top = highest[i][half];
#pragma unroll
                for (int j = 0; j < NT; ++j) top = fmaxf(top, fmaxf(scores[i][j][2 * half], scores[i][j][2 * half + 1]));
                top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
                top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
                const float shrink = power_of_two((highest[i][half] - top) * times);
                highest[i][half] = top;
                const float offset = top * times;
                float sum = 0.0f;
#pragma unroll
                for (int j = 0; j < NT; ++j) {
                    const float even = power_of_two(__fmaf_rn(scores[i][j][2 * half], times, -offset));
                    const float odd = power_of_two(__fmaf_rn(scores[i][j][2 * half + 1], times, -offset));
                    sum += even + odd;
                    weights[i][j][half] = bf16_pair(even, odd);
                }
                total[i][half] = __fmaf_rn(total[i][half], shrink, sum);
#pragma unroll
                for (int j = 0; j < DT; ++j) sums[i][j][2 * half] *= shrink, sums[i][j][2 * half + 1] *= shrink;
            }

        const uint32_t v_base = v_at + side * BLOCK + (lane & 15) * D * 2;
#pragma unroll
        for (int part = 0; part < KEYS / 16; ++part) {
            uint32_t fp[MT][4];
#pragma unroll
            for (int i = 0; i < MT; ++i) {
                fp[i][0] = weights[i][2 * part][0], fp[i][1] = weights[i][2 * part][1];
                fp[i][2] = weights[i][2 * part + 1][0], fp[i][3] = weights[i][2 * part + 1][1];
            }
#pragma unroll
            for (int j = 0; j < DT / 2; ++j) {
                uint32_t fv[4];
                load_x4_transposed(fv, v_base + part * 16 * D * 2 + (q_piece ^ (32 * j)));
#pragma unroll
                for (int i = 0; i < MT; ++i) {
                    multiply_add(Bf16{}, sums[i][2 * j], fp[i], fv[0], fv[1]);
                    multiply_add(Bf16{}, sums[i][2 * j + 1], fp[i], fv[2], fv[3]);
                }
            }
        }
    }
    copy_wait<0>();

#pragma unroll
    for (int i = 0; i < MT; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float sum = total[i][half];
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            const float inverse = 1.0f / sum;
            const uint32_t row = first + warp * 32 + i * 16 + half * 8 + lane / 4;
            if (row < queries) {
                uint16_t* to = out + size_t(row) * out_stride + lane % 4 * 2;
#pragma unroll
                for (int j = 0; j < DT; ++j) {
                    *reinterpret_cast<uint32_t*>(to + j * 8) =
                        bf16_pair(sums[i][j][2 * half] * inverse, sums[i][j][2 * half + 1] * inverse);
                }
            }
        }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) attention_128(ATTENTION_PARAMETERS) {
    attention<128, false>(ATTENTION_ARGUMENTS);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) attention_64(ATTENTION_PARAMETERS) {
    attention<64, false>(ATTENTION_ARGUMENTS);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) attention_64_masked(ATTENTION_PARAMETERS) {
    attention<64, true>(ATTENTION_ARGUMENTS);
}

// Scores to weights in place, one row a block: f32 scores [rows, keys] become weights in f32 or bf16 from the row's
// first byte on, `padded` of them, zeros after the last key. Row r is query `first` + r.
extern "C" __global__ void __launch_bounds__(256)
    attention_softmax(char* scores, uint32_t stride, uint32_t keys, uint32_t padded, float scale, const float* bias,
                      uint32_t bias_stride, uint32_t first, uint32_t causal, uint32_t to_f32) {
    __shared__ float tops[8], sums[8];
    float* row = reinterpret_cast<float*>(scores) + size_t(blockIdx.x) * stride;
    const uint32_t query = first + blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t seen = causal ? min(keys, query + 1) : keys;
    const auto score = [&](uint32_t key) {
        const float plain = row[key] * (scale * LOG2_E);
        return bias ? __fmaf_rn(bias[key - query + (bias_stride - 1) / 2], LOG2_E, plain) : plain;
    };

    float top = NO_SCORE;
    for (uint32_t key = threadIdx.x; key < seen; key += 256) top = fmaxf(top, score(key));
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, mask));
    if (lane == 0) tops[warp] = top;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 8; ++i) top = fmaxf(top, tops[i]);

    float sum = 0.0f;
    for (uint32_t key = threadIdx.x; key < seen; key += 256) sum += exp2f(score(key) - top);
    sum = sum_lanes<32>(sum);
    if (lane == 0) sums[warp] = sum;
    __syncthreads();
    sum = sums[0];
#pragma unroll
    for (int i = 1; i < 8; ++i) sum += sums[i];
    const float inverse = 1.0f / sum;

    // A weight lies at or before its score, so a stretch is read before it is written.
    for (uint32_t at = 0; at < padded; at += 256) {
        const uint32_t key = at + threadIdx.x;
        const float weight = key < seen ? exp2f(score(key) - top) * inverse : 0.0f;
        __syncthreads();
        if (key < padded) {
            if (to_f32) {
                row[key] = weight;
            } else {
                reinterpret_cast<uint16_t*>(row)[key] = bf16_bits(weight);
            }
        }
    }
}

// to[c, r] = from[r, c] for r < rows, 0 up to `padded`; elements of 4 bytes or 2.
extern "C" __global__ void __launch_bounds__(256)
    attention_transpose(const char* from, uint32_t from_stride, char* to, uint32_t rows, uint32_t cols, uint32_t padded,
                        uint32_t is_wide) {
    __shared__ uint32_t tile[32][33];
    const uint32_t x = threadIdx.x % 32, y = threadIdx.x / 32, row = blockIdx.x * 32, col = blockIdx.y * 32;
#pragma unroll
    for (int i = 0; i < 32; i += 8) {
        const uint32_t r = row + y + i, c = col + x;
        const size_t at = size_t(r) * from_stride + c;
        uint32_t bits = 0;
        if (r < rows && c < cols) {
            bits = is_wide ? reinterpret_cast<const uint32_t*>(from)[at] : reinterpret_cast<const uint16_t*>(from)[at];
        }
        tile[y + i][x] = bits;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 32; i += 8) {
        const uint32_t r = row + x, c = col + y + i;
        if (r >= padded || c >= cols) continue;
        const size_t at = size_t(c) * padded + r;
        if (is_wide) {
            reinterpret_cast<uint32_t*>(to)[at] = tile[x][y + i];
        } else {
            reinterpret_cast<uint16_t*>(to)[at] = static_cast<uint16_t>(tile[x][y + i]);
        }
    }
}

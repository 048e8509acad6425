// The parameters of the attention kernels, see attention.cu.

#pragma once

#include "heavy.cuh"

constexpr float LOG2_E = 1.442695041f;
// Minus infinity.
#define NO_SCORE __int_as_float(0xff800000)

#define ATTENTION_PARAMETERS                                                                                      \
    const uint16_t *q, uint32_t q_stride, const uint16_t *k, uint32_t k_stride, const uint16_t *v,                \
        uint32_t v_stride, uint16_t *out, uint32_t out_stride, uint32_t queries, uint32_t keys, float scale,      \
        const float *bias, uint32_t bias_stride, uint32_t causal

#define ATTENTION_ARGUMENTS                                                                                       \
    q, q_stride, k, k_stride, v, v_stride, out, out_stride, queries, keys, scale, bias, bias_stride, causal

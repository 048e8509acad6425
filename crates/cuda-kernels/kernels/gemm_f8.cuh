// The parameters of the products of 8-bit operands, see gemm_f8.cu.

#pragma once

#include "gemm.cuh"

#define GEMM_F8_PARAMETERS GEMM_PARAMETERS, const float *x_scale, const float *w_scale
#define GEMM_F8_ARGUMENTS GEMM_ARGUMENTS, x_scale, w_scale

// Operands at this step; two numbers of 8 bits count as one of 16, so that copies are those of bf16.
#define GEMM_F8_AT_STEP                                                                                             \
    const ScaledEpilogue e = {{bias, at_step(gate, step, gate_step), at_step(base, step, base_step),                \
                               at_step(out, step, out_step), base_stride, out_stride, n, flags},                    \
                              x_scale,                                                                              \
                              w_scale};                                                                             \
    const uint16_t *x_pairs = reinterpret_cast<const uint16_t *>(x), *w_pairs = reinterpret_cast<const uint16_t *>(w)

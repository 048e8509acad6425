// The parameters of the product kernels, see gemm.cu.

#pragma once

#include "tile.cuh"

#define GEMM_PARAMETERS                                                                                          \
    char *x, uint32_t x_step, uint32_t x_stride, const char *w, uint32_t w_stride, const char *bias, char *gate, \
        uint32_t gate_step, char *base, uint32_t base_step, uint32_t base_stride, char *out, uint32_t out_step,  \
        uint32_t out_stride, const uint32_t *step, uint32_t m, uint32_t n, uint32_t k, uint32_t flags

#define GEMM_ARGUMENTS                                                                                           \
    x, x_step, x_stride, w, w_stride, bias, gate, gate_step, base, base_step, base_stride, out, out_step,        \
        out_stride, step, m, n, k, flags

// Operands at this step.
#define GEMM_AT_STEP                                                                                             \
    x = at_step(x, step, x_step);                                                                                \
    const Epilogue e = {bias,        at_step(gate, step, gate_step), at_step(base, step, base_step),             \
                        at_step(out, step, out_step), base_stride, out_stride, n, flags}

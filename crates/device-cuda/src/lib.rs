//! NVIDIA cards: context, arena, lanes, libraries; the only room that knows CUDA.

// The arena's pattern: how the highest touched byte is found without knowing the plan.
//
// The pattern is that of the CPU device: word `index` is splitmix64's finaliser of `index`, so that no run of
// equal words can match it. Both kernels run at the device's bandwidth; grids stride over the arena.

typedef unsigned long long u64;

__device__ __forceinline__ u64 pattern_word(u64 index) {
  u64 word = (index + 1) * 0x9E3779B97F4A7C15ull;
  word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9ull;
  return word ^ (word >> 31);
}

// Writes the pattern to `pairs` pairs of words from `base` on, which is aligned to 16.
extern "C" __global__ void __launch_bounds__(512) runtime_fill(ulonglong2* base, u64 pairs) {
  u64 stride = (u64)gridDim.x * blockDim.x;
  for (u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x; at < pairs; at += stride) {
      base[at] = make_ulonglong2(pattern_word(2 * at), pattern_word(2 * at + 1));
  }
}

// Raises `*highest` to one past the highest byte that differs from the pattern; the caller has set it to 0.
extern "C" __global__ void __launch_bounds__(512)
  runtime_scan(const ulonglong2* base, u64 pairs, u64* highest) {
  u64 end = 0;
  u64 stride = (u64)gridDim.x * blockDim.x;
  for (u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x; at < pairs; at += stride) {
      ulonglong2 found = base[at];
      u64 low = found.x ^ pattern_word(2 * at);
      u64 high = found.y ^ pattern_word(2 * at + 1);
      // `at` only grows, so the last difference that a thread sees is its highest.
      if (high != 0) {
      end = at * 16 + 16 - __clzll((long long)high) / 8;
      } else if (low != 0) {
      end = at * 16 + 8 - __clzll((long long)low) / 8;
      }
  }
  if (end != 0) {
      atomicMax(highest, end);
  }
}

// Keeps a stream busy for some nanoseconds; for tests of order.
extern "C" __global__ void runtime_delay(u64 nanoseconds) {
  u64 begin, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
      asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - begin < nanoseconds);
}
